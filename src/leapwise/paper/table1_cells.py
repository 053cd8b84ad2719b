"""The sixteen runs behind Table 1.

One HMC run of each experiment serves three rows. Its kept draws are HMC's row. Its burn-in is also the exploration of
RNS-HMC and RNS-RMHMC, which is the same Markov chain and need not be run again: the accepted proposals after the first
fifth are their training set, and its time is charged to both. Exact RMHMC begins in the posterior and has no burn-in
of its own here; it is charged one at the price of its kept draws.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.kernels import HMC
from leapwise.paper.cells import Cells
from leapwise.paper.ess import monotone_ess
from leapwise.paper.experiments import Experiment, finished, start
from leapwise.results import Run
from leapwise.run import sample
from leapwise.surrogates import TrainingSet
from leapwise.warmup import RNSHMC, RNSRMHMC

SEED = 2
CHAINS = 4


@dataclass(frozen=True)
class Plan:
    """How many iterations of each of the four chains.

    Attributes
    ----------
    burn_in : int
        Of HMC; a fifth of them is not collected.
    kept : dict of str to int
        By method.
    """

    burn_in: int
    kept: dict[str, int]


FULL = Plan(1250, {"hmc": 1250, "rmhmc": 1250, "rns-hmc": 1250, "rns-rmhmc": 1250})
QUICK = Plan(1250, {"hmc": 500, "rmhmc": 50, "rns-hmc": 1250, "rns-rmhmc": 125})


def hmc_cell(experiment: Experiment, plan: Plan, position: np.ndarray, cells: Cells) -> dict[str, Any]:
    """Return HMC's numbers, the training set of its burn-in, and where that ended."""

    def compute() -> dict[str, Any]:
        run, cpu = _sample(
            experiment, experiment.method("hmc"), plan.kept["hmc"], position, cells, plan.burn_in
        )
        stats, skip = run.warmup.stats, plan.burn_in // 5
        # In the order of time, all chains together, as the paper's rule would meet them.
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


def rmhmc_cell(experiment: Experiment, plan: Plan, position: np.ndarray, cells: Cells) -> dict[str, Any]:
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
    experiment: Experiment, method: str, plan: Plan, explored: dict[str, Any], cells: Cells
) -> dict[str, Any]:
    """Return the numbers of RNS-HMC or RNS-RMHMC, trained on what HMC's burn-in found (`hmc_cell`)."""
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
    experiments: list[Experiment], methods: list[str], plan: Plan, cells: Cells
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return all cells that were asked for, and HMC's, which they are compared with, by experiment and method."""
    others = [method for method in methods if method != "hmc"]
    cells.expect(len(experiments) * (2 + len(others)))
    found = {}
    for experiment in experiments:
        position = start(experiment, cells, CHAINS)
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
    """Return what every row needs of the kept draws."""
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
