"""Elsewhere: descents from far away, to see whether there is mass in some other place too.

Parameters may be exchanged, mirrored, or one fast process taken for another slow one: the data are then fitted in
several places, and chains that began near one of them would never tell of the others. With outputs to emulate a
descent is cheap, two or three runs of the model from wherever in the prior it begins, so some are made before learning
ends. They go side by side. Most arrive at what is known by then, and say only that; where others end, and there is
mass, cold walkers are put, which learn it like the rest.

No descent of n ends in a basin into which a share p of the prior descends with probability :math:`(1-p)^n`: of 16, in
one of a fifth in 3 runs of a hundred, in one of a fiftieth mostly. Where some were found there may be more, and others
are looked for again, from where descents on the surrogate end.

A log-density with a gradient has no prior to draw from, and no outputs to emulate. Its descents begin all round the
mode that is known, at distances of several to 60 times its width, and the first step of each is Newton's with the
curvature of that mode: wherever the posterior is about normal, one step arrives. A second mode of the same width is
arrived at from all places that are nearer to it, about half of them however many parameters there are; one half as
wide hardly ever in many dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.explore import Explorer, first_apart
from leapwise.adaptation.initialise import prior_draws, typical_height
from leapwise.adaptation.minimise import Descent, Exact, Region, minimise, minimum
from leapwise.adaptation.modes import BARRIER, Homes, climbs
from leapwise.adaptation.record import EvaluationRecord, middle
from leapwise.execution import Evaluation
from leapwise.kernels import State
from leapwise.surrogates import TrainingSet, Whitening

#: Descents, their steps at most, and the radius (in units of the prior's spread) at which they end.
N_DESCENTS, MOST_STEPS, LEAST_RADIUS = 16, 20, 1e-3
#: What they may cost: as a share of the draws, and even if that is less.
SHARE, LEAST = 0.03, 48
#: What a step learns from: so many times as many of the nearest evaluations as a plane takes, and no fewer than this.
TIMES, FEWEST = 2, 8
#: What is known is predicted within this, or so many times sd(D).
OFF, SDS_OFF = 2.0, 5.0
#: Descents on the surrogate alone, their iterations, and how far apart ends are, in units of the prior's spread.
N_FREE, MOST_ITERATIONS, APART = 48, 60, 0.1
#: Known places that are looked at to see whether a descent has come to one of them.
N_NEAREST = 8
#: Of log-densities: descents; the distances that they begin at, in widths of the known mode; and steps of each.
N_FAR, NEAREST, FURTHEST, MOST_CALLS = 12, 6.0, 60.0, 30
#: Mass where they begin, relative to that of the known mode, that is worth learning.
MUCH = 0.1
#: What they may cost, as a share of the draws, and even if that is less.
FAR_SHARE, FAR_LEAST = 0.015, 40


def look_elsewhere(explorer: Explorer, homes: Homes, n_draws: int, *, again: bool = False) -> bool:
    """Descend from draws of the prior, and send cold walkers to places with mass that are not known; return if any are.

    Parameters
    ----------
    explorer : Explorer
        Of a target with outputs, whose surrogate has been trained.
    homes : Homes
        Where cold walkers belong, changed for those that are sent.
    n_draws : int
        How many are to be made, of which the descents may cost a share.
    again : bool
        Whether some were found before. There may be many, so descents that cost nothing, on the surrogate, choose where
        others begin.
    """
    record, rng = explorer.record, explorer.rng
    target = record.evaluator.target
    known = Known(explorer)
    prior = prior_draws(target, rng)
    region = Region(record, target, Whitening.from_positions(prior), rng)
    most = len(record) + max(int(SHARE * n_draws), LEAST)
    starts = prior[:N_DESCENTS]
    if again:
        hints = _hints(explorer, region, known, prior[N_DESCENTS : N_DESCENTS + N_FREE])
        starts = np.concatenate([hints, starts])[:N_DESCENTS]
    found = record.evaluate(starts)
    descents = [
        Descent(position, float(potential), 1.0)
        for position, potential in zip(found.position, found.potential, strict=True)
        if np.isfinite(potential)
    ]
    going = [each for each in descents if not known.has(each)]
    for _ in range(MOST_STEPS):
        going = _step(region, going, most - len(record))
        going = [each for each in going if not known.has(each)]
        if not going or len(record) >= most:
            break
    ends = [each for each in descents if known.are_low(each.potential) and not known.has(each)]
    return homes.send(explorer, sorted(ends, key=lambda each: each.potential))


def look_far(explorer: Explorer, homes: Homes, n_draws: int) -> bool:
    """Descend from far round the known mode, along exact gradients; otherwise as `look_elsewhere`."""
    record, rng, frame = explorer.record, explorer.rng, explorer.frame
    known, dim, first = Known(explorer), frame.mean.size, len(record.heard)
    most = len(record) + max(int(FAR_SHARE * n_draws), FAR_LEAST)
    white, radius = rng.standard_normal((N_FAR, dim)), np.geomspace(NEAREST, FURTHEST, N_FAR)
    white *= radius[:, None] / np.sqrt(np.mean(white**2, axis=1, keepdims=True))
    far = record.evaluate(frame.from_white(white))
    begun = _after_newton(record, frame, far)
    ends, low = [], record.lowest + 0.5 * dim + 1.0  # where draws are, and so what is known
    for i in np.argsort(begun.potential, kind="stable"):
        position, potential = begun.position[i], float(begun.potential[i])
        if not np.isfinite(potential):
            continue
        if not known.has(Descent(position, potential, 1.0)):
            calls = min(MOST_CALLS, most - len(record))
            if calls <= 0:
                break
            state = State(position[None], np.array([potential]), begun.gradient[[i]])  # type: ignore[index]
            found = minimise(Exact(record), state, frame, calls, enough=low, scaled=True)
            position, potential = found.position, found.potential
        ends.append(Descent(position, potential, 1.0))
    new = [each for each in ends if known.are_low(each.potential) and not known.has(each)]
    new = new or _wide(far, radius, record.lowest)
    low = max([record.lowest + 0.5 * dim + 4.0, *(each.potential for each in new)])
    record.set_aside(first, np.nextafter(low, np.inf))
    return homes.send(explorer, sorted(new, key=lambda each: each.potential))


def _wide(start: Evaluation, radius: np.ndarray, lowest: float) -> list[Descent]:
    r"""Return places far out that hold mass although they are high: a narrow spike may stand in a wide heap.

    A mode has mass of about its width to the power of dim, and :math:`r^d e^{-U}` of that is r times as far out.
    """
    with np.errstate(invalid="ignore"):
        mass = lowest - start.potential + start.position.shape[1] * np.log(radius)
    return [
        Descent(start.position[i], float(start.potential[i]), 1.0)
        for i in np.flatnonzero(mass > np.log(MUCH))
    ]


def _after_newton(record: EvaluationRecord, frame: Whitening, start: Evaluation) -> Evaluation:
    """Return where one step of Newton's in the frame leads from each position, or the position where that is higher."""
    assert start.gradient is not None
    with np.errstate(over="ignore"):  # far out a gradient may be as large as numbers are
        step = frame.gradient_to_white(start.gradient)
        size = np.linalg.norm(step, axis=1)
    # No further than twice the way to the centre: far out a gradient may be that of an exponential.
    longest = 1.0 + 2.0 * np.linalg.norm(frame.to_white(start.position), axis=1)
    going = np.isfinite(start.potential) & (size > 0) & np.isfinite(size)
    step[going] *= np.minimum(1.0, longest[going] / size[going])[:, None]
    end = record.evaluate((start.position - step @ frame.factor.T)[going])
    assert end.gradient is not None
    position, potential, gradient = start.position.copy(), start.potential.copy(), start.gradient.copy()
    lower = end.potential < potential[going]
    rows = np.flatnonzero(going)[lower]
    position[rows], potential[rows], gradient[rows] = (
        end.position[lower],
        end.potential[lower],
        end.gradient[lower],
    )
    return Evaluation(position, potential, gradient)


