"""How mistakes are planted, and the checks ("looks") that must catch them.

A *look* is a check of the quick tier. It returns its finding relative to the limit: a correct kernel stays below one. A
*mutation* is one small patch; with it, the same look must find at least two, so that the result does not depend on the
seed. A look that can only pass or fail returns zero or infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pytest

from leapwise import Evaluator, State, Streams
from leapwise.errors import EvaluationError
from leapwise.kernels import Kernel
from leapwise.testing import ExactTarget, check_invariance

#: Probability that a look fails a correct kernel.
FALSE_ALARM = 1e-7
#: Smallest finding of a mistake, relative to the limit.
CLEARLY = 2.0
#: Chains of a look, and of a look that needs more to see a mistake clearly.
N, MORE = 100_000, 200_000


class Finding(NamedTuple):
    """The finding relative to the limit, and in words."""

    ratio: float
    words: str


class Look(Protocol):
    """A check of the quick tier."""

    @property
    def name(self) -> str: ...

    def __call__(self) -> Finding: ...


@dataclass(frozen=True, eq=False)
class Mutation:
    """A mistake: how to plant it, and the look that must see it."""

    name: str
    look: Look
    plant: Callable[[pytest.MonkeyPatch], None]


#: All mistakes, by name.
PLANTED: dict[str, Mutation] = {}


def mistake(name: str, look: Look) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Mutation]:
    """Return a decorator that makes a mutation from a function that patches."""

    def enter(plant: Callable[[pytest.MonkeyPatch], None]) -> Mutation:
        assert name not in PLANTED
        PLANTED[name] = Mutation(name, look, plant)
        return PLANTED[name]

    return enter


@dataclass(frozen=True, eq=False)
class OneStep:
    """Exact draws are still exact draws after one or a few steps."""

    name: str
    kernel: Kernel
    exact: ExactTarget
    n_chains: int = N
    steps: int = 1

    def __call__(self) -> Finding:
        verdict = check_invariance(
            self.kernel, self.exact, n_chains=self.n_chains, steps=self.steps, false_alarm=FALSE_ALARM
        )
        if not verdict.acceptance > 0.1:  # if nothing moves, nothing is tested
            return Finding(np.inf, f"acceptance {verdict.acceptance:.2g}")
        if verdict.n_lost:
            return Finding(np.inf, f"{verdict.n_lost} chains lost")
        return Finding(verdict.largest / verdict.threshold, f"|z| = {verdict.largest:.0f}")


@dataclass(frozen=True, eq=False)
class Refusal:
    """A step whose exact values always fail must raise."""

    name: str
    kernel: Kernel
    exact: ExactTarget

    def __call__(self) -> Finding:
        try:
            check_invariance(self.kernel, self.exact, n_chains=1000)
        except EvaluationError:
            return Finding(0.0, "refused")
        return Finding(np.inf, "not refused")


@dataclass(frozen=True, eq=False)
class Independence:
    """Chains with streams of their own move independently of their neighbours, and of those far away.

    The signs of the changes of a reversible kernel are fair coins, and so are those of products of the changes of two
    chains that are independent. So the bound of `check_invariance` holds for these eight z-scores: chance 5e-8.
    """

    name: str
    kernel: Kernel
    exact: ExactTarget
    n_chains: int = 16_000
    threshold: float = 6.0

    def __call__(self) -> Finding:
        evaluator = Evaluator(self.exact.target)
        position = self.exact.positions(np.random.default_rng(5), self.n_chains)
        start = State.from_evaluation(evaluator.value_and_gradient(position))
        end, _ = self.kernel.step(Streams(6, self.n_chains), start, evaluator)
        change, z = end.position - start.position, 0.0
        for distance in (1, 2, 3, self.n_chains // 2):
            products = change[distance:] * change[:-distance]
            scores = products.sum(axis=0) / np.sqrt((products**2).sum(axis=0))
            z = max(z, float(np.abs(scores).max()))
        return Finding(z / self.threshold, f"|z| = {z:.0f} between chains")
