"""Figure 7: acceptance of ARNS-HMC while it learns, from few exact evaluations on.

How it is run, and the five ways to learn, are told in `leapwise.paper.learning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.paper.cells import Cells
from leapwise.paper.experiments import EXPERIMENTS, get_experiment
from leapwise.paper.figure import OKABE_ITO, open_picture
from leapwise.paper.learning import CHAINS, FULL, LEARNERS, QUICK, Plan, all_runs, first_evaluations

WINDOW = 25  # draws of each chain that are averaged, at least
BAND = (0.05, 0.95)
SHARE = 0.9
COLOURS = {
    "printed": OKABE_ITO["sky"],
    "proposals": OKABE_ITO["blue"],
    "afresh": OKABE_ITO["orange"],
    "gradients": OKABE_ITO["green"],
    "quadratic": OKABE_ITO["vermillion"],
}
MARKERS = {"printed": "v", "proposals": "s", "afresh": "D", "gradients": "^", "quadratic": "o"}


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
        """Return one row for each experiment and way to learn: where acceptance began and ended, and when."""
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
        """What was found."""
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
    plan: Plan | None = None,
) -> Figure7:
    """Run ARNS-HMC from few evaluations on, and HMC.

    Parameters
    ----------
    quick : bool
        Fewer and shorter runs.
    cells : Cells, optional
        Where finished runs are kept.
    experiment : {"simulated", "bank", "a9a", "elliptic"}, optional
        Only this one.
    plan : Plan, optional
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

    `final` is the median over runs of the last third of draws; `evaluations_to_90` is the end of the first window from
    which on the median over runs stays at 90 % of that, on average.
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
    """Return the ends of windows: 25 draws at first, later a tenth of what went before."""
    edges = [0]
    while edges[-1] < n_draws:
        edges.append(edges[-1] + max(WINDOW, edges[-1] // 10))
    if len(edges) > 2 and edges[-1] > n_draws:
        edges.pop(-2)  # no short window at the end
    return np.array([*edges[:-1], n_draws])
