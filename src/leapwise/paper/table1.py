"""Table 1: HMC, RMHMC, RNS-HMC and RNS-RMHMC on the paper's four posteriors.

The table has the paper's columns, with its figure beside each of ours, and three more: the speed-up with burn-in and
training included, the effective draws per exact evaluation, and the speed-up over an HMC that evaluates two gradients
per leapfrog step, as the authors' code does. Our HMC needs one gradient, so it is harder to beat.

Effective sample sizes are given for 5000 draws, and costs for a run of the paper's size (5000 + 5000 iterations),
whatever the number of iterations measured. So they can be compared with the paper's.

One HMC run of each experiment serves three rows. Its kept draws are HMC's row. Its burn-in is also the exploration of
RNS-HMC and RNS-RMHMC, which would be the same Markov chain: the accepted proposals after the first fifth are their
training set, and its time is charged to both. Exact RMHMC starts in the posterior and has no burn-in of its own here;
it is charged one at the cost of its kept draws.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leapwise.errors import InputError
from leapwise.kernels import HMC
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import (
    CHAINS,
    EXPERIMENTS,
    METHOD_TITLES,
    METHODS,
    Experiment,
    finished,
    get_experiment,
    monotone_ess,
    start,
)
from leapwise.results import Run
from leapwise.results.datatree import require_writable
from leapwise.run import sample
from leapwise.surrogates import TrainingSet
from leapwise.warmup import RNSHMC, RNSRMHMC

SEED = 2  # of all runs here
DRAWS = 5000  # of the paper, burn-in and kept alike
ACCEPTANCE_TOLERANCE = 0.06  # differences from the paper's acceptance that are named in the notes
BUSY = 1.25  # wall seconds per CPU second above which the notes say that the machine was busy

Row = dict[str, Any]


@dataclass(frozen=True)
class Table1Plan:
    """Number of iterations of each of the four chains.

    Attributes
    ----------
    burn_in : int
        Burn-in of HMC; the first fifth is not collected.
    kept : dict of str to int
        By method.
    """

    burn_in: int
    kept: dict[str, int]


#: The paper's size, and one that takes five minutes: RMHMC is by far the slowest.
FULL = Table1Plan(1250, {"hmc": 1250, "rmhmc": 1250, "rns-hmc": 1250, "rns-rmhmc": 1250})
QUICK = Table1Plan(1250, {"hmc": 500, "rmhmc": 50, "rns-hmc": 1250, "rns-rmhmc": 125})


def hmc_cell(experiment: Experiment, plan: Table1Plan, position: np.ndarray, cells: Cells) -> dict[str, Any]:
    """Return HMC's numbers, the training set from its burn-in, and the last positions of the burn-in."""

    def compute() -> dict[str, Any]:
        run, cpu = _sample(
            experiment, experiment.method("hmc"), plan.kept["hmc"], position, cells, plan.burn_in
        )
        stats, skip = run.warmup.stats, plan.burn_in // 5
        # In the order of time, all chains together, as the paper's rule collects them.
        accepted = stats["accepted"][:, skip:].T
        return {
            **_numbers(run, cpu),
            "burn_in_iterations": CHAINS * plan.burn_in,
            "burn_in_seconds": run.warmup.cost.seconds,
            "burn_in_exact": run.warmup.cost.n_exact,
            "training_position": np.swapaxes(run.warmup.draws[:, skip:], 0, 1)[accepted],
            "training_potential": -stats["lp"][:, skip:].T[accepted],
            "end": run.warmup.draws[:, -1].copy(),
        }

    settings = {"burn_in": plan.burn_in, "kept": plan.kept["hmc"], "chains": CHAINS, "seed": SEED}
    return cells.get(f"table1 · {experiment.name} · hmc", settings, compute)


def rmhmc_cell(
    experiment: Experiment, plan: Table1Plan, position: np.ndarray, cells: Cells
) -> dict[str, Any]:
    """Return the numbers of exact RMHMC."""
    kept = plan.kept["rmhmc"]

    def compute() -> dict[str, Any]:
        run, cpu = _sample(experiment, experiment.method("rmhmc"), kept, position, cells)
        return {
            **_numbers(run, cpu),
            "burn_in_iterations": CHAINS * kept,
            "burn_in_seconds": run.posterior.cost.seconds,
            "burn_in_exact": run.posterior.cost.n_exact,
        }

    settings = {"kept": kept, "chains": CHAINS, "seed": SEED}
    return cells.get(f"table1 · {experiment.name} · rmhmc", settings, compute)


