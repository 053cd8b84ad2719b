r"""Minimise the potential from wherever a chain starts, and measure the curvature at the minimum.

**Descent.** A start drawn from uniform(-2, 2) may lie :math:`10^6` standard deviations from the mode, where the
potential is :math:`10^{12}` above its minimum, or next to where it is infinite. So BFGS starts with a short step that
grows as long as it succeeds, and shortens a trial of infinite potential by ten. Each line is searched by cubic
interpolation through the values and slopes at its ends (Nocedal and Wright, 2006, section 3.5), until the potential has
fallen enough and the slope along it has too. After a step s that changed the gradient by y, the estimate of the inverse
Hessian :math:`H^{-1}` becomes that of BFGS,

.. math:: H^{-1} \leftarrow (I - \rho s y^T) H^{-1} (I - \rho y s^T) + \rho s s^T, \qquad \rho = 1 / y^T s,

in the coordinates of a frame. A descent ends where :math:`\tfrac12 g^T H^{-1} g`, how far a quadratic would still fall
from the gradient g, is small. Whether that estimate was right is shown by the curvature, which is measured next.

This descent moves one point, and looks for the minimum itself. `leapwise.warmup.start` has another one, for the warm-up
of HMC: it moves a batch of chains, and must not go too far, because the chains go on from where it ends.

**Curvature.** With gradients, one gradient is evaluated a step away along each axis. With values alone, one value is
evaluated on each side and one for each pair of axes. `StepLengths` finds steps along which the potential rises by
enough to be told from rounding, but which stay within the typical set. In units of their own curvature no axis is wider
than the others; the eigenvalues of the remaining matrix show correlations. A direction in which the potential hardly
bends is a difference of large numbers: if intercept and slope of a regression are correlated by 0.9999, an error of one
part in :math:`10^4` is all there is. So directions that are much wider than the usual one are measured again, along
themselves and with steps as long as they seem wide, until none is wider than it seemed. Negative curvature counts by
its size.

**No end.** Where the potential rises by nothing, however far one goes, the posterior is improper or its scales are too
far apart for floating-point numbers. That is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.settings import DEFAULT, CurvatureSettings, MinimiseSettings
from leapwise.dynamics import DenseMetric
from leapwise.errors import ImproperError
from leapwise.kernels import State, SurrogateTransition
from leapwise.surrogates import Whitening
from leapwise.targets import AnyTarget


class ExactGradient:
    """Potential and gradient from the target."""

    def __init__(self, record: EvaluationRecord) -> None:
        self._record, self.settings = record, record.settings.minimise

    def __call__(self, position: np.ndarray, below: float = np.inf) -> tuple[float, np.ndarray]:
        """Evaluate one position."""
        found = self._record.evaluate(position[None])
        assert found.gradient is not None
        return float(found.potential[0]), found.gradient[0]

    def at(self, state: State) -> np.ndarray:
        """Return the gradient at the state of one chain, whose potential is known."""
        if state.gradient is None or not np.isfinite(state.gradient).all():
            return self(state.position[0])[1]
        return np.asarray(state.gradient[0])

    def adapt(self, widths: np.ndarray) -> None:
        """Do nothing: exact gradients need no steps."""


class DifferenceGradient:
    """Potential and differences to one neighbour along each axis; their steps adapt to the changes they measure.

    Parameters
    ----------
    record : EvaluationRecord
    frame : Whitening
        Along whose axes differences are taken.
    step : ndarray of shape (dim,)
        First lengths, in units of the frame.
    box : tuple of ndarray of shape (dim,), optional
        Least and largest positions; no step ends outside, since the potential there counts as infinite.
    """

    def __init__(
        self,
        record: EvaluationRecord,
        frame: Whitening,
        step: np.ndarray,
        box: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self._record, self._frame, self._step, self._box = record, frame, step, box
        self.settings = record.settings.minimise

    def __call__(self, position: np.ndarray, below: float = np.inf) -> tuple[float, np.ndarray]:
        """Evaluate one position, and its neighbours if its potential is below `below`; else the gradient is NaN."""
        if self._box is not None and ((position < self._box[0]) | (position > self._box[1])).any():
            return np.inf, np.full(len(position), np.nan)
        here = float(self._record.evaluate(position[None]).potential[0])
        if not here < below:
            return here, np.full(len(position), np.nan)
        return here, self._gradient(position, here)

    def at(self, state: State) -> np.ndarray:
        """Return the gradient at the state of one chain, whose potential is known."""
        return self._gradient(state.position[0], float(state.potential[0]))

    def adapt(self, widths: np.ndarray) -> None:
        """Take steps that are short against the widths of the posterior along the axes."""
        longer = self.settings.longer
        known = np.isfinite(widths) & (widths > 0)
        wanted = np.where(known, self.settings.difference * widths, self._step)
        self._step = np.clip(wanted, self._step / longer, self._step * longer)

    def _gradient(self, position: np.ndarray, here: float) -> np.ndarray:
        step = self._step
        change = self._changes(position, here, step, np.ones(len(step), dtype=bool))
        lost = ~np.isfinite(change)
        if lost.any():  # an edge of the support: take the neighbour on the other side
            step = np.where(lost, -step, step)
            change[lost] = self._changes(position, here, step, lost)[lost]
        small = np.abs(change) <= self.settings.rounding * max(1.0, abs(here))
        self._step = self._step * np.where(
            small, self.settings.longer, np.where(np.isfinite(change), 1.0, 0.1)
        )
        with np.errstate(invalid="ignore"):
            white = np.where(np.isfinite(change), change / step, 0.0)
        return np.asarray(self._frame.gradient_from_white(white[None])[0])

    def _changes(self, position: np.ndarray, here: float, step: np.ndarray, rows: np.ndarray) -> np.ndarray:
        change = np.full(len(position), np.inf)
        neighbours = position + (self._frame.factor * step).T[rows]
        change[rows] = self._record.evaluate(neighbours).potential - here
        return change


@dataclass(frozen=True, eq=False)
class LocalMinimum:
    """Where a descent has ended.

    Attributes
    ----------
    position, gradient : ndarray of shape (dim,)
    potential : float
    inverse : ndarray of shape (dim, dim)
        BFGS's inverse Hessian, in the coordinates of positions.
    converged : bool
        Whether it ended because there was no more to gain, not because it ran out of calls.
    """

    position: np.ndarray
    potential: float
    gradient: np.ndarray
    inverse: np.ndarray
    converged: bool


def minimise(
    slope: ExactGradient | DifferenceGradient,
    start: State,
    frame: Whitening,
    most_calls: int,
    *,
    enough: float = -np.inf,
    scaled: bool = False,
    check: Callable[[np.ndarray], None] = lambda position: None,
) -> LocalMinimum:
    """Descend from the state of one chain.

    Parameters
    ----------
    slope : ExactGradient or DifferenceGradient
        Potentials and gradients.
    start : State
        Evaluated.
    frame : Whitening
        Coordinates of the descent.
    most_calls : int
        Calls of `slope` at most.
    enough : float
        A potential that is low enough.
    scaled : bool
        Whether the frame has the scale of the posterior, so that the first step is Newton's.
    check : callable
        Is called with every new position, and may raise.
    """
    settings = slope.settings
    dim, n_calls = len(frame.mean), 0
    position, potential = np.array(start.position[0]), float(start.potential[0])
    gradient = slope.at(start)
    inverse, past, converged, in_scale = np.eye(dim), [potential], False, scaled
    # In a frame of the right scale the first step is Newton's, but not far beyond its centre.
    longest = settings.first_step
    longest += 2.0 * float(np.linalg.norm(frame.to_white(start.position))) if scaled else 0.0
    while n_calls < most_calls and potential > enough:
        white = frame.gradient_to_white(gradient[None])[0]
        step = -inverse @ white
        falls = float(step @ white)
        if not falls < 0:
            if not scaled:  # no slope at all
                converged = True
                break
            inverse, scaled = np.eye(dim), False
            continue
        length = float(np.linalg.norm(step))
        share = min(1.0, longest / length) if scaled else longest / length
        line = _search_line(slope, frame, position, potential, falls, step, share, most_calls - n_calls)
        n_calls += line.n_calls
        if line.position is None:
            if not scaled:  # nothing is lower, not even along steepest descent
                converged = True
                break
            inverse, scaled, longest = np.eye(dim), False, min(settings.first_step, longest)
            converged = _is_over(past, -falls, settings)
            if converged:
                break
            past.append(potential)
            continue
        check(line.position)
        moved = line.share * step
        change = frame.gradient_to_white(line.gradient[None])[0] - white
        inverse, scaled = _bfgs_update(inverse, scaled, moved, change)
        longest = settings.growth * float(np.linalg.norm(moved))
        position, potential, gradient = line.position, line.potential, line.gradient
        if scaled:
            slope.adapt(_widths(inverse))
        past.append(potential)
        white = frame.gradient_to_white(gradient[None])[0]
        decrement = float(white @ inverse @ white)
        small = in_scale and 0.5 * decrement < settings.small_gain
        converged = _is_over(past, decrement, settings) or small
        if converged:
            break
    inverse = frame.factor @ inverse @ frame.factor.T
    return LocalMinimum(position, potential, gradient, 0.5 * (inverse + inverse.T), converged)


def _bfgs_update(
    inverse: np.ndarray, scaled: bool, moved: np.ndarray, change: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return the inverse Hessian after a step `moved` that changed the gradient, and whether it has a scale now."""
    along, identity = float(moved @ change), np.eye(len(moved))
    if not along > 1e-10 * np.linalg.norm(moved) * np.linalg.norm(change):
        return inverse, scaled
    if not scaled:
        inverse = along / float(change @ change) * identity
    across = identity - np.outer(moved, change) / along
    return across @ inverse @ across.T + np.outer(moved, moved) / along, True


