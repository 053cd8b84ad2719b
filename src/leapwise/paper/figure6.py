r"""Figure 6 and the agreement check: do two samplers draw from the same posterior?

For every parameter, means are compared in combined standard errors, and standard deviations by their ratio:

.. math::
    z = \frac{\bar a - \bar b}{\sqrt{\mathrm{se}(\bar a)^2 + \mathrm{se}(\bar b)^2}}, \qquad r = \frac{s_a}{s_b},

with Monte-Carlo standard errors that account for the correlation of draws.

**Figure 6** shows one- and two-dimensional marginals of HMC and RNS-HMC on the simulated logistic regression. The paper
has two pictures side by side. Here both samplers are drawn into the same panels, and all 50 parameters are compared.

**The agreement check** compares the surrogate methods with a long reference run on all parameters of the paper's four
experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.stats import gaussian_kde, norm

from leapwise.errors import InputError
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import EXPERIMENTS, METHOD_TITLES, get_experiment
from leapwise.paper.moments import CHECKED, PosteriorMoments, method_cell, moments, moments_of, reference
from leapwise.paper.reproductions import METHOD_COLOURS, open_picture

#: Limits of agreement. About 500 means are compared: one beyond 4 standard errors has a chance of 3 %.
MOST_ERRORS = 4.0
MOST_SD = 0.05  # of a standard deviation: small enough not to matter to a user
#: Figure 6 shows these parameters (from 0) of these two methods.
SHOWN = (0, 10, 20, 30, 40)
METHODS = ("hmc", "rns-hmc")
STYLES = {"hmc": "-", "rns-hmc": "--"}
MASSES = (0.5, 0.9)  # inside the contours
BINS = 40  # of the histogram along each side, before it is smoothed


@dataclass(frozen=True, eq=False)
class Agreement:
    """How two samplers compare, for each parameter.

    Attributes
    ----------
    z : ndarray of shape (dim,)
        Difference of means in combined standard errors.
    sd_ratio, sd_ratio_error : ndarray of shape (dim,)
        First standard deviation over the second, and its standard error.
    """

    z: np.ndarray
    sd_ratio: np.ndarray
    sd_ratio_error: np.ndarray

    @property
    def worst_z(self) -> float:
        """The largest difference of means, in combined standard errors."""
        return float(np.abs(self.z).max())

    @property
    def p_value(self) -> float:
        r"""Chance of this or a larger difference among all means if the posteriors are equal (Šidák)."""
        return float(-np.expm1(self.z.size * np.log1p(-2.0 * norm.sf(self.worst_z))))

    @property
    def worst_sd(self) -> float:
        """The ratio of standard deviations that is furthest from 1, minus 1."""
        off = self.sd_ratio - 1.0
        return float(off[np.abs(off).argmax()])

    @property
    def worst_sd_z(self) -> float:
        """The largest |ratio - 1| in its own standard errors."""
        return float(np.abs((self.sd_ratio - 1.0) / self.sd_ratio_error).max())

    @property
    def verdict(self) -> Literal["yes", "no", "too few draws"]:
        """Whether all means are within 4 combined standard errors and all standard deviations within 5 %.

        There are too few draws if standard deviations differ by more than 5 % but less than 4 of their standard errors.
        """
        if self.worst_z > MOST_ERRORS:
            return "no"
        if abs(self.worst_sd) <= MOST_SD:
            return "yes"
        return "too few draws" if self.worst_sd_z <= MOST_ERRORS else "no"


def compare(a: PosteriorMoments, b: PosteriorMoments) -> Agreement:
    """Compare two sets of moments; see `agreement`."""
    if a.mean.shape != b.mean.shape:
        raise InputError(
            f"both must have the same parameters, got {a.mean.size} and {b.mean.size}; compare runs of one target"
        )
    ratio = a.sd / b.sd
    error = ratio * np.hypot(a.sd_error / a.sd, b.sd_error / b.sd)
    return Agreement((a.mean - b.mean) / np.hypot(a.mean_error, b.mean_error), ratio, error)


def agreement(draws_a: np.ndarray, draws_b: np.ndarray) -> Agreement:
    """Compare two sets of draws ``(chains, draws, dim)`` of the same posterior.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> a, b = rng.normal(size=(2, 4, 2500, 3))
    >>> agreement(a, b).verdict, agreement(a, b + 0.1).verdict, agreement(a, 1.1 * b).verdict
    ('yes', 'no', 'no')
    """
    return compare(moments(draws_a), moments(draws_b))


@dataclass(frozen=True, eq=False)
class AgreementCheck:
    """Whether surrogate methods agree with exact HMC.

    Attributes
    ----------
    rows : list of dict
        For each experiment and method, the worst of all its parameters.
    found : dict of (str, str) to Agreement
        All comparisons, by experiment and method.
    """

    rows: list[dict[str, Any]]
    found: dict[tuple[str, str], Agreement]

    @property
    def caption(self) -> str:
        """The result in words."""
        n = sum(each.z.size for each in self.found.values())
        worst_z = max(each.worst_z for each in self.found.values())
        worst_sd = max((each.worst_sd for each in self.found.values()), key=abs)
        verdict = " ".join(
            text.format(", ".join(out))
            for kind, text in (
                ("no", "Not in agreement: {}."),
                ("too few draws", "Too few draws to decide: {}."),
            )
            if (
                out := [
                    f"{row['method']} on {row['experiment']}" for row in self.rows if row["agrees"] == kind
                ]
            )
        )
        return (
            f"Of {n} means the worst is {worst_z:.1f} combined standard errors from exact HMC's (limit "
            f"{MOST_ERRORS:g}), and of as many standard deviations the worst is off by {worst_sd:+.1%} (limit "
            f"{MOST_SD:.0%}). {verdict or 'All agree.'}"
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw every parameter's difference. Needs the extra ``plots``."""
        file, figure = open_picture(path, 12.0, 4.8)
        figure.suptitle("Surrogate methods against a long run of exact HMC, one point for each parameter")
        means, sds = figure.subplots(1, 2)
        for panel, limit in ((means, MOST_ERRORS), (sds, 100 * MOST_SD)):
            panel.axhspan(-limit, limit, color="0.93", zorder=0)
            panel.axhline(0.0, color="0.6", linewidth=0.8)
        for place, ((experiment, method), each) in enumerate(self.found.items()):
            spread = place + np.linspace(-0.32, 0.32, each.z.size)
            style = {"color": METHOD_COLOURS[method], "markersize": 3, "linestyle": "none", "marker": "o"}
            label = METHOD_TITLES[method] if experiment == next(iter(self.found))[0] else None
            means.plot(spread, each.z, label=label, **style)
            sds.errorbar(
                spread,
                100 * (each.sd_ratio - 1),
                100 * each.sd_ratio_error,
                elinewidth=0.5,
                alpha=0.8,
                **style,
            )
        for panel in (means, sds):
            self._name_experiments(panel)
        means.set(
            ylabel="difference of means (combined standard errors)", title="means; shaded: 4 standard errors"
        )
        sds.set(ylabel="difference of standard deviations (%)", title="standard deviations; shaded: 5 %")
        means.legend(loc="upper left", ncols=3, fontsize=8)
        low, high = means.get_ylim()
        means.set_ylim(min(low, -5.0), max(high, 5.8))
        figure.savefig(file, dpi=150)
        return file

    def _name_experiments(self, panel: Any) -> None:
        names = [experiment for experiment, _ in self.found]
        each = {name: [i for i, other in enumerate(names) if other == name] for name in names}
        panel.set_xticks([float(np.mean(at)) for at in each.values()], list(each))
        for at in list(each.values())[1:]:
            panel.axvline(at[0] - 0.5, color="0.8", linewidth=0.8)
        panel.margins(x=0.02)


