r"""Figures 7 and 8: learning while sampling. `leapwise.paper.learning` makes the runs.

**Figure 7** shows the acceptance of ARNS-HMC while it learns, from few exact evaluations on, for five ways to learn.

**Figure 8** shows the relative error of the mean against running time, for HMC, RNS-HMC and ARNS-HMC:

.. math:: \mathrm{REM}(t) = \frac{\|\bar q(t) - E q\|}{\|E q\|},

with the mean of all draws of all four chains up to time t. As in the paper, the draws of exploration count, and so does
its time and that of training. The truth E q is the mean of a long reference run (`leapwise.paper.moments`). The error
of that mean is shown too: curves below it cannot be distinguished.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.paper.cells import Cells
from leapwise.paper.experiments import CHAINS, EXPERIMENTS, METHOD_TITLES, get_experiment
from leapwise.paper.learning import FULL, LEARNERS, QUICK, LearningPlan, all_runs, first_evaluations
from leapwise.paper.moments import reference
from leapwise.paper.reproductions import METHOD_COLOURS, OKABE_ITO, open_picture

#: Figure 7: windows average at least this many draws of each chain, bands show these quantiles of the runs, and
#: ARNS-HMC has learned when it has this share of its final acceptance.
WINDOW = 25
BAND = (0.05, 0.95)
SHARE = 0.9
COLOURS = {
    "printed": OKABE_ITO["sky"],
    "proposals": OKABE_ITO["blue"],
    "refitted": OKABE_ITO["orange"],
    "gradients": OKABE_ITO["green"],
    "quadratic": OKABE_ITO["vermillion"],
}
MARKERS = {"printed": "v", "proposals": "s", "refitted": "D", "gradients": "^", "quadratic": "o"}

#: Figure 8: the methods that are shown.
SHOWN = ("hmc", "rns-hmc", "gradients", "quadratic")
TITLES = METHOD_TITLES | {name: f"ARNS-HMC: {title}" for name, title in LEARNERS.items()}
STYLES: dict[str, dict[str, Any]] = {
    "hmc": {"color": METHOD_COLOURS["hmc"]},
    "rns-hmc": {"color": METHOD_COLOURS["rns-hmc"], "linestyle": "--"},
    "gradients": {"color": OKABE_ITO["green"], "linestyle": "-."},
    "quadratic": {"color": METHOD_COLOURS["arns-hmc"], "linewidth": 2.2},
}
LEARNED = 3  # compare from this many times the first evaluations on: 600 for the bank data without gradients
TIMES = 60  # points of a curve


@dataclass(frozen=True, eq=False)
class Figure7:
    """The numbers of figure 7.

    Attributes
    ----------
    rows : list of dict
        For each experiment, way to learn and window of draws: the exact evaluations so far, and the acceptance.
    """

    rows: list[dict[str, Any]]

    def summary(self) -> list[dict[str, Any]]:
        """Return one row for each experiment and way to learn: first and final acceptance, and evaluations."""
        chosen = (
            "experiment",
            "learner",
            "first_evaluations",
            "explored",
            "hmc",
            "final",
            "evaluations_to_90",
        )
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows:  # the first of each
            found.setdefault(
                (row["experiment"], row["learner"]),
                {name: row[name] for name in chosen} | {"begins": row["acceptance"]},
            )
        return list(found.values())

    @property
    def caption(self) -> str:
        """The result in words."""
        said = [
            f"{row['experiment']} {row['learner']} {row['begins']:.2f} to {row['final']:.2f} of HMC's "
            f"{row['hmc']:.2f}, 90 % of it after {row['evaluations_to_90']} evaluations"
            for row in self.summary()
        ]
        return "Acceptance of ARNS-HMC at first and in the end: " + "; ".join(said) + "."

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw one panel for each experiment. Needs the extra ``plots``."""
        names = list(dict.fromkeys(row["experiment"] for row in self.rows))
        columns = min(len(names), 2)
        file, figure = open_picture(path, max(6.0 * columns, 10.0), 1.4 + 3.6 * -(-len(names) // columns))
        panels = figure.subplots(-(-len(names) // columns), columns, squeeze=False, sharey=True).ravel()
        for panel, name in zip(panels, names, strict=True):
            self._draw_panel(panel, name)
        for panel in panels[::columns]:
            panel.set_ylabel("acceptance rate")
        for panel in panels[-columns:]:
            panel.set_xlabel("exact evaluations: those it began with, then one for each draw")
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            lines, labels, loc="outside lower center", ncols=1 if columns == 1 else 2, frameon=False
        )
        runs = self.rows[0]["runs"]
        figure.suptitle(f"ARNS-HMC while it learns: median and 90 % band of {runs} runs of {CHAINS} chains")
        figure.savefig(file, dpi=150)
        return file

    def _draw_panel(self, panel: Any, name: str) -> None:
        rows = [row for row in self.rows if row["experiment"] == name]
        for learner, colour in COLOURS.items():
            mine = [row for row in rows if row["learner"] == learner]
            x = [row["evaluations"] for row in mine]
            panel.fill_between(
                x,
                [row["low"] for row in mine],
                [row["high"] for row in mine],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
            style = {"color": colour, "marker": MARKERS[learner], "markersize": 3}
            panel.plot(x, [row["acceptance"] for row in mine], label=LEARNERS[learner], **style)
        panel.axhline(rows[0]["hmc"], color="black", linestyle="--", label="HMC")
        panel.set(title=get_experiment(name).title, xscale="log", ylim=(0.0, 1.0))
        plain_ticks(panel.xaxis)


def plain_ticks(axis: Any) -> None:
    """Write 200, 500, 1000 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def figure7(
    quick: bool = False,
    cells: Cells | None = None,
    experiment: str | None = None,
    *,
    plan: LearningPlan | None = None,
) -> Figure7:
    """Run HMC, and ARNS-HMC from few evaluations on.

    Parameters
    ----------
    quick : bool
        Fewer and shorter runs.
    cells : Cells, optional
        Keeps finished runs.
    experiment : {"simulated", "bank", "a9a", "elliptic"}, optional
        Only this one.
    plan : LearningPlan, optional
        Other numbers of runs and iterations.

    Examples
    --------
    >>> figure7(quick=True, experiment="bank").summary()[-1]["evaluations_to_90"]  # doctest: +SKIP
    250
    """
    plan = plan or (QUICK if quick else FULL)
    experiments = list(EXPERIMENTS.values()) if experiment is None else [get_experiment(experiment)]
    runs = all_runs(experiments, ["hmc", *LEARNERS], plan, Cells() if cells is None else cells)
    rows = []
    for each in experiments:
        hmc = float(np.mean([run["acceptance"].mean() for run in runs[each.name, "hmc"]]))
        for learner in LEARNERS:
            mine = runs[each.name, learner]
            common = {"experiment": each.name, "learner": learner, "runs": plan.runs, "hmc": hmc}
            common["first_evaluations"] = first = first_evaluations(mine[0]["mean"].shape[1], learner)
            common["explored"] = int(np.median([run["explored"] for run in mine]))
            windows = learning_curve(np.array([run["acceptance"] for run in mine]), first)
            rows += [common | row for row in windows]
    return Figure7(rows)


def learning_curve(acceptance: np.ndarray, first: int) -> list[dict[str, Any]]:
    """Summarise acceptance ``(runs, draws)`` in windows that grow with the number of evaluations.

    `final` is the median over runs of the last third of draws. `evaluations_to_90` is the end of the first window that
    has 90 % of `final` (median over runs), and after which the average stays at 90 %.
    """
    edges = _edges(acceptance.shape[1])
    windows = np.array([acceptance[:, a:b].mean(axis=1) for a, b in pairwise(edges)])
    median, (low, high) = np.median(windows, axis=1), np.quantile(windows, BAND, axis=1)
    final = float(np.median(acceptance[:, -(-2 * acceptance.shape[1] // 3) :].mean(axis=1)))
    sizes = np.diff(edges)
    rest = np.cumsum((median * sizes)[::-1])[::-1] / np.cumsum(sizes[::-1])[::-1]
    good = (median >= SHARE * final) & (rest >= SHARE * final)
    reached = first + CHAINS * int(edges[1 + int(good.argmax())])
    return [
        {
            "evaluations": first + CHAINS * (a + b) // 2,
            "acceptance": float(median[i]),
            "low": float(low[i]),
            "high": float(high[i]),
            "final": final,
            "evaluations_to_90": reached,
        }
        for i, (a, b) in enumerate(pairwise(edges.tolist()))
    ]


def _edges(n_draws: int) -> np.ndarray:
    """Return the ends of windows: 25 draws at first, later a tenth of all draws before."""
    edges = [0]
    while edges[-1] < n_draws:
        edges.append(edges[-1] + max(WINDOW, edges[-1] // 10))
    if len(edges) > 2 and edges[-1] > n_draws:
        edges.pop(-2)  # no short window at the end
    return np.array([*edges[:-1], n_draws])


@dataclass(frozen=True, eq=False)
class Figure8:
    """The numbers of figure 8.

    Attributes
    ----------
    rows : list of dict
        For each experiment, method and time: the median error over the runs, and their range.
    comparison : list of dict
        For each experiment and way to learn, ARNS-HMC compared with HMC at equal times, from the time when it has
        spent three times its first evaluations.
    """

    rows: list[dict[str, Any]]
    comparison: list[dict[str, Any]]

    @property
    def caption(self) -> str:
        """The result in words."""
        said = [
            f"{row['experiment']} {row['method']} "
            + (
                f"below HMC at {row['share_below_hmc']:.0%} of times from {row['from_seconds']:.2g} s on, HMC's error "
                f"over its own {row['median_hmc_over_error']:.1f} on the way and {row['hmc_over_error']:.1f} at the end"
                if row["from_seconds"] < row["to_seconds"]
                else "has not learned before the shorter run ends"
            )
            for row in self.comparison
        ]
        return "Error of the mean of ARNS-HMC at equal time: " + "; ".join(said) + "."

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw one panel for each experiment. Needs the extra ``plots``."""
        names = list(dict.fromkeys(row["experiment"] for row in self.rows))
        columns = min(len(names), 2)
        file, figure = open_picture(path, max(6.0 * columns, 10.0), 1.8 + 3.8 * -(-len(names) // columns))
        panels = figure.subplots(-(-len(names) // columns), columns, squeeze=False).ravel()
        for panel, name in zip(panels, names, strict=True):
            self._draw_panel(panel, name)
        for panel in panels[::columns]:
            panel.set_ylabel("relative error of the mean")
        for panel in panels[-columns:]:
            panel.set_xlabel("running time (s), exploring and training included")
        lines, labels = panels[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=1, frameon=False)
        runs = self.rows[0]["runs"]
        figure.suptitle(
            f"Error of the mean of all draws so far: median and range of {runs} runs of {CHAINS} chains"
        )
        figure.savefig(file, dpi=150)
        return file

    def _draw_panel(self, panel: Any, name: str) -> None:
        for method, style in STYLES.items():
            mine = [row for row in self.rows if row["experiment"] == name and row["method"] == method]
            x = [row["seconds"] for row in mine]
            low, high = ([row[side] for row in mine] for side in ("low", "high"))
            panel.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
            panel.plot(x, [row["error"] for row in mine], label=TITLES[method], **style)
        floor = next(row["truth_error"] for row in self.rows if row["experiment"] == name)
        panel.axhline(floor, color="0.5", linestyle=":", label="error of the truth itself")
        panel.set(title=get_experiment(name).title, xscale="log", yscale="log")


def figure8(
    quick: bool = False,
    cells: Cells | None = None,
    experiment: str | None = None,
    *,
    plan: LearningPlan | None = None,
) -> Figure8:
    """Run HMC, RNS-HMC and ARNS-HMC, and compare their means with the truth as time passes.

    Parameters
    ----------
    quick : bool
        Fewer and shorter runs; RNS-HMC then has too few training points to be good.
    cells : Cells, optional
        Keeps finished runs.
    experiment : {"simulated", "bank", "a9a", "elliptic"}, optional
        Only this one.
    plan : LearningPlan, optional
        Other numbers of runs and iterations.

    Examples
    --------
    >>> figure8(quick=True, experiment="bank").comparison[-1]["share_below_hmc"]  # doctest: +SKIP
    1.0
    """
    plan, cells = plan or (QUICK if quick else FULL), Cells() if cells is None else cells
    experiments = list(EXPERIMENTS.values()) if experiment is None else [get_experiment(experiment)]
    rows: list[dict[str, Any]] = []
    comparison = []
    cells.expect(len(experiments))
    truths = {each.name: reference(each, quick, cells) for each in experiments}
    runs = all_runs(experiments, list(SHOWN), plan, cells)
    for each in experiments:
        truth = truths[each.name]
        size = np.linalg.norm(truth.mean)
        common = {"experiment": each.name, "runs": plan.runs}
        common["truth_error"] = float(np.linalg.norm(truth.mean_error) / size)
        curves = {method: error_curve(runs[each.name, method], truth.mean) for method in SHOWN}
        for method, curve in curves.items():
            rows += [common | {"method": method} | row for row in curve]
        for method in SHOWN[2:]:
            learned = _time_of(
                runs[each.name, method], (LEARNED - 1) * first_evaluations(truth.mean.size, method) / CHAINS
            )
            found = compare_errors(curves[method], curves["hmc"], learned)
            comparison.append({"experiment": each.name, "method": method, **found})
    return Figure8(rows, comparison)


def error_curve(runs: list[dict[str, Any]], truth: np.ndarray) -> list[dict[str, Any]]:
    """Return the median and range of runs' relative errors on a grid of times that all of them reach."""
    errors = [np.linalg.norm(run["mean"] - truth, axis=1) / np.linalg.norm(truth) for run in runs]
    first = max(run["seconds"][0] for run in runs)
    last = min(run["seconds"][-1] for run in runs)
    grid = np.geomspace(first, last, TIMES)
    found = np.array([each[_latest(run["seconds"], grid)] for run, each in zip(runs, errors, strict=True)])
    return [
        {"seconds": float(t), "error": float(np.median(at)), "low": float(at.min()), "high": float(at.max())}
        for t, at in zip(grid, found.T, strict=True)
    ]


def compare_errors(mine: list[dict[str, Any]], hmc: list[dict[str, Any]], learned: float) -> dict[str, float]:
    """Compare two curves at equal times, from `learned` to the end of the shorter one.

    If the shorter one ends before that, shares and ratios are NaN.
    """
    last = min(mine[-1]["seconds"], hmc[-1]["seconds"])
    if learned >= last:
        unknown = dict.fromkeys(("share_below_hmc", "median_hmc_over_error", "hmc_over_error"), float("nan"))
        return {"from_seconds": learned, "to_seconds": float(last), **unknown}
    grid = np.geomspace(learned, last, TIMES)
    ours, theirs = (
        np.array([row["error"] for row in curve])[_latest(np.array([row["seconds"] for row in curve]), grid)]
        for curve in (mine, hmc)
    )
    return {
        "from_seconds": float(grid[0]),
        "to_seconds": float(last),
        "share_below_hmc": float((ours < theirs).mean()),
        "median_hmc_over_error": float(np.median(theirs / ours)),
        "hmc_over_error": float(theirs[-1] / ours[-1]),
    }


def _latest(times: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Return the index of the last entry of `times` that is not after `when`."""
    return np.maximum(np.searchsorted(times, when * (1 + 1e-12), side="right") - 1, 0)


def _time_of(runs: list[dict[str, Any]], n_draws: float) -> float:
    """Return the time at which ARNS-HMC has made `n_draws` draws of each chain; the median of the runs."""
    pace = [(run["seconds"][-1] - run["began"]) / len(run["acceptance"]) for run in runs]
    return float(np.median([run["began"] + n_draws * each for run, each in zip(runs, pace, strict=True)]))
