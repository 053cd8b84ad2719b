"""What figures 4 and 5 measure: networks that stand in for simulated logistic regressions.

Besides the paper's networks a plain quadratic learns from the same states: posteriors of regressions with many rows
are nearly Gaussian, and it shows how much of a network's work a quadratic would have done.

The paper does not say how the input weights of its units are drawn. Here they are `SoftplusNetwork`'s own: scaled so
that units bend slowly over the data. Weights that are standard normal in whitened coordinates, not scaled, are tried
too: how they are drawn matters as much as how many units there are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.paper.surrogate_flow import Explored, code_of_flows, explore
from leapwise.problems import Problem, logistic_simulated
from leapwise.surrogates import QuadraticNetwork, SoftplusNetwork, Surrogate

N_STEPS = 6  # as in section 5.1 of the paper
REPEATS = 2


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes
    ----------
    n_rows : int
        Of the regression.
    runs : int
        Independent runs of exact HMC, each with its own network.
    n_starts : int
        Trajectories to average over begin at so many states, twice at each.
    seed : int
    """

    n_rows: int = 10_000
    runs: int = 10
    n_starts: int = 250
    seed: int = 4

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return all that a cell depends on."""
        return asdict(self) | others | {"n_steps": N_STEPS, "repeats": REPEATS, "code": code_of_flows()}


def explore_logistic(effort: Effort, dim: int, size: int) -> dict[str, Any]:
    """Explore the regression with `dim` coefficients until each run has accepted `size` states.

    Besides what was explored, ``exact`` is the acceptance of exact HMC from the same starts as the networks'.
    """
    target = logistic_simulated(effort.n_rows, dim).target
    found = explore(target, n_steps=N_STEPS, size=size, runs=effort.runs, seed=effort.seed)
    return found.numbers() | {"exact": found.exact_acceptance(target, effort.n_starts, REPEATS, effort.seed)}


def try_networks(
    effort: Effort, dim: int, size: int, hidden: Sequence[int], explored: Explored
) -> dict[str, Any]:
    """Train networks of several sizes, and a quadratic, on `size` states of each run, and try them.

    Returns
    -------
    dict
        ``acceptance`` and ``seconds`` of training, ``(len(hidden), runs)``; the same of the quadratic, ``(runs,)``,
        as ``quadratic_acceptance`` and ``quadratic_seconds``.
    """
    problem = logistic_simulated(effort.n_rows, dim)
    found = np.array(
        [_try(effort, problem, explored, size, SoftplusNetwork(n_hidden), n_hidden) for n_hidden in hidden]
    )
    quadratic = _try(effort, problem, explored, size, QuadraticNetwork(), 0)
    return {
        "acceptance": found[:, 0],
        "seconds": found[:, 1],
        "quadratic_acceptance": quadratic[0],
        "quadratic_seconds": quadratic[1],
    }


def try_unscaled(effort: Effort, dim: int, size: int, n_hidden: int, explored: Explored) -> dict[str, Any]:
    """Train networks with standard normal input weights on `size` states of each run; return ``acceptance`` (runs,)."""
    network = SoftplusNetwork(n_hidden, gain=float(np.sqrt(dim)))
    problem = logistic_simulated(effort.n_rows, dim)
    return {"acceptance": _try(effort, problem, explored, size, network, n_hidden)[0]}


def explore_and_try(effort: Effort, dim: int, size: int, hidden: Sequence[int]) -> dict[str, Any]:
    """Do both, and keep no states: in many dimensions they are many numbers."""
    exploration = explore_logistic(effort, dim, size)
    found = try_networks(effort, dim, size, hidden, Explored.from_numbers(exploration))
    return found | {"exact": exploration["exact"], "step_size": exploration["step_size"]}


def _try(
    effort: Effort, problem: Problem, explored: Explored, size: int, surrogate: Surrogate, salt: int
) -> np.ndarray:
    """Return acceptance and seconds of training of each run, ``(2, runs)``."""
    found = np.empty((2, effort.runs))
    for run in range(effort.runs):
        training = explored.training(run, size)
        rng = np.random.default_rng([effort.seed, problem.target.dim, size, salt, run])
        started = time.perf_counter()
        fitted = surrogate.fit(training, rng)
        fitted.potential(training.position[:1])  # what is solved when first asked for counts as training
        found[1, run] = time.perf_counter() - started
        found[0, run] = explored.flow_acceptance(
            problem.target, fitted, run, n_starts=effort.n_starts, repeats=REPEATS, seed=effort.seed + run
        )
    return found
