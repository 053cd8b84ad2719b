r"""Measure the curvature where a descent has ended, and make of it coordinates in which the posterior is standard.

With gradients one more is taken a step away along each axis; with values alone one on each side, and one for each pair
of axes. How long a step is, is found by `leapwise.adaptation.reach`. In units of their own curvature no axis is
wider than the others; the eigenvalues of what is left tell how correlated they are.

A direction in which the potential hardly bends is the difference of large numbers: along regression lines whose
intercept and slope are correlated by 0.9999 an error of one part in :math:`10^4` is all there is. So directions that
are much wider than the usual one are measured again, along themselves and with steps as long as they are thought to be
wide, until none is wider than was thought. Curvature may be negative; it counts by its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.minimise import Descended
from leapwise.adaptation.reach import Reach, reach_out
from leapwise.adaptation.record import EvaluationRecord
from leapwise.surrogates import Whitening

#: Eigenvalues, whose mean is 1, are measured again below the first, since what is not quadratic makes errors of that
#: order, and count as the second in the end if they are smaller.
UNSURE, FLOOR = 0.1, 0.02
#: They are believed down to this in one turn; and turns at most.
SOFTEST, MOST_TURNS = 1e-4, 8


@dataclass(frozen=True, eq=False)
class Curved:
    """The curvature at the end of a descent.

    Attributes
    ----------
    frame : Whitening
        Coordinates in which it is about the identity, centred there.
    gradient : ndarray of shape (dim,)
    falls : float
        How far a quadratic of this curvature would still fall.
    """

    frame: Whitening
    gradient: np.ndarray
    falls: float


def measure(record: EvaluationRecord, low: Descended, axes: np.ndarray) -> Curved:
    """Measure the curvature at the end of a descent, beginning along some `axes`, the columns of a matrix."""
    unsure, gradient = np.arange(len(axes)), low.gradient
    for turn in range(MOST_TURNS):
        if record.gradient:
            bend = _by_gradients(record, low, axes, unsure)
        else:
            bend, slope = _by_values(record, low, axes, unsure)
            if turn == 0:  # better than the differences of the descent, which are to one side
                gradient = np.linalg.solve(axes.T, slope)
        width = 1.0 / np.sqrt(np.diag(bend))
        values, vectors = np.linalg.eigh(bend * width * width[:, None])
        unsure = np.flatnonzero(values < UNSURE)
        is_last = turn == MOST_TURNS - 1 or not unsure.size
        size = np.maximum(np.abs(values), FLOOR if is_last else SOFTEST)
        axes = axes * width @ (vectors / np.sqrt(size))
        if is_last:
            break
    white = axes.T @ gradient
    return Curved(Whitening(low.position, lower_factor(axes)), gradient, 0.5 * float(white @ white))


def lower_factor(axes: np.ndarray) -> np.ndarray:
    """Return the lower triangular F with ``F @ F.T == axes @ axes.T``, which is never formed: it squares scales."""
    triangle = np.linalg.qr(axes.T)[1].T
    return np.asarray(triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def _by_gradients(
    record: EvaluationRecord, low: Descended, axes: np.ndarray, unsure: np.ndarray
) -> np.ndarray:
    """Return the Hessian in coordinates along the axes, of which all but `unsure` have unit curvature."""
    reach, here = Reach(low.position, axes[:, unsure]), axes.T @ low.gradient
    rows = np.zeros((len(unsure), len(axes)))

    def rises(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = reach.todo
        away = record.evaluate(places)
        assert away.gradient is not None
        told = np.isfinite(away.potential)
        there = away.gradient @ axes
        rows[asked[told]] = ((there - here) / reach.step[asked, None])[told]
        own = unsure[asked]
        each = np.arange(len(asked))
        size = np.abs(there[each, own]) + np.abs(here[own])
        bend = np.abs(there[each, own] - here[own]) / np.where(size > 0, size, 1.0)
        return away.potential - low.potential, bend

    reach_out(record, reach, rises)
    return _symmetric(rows, unsure, reach.step)


def _by_values(
    record: EvaluationRecord, low: Descended, axes: np.ndarray, unsure: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same from values, and the gradient along the axes, zero along those of unit curvature."""
    dim, n = len(axes), len(unsure)
    reach, both_ways = Reach(low.position, axes[:, unsure]), np.zeros((2, n))

    def rises(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = (
            record.evaluate(np.concatenate([places, 2.0 * low.position - places])).potential - low.potential
        )
        up, down = both_ways[:, reach.todo] = found.reshape(2, -1)
        with np.errstate(invalid="ignore"):
            size = np.abs(up) + np.abs(down)
            bend = np.where(np.isfinite(size) & (size > 0), np.abs(up + down) / size, 1.0)
        return np.maximum(np.abs(up), np.abs(down)), bend

    reach_out(record, reach, rises)
    step, rise = np.ones(dim), np.zeros(dim)
    step[unsure], rise[unsure], down = reach.step, both_ways[0], both_ways[1]
    sure = np.setdiff1d(np.arange(dim), unsure)
    moves = axes * step
    if sure.size:
        rise[sure] = record.evaluate(low.position + moves[:, sure].T).potential - low.potential
    one, other = np.triu_indices(dim, 1)
    asked = np.isin(one, unsure) | np.isin(other, unsure)
    one, other = one[asked], other[asked]
    both = record.evaluate(low.position + moves[:, one].T + moves[:, other].T).potential - low.potential
    bend, slope = np.eye(dim), np.zeros(dim)
    with np.errstate(invalid="ignore"):
        cross = (both - rise[one] - rise[other]) / (step[one] * step[other])
        own = (rise[unsure] + down) / step[unsure] ** 2
        slope[unsure] = (rise[unsure] - down) / (2.0 * step[unsure])
    bend[one, other] = bend[other, one] = np.where(np.isfinite(cross), cross, 0.0)
    bend[unsure, unsure] = np.where(np.isfinite(own) & (own > 0), own, step[unsure] ** -2.0)
    return bend, np.where(np.isfinite(slope), slope, 0.0)


def _symmetric(rows: np.ndarray, unsure: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return a Hessian from its `unsure` rows; it is the identity elsewhere.

    Where nothing bends along an axis, or the wrong way, the step is all that is known of its width.
    """
    bend = np.eye(rows.shape[1])
    bend[unsure], bend[:, unsure] = rows, rows.T
    square = rows[:, unsure]
    bend[np.ix_(unsure, unsure)] = 0.5 * (square + square.T)
    own = np.diag(square)
    bend[unsure, unsure] = np.where(own > 0, own, step**-2.0)
    return bend
