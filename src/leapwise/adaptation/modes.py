"""Separate modes: whether chains of the surrogate pass from one walker to the others, and jumps if they do not.

Walkers may stand in several basins with high ground between them. Draws could then be right within each of them and
wrong about how much mass each has. But the surrogate knows all of them, so chains may jump on it from one to another
(`leapwise.kernels.jumps`), at no exact cost.

Where walkers stand is not all that is known. Of exact evaluations that are as low as draws are, those are looked at too
that high ground of the surrogate separates from all walkers: nobody is there, because there are fewer walkers than
modes, or because the one who was has left.

What belongs together is seen from clouds of draws of the surrogate, one from each of these places: two of which each
has hardly any draws that might be the other's are two modes.
"""

from __future__ import annotations

import numpy as np

from leapwise.adaptation.basins import BARRIER, climbs
from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.frontier import usual_height
from leapwise.adaptation.walk import Energy, find_step, trace, transition
from leapwise.kernels import Jumps
from leapwise.surrogates import Whitening

#: Chains from each walker, steps that they take, and how many of the last are kept.
N_EACH, N_STEPS, N_KEPT = 16, 24, 12
#: Places that are looked at, walkers included, and known positions that may be such.
MOST_PLACES, MOST_KNOWN = 16, 128
#: Share of draws that belong to another cloud rather than to their own from which on both are one.
SHARED = 0.05


def places(explorer: Explorer) -> np.ndarray:
    """Return where cold walkers are, and where there is mass behind high ground, ``(k, dim)``."""
    walkers, known = explorer.walkers, explorer.record.training()
    low = known.select(usual_height(known.dim))
    lowest = low.position[np.argsort(low.potential, kind="stable")]
    some = np.linspace(0, len(lowest) - 1, min(len(lowest), MOST_KNOWN)).astype(int)
    return separate_places(explorer.candidates.surrogate, walkers.position[walkers.cold], lowest[some])


def separate_places(surrogate: Energy, position: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return positions and, of known ones with mass, lowest first, those that are separate from all before."""
    found, nearest = list(position), np.full(len(known), np.inf)
    for place in position:
        nearest = np.minimum(nearest, _ways(surrogate, known, place))
    while len(found) < MOST_PLACES and (nearest > BARRIER).any():
        found.append(known[int((nearest > BARRIER).argmax())])
        nearest = np.minimum(nearest, _ways(surrogate, known, found[-1]))
        nearest[(known == found[-1]).all(axis=1)] = 0.0
    return np.stack(found)


def _ways(surrogate: Energy, known: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return how far the surrogate climbs from each known position to a place; nothing where it does not say."""
    return np.nan_to_num(climbs(surrogate, known, np.broadcast_to(place, known.shape)), nan=0.0)


def find_jumps(
    surrogate: Energy, frame: Whitening, position: np.ndarray, rng: np.random.Generator
) -> Jumps | None:
    """Return jumps between the modes that positions ``(n, dim)`` are in; None if it is one."""
    one, other = np.triu_indices(len(position), 1)
    if not (climbs(surrogate, position[one], position[other]) > BARRIER).any():
        return None
    n, dim = position.shape
    start = np.repeat(position, N_EACH, axis=0)
    step_size = find_step(surrogate, frame, start, rng, everywhere=False)
    draws = trace(transition(surrogate, frame, step_size, 2.0, 1), start, rng, N_STEPS)[-N_KEPT:]
    if not np.isfinite(draws).all():
        return None
    clouds = list(draws.reshape(N_KEPT, n, N_EACH, dim).transpose(1, 0, 2, 3).reshape(n, -1, dim))
    while len(clouds) > 1:
        jumps = _between(clouds)
        pair = _one(jumps, clouds)
        if pair is None:
            return jumps
        i, j = pair
        clouds[i] = np.concatenate([clouds[i], clouds.pop(j)])
    return None


def _between(clouds: list[np.ndarray]) -> Jumps:
    """Return jumps between clouds of draws."""
    frames = [Whitening.from_positions(cloud) for cloud in clouds]
    return Jumps(np.stack([each.mean for each in frames]), np.stack([each.factor for each in frames]))


def _one(jumps: Jumps, clouds: list[np.ndarray]) -> tuple[int, int] | None:
    """Return the two clouds that share most, the first of them first, if that is more than hardly any."""
    shares = np.zeros((len(clouds), len(clouds)))
    for i, cloud in enumerate(clouds):
        shares[i] = np.bincount(jumps.modes(cloud), minlength=len(clouds)) / len(cloud)
    np.fill_diagonal(shares, 0.0)
    if not shares.max() > SHARED:
        return None
    i, j = sorted(divmod(int(shares.argmax()), len(clouds)))
    return i, j
