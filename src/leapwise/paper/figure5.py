"""Figure 5: acceptance of the surrogate-induced flow over training size and hidden units, in 32 dimensions.

The same simulated logistic regression and networks as in figure 4. Training sets are the first N accepted states of
a run of exact HMC, so that smaller ones are part of larger ones. Networks whose input weights are not scaled show how
much depends on what the paper leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.paper.acceptance_map import (
    CUT_COLOURS,
    draw_cut,
    draw_levels,
    draw_map,
    finish_cut,
    nearest,
    spread,
)
from leapwise.paper.cells import Cells
from leapwise.paper.figure import open_picture
from leapwise.paper.logistic_flow import Effort, explore_logistic, try_networks, try_unscaled
from leapwise.paper.surrogate_flow import Explored

FIXED_HIDDEN, FIXED_SIZE = 1000, 1600
FEW = 500  # training states from which the paper reports an acceptance of about 0.1


@dataclass(frozen=True)
class Grid5:
    """What is measured: the paper's two fixed values should be among `sizes` and `hidden`."""

    sizes: tuple[int, ...] = (200, 400, 500, 800, 1200, 1600, 2000, 3000)
    hidden: tuple[int, ...] = (125, 250, 500, 1000, 1500, 2000)
    dim: int = 32
    effort: Effort = field(default_factory=Effort)

    @property
    def fixed_column(self) -> int:
        """Where in `hidden` the paper's 1000 units are, or what is nearest to them."""
        return nearest(self.hidden, FIXED_HIDDEN)


QUICK = Grid5((200, 500, 1000, 1600, 2000), (250, 500, 1000, 2000), 32, Effort(n_rows=4000, runs=3))


@dataclass(frozen=True, eq=False)
class Figure5:
    """The numbers of figure 5.

    Attributes
    ----------
    grid : Grid5
    acceptance : ndarray of shape (sizes, hidden, runs)
    quadratic : ndarray of shape (sizes, runs)
        The same of a plain quadratic, from the same training sets.
    unscaled : ndarray of shape (sizes, runs)
        The same of networks of about 1000 units with standard normal weights, see `leapwise.paper.logistic_flow`.
    exact : float
        Acceptance of exact HMC.
    """

    grid: Grid5
    acceptance: np.ndarray
    quadratic: np.ndarray
    unscaled: np.ndarray
    exact: float

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each training size and number of hidden units; 0 units stand for the quadratic."""
        found: list[dict[str, Any]] = []
        for i, size in enumerate(self.grid.sizes):
            common = {"dim": self.grid.dim, "training_size": size, "exact_acceptance": self.exact}
            found += [
                common | {"surrogate": "network", "n_hidden": n_hidden} | spread(runs)
                for n_hidden, runs in zip(self.grid.hidden, self.acceptance[i], strict=True)
            ]
            others = (
                ("network, unscaled weights", self.grid.hidden[self.grid.fixed_column], self.unscaled[i]),
                ("quadratic", 0, self.quadratic[i]),
            )
            found += [
                common | {"surrogate": name, "n_hidden": n_hidden} | spread(runs)
                for name, n_hidden, runs in others
            ]
        return found

    @property
    def caption(self) -> str:
        """What was found."""
        grid, runs = self.grid, self.acceptance.shape[2]
        column, few = self.grid.fixed_column, nearest(grid.sizes, FEW)
        cut = self.acceptance[:, column].mean(axis=1)
        enough = [size for size, mean in zip(grid.sizes, cut, strict=True) if mean > 0.9 * self.exact]
        full = (
            f"{min(enough)} states are enough" if enough else f"even {grid.sizes[-1]} states are not enough"
        )
        return (
            f"With {grid.hidden[column]} units, {grid.sizes[few]} training states give an acceptance of "
            f"{cut[few]:.2f} (about 0.1 in the paper), and {full} for nine tenths of exact HMC's {self.exact:.2f} "
            f"(about 2000 for a comparable one in the paper). "
            f"From the same {grid.sizes[few]} a network whose weights are not scaled has "
            f"{self.unscaled[few].mean():.2f}, a plain quadratic {self.quadratic[few].mean():.2f} "
            f"(d = {grid.dim}, {runs} runs, {grid.effort.n_rows} rows)."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw the map and two cuts through it. Needs the extra ``plots``."""
        file, figure = open_picture(path, 15.0, 4.6)
        grid = self.grid
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
        draw_map(figure, left, grid.hidden, grid.sizes, self.acceptance.mean(axis=2))
        left.set(title="acceptance probability", xlabel="hidden units s", ylabel="training states N")
        self._cut_by_size(middle)
        self._cut_by_hidden(right)
        figure.suptitle(
            f"Surrogate-induced flow on a simulated logistic regression, d = {grid.dim} "
            f"(means of {self.acceptance.shape[2]} runs; bars: lowest to highest)",
            fontsize=11,
        )
        figure.savefig(file, dpi=150)
        return file

    def _cut_by_size(self, panel: Any) -> None:
        column = self.grid.fixed_column
        for runs, label, kind, marker in (
            (self.acceptance[:, column], "network", "network", "o"),
            (self.unscaled, "network, weights not scaled", "unscaled", "^"),
            (self.quadratic, "plain quadratic", "quadratic", "s"),
        ):
            draw_cut(panel, self.grid.sizes, runs, label=label, colour=CUT_COLOURS[kind], marker=marker)
        draw_levels(panel, {"exact": self.exact})
        finish_cut(panel, f"at s = {self.grid.hidden[column]}", "training states N")

    def _cut_by_hidden(self, panel: Any) -> None:
        row = nearest(self.grid.sizes, FIXED_SIZE)
        draw_cut(
            panel, self.grid.hidden, self.acceptance[row], label="network", colour=CUT_COLOURS["network"]
        )
        draw_levels(panel, {"quadratic": self.quadratic[row].mean(), "exact": self.exact})
        finish_cut(panel, f"at N = {self.grid.sizes[row]}", "hidden units s")