def agreement_check(
    quick: bool = False,
    cells: Cells | None = None,
    experiment: str | None = None,
    method: str | None = None,
) -> AgreementCheck:
    """Compare RNS-HMC, RNS-RMHMC and frozen ARNS-HMC with the reference run.

    Parameters
    ----------
    quick : bool
        Fewer draws: large differences show, but standard deviations are not known to 5 %.
    cells : Cells, optional
        Keeps finished runs.
    experiment, method : str, optional
        Only this one.

    Examples
    --------
    >>> agreement_check(quick=True, experiment="bank", method="rns-hmc").rows[0]["agrees"]  # doctest: +SKIP
    'yes'
    """
    if method is not None and method not in CHECKED:
        raise InputError(
            f"there is no method {method!r} to compare with HMC; the known ones are {', '.join(CHECKED)}"
        )
    cells = Cells() if cells is None else cells
    names = list(EXPERIMENTS) if experiment is None else [get_experiment(experiment).name]
    rows, found = [], {}
    for name in names:
        chosen = get_experiment(name)
        exact = reference(chosen, quick, cells)
        for each in CHECKED if method is None else (method,):
            cell = method_cell(chosen, each, quick, cells)
            found[name, each] = compare(moments_of(cell), exact)
            rows.append({"experiment": name, "method": each, **_row(cell, found[name, each], exact)})
    return AgreementCheck(rows, found)