def _is_over(past: list[float], decrement: float, settings: MinimiseSettings) -> bool:
    """Return whether nothing is gained any more, nor would be by a quadratic with this squared Newton decrement."""
    patience, gain = settings.patience, settings.gain
    return len(past) > patience and past[-1 - patience] - past[-1] < gain and 0.5 * decrement < 10.0 * gain


def _widths(inverse: np.ndarray) -> np.ndarray:
    """Return the conditional widths of a quadratic along each axis, with the others held fixed."""
    values, vectors = np.linalg.eigh(0.5 * (inverse + inverse.T))
    values = np.maximum(values, 1e-12 * values[-1])
    return np.asarray(np.sum(vectors**2 / values, axis=1) ** -0.5)


@dataclass(frozen=True, eq=False)
class _Line:
    """The end of a search along a line; `position` is None if nothing lower was found."""

    position: np.ndarray | None
    potential: float
    gradient: np.ndarray
    share: float
    n_calls: int


def _search_line(
    slope: ExactGradient | DifferenceGradient,
    frame: Whitening,
    position: np.ndarray,
    potential: float,
    falls: float,
    step: np.ndarray,
    share: float,
    most_calls: int,
) -> _Line:
    """Look along a step for a lower potential where the slope is less steep; `falls` is the slope along it."""
    settings = slope.settings
    best = _Line(None, potential, step, 0.0, 0)
    low, low_value, low_slope, high = 0.0, potential, falls, np.inf
    n_calls = 0
    for n_calls in range(1, min(settings.max_trials, most_calls) + 1):
        there = position + share * (frame.factor @ step)
        enough = potential + settings.sufficient_decrease * share * falls
        value, gradient = slope(there, min(enough, low_value))
        along = float(frame.gradient_to_white(gradient[None])[0] @ step)
        if not value < min(enough, low_value):
            high = share
            inside = _interpolated(low_value, low_slope, value, along, high - low, settings)
            share = low + (high - low) * inside
        else:
            best = _Line(there, value, gradient, share, n_calls)
            if along > settings.curvature_condition * falls:  # no longer steep, or rising again
                break
            low, low_value, low_slope = share, value, along
            share = 0.5 * (low + high) if high < np.inf else share * _extrapolated(falls, along)
        if high - low <= 1e-10 * high or -share * falls < settings.least_promise:
            break
    return _Line(best.position, best.potential, best.gradient, best.share, n_calls)