def figure5(quick: bool = False, cells: Cells | None = None, *, grid: Grid5 | None = None) -> Figure5:
    """Measure the acceptance of the flow over training size and hidden units.

    Parameters
    ----------
    quick : bool
        Fewer sizes, units, runs and rows: a minute or two.
    cells : Cells, optional
        Where the exploration and finished rows of the map, one for each training size, are kept.
    grid : Grid5, optional
        Other sizes.

    Examples
    --------
    >>> from leapwise.paper.figure5 import figure5
    >>> figure5(quick=True).rows[0]["training_size"]  # doctest: +SKIP
    200
    """
    grid = grid or (QUICK if quick else Grid5())
    cells = cells or Cells()
    cells.expect(1 + 2 * len(grid.sizes))
    effort, dim, most = grid.effort, grid.dim, max(grid.sizes)
    exploration = cells.get(
        "fig5 · exploration",
        effort.settings(dim=dim, size=most),
        partial(explore_logistic, effort, dim, most),
    )
    explored = Explored.from_numbers(exploration)
    found, unscaled = [], []
    n_unscaled = grid.hidden[grid.fixed_column]
    for size in grid.sizes:
        settings = effort.settings(dim=dim, most=most, size=size, hidden=grid.hidden)
        compute = partial(try_networks, effort, dim, size, grid.hidden, explored)
        found.append(cells.get(f"fig5 · N = {size}", settings, compute))
        settings = effort.settings(dim=dim, most=most, size=size, n_hidden=n_unscaled)
        compute = partial(try_unscaled, effort, dim, size, n_unscaled, explored)
        unscaled.append(cells.get(f"fig5 · N = {size} · weights not scaled", settings, compute))
    return Figure5(
        grid,
        np.array([each["acceptance"] for each in found]),
        np.array([each["quadratic_acceptance"] for each in found]),
        np.array([each["acceptance"] for each in unscaled]),
        float(exploration["exact"]),
    )