def surrogate_cell(
    experiment: Experiment, method: str, plan: Table1Plan, explored: dict[str, Any], cells: Cells
) -> dict[str, Any]:
    """Return the numbers of RNS-HMC or RNS-RMHMC, trained on the burn-in of HMC (`hmc_cell`)."""
    kept = plan.kept[method]

    def compute() -> dict[str, Any]:
        training = TrainingSet(explored["training_position"], explored["training_potential"])
        recipe = experiment.method(method)
        assert isinstance(recipe, RNSHMC | RNSRMHMC)
        started = time.perf_counter()
        surrogate = recipe.surrogate.fit(training, np.random.default_rng(SEED))
        kernel = recipe.kernel(surrogate, HMC(*experiment.problem.settings["hmc"]), training)
        training_seconds = time.perf_counter() - started
        run, cpu = _sample(experiment, kernel, kept, explored["end"], cells)
        discrepancy = run.posterior.stats["discrepancy"]
        return {
            **_numbers(run, cpu),
            **{name: value for name, value in explored.items() if name.startswith("burn_in")},
            "training_seconds": training_seconds,
            "n_training": len(training),
            "discrepancy_sd": float(np.nanstd(discrepancy)),
        }

    settings = {"burn_in": plan.burn_in, "kept": kept, "chains": CHAINS, "seed": SEED}
    return cells.get(f"table1 · {experiment.name} · {method}", settings, compute)


