"""The list of public kernels, and how each is made for a target. A test fails if a public kernel is not listed.

For a method that trains a surrogate, the kernel of its draws is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from dense_metric import DenseCurvature

import leapwise
import leapwise.kernels
import leapwise.warmup
from leapwise import (
    ARNSHMC,
    HMC,
    NUTS,
    RMHMC,
    RNSHMC,
    RNSRMHMC,
    Auto,
    Evaluator,
    Mixture,
    QuadraticNetwork,
    RBFNetwork,
    SoftplusNetwork,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
    TrainingSet,
    UnitMetric,
    sample,
)
from leapwise.kernels import Jumps, Kernel
from leapwise.testing import ExactTarget
from leapwise.warmup import tuner_for


@dataclass(frozen=True)
class Listed:
    """How to make one kernel, which public names it covers, and with how many chains it is tested.

    If more than `most_accepted` were accepted, the accept rule would have no effect and would not be tested. An
    expensive kernel is tested on few targets in the quick tier.
    """

    make: Callable[[ExactTarget], Kernel]
    covers: tuple[type, ...]
    n_chains: int
    steps: int = 1
    most_accepted: float = 0.97
    is_expensive: bool = False


def trained(exact: ExactTarget, recipe, n: int = 200):
    """Return a surrogate that has seen exact draws of the target."""
    rng = np.random.default_rng(7)
    seen = Evaluator(exact.target).value_and_gradient(exact.positions(rng, n))
    return recipe.fit(TrainingSet(seen.position, seen.potential, seen.gradient), rng)


def left_by(method, exact: ExactTarget) -> Kernel:
    """Return the kernel of a method after its warm-up on the target."""
    run = sample(exact.target, 1, tune=100, chains=4, method=method, random_seed=11, progressbar=False)
    return run.kernel


def transition(exact: ExactTarget) -> SurrogateTransition:
    return SurrogateTransition(0.7, 2, surrogate=trained(exact, RBFNetwork(8)), inner_steps=3)


def jumping(exact: ExactTarget) -> SurrogateTransition:
    """Return one that jumps between two components of different width, which need not be modes."""
    seen = exact.positions(np.random.default_rng(8), 400)
    middle, scale = np.median(seen, axis=0), np.quantile(seen, 0.75, axis=0) - np.quantile(seen, 0.25, axis=0)
    jumps = Jumps(
        np.stack([middle - 0.5 * scale, middle + 0.8 * scale]),
        np.stack([np.diag(0.4 * scale), np.diag(0.9 * scale)]),
    )
    return replace(transition(exact), inner_steps=1, jumps=jumps)


class Unpublished:
    """ARNS-HMC that updates its surrogate with every exact value, but never refits because the probability is zero."""

    is_exact = True

    def __init__(self, exact: ExactTarget) -> None:
        self.method = ARNSHMC(
            SoftplusNetwork(15), step_size=0.9, n_steps=3, refit_probability=lambda step: 0.0
        )
        self.kernel, self.tuner = left_by(self.method, exact), None

    def step(self, streams, state, evaluator):
        if self.tuner is None:
            self.tuner = tuner_for(self.method, self.kernel, evaluator, Streams(11, 1))
        new, info = self.tuner.kernel.step(streams, state, evaluator)
        self.tuner.learn(state, new, info)
        assert self.tuner.kernel is self.kernel and self.tuner.n_adaptive > 0
        return new, info


LISTED = {
    "HMC": Listed(lambda exact: HMC(1.0, 3, metric=UnitMetric()), (HMC,), 100_000),
    "NUTS": Listed(lambda exact: NUTS(0.9, metric=UnitMetric()), (NUTS,), 100_000, most_accepted=1.0),
    "RMHMC": Listed(
        lambda exact: RMHMC(0.9, 2, metric=DenseCurvature()), (RMHMC,), 50_000, is_expensive=True
    ),
    "RNS-HMC": Listed(
        lambda exact: left_by(RNSHMC(SoftplusNetwork(15), step_size=0.9, n_steps=3), exact),
        (RNSHMC, SurrogateHMC),
        100_000,
    ),
    "RNS-RMHMC": Listed(
        lambda exact: left_by(
            RNSRMHMC(SoftplusNetwork(6), step_size=0.6, n_steps=2, form="diagonal", floor=0.3), exact
        ),
        (RNSRMHMC, SurrogateRMHMC),
        50_000,
        is_expensive=True,
    ),
    "ARNS-HMC, unpublished": Listed(Unpublished, (ARNSHMC, SurrogateHMC), 100_000, steps=2),
    "surrogate transition": Listed(transition, (SurrogateTransition,), 100_000),
    "surrogate transition with jumps": Listed(jumping, (SurrogateTransition,), 100_000),
    "mixture of two kernels": Listed(
        lambda exact: Mixture((transition(exact), HMC(1.0, 3, metric=UnitMetric())), (0.5, 0.5)),
        (Mixture,),
        100_000,
        steps=4,
    ),
    "Auto, quadratic": Listed(
        lambda exact: left_by(Auto(QuadraticNetwork()), exact), (Auto,), 100_000, most_accepted=1.0
    ),
}


def public_kernels() -> set[type]:
    """Return all exported classes with an attribute `is_exact`: kernels, and methods that make them."""
    modules = (leapwise, leapwise.kernels, leapwise.warmup)
    exported = (getattr(module, name) for module in modules for name in module.__all__)
    return {
        each for each in exported if hasattr(each, "is_exact") and not getattr(each, "_is_protocol", False)
    }
