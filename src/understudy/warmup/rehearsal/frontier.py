r"""Frontier: step beyond the outermost draws of the surrogate, where no gradient could tell what lies there.

A surrogate of values alone knows the potential where it was evaluated, and grows beyond. If mass goes on there, along a
curved ridge or in a long tail, draws of the surrogate end where its knowledge does, and nothing that they meet tells
of it. So before learning ends draws of the surrogate are continued outwards: those that are furthest out in units of
the frame, and a few others, along the direction in which the surrogate bends least (a ridge goes on that way) and along
the line from the middle. The exact values there are held against what was foretold. Where they are surprises, as
`Diary.is_surprise` says, a warm walker is sent there, and learning goes on.
"""

from __future__ import annotations

import numpy as np

from understudy.surrogates import Whitening
from understudy.warmup.rehearsal.diary import middle
from understudy.warmup.rehearsal.explore import Explorer, Walkers
from understudy.warmup.rehearsal.find import typical_height
from understudy.warmup.rehearsal.walk import find_step, transition, walk

#: Draws of the surrogate, and how many of them are continued: the outermost, and others.
N_DRAWS, N_STEPS = 192, 16
N_OUTERMOST, N_OTHERS = 6, 3
#: How far, in units of the frame: along the softest direction, and outwards.
ALONG, OUTWARDS = (0.7, 2.2), (0.4, 1.2)
#: Draws that may lie in a pocket, and how often the way back from there is halved.
N_POCKETS, N_HALVES = 2, 2
#: A surprise is grave if the potential is so far below what was foretold.
GRAVE = 2.0
#: Share of surprises, and of draws in pockets, that call for more.
MANY, MANY_LOST = 0.1, 0.03
#: Least distance between draws that are continued.
APART = 0.7


def n_probes() -> int:
    """Return how many exact values one look beyond the frontier costs at most."""
    return 2 * N_OUTERMOST + N_OTHERS + N_POCKETS * (1 + N_HALVES)


def look_beyond(explorer: Explorer) -> bool:
    """Evaluate beyond the frontier, and send walkers to surprises; return whether what was found calls for more.

    It does if many of the values were surprises, or if one of them was a grave one: far below what was foretold, and as
    low as draws are.
    """
    diary, candidates = explorer.diary, explorer.candidates
    draws = surrogate_draws(explorer)
    places = beyond(explorer, draws)
    if not len(places):
        return True
    foretold = candidates.foretell(places)
    usual = middle(diary.discrepancies(candidates.playing))
    potential = diary.try_out(places, "frontier", foretold).potential
    said = foretold[candidates.playing] + usual
    surprising = diary.is_surprise(potential, said, 0.0)
    grave = (
        surprising & (potential < said - GRAVE) & (potential < diary.lowest + usual_height(places.shape[1]))
    )
    _send(explorer, places[surprising], potential[surprising])
    lost = _close_pockets(explorer, draws)
    return bool(grave.any() or surprising.mean() > MANY or lost > MANY_LOST)


def usual_height(dim: int) -> float:
    """Return how far above the lowest potential most draws are, of a normal posterior all but one in a hundred."""
    return 0.5 * dim + 1.5 * np.sqrt(dim) + 1.5


def surrogate_draws(explorer: Explorer, *, cold: bool = False) -> np.ndarray:
    """Return draws of the surrogate, ``(k, dim)``, from where the walkers are, or the cold ones."""
    surrogate, frame, rng = explorer.candidates.surrogate, explorer.frame, explorer.rng
    position = explorer.walkers.position[explorer.walkers.cold] if cold else explorer.walkers.position
    start = position[rng.integers(len(position), size=N_DRAWS)]
    kernel = transition(surrogate, frame, find_step(surrogate, frame, position, rng), 2.0, N_STEPS)
    draws = walk(kernel, start, rng)[0]
    return draws[np.isfinite(draws).all(axis=1)]


