"""Table 1: HMC, RMHMC, RNS-HMC and RNS-RMHMC on the paper's four posteriors.

The paper's columns, with its figure beside each of ours, and three that it lacks: the speed-up with burn-in and
training included, the effective draws for each exact evaluation, and what the speed-up would look like against an HMC
that evaluates two gradients a leapfrog step, as the authors' does. Ours needs one, so it is the harder one to beat.

Effective sample sizes are given for 5000 draws and costs for a run of the paper's size (5000 + 5000 iterations),
whatever the number of iterations measured, so that they can be compared with the paper's. How they are run is told in
`leapwise.paper.experiments` and `leapwise.paper.table1_cells`.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from leapwise.errors import InputError
from leapwise.paper import table1_text
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import EXPERIMENTS, METHODS, Experiment, get_experiment
from leapwise.paper.table1_cells import FULL, QUICK, Plan, compute_cells
from leapwise.results.datatree import require_writable

DRAWS = 5000  # of the paper, burn-in and kept alike


@dataclass(frozen=True, eq=False)
class Table1:
    """The numbers of Table 1.

    Attributes
    ----------
    rows : list of dict
        One for each experiment and method; ``paper_...`` is what the paper printed.
    notes : list of str
        What must be known to read them.
    """

    rows: list[dict[str, Any]]
    notes: list[str]

    @property
    def caption(self) -> str:
        """What was found."""
        return table1_text.caption(self.rows)

    def __rich__(self) -> RenderableType:
        return table1_text.terminal(self.rows, [self.caption, *self.notes])

    def save_markdown(self, path: str | PathLike[str]) -> Path:
        """Write the table for a page of documentation."""
        file = require_writable(path)
        file.write_text(table1_text.markdown(self.rows, [self.caption, *self.notes]), encoding="utf-8")
        return file


def table1(
    quick: bool = False,
    cells: Cells | None = None,
    experiment: str | None = None,
    method: str | None = None,
    *,
    plan: Plan | None = None,
) -> Table1:
    """Run the samplers of Table 1.

    Parameters
    ----------
    quick : bool
        Fewer kept iterations: minutes instead of hours, mostly by fewer of RMHMC's.
    cells : Cells, optional
        Where finished runs are kept.
    experiment : {"simulated", "bank", "a9a", "elliptic"}, optional
        Only this one.
    method : {"hmc", "rmhmc", "rns-hmc", "rns-rmhmc"}, optional
        Only this one. HMC is still run, as what speed-ups compare with and what the surrogates learn from.
    plan : Plan, optional
        Other numbers of iterations.

    Examples
    --------
    >>> from leapwise.paper import table1
    >>> table1(quick=True, experiment="bank", method="rns-hmc").rows[0]["acceptance"]  # doctest: +SKIP
    0.69
    """
    if method is not None and method not in METHODS:
        raise InputError(f"there is no method {method!r} in Table 1; the known ones are {', '.join(METHODS)}")
    plan = plan or (QUICK if quick else FULL)
    experiments = list(EXPERIMENTS.values()) if experiment is None else [get_experiment(experiment)]
    methods = list(METHODS) if method is None else [method]
    found = compute_cells(experiments, methods, plan, cells or Cells())
    rows = [_row(each, name, found) for each in experiments for name in methods]
    return Table1(rows, table1_text.notes(plan, rows))


def _row(experiment: Experiment, method: str, found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    cell, hmc, paper = found[experiment.name, method], found[experiment.name, "hmc"], experiment.paper[method]
    rates, base = _rates(cell), _rates(hmc)
    n_iterations = cell["chains"] * cell["kept"]
    ess = cell["ess"] * DRAWS / n_iterations
    # The authors' HMC would spend its gradient time twice; all the rest is the same.
    slower = 1.0 + hmc["cost_gradient_seconds"] / hmc["cost_seconds"]
    return {
        "experiment": experiment.name,
        "method": method,
        "n_hidden": experiment.n_hidden if method.startswith("rns") else 0,
        "acceptance": cell["acceptance"],
        "paper_acceptance": paper.acceptance,
        **dict(zip(("ess_min", "ess_median", "ess_max"), _three(ess), strict=True)),
        **dict(zip(("paper_ess_min", "paper_ess_median", "paper_ess_max"), paper.ess, strict=True)),
        "seconds": cell["cost_seconds"] / n_iterations,
        "paper_seconds": paper.seconds,
        "min_ess_rate": rates["kept"],
        "paper_min_ess_rate": paper.min_ess_rate,
        "speed_up": rates["kept"] / base["kept"],
        "paper_speed_up": paper.speed_up,
        "speed_up_all": rates["all"] / base["all"],
        "ess_per_exact": rates["exact"],
        "speed_up_two_gradients": slower * rates["kept"] / base["kept"],
        "iterations": n_iterations,
        "cpu_seconds": cell["cpu_seconds"],
        "speed_up_cpu": _cpu_rate(cell) / _cpu_rate(hmc),
        "n_training": cell.get("n_training", 0),
        "training_seconds": cell.get("training_seconds", 0.0),
        "discrepancy_sd": cell.get("discrepancy_sd", 0.0),
        "unsolved": cell["unsolved"],
        "iteration_in_values": _in_values(cell),
        "largest_z": _largest_z(cell, hmc),
    }


def _rates(cell: dict[str, Any]) -> dict[str, float]:
    """Return the smallest ESS per second of kept draws, per second of all, and per exact evaluation of all.

    All means a run of the paper's size: its burn-in at the measured price, its training, its kept draws.
    """
    n = cell["chains"] * cell["kept"]
    burn_in = cell["burn_in_iterations"]
    ess, seconds = cell["ess"].min() / n, cell["cost_seconds"] / n
    n_exact = (cell["cost_n_values"] + cell["cost_n_gradients"]) / n
    everything = DRAWS * (cell["burn_in_seconds"] / burn_in + seconds) + cell.get("training_seconds", 0.0)
    return {
        "kept": float(ess / seconds),
        "all": float(DRAWS * ess / everything),
        "exact": float(ess / (cell["burn_in_exact"] / burn_in + n_exact)),
    }


def _cpu_rate(cell: dict[str, Any]) -> float:
    """Return the smallest ESS per CPU second, which other work on the machine disturbs less."""
    return float(cell["ess"].min() / (cell["chains"] * cell["kept"]) / cell["cpu_seconds"])


def _three(ess: np.ndarray) -> tuple[float, float, float]:
    return float(ess.min()), float(np.median(ess)), float(ess.max())


def _in_values(cell: dict[str, Any]) -> float:
    """Return what an iteration costs, in exact values; 0 for methods that ask for no values alone."""
    if not cell["cost_n_values"]:
        return 0.0
    n = cell["chains"] * cell["kept"]
    return float(cell["cost_seconds"] / n / (cell["cost_value_seconds"] / cell["cost_n_values"]))


def _largest_z(cell: dict[str, Any], hmc: dict[str, Any]) -> float:
    """Return the largest difference of a mean from HMC's, in combined standard errors."""
    if cell is hmc:
        return 0.0
    variance = cell["sd"] ** 2 / cell["ess"] + hmc["sd"] ** 2 / hmc["ess"]
    return float(np.max(np.abs(cell["mean"] - hmc["mean"]) / np.sqrt(variance)))