def compute_cells(
    experiments: list[Experiment], methods: list[str], plan: Table1Plan, cells: Cells
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all cells by experiment and method, always with those of HMC, which the others are compared with."""
    others = [method for method in methods if method != "hmc"]
    cells.expect(len(experiments) * (2 + len(others)))
    found = {}
    for experiment in experiments:
        position = start(experiment, cells)
        explored = hmc_cell(experiment, plan, position, cells)
        found[experiment.name, "hmc"] = explored
        for method in others:
            if method == "rmhmc":
                found[experiment.name, method] = rmhmc_cell(experiment, plan, position, cells)
            else:
                found[experiment.name, method] = surrogate_cell(experiment, method, plan, explored, cells)
    return found


def _sample(
    experiment: Experiment, method: Any, kept: int, position: np.ndarray, cells: Cells, burn_in: int = 0
) -> tuple[Run, float]:
    """Return the run, and the CPU seconds of an iteration of one chain."""
    target = experiment.problem.target
    started = time.process_time()
    run = sample(
        target,
        kept,
        tune=burn_in,
        chains=CHAINS,
        method=method,
        init=position,
        random_seed=SEED,
        progressbar=cells.progressbar,
    )
    spent = time.process_time() - started
    return finished(run), spent / (CHAINS * (burn_in + kept))


def _numbers(run: Run, cpu_seconds: float) -> dict[str, Any]:
    """Return the numbers of the kept draws that every row needs."""
    draws, stats = run.draws, run.posterior.stats
    chains, kept, dim = draws.shape
    return {
        "chains": chains,
        "kept": kept,
        "acceptance": float(stats["accepted"].mean()),
        "ess": monotone_ess(draws),
        "mean": draws.mean(axis=(0, 1)),
        "sd": draws.reshape(-1, dim).std(axis=0, ddof=1),
        "cpu_seconds": cpu_seconds,
        "unsolved": float(stats["unsolved"].mean()) if "unsolved" in stats else 0.0,
        **{f"cost_{name}": value for name, value in asdict(run.posterior.cost).items()},
    }


@dataclass(frozen=True, eq=False)
class Table1:
    """The numbers of Table 1.

    Attributes
    ----------
    rows : list of dict
        One row for each experiment and method; ``paper_...`` are the paper's figures.
    notes : list of str
        How it was run and what to note when reading it.
    """

    rows: list[dict[str, Any]]
    notes: list[str]

    @property
    def caption(self) -> str:
        """The result in words."""
        return caption(self.rows)

    def __rich__(self) -> RenderableType:
        return terminal(self.rows, [self.caption, *self.notes])

    def save_markdown(self, path: str | PathLike[str]) -> Path:
        """Write the table for a page of documentation."""
        file = require_writable(path)
        file.write_text(markdown(self.rows, [self.caption, *self.notes]), encoding="utf-8")
        return file


def table1(
    quick: bool = False,
    cells: Cells | None = None,
    experiment: str | None = None,
    method: str | None = None,
    *,
    plan: Table1Plan | None = None,
) -> Table1:
    """Run the samplers of Table 1.

    Parameters
    ----------
    quick : bool
        Fewer kept iterations, above all of RMHMC: minutes instead of hours.
    cells : Cells, optional
        Keeps finished runs.
    experiment : {"simulated", "bank", "a9a", "elliptic"}, optional
        Only this one.
    method : {"hmc", "rmhmc", "rns-hmc", "rns-rmhmc"}, optional
        Only this one. HMC is still run: speed-ups compare with it, and surrogates learn from its burn-in.
    plan : Table1Plan, optional
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
    return Table1(rows, notes(plan, rows))


def _row(experiment: Experiment, method: str, found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    cell, hmc, paper = found[experiment.name, method], found[experiment.name, "hmc"], experiment.paper[method]
    rates, base = _rates(cell), _rates(hmc)
    n_iterations = cell["chains"] * cell["kept"]
    ess = cell["ess"] * DRAWS / n_iterations
    # The authors' HMC would spend the time of gradients twice, and otherwise the same.
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
    """Return the smallest ESS per second of kept draws, per second of the whole run, and per exact evaluation of it.

    The whole run is one of the paper's size: burn-in at the measured cost, training, kept draws.
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
    """Return the smallest ESS per CPU second, which depends less on other work of the machine."""
    return float(cell["ess"].min() / (cell["chains"] * cell["kept"]) / cell["cpu_seconds"])


def _three(ess: np.ndarray) -> tuple[float, float, float]:
    return float(ess.min()), float(np.median(ess)), float(ess.max())


def _in_values(cell: dict[str, Any]) -> float:
    """Return the cost of an iteration in exact values; 0 for methods that never ask for a value alone."""
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


#: Headings and their widths, fixed so that the tables of all experiments line up.
HEADINGS = {
    "method": 10,
    "AP": 4,
    "ESS of 5000\nmin / median / max": 18,
    "s/iter": 8,
    "min\nESS/s": 6,
    "speed-up": 8,
    "burn-in\nincluded": 8,
    "against two\ngradients": 11,
    "ESS/exact\nevaluation": 10,
}


def terminal(rows: list[Row], notes: list[str]) -> RenderableType:
    """Lay the table out for a terminal of 100 columns, the paper's figures below ours."""
    parts: list[RenderableType] = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        chosen = [row for row in rows if row["experiment"] == name]
        parts += [_section(chosen, with_headings=not parts), Text("")]
    return Group(*parts, *(Text(note + "\n") for note in notes))


def _section(rows: list[Row], with_headings: bool) -> Table:
    """Lay out one experiment."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim", show_header=with_headings)
    table.title, table.title_justify, table.title_style = _title(rows[0]), "left", "bold"
    for heading, width in HEADINGS.items():
        table.add_column(heading, justify="left" if heading == "method" else "right", width=width)
    for row in rows:
        table.add_row(METHOD_TITLES[row["method"]], *ours(row))
        table.add_row(*(Text(cell, style="dim") for cell in ("  paper", *papers(row))))
    return table


def markdown(rows: list[Row], notes: list[str]) -> str:
    """Write the table as Markdown, the paper's figures in parentheses."""
    headings = ["experiment", *(" ".join(heading.split("\n")) for heading in HEADINGS)]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for row in rows:
        cells = [
            f"{mine} ({theirs})" if theirs else mine
            for mine, theirs in zip(ours(row), (*papers(row), "", "", ""), strict=True)
        ]
        lines.append(f"| {_title(row)} | {METHOD_TITLES[row['method']]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "In parentheses: the paper's figure.", "", *(f"{n}\n" for n in notes)])


def ours(row: Row) -> list[str]:
    """Return our figures, one for each column after the method."""
    return [
        f"{row['acceptance']:.2f}",
        three(row),
        short(row["seconds"]),
        short(row["min_ess_rate"]),
        short(row["speed_up"]),
        short(row["speed_up_all"]),
        short(row["speed_up_two_gradients"]),
        short(row["ess_per_exact"]),
    ]


def papers(row: Row) -> list[str]:
    """Return the paper's figures for the columns that it has."""
    return [
        f"{row['paper_acceptance']:.2f}",
        three(row, "paper_"),
        short(row["paper_seconds"]),
        short(row["paper_min_ess_rate"]),
        short(row["paper_speed_up"]),
    ]


def short(value: float) -> str:
    """Write a number with three significant digits, or as a whole number from 100 on.

    Examples
    --------
    >>> [short(value) for value in (0.00412, 0.0725, 1, 8.719, 123.56, 4351)]
    ['0.00412', '0.0725', '1', '8.72', '124', '4351']
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def three(row: Row, prefix: str = "") -> str:
    """Write the smallest, median and largest ESS."""
    return " / ".join(f"{row[f'{prefix}ess_{which}']:.0f}" for which in ("min", "median", "max"))


def caption(rows: list[Row]) -> str:
    """Return the speed-ups of the surrogate methods, beside the paper's, in words."""
    said = []
    for method, name in (("rns-hmc", "RNS-HMC"), ("rns-rmhmc", "RNS-RMHMC")):
        chosen = [row for row in rows if row["method"] == method]
        if chosen:
            found = ", ".join(
                f"{short(row['speed_up'])} on {row['experiment']} (paper {short(row['paper_speed_up'])})"
                for row in chosen
            )
            said.append(f"Effective draws per second of {name}, as a multiple of HMC's: {found}.")
    return " ".join(said) or "Exact methods only: there is no speed-up to report."


def notes(plan: Table1Plan, rows: list[Row]) -> list[str]:
    """Return how it was run, and what was cut short."""
    kept = ", ".join(f"{METHOD_TITLES[name]} {CHAINS * n}" for name, n in plan.kept.items())
    found = [
        f"{CHAINS} chains in one batch. Iterations of all chains together: {CHAINS * plan.burn_in} of burn-in "
        f"(nothing is collected in the first fifth); kept: {kept}. Seconds are wall seconds over all of them.",
        "All methods start at the last draws of a short self-tuned run, which is not counted. HMC evaluates "
        "one gradient per leapfrog step; 'against two gradients' is the speed-up over an HMC that spends that time "
        "twice, as the authors' code does. 'Burn-in included' adds burn-in and training for a run of the paper's "
        "size; exact RMHMC's burn-in is charged at the cost of its kept draws.",
    ]
    return [*found, *_about_training(plan, rows), *_about_agreement(rows), *_about_time(rows)]


def _about_training(plan: Table1Plan, rows: list[Row]) -> Iterator[str]:
    trained = {row["experiment"]: row["n_training"] for row in rows if row["n_training"]}
    if trained:
        sizes = ", ".join(f"{name} {n}" for name, n in trained.items())
        yield f"Surrogates are trained on the values of accepted proposals alone: {sizes}."
    if trained and plan.burn_in < FULL.burn_in:
        yield "The training set is smaller than the paper's, so the surrogates are worse."
    if plan != FULL:
        yield (
            "Quick: fewer iterations than the paper's 5000 + 5000, so effective sample sizes, above all RMHMC's, "
            "are rough; --full is the paper's size."
        )


def _about_agreement(rows: list[Row]) -> Iterator[str]:
    """Name the rows whose acceptance is not the paper's, and say how well the means agree with HMC's."""
    apart = [
        f"{row['experiment']} {METHOD_TITLES[row['method']]} {row['acceptance']:.2f} ({row['paper_acceptance']:.2f})"
        for row in rows
        if abs(row["acceptance"] - row["paper_acceptance"]) > ACCEPTANCE_TOLERANCE
    ]
    if apart:
        yield f"Acceptance more than {ACCEPTANCE_TOLERANCE} from the paper's: {', '.join(apart)}."
    others = [row for row in rows if row["method"] != "hmc"]
    if others:
        worst = max(others, key=lambda row: row["largest_z"])
        yield (
            f"Posterior means differ from HMC's by at most {worst['largest_z']:.1f} combined standard errors "
            f"({worst['experiment']}, {METHOD_TITLES[worst['method']]})."
        )


def _about_time(rows: list[Row]) -> Iterator[str]:
    """Warn if other work disturbed the measured times."""
    slowest = max(row["seconds"] / row["cpu_seconds"] for row in rows)
    if slowest > BUSY:
        others = [row for row in rows if row["method"] != "hmc"]
        found = ", ".join(
            f"{row['experiment']} {METHOD_TITLES[row['method']]} {short(row['speed_up_cpu'])}"
            for row in others
        )
        yield (
            f"The machine was busy: wall seconds are up to {slowest:.1f} times CPU seconds, so times are not "
            f"reliable. Speed-ups by CPU time: {found or 'none'}."
        )


def _title(row: Row) -> str:
    experiment = EXPERIMENTS[row["experiment"]]
    return f"{experiment.title}, s = {experiment.n_hidden}"
