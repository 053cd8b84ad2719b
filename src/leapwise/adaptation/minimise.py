r"""Minimise the potential from wherever a chain starts: BFGS with a line search that survives bad starts.

A start drawn from uniform(-2, 2) may lie :math:`10^6` standard deviations from the mode, where the potential is
:math:`10^{12}` above its minimum, or next to where it is infinite. So a step is short at first and grows as long as
it succeeds, a trial of infinite potential is shortened by ten, and each line is searched by cubic interpolation through
the values and slopes at its ends (Nocedal and Wright, 2006, section 3.5), until the potential has fallen enough and the
slope along it has. The inverse Hessian is the dense one of BFGS,

.. math:: H \leftarrow (I - \rho s y^T) H (I - \rho y s^T) + \rho s s^T, \qquad \rho = 1 / y^T s,

in the coordinates of a frame, in which scales are to be alike as far as they are known.

The end of a descent is what it has found, not a promise: :math:`\tfrac12 g^T H g`, how far a quadratic would still
fall, is small there. Who measures the curvature at the end can tell whether that is true.

Trust regions on emulated outputs: the step of a descent to where a forward model fits its data.

Outputs are emulated from what is known near the lowest position of a descent. The minimum of the emulated potential
within a radius is where it goes next; the radius grows where that was predicted and shrinks where it was not. All but
the emulator is exact: likelihood and prior are as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from leapwise.adaptation.record import EvaluationRecord
from leapwise.kernels import State
from leapwise.surrogates import Fitted, OutputSurrogate, TrainingSet, Whitening
from leapwise.targets import AnyTarget

#: A descent ends when so many iterations have gained no more than this, and a quadratic would not fall further either.
PATIENCE, GAIN = 3, 0.3
#: It ends at once where a quadratic would fall no further than this, if it began with the curvature of the posterior.
LITTLE = 0.05
#: Length of the first step, in units of the frame; and how many times as long as the last the next may be.
FIRST_STEP, GROWTH = 1.0, 30.0
#: A step must gain this share of what the slope promises, and reduce the slope to this share of itself.
LEAST_GAIN, LEAST_BEND = 1e-3, 0.7
#: Share of a step that is tried next if its end has no potential, and between which shares interpolation may choose.
OUT_OF_INFINITY, SHORTEST, LONGEST = 0.1, 0.05, 0.7
#: Trials on one line, and what the slope must promise for another one.
MOST_TRIALS, LEAST_WORTH = 12, 1e-3
#: Steps of differences relative to the position at first, and as a share of the posterior's width once that is known.
FIRST_DIFFERENCE, DIFFERENCE = 1e-4, 0.05
#: A difference below this, relative to the potential, is rounding: the step is made longer by so much.
ROUNDING, LONGER = 1e-11, 30.0

#: Potential and gradient at one position, which may be known.
Slope = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Exact:
    """Potential and gradient, from the target."""

    def __init__(self, record: EvaluationRecord) -> None:
        self._record = record

    def __call__(self, position: np.ndarray, below: float = np.inf) -> tuple[float, np.ndarray]:
        """Evaluate one position."""
        found = self._record.evaluate(position[None])
        assert found.gradient is not None
        return float(found.potential[0]), found.gradient[0]

    def at(self, state: State) -> np.ndarray:
        """Return the gradient at a state of one chain, whose potential is known."""
        if state.gradient is None or not np.isfinite(state.gradient).all():
            return self(state.position[0])[1]
        return np.asarray(state.gradient[0])

    def learn(self, widths: np.ndarray) -> None:
        """Need no widths."""


class Differences:
    """Potential and differences to one neighbour along each axis, with steps that adapt to what they meet.

    Parameters
    ----------
    record : EvaluationRecord
    frame : Whitening
        Along whose axes differences are taken.
    step : ndarray of shape (dim,)
        Their first lengths, in units of the frame.
    """

    def __init__(self, record: EvaluationRecord, frame: Whitening, step: np.ndarray) -> None:
        self._record, self._frame, self._step = record, frame, step

    def __call__(self, position: np.ndarray, below: float = np.inf) -> tuple[float, np.ndarray]:
        """Evaluate one position, and its neighbours if its potential is low enough; the gradient is NaN if not."""
        here = float(self._record.evaluate(position[None]).potential[0])
        if not here < below:
            return here, np.full(len(position), np.nan)
        return here, self._gradient(position, here)

    def at(self, state: State) -> np.ndarray:
        """Return the gradient at a state of one chain, whose potential is known."""
        return self._gradient(state.position[0], float(state.potential[0]))

    def learn(self, widths: np.ndarray) -> None:
        """Take steps that are short against the widths of the posterior along the axes."""
        known = np.isfinite(widths) & (widths > 0)
        wanted = np.where(known, DIFFERENCE * widths, self._step)
        self._step = np.clip(wanted, self._step / LONGER, self._step * LONGER)

    def _gradient(self, position: np.ndarray, here: float) -> np.ndarray:
        step = self._step
        change = self._changes(position, here, step, np.ones(len(step), dtype=bool))
        lost = ~np.isfinite(change)
        if lost.any():  # an edge: the neighbour on the other side
            step = np.where(lost, -step, step)
            change[lost] = self._changes(position, here, step, lost)[lost]
        small = np.abs(change) <= ROUNDING * max(1.0, abs(here))
        self._step = self._step * np.where(small, LONGER, np.where(np.isfinite(change), 1.0, 0.1))
        with np.errstate(invalid="ignore"):
            white = np.where(np.isfinite(change), change / step, 0.0)
        return np.asarray(self._frame.gradient_from_white(white[None])[0])

    def _changes(self, position: np.ndarray, here: float, step: np.ndarray, rows: np.ndarray) -> np.ndarray:
        change = np.full(len(position), np.inf)
        neighbours = position + (self._frame.factor * step).T[rows]
        change[rows] = self._record.evaluate(neighbours).potential - here
        return change


@dataclass(frozen=True, eq=False)
class Descended:
    """Where a descent has ended.

    Attributes
    ----------
    position, gradient : ndarray of shape (dim,)
    potential : float
    inverse : ndarray of shape (dim, dim)
        Inverse Hessian as far as BFGS knows it, in the coordinates of the caller.
    settled : bool
        Whether it ended because there was no more to gain, not because it was out of calls.
    """

    position: np.ndarray
    potential: float
    gradient: np.ndarray
    inverse: np.ndarray
    settled: bool


def minimise(
    slope: Exact | Differences,
    start: State,
    frame: Whitening,
    most_calls: int,
    *,
    enough: float = -np.inf,
    scaled: bool = False,
    told: Callable[[np.ndarray], None] = lambda position: None,
) -> Descended:
    """Descend from a state of one chain.

    Parameters
    ----------
    slope : Exact or Differences
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
    told : callable
        Is told every position that was gone to, and may raise.
    """
    dim, n_calls = len(frame.mean), 0
    position, potential = np.array(start.position[0]), float(start.potential[0])
    gradient = slope.at(start)
    inverse, past, settled, in_scale = np.eye(dim), [potential], False, scaled
    # In a frame of the right scale the first step is Newton's, but not far beyond its centre.
    longest = FIRST_STEP + (2.0 * float(np.linalg.norm(frame.to_white(start.position))) if scaled else 0.0)
    while n_calls < most_calls and potential > enough:
        white = frame.gradient_to_white(gradient[None])[0]
        step = -inverse @ white
        falls = float(step @ white)
        if not falls < 0:
            if not scaled:  # no slope at all
                settled = True
                break
            inverse, scaled = np.eye(dim), False
            continue
        length = float(np.linalg.norm(step))
        share = min(1.0, longest / length) if scaled else longest / length
        line = _search(slope, frame, position, potential, falls, step, share, most_calls - n_calls)
        n_calls += line.n_calls
        if line.position is None:
            if not scaled:  # not even straight down is there anything lower
                settled = True
                break
            inverse, scaled, longest = np.eye(dim), False, min(FIRST_STEP, longest)
            settled = _is_over(past, -falls)
            if settled:
                break
            past.append(potential)
            continue
        told(line.position)
        moved = line.share * step
        change = frame.gradient_to_white(line.gradient[None])[0] - white
        along = float(moved @ change)
        if along > 1e-10 * np.linalg.norm(moved) * np.linalg.norm(change):
            if not scaled:
                inverse, scaled = along / float(change @ change) * np.eye(dim), True
            across = np.eye(dim) - np.outer(moved, change) / along
            inverse = across @ inverse @ across.T + np.outer(moved, moved) / along
        longest = GROWTH * float(np.linalg.norm(moved))
        position, potential, gradient = line.position, line.potential, line.gradient
        if scaled:
            slope.learn(_widths(inverse))
        past.append(potential)
        white = frame.gradient_to_white(gradient[None])[0]
        decrement = float(white @ inverse @ white)
        settled = _is_over(past, decrement) or (in_scale and 0.5 * decrement < LITTLE)
        if settled:
            break
    inverse = frame.factor @ inverse @ frame.factor.T
    return Descended(position, potential, gradient, 0.5 * (inverse + inverse.T), settled)


def _is_over(past: list[float], decrement: float) -> bool:
    """Whether nothing is gained any more, nor would be by a quadratic with this squared Newton decrement."""
    return len(past) > PATIENCE and past[-1 - PATIENCE] - past[-1] < GAIN and 0.5 * decrement < 10.0 * GAIN


def _widths(inverse: np.ndarray) -> np.ndarray:
    """Return how wide a quadratic is along each axis with the others held fixed."""
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


def _search(
    slope: Exact | Differences,
    frame: Whitening,
    position: np.ndarray,
    potential: float,
    falls: float,
    step: np.ndarray,
    share: float,
    most_calls: int,
) -> _Line:
    """Look along a step for a lower potential where the slope is less steep; `falls` is the slope along it."""
    best = _Line(None, potential, step, 0.0, 0)
    low, low_value, low_slope, high = 0.0, potential, falls, np.inf
    n_calls = 0
    for n_calls in range(1, min(MOST_TRIALS, most_calls) + 1):
        there, enough = position + share * (frame.factor @ step), potential + LEAST_GAIN * share * falls
        value, gradient = slope(there, min(enough, low_value))
        along = float(frame.gradient_to_white(gradient[None])[0] @ step)
        if not value < min(enough, low_value):
            high = share
            share = low + (high - low) * _interpolated(low_value, low_slope, value, along, high - low)
        else:
            best = _Line(there, value, gradient, share, n_calls)
            if along > LEAST_BEND * falls:  # no longer steep, or rising again
                break
            low, low_value, low_slope = share, value, along
            share = 0.5 * (low + high) if high < np.inf else share * _extrapolated(falls, along)
        if high - low <= 1e-10 * high or -share * falls < LEAST_WORTH:
            break
    return _Line(best.position, best.potential, best.gradient, best.share, n_calls)


def _interpolated(low: float, low_slope: float, high: float, high_slope: float, width: float) -> float:
    """Return the share of an interval at which a cubic through values and slopes at its ends is lowest."""
    if not np.isfinite(high):
        return OUT_OF_INFINITY
    with np.errstate(all="ignore"):
        begin, end = np.float64(low_slope), np.float64(high_slope)
        first = begin + end - 3.0 * np.float64(high - low) / width
        root = np.sqrt(first**2 - begin * end)
        share = 1.0 - (end + root - first) / (end - begin + 2.0 * root)
        if np.isnan(end):  # a parabola, where the slope at the far end is not known
            share = -0.5 * begin * width / (high - low - begin * width)
    return float(np.clip(share, SHORTEST, LONGEST)) if np.isfinite(share) else 0.5


def _extrapolated(first: float, last: float) -> float:
    """Return how many times as far to go where the slope is still steep: to where a parabola would have none."""
    ratio = last / first
    return float(np.clip(1.0 / (1.0 - ratio), 2.0, 10.0)) if ratio < 1.0 else 10.0


#: Positions are looked at so far out of the prior's draws, in units of their spread, and so many times as far as the
#: lowest one: models need not work further out.
REACH, FURTHER = 3.5, 1.5
#: Descents end at gains below this.
OUTPUT_GAIN = 0.5


@dataclass
class Descent:
    """A trust region around the lowest position of one chain.

    Attributes
    ----------
    position : ndarray of shape (dim,)
    potential : float
        Exact.
    radius : float
        In units of the frame.
    curvature : ndarray of shape (dim, dim) or None
        Of the emulated potential at the position, in the frame.
    settled : bool
        Whether there is nothing more to gain.
    """

    position: np.ndarray
    potential: float
    radius: float
    curvature: np.ndarray | None = None
    settled: bool = False


@dataclass
class Region:
    """What descents have in common.

    Parameters
    ----------
    record : EvaluationRecord
    target : ForwardTarget
    frame : Whitening
        Of the prior.
    rng : Generator
    """

    record: EvaluationRecord
    target: AnyTarget
    frame: Whitening
    rng: np.random.Generator

    def propose(self, descent: Descent, known: TrainingSet) -> tuple[np.ndarray, float] | None:
        """Return where to go on from what is known, and the gain that is predicted; None if there is next to none.

        The descent has then settled, if the emulator knows where it is, or its radius shrinks.
        """
        around = Whitening(descent.position, descent.radius * self.frame.factor)
        # All of it is of use: the emulator is not to leave out what lies high.
        height = float(known.potential.min()) + known.typical_height
        known = replace(known, potential=np.minimum(known.potential, height))
        recipe = replace(OutputSurrogate.of(self.target), whitening=around)  # type: ignore[arg-type]
        emulated = recipe.fit(known, self.rng)
        descent.curvature = (
            self.frame.factor.T @ emulated.hessian(descent.position[None])[0] @ self.frame.factor
        )
        end = self._minimum(emulated, around)
        before, after = emulated.potential(np.stack([descent.position, end]))
        gain = float(before - after)
        if not gain > OUTPUT_GAIN:
            descent.settled = abs(before - descent.potential) < 1.0
            descent.radius *= 0.4
            return None
        return end, gain

    def judge(self, descent: Descent, end: np.ndarray, gain: float, potential: float) -> None:
        """Go to the end of a step if it is lower, and choose the radius by how much of the gain came true."""
        far = np.abs(self.frame.vector_to_white(end - descent.position)).max() > 0.8 * descent.radius
        ratio = (descent.potential - potential) / gain
        if potential < descent.potential:
            descent.position, descent.potential = end, potential
        if ratio < 0.25:
            descent.radius *= 0.4
        elif ratio > 0.7 and far:
            descent.radius *= 2.5

    def _minimum(self, emulated: Fitted, around: Whitening) -> np.ndarray:
        """Return the minimum inside the trust region."""
        size = np.diag(around.factor) / np.diag(self.frame.factor)
        centre, reach = self.frame.to_white(around.mean[None])[0], self.reach
        low, high = np.clip((-reach - centre) / size, -1.0, 0.0), np.clip((reach - centre) / size, 0.0, 1.0)
        return minimum(emulated, around, around.mean, list(zip(low, high, strict=True)))

    @property
    def reach(self) -> float:
        """How far out positions are looked at."""
        known = self.record.training()
        lowest = self.frame.to_white(known.position[[int(known.potential.argmin())]])
        return max(REACH, FURTHER * float(np.abs(lowest).max()))

    def within(self, white: np.ndarray) -> np.ndarray:
        """Return positions in the frame, not further out than the reach."""
        return np.clip(white, -self.reach, self.reach)


def minimum(
    surrogate: Fitted,
    frame: Whitening,
    position: np.ndarray,
    bounds: list[tuple[float, float]] | None = None,
    iterations: int = 200,
) -> np.ndarray:
    """Return a minimum of the surrogate near a position, within bounds in the frame."""
    from scipy.optimize import minimize  # slow to import

    def height(white: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            potential, gradient = surrogate.potential_and_gradient(frame.from_white(white[None]))
        if not (np.isfinite(potential).all() and np.isfinite(gradient).all()):
            return 1e100, np.zeros_like(white)
        return float(potential[0]), frame.gradient_to_white(gradient)[0]

    start = frame.to_white(position[None])[0]
    found = minimize(
        height, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}
    )
    return frame.from_white(found.x[None])[0]
