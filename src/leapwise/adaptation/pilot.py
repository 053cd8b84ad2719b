"""Pilot: a few moves of the draws themselves, where walkers may have been too kind a test.

Walkers shorten their moves while these lead out of the support, so what they met says little of the far moves that
draws are made with: a surrogate has no notion of an edge, and most of them may end beyond it. And what is known of a
surrogate is how those before it did: the last training, which nobody has tried, can have made it far worse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from leapwise.adaptation.law import USELESS
from leapwise.adaptation.record import EvaluationRecord, spread
from leapwise.adaptation.walk import walk

if TYPE_CHECKING:
    from leapwise.adaptation.adapt import Outcome

#: Share of trials outside the support from which on there is an edge; moves that are made, and the fewest that tell.
EDGE, N_MOVES, FEWEST = 0.03, 32, 12
#: What moves may cost, as a share of the draws, where nothing has been met that speaks for them.
SHARE = 0.02


def pilot(
    record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, most: int
) -> tuple[Outcome, float]:
    """Return the outcome with sd(D) at moves of its kernel, and the share of these that ended outside the support.

    Where the support has no edge that warm-up has met, nothing is spent, and the share is 0.

    Parameters
    ----------
    record : EvaluationRecord
    outcome : Outcome
    rng : Generator
    most : int
        Exact evaluations that may be spent.
    """
    outside = record.outside(outcome.playing)
    if outside < EDGE:
        return outcome, 0.0
    if most < FEWEST:
        return outcome, outside
    discrepancy = _discrepancies(record, outcome, rng, min(N_MOVES, most))
    if len(discrepancy) < FEWEST:
        return replace(outcome, sd=np.inf), outside
    return replace(outcome, sd=spread(discrepancy)), float(np.isposinf(discrepancy).mean())


def tried(record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, n_draws: int) -> Outcome:
    """Return the outcome, with sd(D) at moves of its kernel if it is of no use there.

    It can take trust away, and gives none: moves of a surrogate say nothing of mass that it has walled off. It costs
    at most `SHARE` of the `n_draws` to be made; where that is too little to tell, nothing is spent.
    """
    n = min(N_MOVES, int(SHARE * n_draws))
    if n < FEWEST:
        return outcome
    discrepancy = _discrepancies(record, outcome, rng, n)
    sd = spread(discrepancy) if len(discrepancy) >= FEWEST else np.inf
    return replace(outcome, sd=sd) if sd > max(USELESS, outcome.sd) else outcome


def _discrepancies(
    record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, n: int
) -> np.ndarray:
    """Return D at the ends of `n` moves from known positions; fewer, if the kernel hardly moves at all."""
    position = outcome.training.position
    near = outcome.training.potential < record.lowest + 0.5 * position.shape[1] + 4.0
    start = position[near][rng.integers(near.sum(), size=n)]
    places, _ = walk(outcome.kernel, start, rng)
    places = places[(places != start).any(axis=1) & np.isfinite(places).all(axis=1)]
    if len(places) < FEWEST:
        return np.empty(0)
    with np.errstate(all="ignore"):
        predicted = np.asarray(outcome.kernel.surrogate.potential(places))  # type: ignore[union-attr]
    with record.evaluator.unheard():  # values without gradients are not learnt from
        discrepancy = record.evaluator.value(places).potential - predicted
    return discrepancy[~np.isnan(discrepancy)]
