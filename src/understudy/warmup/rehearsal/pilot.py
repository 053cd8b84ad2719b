"""Pilot: a few moves of the draws themselves, where the support has an edge.

Walkers shorten their moves while these lead out of the support, so what they met says little of the far moves that
draws are made with. A surrogate has no notion of an edge, and most of them may end beyond it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from understudy.warmup.rehearsal.diary import Diary, spread
from understudy.warmup.rehearsal.rehearsal import Outcome
from understudy.warmup.rehearsal.walk import walk

#: Share of trials outside the support from which on there is an edge; moves that are made, and the fewest that tell.
EDGE, N_MOVES, FEWEST = 0.03, 32, 12


def pilot(diary: Diary, outcome: Outcome, rng: np.random.Generator, most: int) -> tuple[Outcome, float]:
    """Return the outcome with sd(D) at moves of its kernel, and the share of these that ended outside the support.

    Where the support has no edge that warm-up has met, nothing is spent, and the share is 0.

    Parameters
    ----------
    diary : Diary
    outcome : Outcome
    rng : Generator
    most : int
        Exact evaluations that may be spent.
    """
    outside = diary.outside(outcome.playing)
    if outside < EDGE:
        return outcome, 0.0
    if most < FEWEST:
        return outcome, outside
    position = outcome.training.position
    near = outcome.training.potential < diary.lowest + 0.5 * position.shape[1] + 4.0
    start = position[near][rng.integers(near.sum(), size=min(N_MOVES, most))]
    places, _ = walk(outcome.kernel, start, rng)
    places = places[(places != start).any(axis=1) & np.isfinite(places).all(axis=1)]
    if len(places) < FEWEST:  # it hardly moves at all
        return replace(outcome, sd=np.inf), outside
    with np.errstate(all="ignore"):
        foretold = np.asarray(outcome.kernel.surrogate.potential(places))  # type: ignore[union-attr]
    discrepancy = diary.evaluator.value(places).potential - foretold
    discrepancy = discrepancy[~np.isnan(discrepancy)]
    return replace(outcome, sd=spread(discrepancy)), float(np.isposinf(discrepancy).mean())
