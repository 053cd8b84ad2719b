"""Frontier: step beyond the outermost draws of the surrogate, to see whether mass goes on there.

A surrogate knows the potential where it was evaluated, and grows beyond. If mass goes on there, along a curved ridge or
in a long tail, draws of the surrogate end where its knowledge does, and nothing that they meet tells of it. So before
learning ends a few exact values are spent beyond them, and held against what was predicted:

- where the surrogate's ridge would go on, from its outermost ends (`crest`), and from a few draws straight along the
  direction in which it bends least,
- a step outwards of the outermost draws, from the middle,
- far out along the profiles of parameters, where it is tails that go on (`coverage`).

Where the potential is below what was predicted and there is mass, a warm walker is sent, and learning goes on.

Crest: where a curved ridge would go on beyond the outermost draws of the surrogate.

A thin banana leaves every straight line: a step along it, however well aimed, ends where there is no mass, and says
nothing of the mass that lies round the bend. So the surrogate's own ridge is traced inwards from its end, where it
is known: at two places a short step back, each brought to the bottom of the valley across. The parabola through the
three tells how it bends, and half of that bend is continued outwards. It costs no exact value to know where to look.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from leapwise.adaptation.explore import Explorer, first_apart
from leapwise.adaptation.initialise import typical_height
from leapwise.adaptation.record import middle
from leapwise.adaptation.tails import along_ridge, look_along_tails, matters, n_tail_probes, softest
from leapwise.adaptation.walk import MOST_STEPS, transition, walk
from leapwise.surrogates import Whitening

#: Draws of the surrogate, and how many of them are continued: the outermost of those far out, and others.
N_DRAWS, N_STEPS, N_FEW_STEPS = 192, 16, 5
N_FAR, N_OUTERMOST, N_OTHERS, N_OUTWARDS = 32, 6, 2, 3
#: How far, in units of the frame: along the softest direction, and outwards.
ALONG, OUTWARDS = (0.7, 2.2), (0.4, 1.2)
#: Draws that may lie in a pocket, and how often the way back from there is halved.
N_POCKETS, N_HALVES = 2, 2
#: A surprise is grave if the potential is so far below what was predicted; a pit is below all that is known, so deep.
GRAVE, PIT = 2.0, 10.0
#: Where nothing near is known, draws of the surrogate may be off by so much, or so many times sd(D).
OFF, SDS_OFF = 2.0, 5.0
#: Share of surprises, and of draws in pockets, that call for more.
MANY, MANY_LOST = 0.1, 0.03
#: Least distance between draws that are continued.
APART = 0.7
#: Length of trajectories of draws, in units of the frame.
LENGTH = 2.0


def n_probes() -> int:
    """Return how many exact values one look beyond the frontier costs at most."""
    return N_OUTERMOST + N_OTHERS + N_OUTWARDS + N_POCKETS * (1 + N_HALVES) + n_tail_probes()


def look_beyond(explorer: Explorer, n_draws: int = 4000) -> Literal["", "tail", "wall"]:
    """Evaluate beyond the frontier, and send walkers to surprises; return what was found that calls for more, if any.

    A wall, if many of the values were surprises, or if one of them was a grave one: far below what was predicted, and
    as low as draws are; else a tail that is cut, if that matters to the `n_draws` to be made.
    """
    record, candidates = explorer.record, explorer.candidates
    draws = surrogate_draws(explorer)
    places = beyond(explorer, draws)
    if not len(places):
        return "wall"
    predicted = candidates.predict(places)
    usual = middle(record.discrepancies(candidates.playing))
    potential = record.try_out(places, "frontier", predicted).potential
    said = predicted[candidates.playing] + usual
    surprising = record.is_surprise(potential, said, 0.0)
    grave = (
        surprising & (potential < said - GRAVE) & (potential < record.lowest + usual_height(places.shape[1]))
    )
    with np.errstate(invalid="ignore"):
        pits = (said < record.lowest - GRAVE) & ~(potential < said + PIT)
    tails, heights = places[:0], potential[:0]
    if record.settings.stages.tails:
        tails, heights = look_along_tails(explorer, draws, matters(n_draws))
    send(
        explorer,
        np.concatenate([places[surprising], tails]),
        np.concatenate([potential[surprising], heights]),
    )
    lost = _close_pockets(explorer, draws) if record.settings.stages.pockets else 0.0
    many = max(surprising.mean(), lost * MANY / MANY_LOST) > MANY
    if grave.any() or many or pits.any():
        return "wall"
    return "tail" if len(tails) else ""


def usual_height(dim: int) -> float:
    """Return how far above the lowest potential most draws are, of a normal posterior all but one in a hundred."""
    return 0.5 * dim + 1.5 * np.sqrt(dim) + 1.5


def surrogate_draws(explorer: Explorer, *, cold: bool = False) -> np.ndarray:
    """Return draws of the surrogate, ``(k, dim)``: from all that is known to have mass, or from the cold walkers.

    Those from many places need few steps to be draws, which keeps rounding from growing into other draws: a run that
    is resumed elsewhere must look at the same places. From few places it takes many to tell where they lead.
    """
    surrogate, frame, rng = explorer.candidates.surrogate, explorer.frame, explorer.rng
    position, n_steps = explorer.walkers.position[explorer.walkers.cold], N_STEPS
    if not cold:
        known = explorer.record.training().select(usual_height(frame.mean.size))
        position, n_steps = np.concatenate([explorer.walkers.position, known.position]), N_FEW_STEPS
    start = position[rng.integers(len(position), size=N_DRAWS)]
    # Steps of walkers that keep being refused become ever shorter; trajectories of draws would have thousands of them.
    step_size = max(explorer.inner_step, LENGTH / MOST_STEPS)
    draws = walk(transition(surrogate, frame, step_size, LENGTH, n_steps), start, rng)[0]
    return draws[np.isfinite(draws).all(axis=1)]


def beyond(explorer: Explorer, draws: np.ndarray) -> np.ndarray:
    """Return positions beyond draws of the surrogate, ``(k, dim)``."""
    frame, rng, surrogate = explorer.frame, explorer.rng, explorer.candidates.surrogate
    if not len(draws):
        return draws
    # In their own units: the frame may be that of a ridge's middle, and its ends would all look far out.
    own = Whitening.from_positions(draws) if len(draws) > 2 * draws.shape[1] else frame
    white = own.to_white(draws)
    outermost = first_apart(white, np.argsort(-np.linalg.norm(white, axis=1)), N_OUTWARDS, APART)
    others = white[first_apart(white, rng.permutation(len(white)), N_OTHERS, APART)]
    straight = others + _lengths(rng, ALONG, len(others)) * softest(surrogate, own, others)
    radius = np.linalg.norm(white[outermost], axis=1, keepdims=True)
    outwards = white[outermost] * (1.0 + _lengths(rng, OUTWARDS, len(outermost)) / np.maximum(radius, 1e-300))
    ridges = white[:0]
    if explorer.record.settings.stages.ridges:
        ridges = _ridge_ends(explorer, own, white)
    found = own.from_white(np.concatenate([ridges, straight, outwards]))
    return np.asarray(found[np.isfinite(found).all(axis=1)])


def _ridge_ends(explorer: Explorer, own: Whitening, white: np.ndarray) -> np.ndarray:
    """Return where the ridge would go on from its outermost ends, in units of the frame."""
    white = white[np.argsort(-np.linalg.norm(white, axis=1))[:N_FAR]]
    length = _lengths(explorer.rng, ALONG, len(white))
    bottom, ahead = along_ridge(explorer.candidates.surrogate, own, white, length)
    distance = np.linalg.norm(bottom, axis=1)
    order = np.argsort(-np.where(np.isfinite(distance) & np.isfinite(ahead).all(axis=1), distance, -1.0))
    return np.asarray(ahead[first_apart(bottom, order, N_OUTERMOST, APART)])


def _lengths(rng: np.random.Generator, limits: tuple[float, float], n: int) -> np.ndarray:
    return rng.uniform(*limits, size=(n, 1))


def send(explorer: Explorer, position: np.ndarray, potential: np.ndarray) -> None:
    """Put warm walkers at surprises, the lowest ones first."""
    warm = np.flatnonzero(~explorer.walkers.cold)
    lowest = np.argsort(potential)[: len(warm)]
    explorer.put(warm[: len(lowest)], position[lowest], potential[lowest])


def _close_pockets(explorer: Explorer, draws: np.ndarray) -> float:
    """Learn where draws of the surrogate are far away from all that is known, and it is wrong.

    What is far above the lowest potential is not trained on, so it is the way back that is learnt from. Returned is
    about the share of draws that are lost in such pockets, or are where nothing is known and it is wrong.
    """
    record, rng, candidates = explorer.record, explorer.rng, explorer.candidates
    limit = record.lowest + typical_height(draws.shape[1])
    known = record.training()
    low = known.position[known.potential < limit]
    if not len(draws) or not len(low):
        return 0.0
    white = explorer.frame.to_white(draws)
    distance = np.linalg.norm(white[:, None] - explorer.frame.to_white(low)[None], axis=2)
    nearest, alone = distance.argmin(axis=1), distance.min(axis=1)
    chosen = first_apart(white, np.argsort(-alone), N_POCKETS, APART)
    place, back, lost = draws[chosen], low[nearest[chosen]], 0.0
    usual = middle(record.discrepancies(candidates.playing))
    for halves in range(1 + N_HALVES):
        predicted = candidates.predict(place)
        potential = record.try_out(place, "frontier", predicted).potential
        high = ~(potential < limit)
        if halves == 0:
            with np.errstate(invalid="ignore"):
                off = np.abs(potential - predicted[candidates.playing] - usual)
            wrong = ~high & (off > max(OFF, SDS_OFF * candidates.sd))
            lost = max(_share_beyond(alone, chosen[high], 0.5), _share_beyond(alone, chosen[wrong], 0.8))
        if not high.any():
            break
        back = back[high]
        place = back + (place[high] - back) * rng.uniform(0.4, 0.6, size=(len(back), 1))
    return lost


def _share_beyond(alone: np.ndarray, rows: np.ndarray, times: float) -> float:
    """Return the share of draws that are about as far from what is known as the nearest of some of them."""
    return float(np.mean(alone > times * alone[rows].min())) if len(rows) else 0.0
