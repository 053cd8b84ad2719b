"""How figures 4 and 5 draw acceptance: a map with its numbers, and cuts through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from leapwise.paper.figure import OKABE_ITO

COLOUR_MAP = "cividis"  # of even lightness steps, readable by colour-blind readers and in grey


CUT_COLOURS = {
    "network": OKABE_ITO["vermillion"],
    "unscaled": OKABE_ITO["purple"],
    "quadratic": OKABE_ITO["sky"],
    "exact": OKABE_ITO["black"],
}


def draw_map(
    figure: Any, panel: Any, columns: Sequence[int], rows: Sequence[int], values: np.ndarray
) -> None:
    """Draw acceptances ``(rows, columns)`` as equal boxes with their numbers; the first row is at the bottom."""
    image = panel.imshow(values, origin="lower", aspect="auto", cmap=COLOUR_MAP, vmin=0.0, vmax=0.8)
    panel.set_xticks(range(len(columns)), [str(each) for each in columns])
    panel.set_yticks(range(len(rows)), [str(each) for each in rows])
    for (i, j), value in np.ndenumerate(values):
        colour = "black" if value > 0.45 else "white"
        panel.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=panel, fraction=0.05, pad=0.02)


def draw_curve(panel: Any, columns: Sequence[int], rows: Sequence[int], x: np.ndarray, y: np.ndarray) -> None:
    """Draw a curve through a map, given in its numbers of units (along) and of whatever goes up."""
    inside = (x >= columns[0]) & (x <= columns[-1]) & (y >= rows[0]) & (y <= rows[-1])
    along = np.interp(np.log(x[inside]), np.log(columns), np.arange(len(columns)))
    up = np.interp(y[inside], rows, np.arange(len(rows)))
    panel.plot(along, up, color="white", linewidth=4)
    panel.plot(along, up, color=CUT_COLOURS["network"], linewidth=1.8)


def nearest(values: Sequence[int], wanted: int) -> int:
    """Return where the value nearest to the wanted one is."""
    return int(np.argmin(np.abs(np.array(values) - wanted)))


def spread(runs: np.ndarray) -> dict[str, float]:
    """Return mean, lowest and highest acceptance of some runs, as columns of a table."""
    return {
        "acceptance": float(runs.mean()),
        "lowest": float(runs.min()),
        "highest": float(runs.max()),
        "runs": len(runs),
    }


def draw_cut(
    panel: Any, x: Sequence[int], runs: np.ndarray, *, label: str, colour: str, marker: str = "o"
) -> None:
    """Draw the mean over runs ``(len(x), runs)``, with bars from the lowest run to the highest."""
    mean = runs.mean(axis=1)
    bars = np.array([mean - runs.min(axis=1), runs.max(axis=1) - mean])
    panel.errorbar(x, mean, bars, marker=marker, color=colour, capsize=3, markersize=5, label=label)


def draw_levels(panel: Any, levels: dict[str, float]) -> None:
    """Draw the acceptance of exact HMC, or of a quadratic, that does not change along a cut."""
    looks = {"exact": ("exact HMC", "--"), "quadratic": ("plain quadratic", "-.")}
    for kind, level in levels.items():
        label, line = looks[kind]
        panel.axhline(level, color=CUT_COLOURS[kind], linestyle=line, label=label)


def finish_cut(panel: Any, title: str, x_label: str) -> None:
    """Label a cut, with acceptance from 0 to 1 on its axis."""
    panel.set(title=title, xlabel=x_label, ylabel="acceptance probability", ylim=(-0.02, 1.0))
    panel.grid(color="0.9")
    handles, labels = panel.get_legend_handles_labels()
    order = sorted(
        range(len(labels)), key=lambda i: labels[i] != "network"
    )  # what the figure is about comes first
    panel.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9)