def _interpolated(
    low: float, low_slope: float, high: float, high_slope: float, width: float, settings: MinimiseSettings
) -> float:
    """Return the share of an interval at which a cubic through values and slopes at its ends is lowest."""
    if not np.isfinite(high):
        return settings.after_infinity
    with np.errstate(all="ignore"):
        begin, end = np.float64(low_slope), np.float64(high_slope)
        first = begin + end - 3.0 * np.float64(high - low) / width
        root = np.sqrt(first**2 - begin * end)
        share = 1.0 - (end + root - first) / (end - begin + 2.0 * root)
        if np.isnan(end):  # a parabola, where the slope at the far end is not known
            share = -0.5 * begin * width / (high - low - begin * width)
    return float(np.clip(share, settings.shortest, settings.longest)) if np.isfinite(share) else 0.5


def _extrapolated(first: float, last: float) -> float:
    """Return how many times as far to go where the slope is still steep: to where a parabola would be flat."""
    ratio = last / first
    return float(np.clip(1.0 / (1.0 - ratio), 2.0, 10.0)) if ratio < 1.0 else 10.0


@dataclass(frozen=True, eq=False)
class LocalCurvature:
    """The curvature at the end of a descent.

    Attributes
    ----------
    frame : Whitening
        The frame in which it is about the identity, centred there.
    gradient : ndarray of shape (dim,)
    falls : float
        How far a quadratic of this curvature would still fall.
    """

    frame: Whitening
    gradient: np.ndarray
    falls: float