def _row(cell: dict[str, Any], found: Agreement, exact: PosteriorMoments) -> dict[str, Any]:
    return {
        "parameters": found.z.size,
        "draws": cell["n_draws"],
        "acceptance": cell["acceptance"],
        "min_ess": float(cell["ess"].min()),
        "hmc_min_ess": float(exact.ess.min()),
        "worst_mean_z": found.worst_z,
        "mean_p_value": found.p_value,
        "worst_sd_off": found.worst_sd,
        "sd_standard_error": float(found.sd_ratio_error[np.abs(found.sd_ratio - 1).argmax()]),
        "worst_sd_z": found.worst_sd_z,
        "agrees": found.verdict,
    }


@dataclass(frozen=True, eq=False)
class Figure6:
    """The numbers of figure 6.

    Attributes
    ----------
    rows : list of dict
        For each parameter, means and standard deviations of both samplers and how they compare.
    found : Agreement
        The comparison of all parameters, RNS-HMC against HMC.
    draws : dict of str to ndarray of shape (n, 5)
        Draws of the parameters that are shown, by method.
    acceptance : dict of str to float
    """

    rows: list[dict[str, Any]]
    found: Agreement
    draws: dict[str, np.ndarray]
    acceptance: dict[str, float]

    @property
    def caption(self) -> str:
        """The result in words."""
        found = self.found
        return (
            f"HMC (acceptance {self.acceptance['hmc']:.2f}) and RNS-HMC ({self.acceptance['rns-hmc']:.2f}): the "
            f"largest difference of {found.z.size} means is {found.worst_z:.1f} combined standard errors (chance of "
            f"that or more if both are right: {found.p_value:.2f}); of the standard deviations it is "
            f"{found.worst_sd:+.1%}, and the largest in its own standard errors {found.worst_sd_z:.1f}."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw both samplers into one corner plot. Needs the extra ``plots``."""
        file, figure = open_picture(path, 10.0, 10.0)
        n = len(SHOWN)
        axes = figure.subplots(n, n, sharex="col")
        both = np.concatenate(list(self.draws.values()))
        limits = np.quantile(both, (0.0005, 0.9995), axis=0).T
        for i in range(n):
            for j in range(n):
                if j > i:
                    axes[i, j].set_axis_off()
                    continue
                for method, draws in self.draws.items():
                    if i == j:
                        _density(axes[i, j], method, draws[:, i], limits[i])
                    else:
                        _contours(axes[i, j], method, draws[:, [j, i]], limits[[j, i]])
                _label(axes[i, j], i, j)
        figure.suptitle(self._title())
        _legend(figure, axes)
        figure.savefig(file, dpi=150)
        return file

    def _title(self) -> str:
        found = self.found
        return (
            "Logistic regression, simulated data: marginals of HMC and RNS-HMC\n"
            f"all {found.z.size} means within {found.worst_z:.1f} combined standard errors "
            f"(p = {found.p_value:.2f})\n"
            f"all standard deviations within {abs(found.worst_sd):.1%} and "
            f"{found.worst_sd_z:.1f} of their standard errors"
        )


def figure6(quick: bool = False, cells: Cells | None = None) -> Figure6:
    """Draw from the simulated logistic regression by HMC and RNS-HMC, and compare.

    Parameters
    ----------
    quick : bool
        Fewer draws.
    cells : Cells, optional
        Keeps finished runs.

    Examples
    --------
    >>> figure6(quick=True).found.worst_z < 4  # doctest: +SKIP
    True
    """
    cells = Cells() if cells is None else cells
    experiment = get_experiment("simulated")
    runs = {method: method_cell(experiment, method, quick, cells, SHOWN) for method in METHODS}
    hmc, rns = (moments_of(runs[method]) for method in METHODS)
    found = compare(rns, hmc)
    rows = [
        {
            "parameter": f"beta_{i + 1}",
            "hmc_mean": float(hmc.mean[i]),
            "rns_hmc_mean": float(rns.mean[i]),
            "z": float(found.z[i]),
            "hmc_sd": float(hmc.sd[i]),
            "rns_hmc_sd": float(rns.sd[i]),
            "sd_ratio": float(found.sd_ratio[i]),
            "sd_ratio_error": float(found.sd_ratio_error[i]),
        }
        for i in range(len(found.z))
    ]
    draws = {method: run["draws"].reshape(-1, len(SHOWN)) for method, run in runs.items()}
    return Figure6(rows, found, draws, {method: run["acceptance"] for method, run in runs.items()})


def _density(panel: Any, method: str, draws: np.ndarray, limits: np.ndarray) -> None:
    grid = np.linspace(limits[0], limits[1], 120)
    panel.plot(grid, gaussian_kde(draws)(grid), STYLES[method], color=METHOD_COLOURS[method])
    panel.set_xlim(*limits)


def _contours(panel: Any, method: str, pair: np.ndarray, limits: np.ndarray) -> None:
    """Draw contours that hold given shares of the draws, from a smoothed histogram."""
    density, x, y = np.histogram2d(pair[:, 0], pair[:, 1], bins=BINS, range=limits)
    density = gaussian_filter(density, BINS / 16, mode="constant")
    ordered = np.sort(density.ravel())[::-1]
    inside = np.cumsum(ordered) / ordered.sum()
    levels = [ordered[np.searchsorted(inside, mass)] for mass in sorted(MASSES, reverse=True)]
    middle_x, middle_y = (0.5 * (edges[1:] + edges[:-1]) for edges in (x, y))
    panel.contour(
        middle_x,
        middle_y,
        density.T,
        levels=levels,
        colors=METHOD_COLOURS[method],
        linestyles=STYLES[method],
        linewidths=1.2,
    )
    panel.set(xlim=limits[0], ylim=limits[1])


def _label(panel: Any, i: int, j: int) -> None:
    last = i == len(SHOWN) - 1
    panel.tick_params(labelsize=7, labelbottom=last, labelleft=j == 0 and i > 0)
    if i == j:
        panel.set_yticks([])
        panel.set_ylim(bottom=0.0)
    if last:
        panel.set_xlabel(rf"$\beta_{{{SHOWN[j] + 1}}}$")
    if j == 0:
        panel.set_ylabel("density" if i == 0 else rf"$\beta_{{{SHOWN[i] + 1}}}$")


def _legend(figure: Any, axes: Any) -> None:
    lines = [axes[0, 0].plot([], [], STYLES[method], color=METHOD_COLOURS[method])[0] for method in METHODS]
    names = [METHOD_TITLES[method] for method in METHODS]
    title = "contours hold " + " and ".join(f"{mass:.0%}" for mass in MASSES) + " of the draws"
    figure.legend(lines, names, title=title, loc="upper right", bbox_to_anchor=(0.95, 0.9), frameon=False)
