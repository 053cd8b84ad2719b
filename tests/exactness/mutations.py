"""How mistakes are planted, and the looks that must catch them.

A *look* is a check of the quick tier. It returns what it found relative to what it allows: a sound kernel stays below
one. A *mutation* is one small patch; with it, the same look must find at least twice what it allows, so that the
verdict does not hang on the seed. Where a look is not a matter of degree it finds zero or infinity.
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

#: Chance that a look fails a sound kernel.
FALSE_ALARM = 1e-7
#: What a mistake must give, over what is allowed.
CLEARLY = 2.0
N = 200_000


class Finding(NamedTuple):
    """What was found, over what is allowed, and in words."""

    ratio: float
    words: str


class Look(Protocol):
    """A check of the quick tier."""

    @property
    def name(self) -> str: ...

    def __call__(self) -> Finding: ...


@dataclass(frozen=True, eq=False)
class Mutation:
    """A mistake: how to make it, and who must see it."""

    name: str
    look: Look
    plant: Callable[[pytest.MonkeyPatch], None]


#: All mistakes, by name.
PLANTED: dict[str, Mutation] = {}


def mistake(name: str, look: Look) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Mutation]:
    """Make a mutation of a function that patches."""

    def enter(plant: Callable[[pytest.MonkeyPatch], None]) -> Mutation:
        assert name not in PLANTED
        PLANTED[name] = Mutation(name, look, plant)
        return PLANTED[name]

    return enter


@dataclass(frozen=True, eq=False)
class OneStep:
    """Exact draws are exact draws after a step, or a few."""

    name: str
    kernel: Kernel
    exact: ExactTarget
    n_chains: int = N
    steps: int = 1

    def __call__(self) -> Finding:
        verdict = check_invariance(
            self.kernel, self.exact, n_chains=self.n_chains, steps=self.steps, false_alarm=FALSE_ALARM
        )
        if not verdict.acceptance > 0.1:  # where nothing moves nothing can be seen
            return Finding(np.inf, f"acceptance {verdict.acceptance:.2g}")
        if verdict.n_lost:
            return Finding(np.inf, f"{verdict.n_lost} chains lost")
        return Finding(verdict.largest / verdict.threshold, f"|z| = {verdict.largest:.0f}")


@dataclass(frozen=True, eq=False)
class Refusal:
    """A step whose exact values fail for good is refused."""

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
