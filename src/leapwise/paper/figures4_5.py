"""Figures 4 and 5: acceptance of the flow of networks on simulated logistic regressions.

Figure 4 varies the number of parameters d and of hidden units s, with a large training set. Figure 5 varies the
training size N and s, at d = 32. Networks of softplus units are trained on the first N accepted states of runs of exact
HMC, so smaller training sets are part of larger ones. The step size keeps exact HMC's acceptance at 0.7.

These posteriors are nearly quadratic. A quadratic in d variables has (d + 1)(d + 2) / 2 coefficients. A network with
fewer units cannot represent it. That number, and not d as such, is the limit; figure 4 draws it into its map. A plain
quadratic learns from the same states, to show how much of a network's work a quadratic can do.

The paper does not say how the input weights of its units are drawn. Here they are those of `SoftplusNetwork`, scaled so
that units bend slowly over the data. Figure 5 also tries weights that are standard normal in whitened coordinates and
not scaled: how they are drawn matters as much as how many units there are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.paper.cells import Cells
from leapwise.paper.reproductions import OKABE_ITO, open_picture
from leapwise.paper.surrogate_flow import Explored, explore
from leapwise.problems import Problem, logistic_simulated
from leapwise.surrogates import QuadraticNetwork, SoftplusNetwork, Surrogate

N_STEPS = 6  # as in section 5.1 of the paper
REPEATS = 2  # trajectories from each start
#: The paper's cuts through the maps: at this dimension and number of units in figure 4, and at this number of units
#: and training size in figure 5.
FIXED_DIM, FIXED_HIDDEN4 = 32, 2000
FIXED_HIDDEN5, FIXED_SIZE = 1000, 1600
FEW = 500  # training states from which the paper reports an acceptance of about 0.1
COLOUR_MAP = "cividis"  # even steps of lightness: readable by colour-blind readers and in grey
CUT_COLOURS = {
    "network": OKABE_ITO["vermillion"],
    "unscaled": OKABE_ITO["purple"],
    "quadratic": OKABE_ITO["sky"],
    "exact": OKABE_ITO["black"],
}


@dataclass(frozen=True)
class LogisticPlan:
    """How much is measured.

    Attributes
    ----------
    n_rows : int
        Rows of the regression.
    runs : int
        Independent runs of exact HMC, each with its own network.
    n_starts : int
        Acceptance is averaged over trajectories from this many states, two from each.
    seed : int
    """

    n_rows: int = 10_000
    runs: int = 10
    n_starts: int = 250
    seed: int = 4

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return everything that a cell depends on."""
        return asdict(self) | others | {"n_steps": N_STEPS, "repeats": REPEATS}


def explore_logistic(plan: LogisticPlan, dim: int, size: int) -> dict[str, Any]:
    """Explore the regression with `dim` coefficients until each run has accepted `size` states.

    ``exact`` is the acceptance of exact HMC from the same starts as the networks'.
    """
    target = logistic_simulated(plan.n_rows, dim).target
    found = explore(target, n_steps=N_STEPS, size=size, runs=plan.runs, seed=plan.seed)
    return found.numbers() | {"exact": found.exact_acceptance(target, plan.n_starts, REPEATS, plan.seed)}


def try_networks(
    plan: LogisticPlan, dim: int, size: int, hidden: Sequence[int], explored: Explored
) -> dict[str, Any]:
    """Train networks of several sizes and a quadratic on `size` states of each run, and measure their acceptance.

    Returns
    -------
    dict
        ``acceptance`` and ``seconds`` of training, ``(len(hidden), runs)``; ``quadratic_acceptance`` and
        ``quadratic_seconds``, ``(runs,)``.
    """
    problem = logistic_simulated(plan.n_rows, dim)
    found = np.array(
        [_try(plan, problem, explored, size, SoftplusNetwork(n_hidden), n_hidden) for n_hidden in hidden]
    )
    quadratic = _try(plan, problem, explored, size, QuadraticNetwork(), 0)
    return {
        "acceptance": found[:, 0],
        "seconds": found[:, 1],
        "quadratic_acceptance": quadratic[0],
        "quadratic_seconds": quadratic[1],
    }


def try_unscaled(
    plan: LogisticPlan, dim: int, size: int, n_hidden: int, explored: Explored
) -> dict[str, Any]:
    """Train networks with standard normal input weights on `size` states of each run; return ``acceptance`` (runs,)."""
    network = SoftplusNetwork(n_hidden, gain=float(np.sqrt(dim)))
    problem = logistic_simulated(plan.n_rows, dim)
    return {"acceptance": _try(plan, problem, explored, size, network, n_hidden)[0]}


def explore_and_try(plan: LogisticPlan, dim: int, size: int, hidden: Sequence[int]) -> dict[str, Any]:
    """Explore and try networks, and keep no states, which are many numbers in many dimensions."""
    exploration = explore_logistic(plan, dim, size)
    found = try_networks(plan, dim, size, hidden, Explored.from_numbers(exploration))
    return found | {"exact": exploration["exact"], "step_size": exploration["step_size"]}


