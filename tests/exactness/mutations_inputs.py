"""Planted mistakes in what kernels use: random streams, and evaluations that fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gumbel_surrogates import Fair
from mutations import Independence, OneStep, Refusal, mistake

from leapwise import HMC, Evaluator, Streams, SurrogateHMC, Target, UnitMetric
from leapwise.targets.calls import Values
from leapwise.testing import gumbel

APART = Independence("HMC, chain by chain", HMC(0.9, 3, metric=UnitMetric()), gumbel())


@mistake("random stream reused between chains", APART)
def shared(patch):
    """Every second chain has the stream of the one before it."""
    make = Streams.__init__

    def paired(self, seed, n_chains):
        make(self, seed, n_chains)
        again = Streams.__new__(Streams)
        make(again, seed, n_chains)
        self.generators[1::2] = again.generators[: n_chains - 1 : 2]

    patch.setattr(Streams, "__init__", paired)


@dataclass(frozen=True, eq=False)
class Unreliable:
    """A kernel whose exact values come from a model that fails on the right, at the first try or at every one."""

    inner: SurrogateHMC
    for_good: bool = False

    def step(self, streams, state, evaluator):
        def log_density(x):
            first_try = len(x) > 1  # those that have failed are tried again one by one
            failing = (x[:, 0] > 0.5) & (self.for_good or first_try)
            return np.where(failing, np.nan, evaluator.target.evaluate(x, gradient=False).log_density)

        return self.inner.step(streams, state, Evaluator(Target(log_density, dim=2, vectorized=True)))


KERNEL = SurrogateHMC(0.5, 3, surrogate=Fair())
FLAKY = OneStep("SurrogateHMC, model that fails at times", Unreliable(KERNEL), gumbel(), 20_000)
BROKEN = Refusal("SurrogateHMC, model that fails for good", Unreliable(KERNEL, for_good=True), gumbel())


def reject(patch):
    """Call a failure a density of zero."""

    def no_failures(values):
        values.log_density[np.isnan(values.log_density)] = -np.inf
        return np.zeros(len(values.log_density), dtype=bool)

    patch.setattr(Values, "failures", no_failures)


@mistake("failed evaluation counted as rejection where it depends on the position", FLAKY)
def not_tried_again(patch):
    reject(patch)


@mistake("failed evaluation counted as rejection without being told to", BROKEN)
def not_refused(patch):
    reject(patch)
