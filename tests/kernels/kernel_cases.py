"""A skewed target, its metric, and one way to make each public kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from understudy import HMC, RMHMC, Evaluator, State, Target, UnitMetric


@dataclass
class LocalSkewedMetric:
    position: np.ndarray

    def __post_init__(self):
        diagonal = 1.0 + np.exp(-self.position)
        self.matrix = diagonal[:, :, None] * np.eye(self.position.shape[1])
        self.cholesky = np.sqrt(self.matrix)

    def quadratic_contraction(self, velocity):
        return -np.exp(-self.position) * velocity**2

    def trace_contraction(self):
        return -1.0 / (np.exp(self.position) + 1.0)


class SkewedMetric:
    """G = diag(1 + exp(-q)): the Hessian of the skewed potential plus one. Keeps the rows it is asked for."""

    def __init__(self):
        self.calls = []

    def at(self, position):
        self.calls.append(position.copy())
        return LocalSkewedMetric(position)


def skewed_target(visited=None):
    """Independent Gumbel variables in two dimensions, one point at a time; keeps the points it is asked for."""

    def log_density(x):
        if visited is not None:
            visited.append(x.copy())
        return -(x + np.exp(-x)).sum()

    return Target(log_density, lambda x: np.exp(-x) - 1.0, dim=2)


#: How the tests make each public kernel, so that changes of its settings can be tried.
MAKERS = {
    "HMC": lambda **changes: HMC(**{"step_size": 0.6, "n_steps": 4, "metric": UnitMetric(), **changes}),
    "RMHMC": lambda **changes: RMHMC(**{"step_size": 0.6, "n_steps": 3, "metric": SkewedMetric(), **changes}),
}


#: For a test that must hold for every public kernel: gives it `make`.
every_kernel = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def start(evaluator: Evaluator, n_chains: int, seed: int = 0) -> State:
    position = np.random.default_rng(seed).gumbel(size=(n_chains, evaluator.target.dim))
    return State.from_evaluation(evaluator.value_and_gradient(position))