def _try(
    plan: LogisticPlan, problem: Problem, explored: Explored, size: int, surrogate: Surrogate, salt: int
) -> np.ndarray:
    """Return acceptance and seconds of training of each run, ``(2, runs)``."""
    found = np.empty((2, plan.runs))
    for run in range(plan.runs):
        training = explored.training(run, size)
        rng = np.random.default_rng([plan.seed, problem.target.dim, size, salt, run])
        started = time.perf_counter()
        fitted = surrogate.fit(training, rng)
        fitted.potential(training.position[:1])  # some surrogates solve on first use: that counts as training
        found[1, run] = time.perf_counter() - started
        found[0, run] = explored.flow_acceptance(
            problem.target, fitted, run, n_starts=plan.n_starts, repeats=REPEATS, seed=plan.seed + run
        )
    return found


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
    """Draw a curve into a map; x and y are values of its columns and rows."""
    inside = (x >= columns[0]) & (x <= columns[-1]) & (y >= rows[0]) & (y <= rows[-1])
    along = np.interp(np.log(x[inside]), np.log(columns), np.arange(len(columns)))
    up = np.interp(y[inside], rows, np.arange(len(rows)))
    panel.plot(along, up, color="white", linewidth=4)
    panel.plot(along, up, color=CUT_COLOURS["network"], linewidth=1.8)


def nearest(values: Sequence[int], wanted: int) -> int:
    """Return the index of the value nearest to the wanted one."""
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
    order = sorted(range(len(labels)), key=lambda i: labels[i] != "network")  # networks come first
    panel.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9)


@dataclass(frozen=True)
class Grid4:
    """The grid of figure 4; the paper's two fixed values should be among `dims` and `hidden`."""

    dims: tuple[int, ...] = (8, 16, 24, 32, 40, 50, 64, 80, 100)
    hidden: tuple[int, ...] = (125, 250, 500, 1000, 1500, 2000)
    size: int = 5000
    plan: LogisticPlan = field(default_factory=LogisticPlan)


#: Minutes instead of an hour.
QUICK4 = Grid4((8, 16, 32, 50, 64), (250, 500, 1000, 2000), 2500, LogisticPlan(n_rows=4000, runs=2))


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
        """One row for each dimension and number of hidden units; 0 units mean the quadratic."""
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
        """The result in words."""
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
            f"{_range(kept[~enough])} ({runs} runs, {grid.size} states each, {grid.plan.n_rows} rows)."
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
        dims, column = self.grid.dims, nearest(self.grid.hidden, FIXED_HIDDEN4)
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
        Keeps finished rows of the map, one for each dimension.
    grid : Grid4, optional
        Other dimensions and sizes.

    Examples
    --------
    >>> from leapwise.paper.figures4_5 import figure4
    >>> figure4(quick=True).rows[0]["dim"]  # doctest: +SKIP
    8
    """
    grid = grid or (QUICK4 if quick else Grid4())
    cells = cells or Cells()
    cells.expect(len(grid.dims))
    found = []
    for dim in grid.dims:
        settings = grid.plan.settings(dim=dim, size=grid.size, hidden=grid.hidden)
        compute = partial(explore_and_try, grid.plan, dim, grid.size, grid.hidden)
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


@dataclass(frozen=True)
class Grid5:
    """The grid of figure 5; the paper's two fixed values should be among `sizes` and `hidden`."""

    sizes: tuple[int, ...] = (200, 400, 500, 800, 1200, 1600, 2000, 3000)
    hidden: tuple[int, ...] = (125, 250, 500, 1000, 1500, 2000)
    dim: int = 32
    plan: LogisticPlan = field(default_factory=LogisticPlan)

    @property
    def fixed_column(self) -> int:
        """Index in `hidden` of the paper's 1000 units, or of the nearest number."""
        return nearest(self.hidden, FIXED_HIDDEN5)


#: A minute or two.
QUICK5 = Grid5((200, 500, 1000, 1600, 2000), (250, 500, 1000, 2000), 32, LogisticPlan(n_rows=4000, runs=3))


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
        The same of networks of about 1000 units with weights that are not scaled.
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
        """One row for each training size and number of hidden units; 0 units mean the quadratic."""
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
        """The result in words."""
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
            f"(d = {grid.dim}, {runs} runs, {grid.plan.n_rows} rows)."
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
        Keeps the exploration and finished rows of the map, one for each training size.
    grid : Grid5, optional
        Other sizes.

    Examples
    --------
    >>> from leapwise.paper.figures4_5 import figure5
    >>> figure5(quick=True).rows[0]["training_size"]  # doctest: +SKIP
    200
    """
    grid = grid or (QUICK5 if quick else Grid5())
    cells = cells or Cells()
    cells.expect(1 + 2 * len(grid.sizes))
    plan, dim, most = grid.plan, grid.dim, max(grid.sizes)
    exploration = cells.get(
        "fig5 · exploration",
        plan.settings(dim=dim, size=most),
        partial(explore_logistic, plan, dim, most),
    )
    explored = Explored.from_numbers(exploration)
    found, unscaled = [], []
    n_unscaled = grid.hidden[grid.fixed_column]
    for size in grid.sizes:
        settings = plan.settings(dim=dim, most=most, size=size, hidden=grid.hidden)
        compute = partial(try_networks, plan, dim, size, grid.hidden, explored)
        found.append(cells.get(f"fig5 · N = {size}", settings, compute))
        settings = plan.settings(dim=dim, most=most, size=size, n_hidden=n_unscaled)
        compute = partial(try_unscaled, plan, dim, size, n_unscaled, explored)
        unscaled.append(cells.get(f"fig5 · N = {size} · weights not scaled", settings, compute))
    return Figure5(
        grid,
        np.array([each["acceptance"] for each in found]),
        np.array([each["quadratic_acceptance"] for each in found]),
        np.array([each["acceptance"] for each in unscaled]),
        float(exploration["exact"]),
    )
