r"""Cover: evaluate beyond the outermost draws of the surrogate, to see whether mass goes on there.

A surrogate knows the potential where it was trained, and grows beyond. If mass goes on there, along a curved ridge or
in a long tail, draws of the surrogate end where its data end, and nothing shows it. So before learning ends a few exact
values are spent beyond the draws and compared with the predictions:

- where the surrogate's ridge would go on from its outermost ends, and straight along its softest direction from a few
  other draws,
- a step outwards from the outermost draws,
- far out along the profiles of single parameters (`leapwise.adaptation.tails`).

Where the potential is below the prediction and there is mass, a tempered chain is sent there, and learning goes on.

**Ridges.** Follow the ridge of the surrogate a little beyond its end. (A ridge of the density is a valley of the
potential.) A straight step would not do: a thin banana bends away from it, so the step ends where there is no mass, and
says nothing about the mass round the bend. Therefore the ridge is first traced inwards from its end, at two points a
short step back, each brought to the bottom of the valley across. The parabola through the three points shows how the
ridge bends, and half of that bend is continued outwards. Choosing these points costs no exact value.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from leapwise.adaptation.explore import Explorer, first_apart
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings, CoverageSettings
from leapwise.adaptation.surrogate_chains import move, surrogate_kernel
from leapwise.adaptation.tails import (
    descend_across,
    look_along_tails,
    n_tail_probes,
    relevant_share,
    white_hessian,
)
from leapwise.surrogates import Fitted, Whitening
from leapwise.surrogates.quality import median_discrepancy


def n_probes(settings: AdaptationSettings = DEFAULT) -> int:
    """Return how many exact values one look beyond the outermost draws costs at most."""
    counts = settings.coverage
    return counts.n_ridges + counts.n_others + counts.n_outwards + n_tail_probes(settings.tails)


def look_beyond(explorer: Explorer, n_draws: int = 4000) -> Literal["", "tail", "mass"]:
    """Evaluate beyond the outermost draws, and send tempered chains to surprises; return what was missed.

    That is "mass" if many of the values were surprises, or one of them was grave: far below the prediction, and as low
    as draws are. It is "tail" if only the tail of a parameter is cut and that matters to the `n_draws` to be made.
    """
    record, candidates, settings = explorer.record, explorer.candidates, explorer.settings.coverage
    draws = surrogate_draws(explorer)
    places = points_beyond(explorer, draws)
    if not len(places):
        return "mass"
    predicted = candidates.predict(places)
    usual = median_discrepancy(record.discrepancies(candidates.chosen))
    potential = record.compare(places, "beyond", predicted).potential
    said = predicted[candidates.chosen] + usual
    surprising = record.is_surprise(potential, said, 0.0)
    low = potential < record.lowest + explorer.settings.heights.draws(places.shape[1])
    grave = surprising & (potential < said - settings.grave) & low
    with np.errstate(invalid="ignore"):
        pits = (said < record.lowest - settings.grave) & ~(potential < said + settings.pit)
    tails, heights = places[:0], potential[:0]
    if explorer.settings.stages.tails:
        enough = relevant_share(n_draws, explorer.settings.tails)
        tails, heights = look_along_tails(explorer, draws, enough)
    explorer.send_tempered(
        np.concatenate([places[surprising], tails]), np.concatenate([potential[surprising], heights])
    )
    if grave.any() or surprising.mean() > settings.many or pits.any():
        return "mass"
    return "tail" if len(tails) else ""


def surrogate_draws(explorer: Explorer, *, cold: bool = False) -> np.ndarray:
    """Return draws of the surrogate, ``(k, dim)``: from all data with mass, or from the cold chains.

    From many positions few steps suffice. Few steps also keep rounding errors small: a run that is resumed on another
    machine must look at the same positions. From the few cold chains it takes many steps.
    """
    settings, frame, rng = explorer.settings.coverage, explorer.frame, explorer.rng
    position, n_steps = explorer.chains.position[explorer.chains.cold], settings.n_steps
    if not cold:
        known = explorer.record.training().select(explorer.settings.heights.draws(frame.mean.size))
        position = np.concatenate([explorer.chains.position, known.position])
        n_steps = settings.n_few_steps
    start = position[rng.integers(len(position), size=settings.n_draws)]
    # Steps of chains that keep being rejected become ever shorter; these trajectories would have thousands of them.
    step_size = max(explorer.inner_step, settings.length / explorer.settings.chains.max_steps)
    kernel = surrogate_kernel(
        explorer.candidates.surrogate, frame, step_size, settings.length, n_steps, settings=explorer.settings
    )
    draws = move(kernel, start, rng)[0]
    return draws[np.isfinite(draws).all(axis=1)]


def points_beyond(explorer: Explorer, draws: np.ndarray) -> np.ndarray:
    """Return positions beyond draws of the surrogate, ``(k, dim)``."""
    settings, rng, surrogate = explorer.settings.coverage, explorer.rng, explorer.candidates.surrogate
    if not len(draws):
        return draws
    # In a frame of these draws: the explorer's may be that of a ridge's middle, where all its ends look far out.
    own = Whitening.from_positions(draws) if len(draws) > 2 * draws.shape[1] else explorer.frame
    white = own.to_white(draws)
    order = np.argsort(-np.linalg.norm(white, axis=1))
    outermost = first_apart(white, order, settings.n_outwards, settings.apart)
    others = white[first_apart(white, rng.permutation(len(white)), settings.n_others, settings.apart)]
    along = _lengths(rng, settings.along, len(others))
    straight = others + along * softest_direction(surrogate, own, others, settings)
    radius = np.linalg.norm(white[outermost], axis=1, keepdims=True)
    further = _lengths(rng, settings.outwards, len(outermost))
    outwards = white[outermost] * (1.0 + further / np.maximum(radius, 1e-300))
    ridges = white[:0]
    if explorer.settings.stages.ridges:
        ridges = _ridge_ends(explorer, own, white)
    found = own.from_white(np.concatenate([ridges, straight, outwards]))
    return np.asarray(found[np.isfinite(found).all(axis=1)])


def _ridge_ends(explorer: Explorer, own: Whitening, white: np.ndarray) -> np.ndarray:
    """Return where the ridge would go on from its outermost ends, in coordinates of the frame `own`."""
    settings = explorer.settings.coverage
    white = white[np.argsort(-np.linalg.norm(white, axis=1))[: settings.n_far]]
    length = _lengths(explorer.rng, settings.along, len(white))
    bottom, ahead = continue_ridge(explorer.candidates.surrogate, own, white, length, settings)
    distance = np.linalg.norm(bottom, axis=1)
    order = np.argsort(-np.where(np.isfinite(distance) & np.isfinite(ahead).all(axis=1), distance, -1.0))
    return np.asarray(ahead[first_apart(bottom, order, settings.n_ridges, settings.apart)])


def _lengths(rng: np.random.Generator, limits: tuple[float, float], n: int) -> np.ndarray:
    return rng.uniform(*limits, size=(n, 1))


def continue_ridge(
    surrogate: Fitted,
    frame: Whitening,
    white: np.ndarray,
    length: np.ndarray,
    settings: CoverageSettings = DEFAULT.coverage,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bottom of the potential's valley at positions, and where it would go on, away from the middle.

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
        Whose coordinates all positions are in.
    white : ndarray of shape (n, dim)
    length : ndarray of shape (n, 1)
        How far to go on.
    settings : CoverageSettings

    Returns
    -------
    tuple of ndarray
        Each of shape ``(n, dim)``; not finite where the surrogate is not.
    """
    with np.errstate(all="ignore"):
        first = softest_direction(surrogate, frame, white, settings)
        bottom = descend_across(surrogate, frame, white, first, settings)
        direction = softest_direction(surrogate, frame, bottom, settings)
        back = settings.back * length
        # How far the valley is from the straight line, one and two steps back: a s + b s^2.
        once = descend_across(surrogate, frame, bottom - back * direction, direction, settings)
        once = once - bottom + back * direction
        twice = descend_across(surrogate, frame, bottom - 2.0 * back * direction, direction, settings)
        twice = twice - bottom + 2.0 * back * direction
        a, b = (twice - 4.0 * once) / (2.0 * back), (twice - 2.0 * once) / (2.0 * back**2)
        bend = settings.damped * (length * a + length**2 * b)
        straight = ~(np.linalg.norm(bend, axis=1, keepdims=True) < settings.astray * length)
        return bottom, bottom + length * direction + np.where(straight, 0.0, bend)


def softest_direction(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, settings: CoverageSettings = DEFAULT.coverage
) -> np.ndarray:
    """Return unit vectors of the frame along which the surrogate bends least, away from the middle.

    Where it bends alike in all directions rounding would decide: there it is straight away from the middle.
    """
    outwards = white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-300)
    bent = white_hessian(surrogate, frame, white)
    bent = bent - settings.alike * outwards[:, :, None] * outwards[:, None, :]
    direction = np.linalg.eigh(bent)[1][:, :, 0]
    inwards = (direction * white).sum(axis=1) < 0
    return np.where(inwards[:, None], -direction, direction)