def _hints(explorer: Explorer, region: Region, known: Known, start: np.ndarray) -> np.ndarray:
    """Return where descents on the surrogate end far from all that is known, lowest first and apart, ``(k, dim)``."""
    surrogate, bounds = explorer.candidates.surrogate, [(-region.reach, region.reach)] * start.shape[1]
    ends = np.stack([minimum(surrogate, region.frame, each, bounds, MOST_ITERATIONS) for each in start])
    with np.errstate(all="ignore"):
        height = surrogate.potential(ends)
    order = [
        i
        for i in np.argsort(height, kind="stable")
        if known.are_low(height[i]) and not known.is_near(ends[i])
    ]
    return np.asarray(
        ends[first_apart(region.frame.to_white(ends), np.array(order, dtype=int), N_DESCENTS, APART)]
    )


def _step(region: Region, descents: list[Descent], most: int) -> list[Descent]:
    """Take one step of each descent, at the cost of one evaluation or none; return those that can go on."""
    steps = [(each, region.propose(each, _nearest(region, each))) for each in descents]
    paid = [(each, *proposed) for each, proposed in steps if proposed is not None][: max(most, 0)]
    if paid:
        found = region.record.evaluate(np.stack([end for _, end, _ in paid])).potential
        for (each, end, gain), potential in zip(paid, found, strict=True):
            region.judge(each, end, gain, float(potential))
    return [each for each in descents if not each.settled and each.radius > LEAST_RADIUS]


