"""The picture of the comparison: effective draws per exact evaluation, and seconds to 1000 effective draws."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

from .cases import Case
from .schedule import Row

_LOOKS = {
    "leapwise": ("o", "#c1272d"),
    "leapwise-cores": ("p", "#c1272d"),
    "hmc": ("o", "#f0a3a0"),
    "rns-hmc": ("s", "#f0a3a0"),
    "numpyro-diagonal-1": ("v", "#9ecae1"),
    "numpyro-dense-1": ("v", "#2171b5"),
    "numpyro-diagonal-4": ("^", "#9ecae1"),
    "numpyro-dense-4": ("^", "#2171b5"),
    "nutpie": ("D", "#a1d99b"),
    "nutpie-low-rank": ("D", "#238b45"),
    "blackjax-dense": ("P", "#756bb1"),
    "emcee": ("X", "#636363"),
}
_PANELS = (
    ("per_evaluation", "effective draws per exact evaluation"),
    ("seconds_to_1000", "seconds to 1000 effective draws"),
)


def draw(path: Path, tables: dict[str, list[Row]], cases: dict[str, Case]) -> None:
    """Draw a line for each problem and a marker for each method, hollow if its chains disagree."""
    names = list(tables)[::-1]
    figure, axes = plt.subplots(
        1, 2, figsize=(11, 1.6 + 0.42 * len(names)), sharey=True, layout="constrained"
    )
    marks = {}
    for axis, (key, title) in zip(axes, _PANELS, strict=True):
        for height, name in enumerate(names):
            axis.axhline(height, color="0.9", zorder=0)
            for row in tables[name]:
                if row.done:
                    marker, colour = _LOOKS[row.method.name]
                    is_main = row.method.is_main
                    (marks[row.method.title],) = axis.plot(
                        row.median(key),
                        height,
                        marker,
                        color=colour,
                        markersize=10 if is_main else 6,
                        markerfacecolor=colour if row.is_trusted else "none",
                        markeredgecolor="black" if is_main else colour,
                        zorder=3 if is_main else 2,
                        linestyle="none",
                    )
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.set_xlabel(title)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(names)), [cases[name].title for name in names])
    figure.legend(
        marks.values(), marks.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
