"""Figure 6: one- and two-dimensional marginals of HMC and RNS-HMC on the simulated logistic regression.

The paper shows two pictures side by side and leaves it to the eye. Here both samplers are drawn into the same panels,
and `agreement` says, for all 50 parameters, whether they differ by more than chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.stats import gaussian_kde

from leapwise.paper.agreement import Agreement, compare
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import METHOD_TITLES, get_experiment
from leapwise.paper.figure import METHOD_COLOURS, open_picture
from leapwise.paper.moments import method_cell, moments_of

SHOWN = (0, 10, 20, 30, 40)
METHODS = ("hmc", "rns-hmc")
STYLES = {"hmc": "-", "rns-hmc": "--"}
MASSES = (0.5, 0.9)  # inside the contours
BINS = 40


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
        """What was found."""
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
        Where finished runs are kept.

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
    """Draw lines that hold given shares of the draws, from a smoothed histogram."""
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