def measure_curvature(record: EvaluationRecord, low: LocalMinimum, axes: np.ndarray) -> LocalCurvature:
    """Measure the curvature at the end of a descent, first along some `axes`, the columns of a matrix."""
    settings = record.settings.curvature
    unsure, gradient = np.arange(len(axes)), low.gradient
    for turn in range(settings.max_turns):
        if record.gradient:
            bend = _by_gradients(record, low, axes, unsure)
        else:
            bend, slope = _by_values(record, low, axes, unsure)
            if turn == 0:  # better than the one-sided differences of the descent
                gradient = np.linalg.solve(axes.T, slope)
        width = 1.0 / np.sqrt(np.diag(bend))
        values, vectors = np.linalg.eigh(bend * width * width[:, None])
        unsure = np.flatnonzero(values < settings.unsure)
        is_last = turn == settings.max_turns - 1 or not unsure.size
        size = np.maximum(np.abs(values), settings.floor if is_last else settings.softest)
        axes = axes * width @ (vectors / np.sqrt(size))
        if is_last:
            break
    white = axes.T @ gradient
    return LocalCurvature(Whitening(low.position, lower_factor(axes)), gradient, 0.5 * float(white @ white))


def lower_factor(axes: np.ndarray) -> np.ndarray:
    """Return the lower triangular F with ``F @ F.T == axes @ axes.T``, without that product: it squares scales."""
    triangle = np.linalg.qr(axes.T)[1].T
    return np.asarray(triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def _by_gradients(
    record: EvaluationRecord, low: LocalMinimum, axes: np.ndarray, unsure: np.ndarray
) -> np.ndarray:
    """Return the Hessian in coordinates along the axes, of which all but `unsure` have unit curvature."""
    steps = StepLengths(low.position, axes[:, unsure], record.settings.curvature)
    here, rows = axes.T @ low.gradient, np.zeros((len(unsure), len(axes)))

    def rises(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = steps.todo
        away = record.evaluate(places)
        assert away.gradient is not None
        finite = np.isfinite(away.potential)
        there = away.gradient @ axes
        rows[asked[finite]] = ((there - here) / steps.step[asked, None])[finite]
        own = unsure[asked]
        each = np.arange(len(asked))
        size = np.abs(there[each, own]) + np.abs(here[own])
        bend = np.abs(there[each, own] - here[own]) / np.where(size > 0, size, 1.0)
        return away.potential - low.potential, bend

    steps.find(rises, record.evaluator.target)
    return _symmetric(rows, unsure, steps.step)


def _by_values(
    record: EvaluationRecord, low: LocalMinimum, axes: np.ndarray, unsure: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Hessian as `_by_gradients`, from values, and the gradient along the axes; 0 along all but `unsure`."""
    dim, n = len(axes), len(unsure)
    steps = StepLengths(low.position, axes[:, unsure], record.settings.curvature)
    both_ways = np.zeros((2, n))

    def rises(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = (
            record.evaluate(np.concatenate([places, 2.0 * low.position - places])).potential - low.potential
        )
        up, down = both_ways[:, steps.todo] = found.reshape(2, -1)
        with np.errstate(invalid="ignore"):
            size = np.abs(up) + np.abs(down)
            bend = np.where(np.isfinite(size) & (size > 0), np.abs(up + down) / size, 1.0)
        return np.maximum(np.abs(up), np.abs(down)), bend

    steps.find(rises, record.evaluator.target)
    step, rise = np.ones(dim), np.zeros(dim)
    step[unsure], rise[unsure], down = steps.step, both_ways[0], both_ways[1]
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

    Where nothing bends along an axis, or it bends the wrong way, the step is the only known width.
    """
    bend = np.eye(rows.shape[1])
    bend[unsure], bend[:, unsure] = rows, rows.T
    square = rows[:, unsure]
    bend[np.ix_(unsure, unsure)] = 0.5 * (square + square.T)
    own = np.diag(square)
    bend[unsure, unsure] = np.where(own > 0, own, step**-2.0)
    return bend


class StepLengths:
    """Steps along some axes; `todo` holds the axes for which there is no good step yet.

    A step is good if the potential rises by enough to be told from rounding, and not so much that the step leaves the
    typical set.

    Parameters
    ----------
    centre : ndarray of shape (dim,)
        Where they begin.
    axes : ndarray of shape (dim, n)
        One in each column.
    settings : CurvatureSettings
    """

    def __init__(
        self, centre: np.ndarray, axes: np.ndarray, settings: CurvatureSettings = DEFAULT.curvature
    ) -> None:
        n = axes.shape[1]
        self.step, self.todo = np.ones(n), np.arange(n)
        self._centre, self._axes, self._settings = centre, axes, settings
        self._edge, self._flat = np.full(n, np.inf), np.zeros(n, dtype=bool)

    @property
    def places(self) -> np.ndarray:
        """Positions to evaluate next, one for each axis to do."""
        return self._centre + (self._axes[:, self.todo] * self.step[self.todo]).T

    def find(
        self, rises: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]], target: AnyTarget
    ) -> None:
        """Change the steps until each axis has a good one; raise if the posterior has no end along one.

        Parameters
        ----------
        rises : callable
            Evaluates positions along the axes to do, and returns what `update` takes.
        target : AnyTarget
            Named in the error.
        """
        for turn in range(self._settings.flat_rounds):
            self.update(*rises(self.places))
            if turn >= self._settings.rounds - 1:
                self.todo = self.todo[self._flat[self.todo]]  # nothing has risen there yet, or not bent
                self._refuse_endless(target)
            if not self.todo.size:
                break

    def update(self, rise: np.ndarray, bend: np.ndarray | None = None) -> None:
        """Choose further steps where a rise, infinite beyond the support, was not good.

        Parameters
        ----------
        rise : ndarray
            Of the potential, for each axis to do.
        bend : ndarray, optional
            The relative change of the slope. Where that is small, a step measures the slope and no curvature, and must
            be longer, however much the potential rises; far from a minimum it rises by a lot.
        """
        limits, size, todo = self._settings, np.abs(rise), self.todo
        finite, good = np.isfinite(size), (size > limits.least_rise) & (size < limits.most_rise)
        straight = np.zeros(len(size), dtype=bool)
        with np.errstate(all="ignore"):
            times = np.where(finite, np.clip(np.sqrt(0.7 / size), 1e-8, limits.growth), 0.1)
            if bend is not None:
                straight = finite & (size > limits.least_rise) & (bend < limits.least_bend)
                times = np.where(straight, np.clip(limits.bend / bend, 2.0, limits.growth), times)
                measured = finite & (size > limits.least_rise) & (bend < limits.most_bend)
                good = (good | measured) & ~straight
                # It rises in a straight line, as an exponential's potential does: a rise of 1 is all its width.
                linear = straight & (rise > limits.most_straight)
                self.step[todo] = np.where(linear, self.step[todo] / size, self.step[todo])
                good, straight = good | linear, straight & ~linear
        self._edge[todo[~finite]] = self.step[todo[~finite]]
        # A known edge of the support is not stepped over again.
        better = np.minimum(self.step[todo] * times, 0.5 * self._edge[todo])
        is_flat = (finite & (size <= limits.least_rise)) | straight
        self._flat[todo] = is_flat & np.isinf(self._edge[todo])
        self.step[todo], self.todo = np.where(good, self.step[todo], better), todo[~good]

    def _refuse_endless(self, target: AnyTarget) -> None:
        """Raise if an axis still to do goes out as far as is looked."""
        away = self.places - self._centre
        most = self._settings.growth * self._settings.far * (1.0 + np.abs(self._centre).max())
        far = np.flatnonzero(np.abs(away).max(axis=1) > most)
        if far.size:
            raise improper(target, away[far[0]], "does not fall off")


def refuse_absurd_width(record: EvaluationRecord, kernel: SurrogateTransition, most: int) -> None:
    """Raise if the moves of a trained kernel are absurdly long and the posterior goes on even beyond them.

    At most 3 of `most` exact values are spent, and none where widths are as usual.
    """
    settings = record.settings.curvature
    assert isinstance(kernel.metric, DenseMetric)
    values, vectors = np.linalg.eigh(np.asarray(kernel.metric.covariance))
    away = vectors[:, -1] * np.sqrt(max(float(values[-1]), 0.0))
    begun = record.all_evaluations[0].position
    if most < 3 or not np.abs(away).max() > settings.suspect_width * (1.0 + np.abs(begun).max()):
        return
    centre = kernel.centre if kernel.jumps is None or kernel.centre is not None else kernel.jumps.centres[0]
    far = settings.look
    places = centre + np.array([-far, 0.0, far])[:, None] * away
    low, middle, high = record.evaluator.value(places).potential
    if min(low, high) - middle < settings.least_rise_far:
        raise improper(record.evaluator.target, far * (away if high <= low else -away), "does not fall off")


def improper(target: AnyTarget, away: np.ndarray, what: str) -> ImproperError:
    """Return the error for a log-density that has no end in a direction."""
    names = (
        [f"{target.names}[{i}]" for i in range(target.dim)] if isinstance(target.names, str) else target.names
    )
    share = away / np.abs(away).max()
    chosen = np.flatnonzero(np.abs(share) > 0.1)[:4]
    along = ", ".join(f"{'+' if share[i] > 0 else '-'}{names[i]}" for i in chosen)
    listed = ", ".join(names[i] for i in chosen)
    prior = "a prior that is proper" if target.emulates_outputs else f"{listed} a prior or bounds="
    return ImproperError(
        f"the log-density {what} along {along}, as far as {np.abs(away).max():.0e} away, so the posterior may be "
        f"improper; give {prior}, or rescale the parameters if their scale is meant to be of this size"
    )
