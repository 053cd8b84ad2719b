"""Scout: look where the surrogate is unsure, and may be too high.

A surrogate that has never seen a region can put a wall around it. Chains then stay outside, and nothing they do shows
it. So a share of warm-up goes to positions that the surrogate would hardly visit itself: hot draws of it, and points
beside known ones, of which those are taken that could hold mass as far as anyone knows: the mean less two standard
deviations of a Gaussian process is low there, and the standard deviation is not small. Where there are none, nothing is
spent.
"""

from __future__ import annotations

import numpy as np

from leapwise.adaptation.candidates import Candidates
from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.find import typical_height
from leapwise.adaptation.spacing import first_apart
from leapwise.adaptation.walk import Tempered, find_step, transition, walk
from leapwise.surrogates import Whitening
from leapwise.surrogates.gp import FittedProcess

EXPONENTS = (0.4, 0.15)
UNSURE = 0.5
N_EACH = 48
#: Steps of hot walks: few, from many places, so that rounding does not grow into other places.
N_STEPS = 4
#: Least distance between scouts, in units of the frame.
APART = 0.5


def scouts(explorer: Explorer, n: int) -> np.ndarray:
    """Return at most `n` positions worth a look, ``(k, dim)``; none if the process is sure enough."""
    process = explorer.candidates.fitted.get("process")
    if not isinstance(process, FittedProcess):
        return np.empty((0, explorer.frame.mean.size))
    pool = _pool(explorer.candidates, explorer.frame, explorer.walkers.position, explorer.rng)
    with np.errstate(all="ignore"):
        mean, sd = process.potential(pool), np.sqrt(np.maximum(process.variance(pool), 0.0))
        hope = mean - 2.0 * sd
    limit = explorer.record.lowest + 0.5 * typical_height(pool.shape[1])
    worth = np.flatnonzero((sd > UNSURE) & (hope < limit))
    chosen = first_apart(explorer.frame.to_white(pool), worth[np.argsort(hope[worth])], n, APART)
    return np.asarray(pool[chosen])


def _pool(
    candidates: Candidates, frame: Whitening, position: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return hot draws of the surrogate, and points beside known ones."""
    found, known = [], candidates.record.training().select().position
    places = np.concatenate([position, known])
    for exponent in EXPONENTS:
        hot = Tempered(candidates.surrogate, exponent)
        start = places[rng.integers(len(places), size=N_EACH)]
        step_size = find_step(hot, frame, start, rng, everywhere=False)
        found.append(walk(transition(hot, frame, step_size, 2.0, N_STEPS), start, rng)[0])
    beside = known[rng.integers(len(known), size=2 * N_EACH)]
    found.append(beside + frame.from_white(rng.standard_normal(beside.shape)) - frame.mean)
    pool = np.concatenate(found)
    return pool[np.isfinite(pool).all(axis=1)]
