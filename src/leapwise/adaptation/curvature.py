"""Measure the curvature where a descent has ended, and make of it coordinates in which the posterior is standard.

With gradients one more is taken a step away along each axis; with values alone one on each side, and one for each pair
of axes. How long a step is, is found by `leapwise.adaptation.curvature`. In units of their own curvature no axis is
wider than the others; the eigenvalues of what is left tell how correlated they are.

A direction in which the potential hardly bends is the difference of large numbers: along regression lines whose
intercept and slope are correlated by 0.9999 an error of one part in :math:`10^4` is all there is. So directions that
are much wider than the usual one are measured again, along themselves and with steps as long as they are thought to be
wide, until none is wider than was thought. Curvature may be negative; it counts by its size.

Reach: how far to go along each axis until the potential tells something, and what is so flat that it never does.

A step is good if the potential rises by enough to be told from rounding, and not so much that the step is out of the
typical set. Where it rises by nothing, however far one goes, the posterior has no width to be found: it is improper,
or its scales are so far apart that numbers cannot hold them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.minimise import Descended
from leapwise.adaptation.record import EvaluationRecord
from leapwise.dynamics import DenseMetric
from leapwise.errors import ImproperError
from leapwise.kernels import SurrogateTransition
from leapwise.surrogates import Whitening
from leapwise.targets import AnyTarget

#: Rises of the potential between which a step tells the curvature well.
LEAST_RISE, MOST_RISE = 0.003, 10.0
#: Shares of a slope that a step may change it by, to tell the curvature where the potential rises by more; and the
#: share that is aimed at.
LEAST_BEND, BEND, MOST_BEND = 1e-3, 0.03, 0.5
#: A potential that has risen so far without a bend is taken to have none.
MOST_STRAIGHT = 1e5
#: Rounds for all axes, and for those along which nothing rises yet.
ROUNDS, FLAT_ROUNDS = 4, 14
#: A step grows by so much at most. As far out as this, relative to where the search began, nothing is looked for.
GROWTH, FAR = 50.0, 1e9
#: Widths of a frame, in the same units, that call for a look whether the posterior is so wide; and how far it goes.
SUSPECT, LOOK = 1e6, 10.0
#: A rise that far out that is none.
LITTLE = 0.1


class Reach:
    """The steps along each of some axes; `todo` has those for which there is no good one yet.

    Parameters
    ----------
    centre : ndarray of shape (dim,)
        Where they begin.
    axes : ndarray of shape (dim, n)
        One in each column.
    """

    def __init__(self, centre: np.ndarray, axes: np.ndarray) -> None:
        n = axes.shape[1]
        self.step, self.todo = np.ones(n), np.arange(n)
        self._centre, self._axes = centre, axes
        self._wall, self._flat = np.full(n, np.inf), np.zeros(n, dtype=bool)

    @property
    def places(self) -> np.ndarray:
        """Positions to evaluate next, one for each axis to do."""
        return self._centre + (self._axes[:, self.todo] * self.step[self.todo]).T

    def learn(self, rise: np.ndarray, bend: np.ndarray | None = None) -> None:
        """Choose further steps where a rise, infinite beyond the support, was not good.

        Parameters
        ----------
        rise : ndarray
            Of the potential, for each axis to do.
        bend : ndarray, optional
            By which share of itself the slope has changed. Where that is small a step tells the slope and no curvature,
            and must be longer, however much the potential rises; far from a minimum it rises by a lot.
        """
        size, todo = np.abs(rise), self.todo
        told, good = np.isfinite(size), (size > LEAST_RISE) & (size < MOST_RISE)
        straight = np.zeros(len(size), dtype=bool)
        with np.errstate(all="ignore"):
            times = np.where(told, np.clip(np.sqrt(0.7 / size), 1e-8, GROWTH), 0.1)
            if bend is not None:
                straight = told & (size > LEAST_RISE) & (bend < LEAST_BEND)
                times = np.where(straight, np.clip(BEND / bend, 2.0, GROWTH), times)
                good = (good | (told & (size > LEAST_RISE) & (bend < MOST_BEND))) & ~straight
                # It rises in a straight line, as an exponential's potential does: a rise of 1 is all its width.
                never = straight & (rise > MOST_STRAIGHT)
                self.step[todo] = np.where(never, self.step[todo] / size, self.step[todo])
                good, straight = good | never, straight & ~never
        self._wall[todo[~told]] = self.step[todo[~told]]
        # An edge that was met is not stepped over again.
        better = np.minimum(self.step[todo] * times, 0.5 * self._wall[todo])
        self._flat[todo] = ((told & (size <= LEAST_RISE)) | straight) & np.isinf(self._wall[todo])
        self.step[todo], self.todo = np.where(good, self.step[todo], better), todo[~good]

    def keep_flat(self) -> None:
        """Go on with axes alone along which nothing has risen yet, or not bent."""
        self.todo = self.todo[self._flat[self.todo]]

    def refuse_flat(self, target: AnyTarget) -> None:
        """Raise if an axis still to do goes out as far as can be."""
        away = self.places - self._centre
        far = np.flatnonzero(np.abs(away).max(axis=1) > GROWTH * FAR * (1.0 + np.abs(self._centre).max()))
        if far.size:
            raise improper(target, away[far[0]], "does not fall off")


def reach_out(
    record: EvaluationRecord,
    reach: Reach,
    rises: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]],
) -> None:
    """Go along all axes until each has a good step; raise if one has no end.

    Parameters
    ----------
    record : EvaluationRecord
    reach : Reach
    rises : callable
        Evaluates positions along the axes to do, and returns what `Reach.learn` takes.
    """
    for turn in range(FLAT_ROUNDS):
        reach.learn(*rises(reach.places))
        if turn >= ROUNDS - 1:
            reach.keep_flat()
            reach.refuse_flat(record.evaluator.target)
        if not reach.todo.size:
            break


def refuse_absurd_width(record: EvaluationRecord, kernel: SurrogateTransition, most: int) -> None:
    """Raise if a kernel that was learnt goes absurdly far, and the posterior goes on beyond even so.

    At most 3 of `most` exact values are spent, and none where widths are as usual.
    """
    assert isinstance(kernel.metric, DenseMetric)
    values, vectors = np.linalg.eigh(np.asarray(kernel.metric.covariance))
    away = vectors[:, -1] * np.sqrt(max(float(values[-1]), 0.0))
    begun = record.everything[0].position
    if most < 3 or not np.abs(away).max() > SUSPECT * (1.0 + np.abs(begun).max()):
        return
    centre = kernel.centre if kernel.jumps is None or kernel.centre is not None else kernel.jumps.centres[0]
    places = centre + np.array([-LOOK, 0.0, LOOK])[:, None] * away
    low, middle, high = record.evaluator.value(places).potential
    if min(low, high) - middle < LITTLE:
        raise improper(record.evaluator.target, LOOK * (away if high <= low else -away), "does not fall off")


def improper(target: AnyTarget, away: np.ndarray, what: str) -> ImproperError:
    """Return the error of a log-density that goes on without end in a direction."""
    names = (
        [f"{target.names}[{i}]" for i in range(target.dim)] if isinstance(target.names, str) else target.names
    )
    share = away / np.abs(away).max()
    chosen = np.flatnonzero(np.abs(share) > 0.1)[:4]
    along = ", ".join(f"{'+' if share[i] > 0 else '-'}{names[i]}" for i in chosen)
    prior = "a prior that is proper" if target.emulates_outputs else "them a prior, or bounds="
    return ImproperError(
        f"the log-density {what} along {along}, seen as far as {np.abs(away).max():.0e} away, so the posterior may be "
        f"improper; give {prior}, or rescale the parameters if they are meant to be so large"
    )


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
