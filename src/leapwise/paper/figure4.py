r"""Figure 4: acceptance of the surrogate-induced flow over dimension and hidden units.

Simulated logistic regressions with d coefficients; networks of s softplus units, trained on the accepted states of
exact HMC whose step size keeps its acceptance at 0.7. The paper holds the training set for "sufficiently large".

The posterior is nearly quadratic, and a quadratic in d variables has :math:`(d + 1)(d + 2) / 2` coefficients. A network
with fewer units cannot represent it: that number, not d as such, is the limit, and it is drawn into the map.
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
    draw_curve,
    draw_cut,
    draw_levels,
    draw_map,
    finish_cut,
    nearest,
    spread,
)
from leapwise.paper.cells import Cells
from leapwise.paper.figure import open_picture
from leapwise.paper.logistic_flow import Effort, explore_and_try

FIXED_DIM, FIXED_HIDDEN = 32, 2000


@dataclass(frozen=True)
class Grid4:
    """What is measured: the paper's two fixed values should be among `dims` and `hidden`."""

    dims: tuple[int, ...] = (8, 16, 24, 32, 40, 50, 64, 80, 100)
    hidden: tuple[int, ...] = (125, 250, 500, 1000, 1500, 2000)
    size: int = 5000
    effort: Effort = field(default_factory=Effort)


QUICK = Grid4((8, 16, 32, 50, 64), (250, 500, 1000, 2000), 2500, Effort(n_rows=4000, runs=2))


@dataclass(frozen=True, eq=False)
class Figure4:
    """The numbers of figure 4.

    Attributes
    ----------
    grid : Grid4
    acceptance : ndarray of shape (dims, hidden, runs)
    quadratic : ndarray of shape (dims, runs)
        The same of a plain quadratic, from the same training sets.
    exact : ndarray of shape (dims,)
        Acceptance of exact HMC.
    seconds, quadratic_seconds : ndarray
        Of training, of the same shapes as `acceptance` and `quadratic`.
    """

    grid: Grid4
    acceptance: np.ndarray
    quadratic: np.ndarray
    exact: np.ndarray
    seconds: np.ndarray
    quadratic_seconds: np.ndarray

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each dimension and number of hidden units; 0 units stand for the quadratic."""
        found = []
        for i, dim in enumerate(self.grid.dims):
            common = {"dim": dim, "training_size": self.grid.size, "exact_acceptance": self.exact[i]}
            for j, n_hidden in enumerate(self.grid.hidden):
                found.append(
                    common
                    | {"surrogate": "network", "n_hidden": n_hidden}
                    | spread(self.acceptance[i, j])
                    | {"training_seconds": float(np.median(self.seconds[i, j]))}
                )
            found.append(
                common
                | {"surrogate": "quadratic", "n_hidden": 0}
                | spread(self.quadratic[i])
                | {"training_seconds": float(np.median(self.quadratic_seconds[i]))}
            )
        return found

    @property
    def caption(self) -> str:
        """What was found."""
        grid, runs = self.grid, self.acceptance.shape[2]
        kept = self.acceptance.mean(axis=2) / self.exact[:, None]
        enough = np.array(grid.hidden) >= coefficients(np.array(grid.dims))[:, None]
        good = [dim for dim, share in zip(grid.dims, kept[:, -1], strict=True) if share > 0.8]
        reach = f"up to d = {max(good)}" if good else "in no dimension tried"
        return (
            f"With {grid.hidden[-1]} units the flow keeps more than four fifths of exact HMC's acceptance {reach}; at "
            f"d = {grid.dims[-1]} it has {self.acceptance[-1, -1].mean():.2f}, a plain quadratic from the same states "
            f"{self.quadratic[-1].mean():.2f}. Networks with at least (d+1)(d+2)/2 units, the number of coefficients "
            f"of a quadratic, keep {_range(kept[enough])} of exact HMC's acceptance, smaller ones "
            f"{_range(kept[~enough])} ({runs} runs, {grid.size} states each, {grid.effort.n_rows} rows)."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw the map and two cuts through it. Needs the extra ``plots``."""
        file, figure = open_picture(path, 15.0, 4.6)
        grid, means = self.grid, self.acceptance.mean(axis=2)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
        draw_map(figure, left, grid.hidden, grid.dims, means)
        dims = np.linspace(grid.dims[0], grid.dims[-1], 200)
        draw_curve(left, grid.hidden, grid.dims, coefficients(dims), dims)
        title = "acceptance probability (line: s = (d+1)(d+2)/2)"
        left.set(title=title, xlabel="hidden units s", ylabel="parameters d")
        self._cut_by_hidden(middle)
        self._cut_by_dim(right)
        runs = self.acceptance.shape[2]
        figure.suptitle(
            f"Surrogate-induced flow on simulated logistic regressions, N = {grid.size} training states "
            f"(means of {runs} runs; bars: lowest to highest)",
            fontsize=11,
        )
        figure.savefig(file, dpi=150)
        return file

    def _cut_by_hidden(self, panel: Any) -> None:
        row = nearest(self.grid.dims, FIXED_DIM)
        draw_cut(
            panel, self.grid.hidden, self.acceptance[row], label="network", colour=CUT_COLOURS["network"]
        )
        draw_levels(panel, {"quadratic": self.quadratic[row].mean(), "exact": self.exact[row]})
        finish_cut(panel, f"at d = {self.grid.dims[row]}", "hidden units s")

    def _cut_by_dim(self, panel: Any) -> None:
        dims, column = self.grid.dims, nearest(self.grid.hidden, FIXED_HIDDEN)
        for runs, label, kind, marker in (
            (self.acceptance[:, column], "network", "network", "o"),
            (self.quadratic, "plain quadratic", "quadratic", "s"),
        ):
            draw_cut(panel, dims, runs, label=label, colour=CUT_COLOURS[kind], marker=marker)
        panel.plot(dims, self.exact, color=CUT_COLOURS["exact"], linestyle="--", label="exact HMC")
        finish_cut(panel, f"at s = {self.grid.hidden[column]}", "parameters d")


