r"""Plots of a run: marginals and traces of parameters, and how good the surrogate was.

`plot_surrogate` shows, left, exact against predicted potentials at the proposals of the draws: a perfect surrogate puts
them on a line of slope one. Right, sd(D) during warm-up, beside the acceptance of far moves that belongs to it,
:math:`\mathrm{erfc}(\mathrm{sd}(D) / 2)`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.errors import InputError, MissingExtraError
from leapwise.results.datatree import require_writable
from leapwise.results.statistics import Statistics, spread, statistics

if TYPE_CHECKING:
    from leapwise.results.run import Run

#: Parameters that fit on one page.
MOST_SHOWN = 8
#: One for each chain, used again from the first after six.
COLOURS = ("#2f6690", "#d1495b", "#edae49", "#3a9188", "#7d5ba6", "#8d99ae")


ACCEPTED, REJECTED = COLOURS[0], COLOURS[1]
#: Share of proposals on either side that may lie outside the plot, so that a few outliers do not shrink the rest.
LEFT_OUT = 0.001
#: Ticks at acceptances that a reader looks for, and the least distance between two, as a share of the axis: labels of
#: 8 points then do not overlap.
ACCEPTANCES, TICKS_APART = (0.999, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1), 0.05


def plot_draws(run: Run, path: str | os.PathLike[str]) -> Path:
    """Plot a histogram and a trace of each parameter, each chain in its own colour.

    Of more than eight parameters, those with the fewest effective draws are shown. Needs the extra ``plots``.

    Parameters
    ----------
    run : Run
        With at least one draw.
    path : path
        The ending chooses the format: .png, .pdf, .svg.
    """
    file = require_picture(path)
    if not run.draws.shape[1]:
        raise InputError(
            "there are no draws to plot, since the run was interrupted during warm-up; run it again"
        )
    # Without pyplot, the user's own figures and backend are left alone.
    from matplotlib.figure import Figure

    found, dim = statistics(run.draws), run.draws.shape[2]
    shown = np.arange(dim) if dim <= MOST_SHOWN else np.sort(found.worst_first()[:MOST_SHOWN])
    figure = Figure(figsize=(9, 0.6 + 1.25 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 2))
    for (left, right), i in zip(axes, shown, strict=True):
        _marginal(left, run.draws[:, :, i], run.parameter_names[i])
        _trace(right, run.draws[:, :, i], last=i == shown[-1])
        right.set_title(_numbers(found, i), loc="right", fontsize=8, color="0.35")
    chains, n, _ = run.draws.shape
    note = f", the worst {MOST_SHOWN} of {dim} parameters" if dim > MOST_SHOWN else ""
    figure.suptitle(f"chains: {chains}, draws of each: {n}{note}", fontsize=10)
    figure.savefig(file, dpi=150)
    return file


def require_picture(path: str | os.PathLike[str]) -> Path:
    """Return `path` if matplotlib is installed and can write such a file."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed; pip install 'leapwise[plots]'"
        )
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise InputError(
            f"cannot write the plot {path}: the name must end in .png, .pdf, .svg or another of {', '.join(known)}"
        )
    return require_writable(path)


def _numbers(found: Statistics, i: int) -> str:
    values = {"mean": found.mean, "sd": found.sd, "ESS": found.ess, "R-hat": found.rhat}
    formats = {"mean": ".3g", "sd": ".3g", "ESS": ".0f", "R-hat": ".3f"}
    known = {name: each[i] for name, each in values.items() if np.isfinite(each[i])}
    return ", ".join(f"{name} {value:{formats[name]}}" for name, value in known.items())


def _marginal(axes: Any, draws: np.ndarray, name: str) -> None:
    edges = np.histogram_bin_edges(draws, bins=40)
    for chain, colour in zip(draws, _colours(len(draws)), strict=True):
        axes.hist(chain, bins=edges, histtype="step", color=colour, linewidth=0.9)
    axes.set_ylabel(name, rotation=0, ha="right", va="center", parse_math=False)
    axes.set_yticks([])
    axes.tick_params(labelsize=7)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _trace(axes: Any, draws: np.ndarray, *, last: bool) -> None:
    for chain, colour in zip(draws, _colours(len(draws)), strict=True):
        axes.plot(chain, color=colour, linewidth=0.4, alpha=0.8)
    axes.margins(x=0)
    axes.tick_params(labelsize=7, labelbottom=last)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
    if last:
        axes.set_xlabel("draw", fontsize=8)