def beyond(explorer: Explorer, draws: np.ndarray) -> np.ndarray:
    """Return positions a step outwards of draws of the surrogate, ``(k, dim)``."""
    frame, rng = explorer.frame, explorer.rng
    if not len(draws):
        return draws
    # In their own units: the frame may be that of a ridge's middle, and its ends would all look far out.
    own = Whitening.from_positions(draws) if len(draws) > 2 * draws.shape[1] else frame
    white = own.to_white(draws)
    outermost = _apart(white, np.argsort(-np.linalg.norm(white, axis=1)), N_OUTERMOST)
    others = _apart(white, rng.permutation(len(white)), N_OTHERS)
    chosen = np.concatenate([outermost, others])
    along = white[chosen] + _lengths(rng, ALONG, len(chosen)) * _softest(explorer, own, draws[chosen])
    radius = np.linalg.norm(white[outermost], axis=1, keepdims=True)
    outwards = white[outermost] * (1.0 + _lengths(rng, OUTWARDS, len(outermost)) / np.maximum(radius, 1e-300))
    found = own.from_white(np.concatenate([along, outwards]))
    return np.asarray(found[np.isfinite(found).all(axis=1)])


def _softest(explorer: Explorer, frame: Whitening, position: np.ndarray) -> np.ndarray:
    """Return unit vectors of the frame along which the surrogate bends least, away from the middle."""
    with np.errstate(all="ignore"):
        hessian = frame.factor.T @ explorer.candidates.surrogate.hessian(position) @ frame.factor
    hessian = np.where(np.isfinite(hessian).all(axis=(1, 2))[:, None, None], hessian, 0.0)
    direction = np.linalg.eigh(hessian)[1][:, :, 0]
    inwards = (direction * frame.to_white(position)).sum(axis=1) < 0
    return np.where(inwards[:, None], -direction, direction)


def _lengths(rng: np.random.Generator, limits: tuple[float, float], n: int) -> np.ndarray:
    return rng.uniform(*limits, size=(n, 1))


def _apart(white: np.ndarray, order: np.ndarray, n: int) -> np.ndarray:
    """Return the first `n` rows in an order that keep their distance from one another."""
    chosen: list[int] = []
    for i in order:
        if len(chosen) == n:
            break
        if all(np.linalg.norm(white[i] - white[j]) > APART for j in chosen):
            chosen.append(int(i))
    return np.array(chosen, dtype=int)


def _send(explorer: Explorer, position: np.ndarray, potential: np.ndarray) -> None:
    """Put warm walkers at surprises, the lowest ones first."""
    walkers = explorer.walkers
    warm = np.flatnonzero(~walkers.cold)
    lowest = np.argsort(potential)[: len(warm)]
    rows = warm[: len(lowest)]
    new_position, new_potential = walkers.position.copy(), walkers.potential.copy()
    new_position[rows], new_potential[rows] = position[lowest], potential[lowest]
    explorer.walkers = Walkers(new_position, new_potential, walkers.exponent)


def _close_pockets(explorer: Explorer, draws: np.ndarray) -> float:
    """Learn where the surrogate is low far away from all that is known, and the potential is not.

    What is far above the lowest potential is not trained on, so it is the way back that is learnt from. Returned is
    about the share of draws that are lost in such pockets.
    """
    diary, rng = explorer.diary, explorer.rng
    limit = diary.lowest + typical_height(draws.shape[1])
    known = diary.training()
    low = known.position[known.potential < limit]
    if not len(draws) or not len(low):
        return 0.0
    white = explorer.frame.to_white(draws)
    distance = np.linalg.norm(white[:, None] - explorer.frame.to_white(low)[None], axis=2)
    nearest, alone = distance.argmin(axis=1), distance.min(axis=1)
    chosen = _apart(white, np.argsort(-alone), N_POCKETS)
    place, back, lost = draws[chosen], low[nearest[chosen]], 0.0
    for halves in range(1 + N_HALVES):
        potential = diary.try_out(place, "frontier", explorer.candidates.foretell(place)).potential
        high = ~(potential < limit)
        if not high.any():
            break
        if halves == 0:
            lost = float(np.mean(alone > 0.5 * alone[chosen[high]].min()))
        back = back[high]
        place = back + (place[high] - back) * rng.uniform(0.4, 0.6, size=(len(back), 1))
    return lost