def figure4(quick: bool = False, cells: Cells | None = None, *, grid: Grid4 | None = None) -> Figure4:
    """Measure the acceptance of the flow over dimension and hidden units.

    Parameters
    ----------
    quick : bool
        Fewer dimensions, units, runs and rows: minutes instead of an hour.
    cells : Cells, optional
        Where finished rows of the map, one for each dimension, are kept.
    grid : Grid4, optional
        Other dimensions and sizes.

    Examples
    --------
    >>> from leapwise.paper.figure4 import figure4
    >>> figure4(quick=True).rows[0]["dim"]  # doctest: +SKIP
    8
    """
    grid = grid or (QUICK if quick else Grid4())
    cells = cells or Cells()
    cells.expect(len(grid.dims))
    found = []
    for dim in grid.dims:
        settings = grid.effort.settings(dim=dim, size=grid.size, hidden=grid.hidden)
        compute = partial(explore_and_try, grid.effort, dim, grid.size, grid.hidden)
        found.append(cells.get(f"fig4 · d = {dim}", settings, compute))
    return Figure4(
        grid,
        np.array([each["acceptance"] for each in found]),
        np.array([each["quadratic_acceptance"] for each in found]),
        np.array([each["exact"] for each in found]),
        np.array([each["seconds"] for each in found]),
        np.array([each["quadratic_seconds"] for each in found]),
    )


def coefficients(dim: np.ndarray) -> np.ndarray:
    """Return the number of coefficients of a quadratic."""
    return np.asarray((dim + 1) * (dim + 2) / 2)


def _range(shares: np.ndarray) -> str:
    return f"{shares.min():.0%} to {shares.max():.0%}" if shares.size else "(none tried)"
