"""Find the typical set: where the mass is, and how wide it is.

The chain that starts lowest descends by L-BFGS, along exact gradients (which one more tells to be those of the
potential, or not) or, where there are none, along differences. At its end the curvature is measured, by one more
gradient or value along each axis, and gives the *frame*: coordinates in which the posterior is about a standard normal.
The other chains descend in this frame, for a few steps only; one that is still far up afterwards is put on the line
from where it is to the lowest point, at the distance of the typical set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.errors import BudgetError
from understudy.kernels import State
from understudy.surrogates import Whitening
from understudy.warmup.rehearsal.diary import Diary
from understudy.warmup.rehearsal.reach import (
    FLAT_ROUNDS,
    ROUNDS,
    Reach,
    frame_of_values,
    improper,
    refuse_flat_direction,
)

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

#: Descent ends when so many iterations have gained no more than this.
PATIENCE, GAIN = 3, 0.3
MOST_ITERATIONS = 80
FEW_CALLS = 10
#: Curvatures below this share of the median count as that much.
FLOOR = 0.05
#: Steps of differences: relative to a position, and to the width of the posterior where it is known.
DIFFERENCE, SMALL = 1e-4, 1e-2
FIRST_REACH = 5.0
#: As far from its start, relative to that, a descent is taken to have no end; and one that is out of evaluations is.
ENDLESS, ENDLESS_SO_FAR = 1e8, 1e4
#: Curvatures below this share of the median are looked at: there may be none at all.
NONE = 1e-8


#: Potential and gradient at one position, exact or by differences.
Slope = Callable[[Diary, np.ndarray, State | None], tuple[float, np.ndarray]]
#: Steps of L-BFGS and the changes of the gradient along them.
Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Start:
    """Where the chains are, and the frame."""

    position: np.ndarray  # (chains, dim)
    frame: Whitening


def typical_height(dim: int) -> float:
    """Return how far above the lowest potential there is mass worth learning."""
    return 12.0 + 1.5 * dim


def find(diary: Diary, state: State, rng: np.random.Generator) -> Start:
    """Descend from where the chains start, and measure the curvature; `state` has been evaluated."""
    dim = state.position.shape[1]
    slope: Slope = exact_slope if diary.gradient else difference_slope
    order = np.argsort(state.potential)
    identity = Whitening(np.zeros(dim), np.eye(dim))
    lowest, height, pairs = _descend(diary, slope, _row(state, order[0]), identity)
    frame = _frame_of_pairs(lowest, pairs, dim)
    if diary.gradient:
        frame = _frame_of_curvature(diary, lowest, frame)
    else:
        frame = frame_of_values(diary, frame, height)
        slope = partial(difference_slope, widths=np.linalg.norm(frame.factor, axis=1))
    position = np.array(state.position)
    position[order[0]] = lowest
    for i in order[1:]:
        if (
            state.position[i] == state.position[order[0]]
        ).all():  # one start for all: they are spread about its end
            position[i] = frame.from_white(rng.standard_normal((1, dim)))[0]
        else:
            position[i] = _join(diary, slope, _row(state, i), frame, height)
    return Start(position, frame)


def exact_slope(diary: Diary, position: np.ndarray, known: State | None = None) -> tuple[float, np.ndarray]:
    """Return potential and gradient at one position, which may be `known`."""
    found = diary.evaluate(position[None]) if known is None else known
    assert found.gradient is not None
    return float(found.potential[0]), found.gradient[0]


def difference_slope(
    diary: Diary, position: np.ndarray, known: State | None = None, widths: np.ndarray | float = np.inf
) -> tuple[float, np.ndarray]:
    """Return the potential at one position, and differences to one neighbour along each axis, within its width."""
    step = np.minimum(DIFFERENCE * (1.0 + np.abs(position)), SMALL * widths)
    points = position + np.diag(step)
    if known is None:
        points = np.concatenate([points, position[None]])
    found = diary.evaluate(points).potential
    here = float(found[-1] if known is None else known.potential[0])
    away = found[: len(position)]
    if not (np.isfinite(here) and np.isfinite(away).all()):
        return here, np.zeros(len(position))
    return here, (away - here) / step


def _descend(
    diary: Diary,
    slope: Slope,
    start: State,
    frame: Whitening,
    *,
    enough: float = -np.inf,
    most_calls: int = 10 * MOST_ITERATIONS,
) -> tuple[np.ndarray, float, Pairs]:
    """Return the lowest position found, its potential, and the pairs of L-BFGS in the caller's coordinates.

    It goes from box to box, each twice as wide as the last, so that no solver is asked for what is absurdly far away.
    """
    from scipy.optimize import minimize  # slow to import

    best: list[float] = []
    low, known, n_calls, done = start, True, 0, False

    def height(white: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal low, known, n_calls
        here = low.position[0] if known else frame.from_white(white[None])[0]
        potential, gradient = slope(diary, here, low if known else None)
        n_calls += 1
        if known or potential < low.potential[0]:
            low = State(here[None], np.array([potential]), gradient[None])
        known = False
        if not np.isfinite(potential):
            return 1e100, np.zeros_like(white)
        return potential, frame.gradient_to_white(gradient[None])[0]

    def check(intermediate_result: OptimizeResult) -> None:
        nonlocal done
        best.append(float(intermediate_result.fun))
        stalled = len(best) > PATIENCE and best[-1 - PATIENCE] - best[-1] < GAIN
        done = stalled or best[-1] < enough
        if done:
            raise StopIteration

    radius, steps, changes = FIRST_REACH, [np.empty((0, len(frame.mean)))], [np.empty((0, len(frame.mean)))]
    while not done and n_calls < most_calls:
        first = frame.to_white(low.position)[0]
        try:
            found = minimize(
                height,
                first,
                jac=True,
                method="L-BFGS-B",
                callback=check,
                bounds=list(zip(first - radius, first + radius, strict=True)),
                options={"maxiter": MOST_ITERATIONS, "maxcor": 30, "maxfun": most_calls - n_calls},
            )
        except BudgetError:
            _refuse_endless(diary, start, low, ENDLESS_SO_FAR)
            raise
        _refuse_endless(diary, start, low, ENDLESS)
        inverse: Any = found.hess_inv
        steps.append(inverse.sk @ frame.factor.T)
        changes.append(inverse.yk @ frame.inverse)
        done = done or np.abs(found.x - first).max() < 0.99 * radius
        radius, known = 2.0 * radius, True
    return low.position[0], float(low.potential[0]), (np.concatenate(steps), np.concatenate(changes))


def _refuse_endless(diary: Diary, start: State, low: State, far: float) -> None:
    """Raise if a descent that goes from box to box has come absurdly far."""
    away = low.position[0] - start.position[0]
    if np.abs(away).max() > far * (1.0 + np.abs(start.position).max()):
        raise improper(diary.evaluator.target, away, "goes on rising")


def _frame_of_pairs(centre: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], dim: int) -> Whitening:
    """Return the frame of the inverse Hessian that steps and changes of the gradient tell (BFGS).

    Directions that no step has taken have the typical curvature of those that were.
    """
    ratios = [float(s @ y) / float(y @ y) for s, y in zip(*pairs, strict=True) if s @ y > 0]
    inverse = (np.median(ratios) if ratios else 1.0) * np.eye(dim)
    for s, y in zip(*pairs, strict=True):
        if s @ y > 0:
            across = np.eye(dim) - np.outer(s, y) / (s @ y)
            inverse = across @ inverse @ across.T + np.outer(s, s) / (s @ y)
    values, vectors = np.linalg.eigh(0.5 * (inverse + inverse.T))
    values = np.maximum(values, 1e-12 * values[-1])
    return Whitening(centre, np.linalg.cholesky((vectors * values) @ vectors.T))


def _frame_of_curvature(diary: Diary, centre: np.ndarray, frame: Whitening) -> Whitening:
    """Measure the Hessian at the centre by a gradient a step away along each axis of the frame."""
    dim = len(centre)
    known = diary.training()
    here = int(np.abs(known.position - centre).max(axis=1).argmin())
    assert known.gradient is not None
    gradient, potential = frame.gradient_to_white(known.gradient[here]), float(known.potential[here])
    reach, curvature = Reach(frame), np.eye(dim)
    for turn in range(FLAT_ROUNDS):
        asked = reach.todo
        away = diary.evaluate(reach.places)
        assert away.gradient is not None
        told = np.isfinite(away.potential)
        change = frame.gradient_to_white(away.gradient[told]) - gradient
        curvature[asked[told]] = change / reach.step[asked[told], None]
        reach.learn(away.potential - potential)
        if turn >= ROUNDS - 1:
            reach.keep_flat()
            reach.refuse_flat(diary.evaluator.target)
        if not reach.todo.size:
            break
    own = np.diag(curvature)
    # Where nothing bends, or the wrong way, the step is all that is known of the width.
    np.fill_diagonal(curvature, np.where(own > 0, own, reach.step**-2.0))
    # In units of their own curvature no axis is wider than the others, so that the floor is for what bends little.
    scaled = Whitening(frame.mean, frame.factor / np.sqrt(np.diag(curvature)))
    mixed = frame.vector_to_white(scaled.factor.T)  # axes of the scaled frame, in the old one
    hessian = mixed @ (0.5 * (curvature + curvature.T)) @ mixed.T
    values, vectors = np.linalg.eigh(hessian)
    for i in np.flatnonzero(np.abs(values) < NONE * np.median(np.abs(values))):
        refuse_flat_direction(diary, centre, potential, scaled.factor @ vectors[:, i])
    return frame_of_hessian(centre, hessian, scaled)


def frame_of_hessian(centre: np.ndarray, hessian: np.ndarray, frame: Whitening) -> Whitening:
    """Return the frame in which a Hessian, given in another frame, is about the identity."""
    values, vectors = np.linalg.eigh(hessian)
    size = np.abs(values)
    size = np.maximum(size, max(FLOOR * float(np.median(size)), np.finfo(float).tiny))
    root = frame.factor @ (vectors / np.sqrt(size))
    return Whitening(centre, np.linalg.cholesky(root @ root.T))


def _join(diary: Diary, slope: Slope, start: State, frame: Whitening, lowest: float) -> np.ndarray:
    """Bring one more chain to the typical set, of this basin or of another."""
    dim = start.position.shape[1]
    calls = FEW_CALLS if diary.gradient else 2
    enough = lowest + 0.5 * dim + 4.0
    position, height, _ = _descend(diary, slope, start, frame, enough=enough, most_calls=calls)
    if height <= lowest + typical_height(dim):
        return position
    return on_the_way(frame, position[None])[0]


def _row(state: State, i: int) -> State:
    """Return the state of one chain."""
    gradient = None if state.gradient is None else state.gradient[i : i + 1]
    return State(state.position[i : i + 1], state.potential[i : i + 1], gradient)


def on_the_way(frame: Whitening, position: np.ndarray) -> np.ndarray:
    """Return positions on the line to the frame's centre, at the distance of the typical set or nearer."""
    white = frame.to_white(position)
    distance = np.linalg.norm(white, axis=1, keepdims=True)
    return frame.from_white(white * np.minimum(1.0, np.sqrt(white.shape[1]) / np.maximum(distance, 1e-300)))