def _colours(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def plot_surrogate(run: Run, path: str | os.PathLike[str]) -> Path:
    """Plot exact against predicted potentials, and sd(D) during warm-up; needs the extra ``plots``.

    Parameters
    ----------
    run : Run
        Self-tuned, or with draws of a `SurrogateTransition`.
    path : path
        The ending chooses the format: .png, .pdf, .svg.
    """
    file = require_picture(path)
    exact, predicted, accepted = _proposals(run)
    history = np.empty((0, 2)) if run.surrogate is None else run.surrogate.history
    history = history[np.isfinite(history).all(axis=1)]
    if not exact.size and not len(history):
        raise InputError(
            "there is no surrogate to plot, since the run has no proposals of one; leave method= out, or give Auto()"
        )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    if exact.size:
        _potentials(left, exact, predicted, accepted)
        left.set_title(f"draws: sd(D) = {spread(exact - predicted):.2g}", fontsize=10)
    else:
        _empty(left, "the surrogate\nproposed no draws")
    if len(history):
        _learning(right, history, spread(exact - predicted))
        kind = "" if run.surrogate is None else f": {run.surrogate.kind}"
        right.set_title(f"warm-up{kind}", fontsize=10)
    else:
        _empty(right, "no history of warm-up")
    figure.savefig(file, dpi=150)
    return file


def _proposals(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return exact and predicted potentials, both minus the lowest exact one, and which were accepted."""
    stats = run.posterior.stats
    if "proposal_potential" not in stats or "discrepancy" not in stats:
        return np.empty(0), np.empty(0), np.empty(0, bool)
    exact, discrepancy = stats["proposal_potential"], stats["discrepancy"]
    known = np.isfinite(exact) & np.isfinite(discrepancy)
    lowest = exact[known].min(initial=np.inf)
    exact = exact[known] - lowest
    return exact, exact - discrepancy[known], stats["accepted"][known]


def _potentials(axes: Any, exact: np.ndarray, predicted: np.ndarray, accepted: np.ndarray) -> None:
    # Constants cancel in acceptance, so the median discrepancy is on the line.
    usual = float(np.median(exact - predicted))
    both = np.stack([predicted + usual, exact])
    low, high = np.quantile(both, (LEFT_OUT, 1.0 - LEFT_OUT))
    view = low - 0.1 - 0.1 * (high - low), high + 0.1 + 0.1 * (high - low)
    axes.plot(view, view, color="0.6", linewidth=0.8)
    for which, colour, name in ((accepted, ACCEPTED, "accepted"), (~accepted, REJECTED, "rejected")):
        label = f"{name} ({int(which.sum()):,})"
        axes.plot(*both[:, which], ".", ms=4, alpha=0.6, color=colour, label=label, mew=0)
    outside = int(((both < view[0]) | (both > view[1])).any(axis=0).sum())
    axes.set(xlim=view, ylim=view, xlabel="surrogate potential at proposals", ylabel="exact potential")
    axes.set_aspect("equal")
    axes.legend(
        loc="upper left",
        fontsize=8,
        frameon=False,
        markerscale=3,
        title=f"{outside} outside the plot" if outside else None,
        title_fontsize=8,
    )
    _tidy(axes)


def _learning(axes: Any, history: np.ndarray, now: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    from scipy.special import erfcinv

    axes.plot(history[:, 0], history[:, 1], color=ACCEPTED, marker="o", ms=3, linewidth=1, label="in warm-up")
    if np.isfinite(now) and now > 0:
        axes.axhline(now, color=REJECTED, linewidth=1, linestyle="--", label="at draws")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda sd, _: f"{sd:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(0.0, 1.03 * history[-1, 0])
    axes.set(xlabel="exact evaluations", ylabel="sd(D)")
    axes.legend(loc="best", fontsize=8, frameon=False)
    second = axes.twinx()
    second.set_yscale("log")
    second.set_ylim(axes.get_ylim())
    low, high = axes.get_ylim()
    ticks = {rate: 2.0 * float(erfcinv(rate)) for rate in ACCEPTANCES}
    shown = _legible({rate: sd for rate, sd in ticks.items() if low <= sd <= high}, low, high)
    second.set_yticks(list(shown.values()), [f"{rate:g}" for rate in shown], fontsize=8)
    second.set_yticks([], minor=True)
    second.set_ylabel("acceptance of far moves")
    _tidy(axes)
    second.spines["top"].set_visible(False)


def _legible(ticks: dict[float, float], low: float, high: float) -> dict[float, float]:
    """Return the ticks of a logarithmic axis that are far enough apart to be read, the largest first."""
    least = TICKS_APART * np.log(high / low)
    chosen: dict[float, float] = {}
    for rate, sd in sorted(ticks.items(), key=lambda each: -each[1]):
        if all(abs(np.log(sd / other)) >= least for other in chosen.values()):
            chosen[rate] = sd
    return chosen


def _empty(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="0.35")
    axes.set_axis_off()


def _tidy(axes: Any) -> None:
    axes.tick_params(labelsize=8)
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)
