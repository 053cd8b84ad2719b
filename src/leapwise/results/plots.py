"""A picture of any run: marginals and traces of the parameters that are known worst."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.errors import InputError, MissingExtraError
from leapwise.results.datatree import require_writable
from leapwise.results.statistics import Statistics, statistics

if TYPE_CHECKING:
    from leapwise.results.run import Run

MOST_SHOWN = 8
COLOURS = ("#2f6690", "#d1495b", "#edae49", "#3a9188", "#7d5ba6", "#8d99ae")


def plot_draws(run: Run, path: str | os.PathLike[str]) -> Path:
    """Draw a histogram and a trace for each parameter, the chains in colours of their own.

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
        raise InputError("there are no draws to plot: the run was interrupted during warm-up")
    # No pyplot: nothing of the user's own figures or backend is touched.
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
    """Return `path` if matplotlib is there and can write such a file."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots need matplotlib, which is not installed; pip install leapwise[plots]")
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise InputError(
            f"cannot draw {path}: the name must end in .png, .pdf, .svg or another of {', '.join(known)}"
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