def _nearest(region: Region, descent: Descent) -> TrainingSet:
    """Return the nearest evaluations: no more are paid for, wherever they are, and each step adds one where it ends."""
    known = region.record.training()
    apart = np.linalg.norm(region.frame.vector_to_white(known.position - descent.position), axis=1)
    n = max(TIMES * (known.dim + 1), FEWEST)
    return known.rows(np.isin(np.arange(len(apart)), np.argsort(apart, kind="stable")[:n]))


class Known:
    """What was known before descents began: where there is mass, and what the surrogate says of it."""

    def __init__(self, explorer: Explorer) -> None:
        record, self._candidates = explorer.record, explorer.candidates
        training = record.training()
        self._record, self._frame = record, explorer.frame
        self._low = training.position[self.are_low(training.potential)]
        self._usual = middle(record.discrepancies(self._candidates.playing))
        self._off = max(OFF, SDS_OFF * self._candidates.sd)

    def are_low(self, potential: ArrayLike) -> np.ndarray:
        """Return which potentials are as low as those of some mass worth learning."""
        return np.asarray(potential) < self._record.lowest + 0.5 * typical_height(self._frame.mean.size)

    def has(self, descent: Descent) -> bool:
        """Whether a descent has come to where mass is known.

        That is near to some, with no high ground of the surrogate between, and the potential is as was predicted.
        """
        if not self.is_near(descent.position):
            return False
        with np.errstate(all="ignore"):
            predicted = float(self._candidates.surrogate.potential(descent.position[None])[0])
        return bool(abs(descent.potential - predicted - self._usual) < self._off)

    def is_near(self, position: np.ndarray) -> bool:
        """Whether known mass is near to a position, and the surrogate has no high ground between."""
        apart = np.linalg.norm(self._frame.vector_to_white(self._low - position), axis=1)
        near = np.argsort(apart, kind="stable")[:N_NEAREST]
        near = near[apart[near] < np.sqrt(2.0 * len(position))]
        if not len(near):
            return False
        here = np.broadcast_to(position, (len(near), len(position)))
        return bool((climbs(self._candidates.surrogate, here, self._low[near]) < BARRIER).any())
