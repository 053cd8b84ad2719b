"""Parts of a mode that is bent, or of lobes that touch, between which chains jump.

Along a bent valley, or over the saddle between two lobes, trajectories get on slowly, and a draw takes many inner
steps. But a few normal distributions cover the surrogate's draws, each a part of the mode, and a jump from one part to
another is a far move along the valley for one potential of the surrogate. Jumps are exact whatever the parts are
(`leapwise.kernels.jumps`): the better these fit, the more jumps are accepted.

Parts are found by classification: each draw belongs to the part of which its density is largest, as in a jump, and
each part is the normal distribution of its draws, until that changes nothing. The number of parts is that whose jumps
go furthest, by the mean squared distance of those that are accepted.
"""

from __future__ import annotations

import numpy as np

from leapwise.adaptation.walk import Energy
from leapwise.kernels import Jumps
from leapwise.surrogates import Whitening

#: Numbers of parts of a mode that are tried, how often from other starts, and how long.
N_PARTS, N_TRIES, MOST_ROUNDS = (2, 3, 4, 6, 8), 2, 20
#: Draws that a part has at least: so many, and so many for each parameter.
FEWEST, FEWEST_EACH = 16, 2


def find_parts(
    surrogate: Energy, frame: Whitening, draws: np.ndarray, rng: np.random.Generator, modes: Jumps | None
) -> Jumps | None:
    """Return jumps between parts of the modes of a surrogate's draws ``(n, dim)``; None if there are no such parts.

    Parameters
    ----------
    surrogate : Energy
    frame : Whitening
        In which distances are measured.
    draws : ndarray of shape (n, dim)
    rng : Generator
    modes : Jumps or None
        Separate modes, if there are.
    """
    with np.errstate(all="ignore"):
        height = surrogate.potential(draws)
    known = np.isfinite(draws).all(axis=1) & np.isfinite(height)
    draws, height = draws[known], height[known]
    best, chosen = 0.0, None
    for n_parts in N_PARTS:
        for _ in range(N_TRIES):
            jumps = _all_parts(frame, draws, n_parts, rng, modes)
            if jumps is None:
                continue
            found = _progress(surrogate, frame, jumps, draws, height, rng)
            if found > best:
                best, chosen = found, jumps
    return chosen


def _all_parts(
    frame: Whitening, draws: np.ndarray, n_parts: int, rng: np.random.Generator, modes: Jumps | None
) -> Jumps | None:
    """Return jumps between `n_parts` parts of each mode, or of those that have enough draws."""
    if modes is None:
        return parts(frame, draws, n_parts, rng)
    mode, split = modes.modes(draws), False
    centres, factors, belongs = [], [], []
    for i in range(modes.n_modes):
        found = parts(frame, draws[mode == i], n_parts, rng)
        split |= found is not None
        centres.append(modes.centres[[i]] if found is None else found.centres)
        factors.append(modes.factors[[i]] if found is None else found.factors)
        belongs += [i] * len(centres[-1])
    return Jumps(np.concatenate(centres), np.concatenate(factors), np.array(belongs)) if split else None


def parts(frame: Whitening, draws: np.ndarray, n_parts: int, rng: np.random.Generator) -> Jumps | None:
    """Return jumps between parts of one mode; None if one of them has too few draws."""
    fewest = FEWEST + FEWEST_EACH * draws.shape[1]
    if len(draws) < n_parts * fewest:
        return None
    part, jumps = _first_parts(frame.to_white(draws), n_parts, rng), None
    for _ in range(MOST_ROUNDS):
        if np.bincount(part, minlength=n_parts).min() < fewest:
            return None
        each = [Whitening.from_positions(draws[part == i]) for i in range(n_parts)]
        jumps = Jumps(
            np.stack([one.mean for one in each]),
            np.stack([one.factor for one in each]),
            np.zeros(n_parts, dtype=int),
        )
        before, part = part, jumps.places(draws)
        if (part == before).all():
            break
    return jumps


def _first_parts(white: np.ndarray, n_parts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the nearest of `n_parts` draws that are far apart (k-means++), for each draw."""
    apart = np.empty((n_parts, len(white)))
    chosen = int(rng.integers(len(white)))
    for i in range(n_parts):
        apart[i] = ((white - white[chosen]) ** 2).sum(axis=1)
        nearest = apart[: i + 1].min(axis=0)
        if nearest.any():
            chosen = int(rng.choice(len(white), p=nearest / nearest.sum()))
    return np.asarray(apart.argmin(axis=0))


def _progress(
    surrogate: Energy,
    frame: Whitening,
    jumps: Jumps,
    draws: np.ndarray,
    height: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Return the mean squared distance of jumps that are accepted."""
    end, stretch, counts = jumps.propose(draws, rng.random(len(draws)))
    with np.errstate(all="ignore"):
        accepted = np.exp(np.minimum(height - surrogate.potential(end) + stretch, 0.0))
    far = (frame.vector_to_white(end - draws) ** 2).sum(axis=1)
    return float(np.mean(np.where(counts & np.isfinite(accepted), accepted, 0.0) * far))
