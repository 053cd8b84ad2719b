"""A skewed target, its metric, and one way to make each public kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leapwise import (
    HMC,
    NUTS,
    RMHMC,
    Evaluator,
    Mixture,
    State,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
    Target,
    UnitMetric,
)
from leapwise.dynamics import HessianMetric


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


class SkewedSurrogate:
    """A surrogate of the skewed potential that is wrong by about a tenth: 0.9 q + 1.1 exp(-q)."""

    def potential(self, position):
        return (0.9 * position + 1.1 * np.exp(-position)).sum(axis=1)

    def potential_and_gradient(self, position):
        return self.potential(position), 0.9 - 1.1 * np.exp(-position)

    def hessian(self, position):
        return 1.1 * np.exp(-position)[:, :, None] * np.eye(position.shape[1])

    def quadratic_contraction(self, position, velocity):
        return -1.1 * np.exp(-position) * velocity**2

    def trace_contraction(self, position, matrix):
        return -1.1 * np.exp(-position) * np.diagonal(matrix, axis1=1, axis2=2)


#: How the tests make each public kernel, so that changes of its settings can be tried.
MAKERS = {
    "HMC": lambda **changes: HMC(**{"step_size": 0.6, "n_steps": 4, "metric": UnitMetric(), **changes}),
    "NUTS": lambda **changes: NUTS(**{"step_size": 0.6, "metric": UnitMetric(), **changes}),
    "RMHMC": lambda **changes: RMHMC(**{"step_size": 0.6, "n_steps": 3, "metric": SkewedMetric(), **changes}),
    "SurrogateHMC": lambda **changes: SurrogateHMC(
        **{"step_size": 0.6, "n_steps": 4, "surrogate": SkewedSurrogate(), **changes}
    ),
    "SurrogateRMHMC": lambda **changes: SurrogateRMHMC(
        **{
            "step_size": 0.6,
            "n_steps": 3,
            "surrogate": SkewedSurrogate(),
            "metric": HessianMetric(SkewedSurrogate(), "softabs", floor=1.0),
            **changes,
        }
    ),
    "SurrogateTransition": lambda **changes: SurrogateTransition(
        **{"step_size": 0.6, "n_steps": 4, "surrogate": SkewedSurrogate(), "inner_steps": 2, **changes}
    ),
    "Mixture": lambda **changes: Mixture(
        (MAKERS["HMC"](**changes), MAKERS["HMC"](**{"n_steps": 2, **changes})), (0.7, 0.3)
    ),
}
GUIDED = {name: make for name, make in MAKERS.items() if name.startswith("Surrogate")}
UNGUIDED = {name: make for name, make in MAKERS.items() if name not in GUIDED}

#: For a test that must hold for every public kernel: gives it `make`.
every_kernel = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
#: The same for those that are told how far to go, and propose one point.
TOLD = {name: make for name, make in MAKERS.items() if name != "NUTS"}
every_kernel_of_one_proposal = pytest.mark.parametrize("make", TOLD.values(), ids=list(TOLD))
#: The same without mixtures of others.
OWN = {name: make for name, make in MAKERS.items() if name != "Mixture"}
every_kernel_of_its_own = pytest.mark.parametrize("make", OWN.values(), ids=list(OWN))
#: The same for those that follow exact gradients, and for those that follow a surrogate.
every_exact_kernel = pytest.mark.parametrize("make", UNGUIDED.values(), ids=list(UNGUIDED))
every_surrogate_kernel = pytest.mark.parametrize("make", GUIDED.values(), ids=list(GUIDED))


def start(evaluator: Evaluator, n_chains: int, seed: int = 0) -> State:
    position = np.random.default_rng(seed).gumbel(size=(n_chains, evaluator.target.dim))
    return State.from_evaluation(evaluator.value_and_gradient(position))
