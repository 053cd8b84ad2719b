r"""Find the typical set: where the mass is, and how wide it is.

The chain that starts lowest descends (see `leapwise.adaptation.minimise`), along exact gradients or, where
there are none, along differences. At its end the curvature is measured (`leapwise.adaptation.curvature`),
which gives the *frame*: coordinates in which the posterior is about a standard normal. With it comes a test of the end
itself, how far a quadratic of that curvature would still fall, :math:`\tfrac12 g^T H^{-1} g`. If that is far, the
descent goes on, now in the frame, so that neither scales nor correlations hold it up; and so on until there is no
further to fall.

The other chains descend in this frame, for a few steps only; one that is still far up afterwards is put on the line
from where it is to the lowest point, at the distance of the typical set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from leapwise.adaptation.curvature import measure
from leapwise.adaptation.minimise import (
    FIRST_DIFFERENCE,
    Descended,
    Differences,
    Exact,
    minimise,
)
from leapwise.adaptation.reach import improper
from leapwise.adaptation.record import EvaluationRecord
from leapwise.errors import BudgetError
from leapwise.kernels import State
from leapwise.surrogates import Whitening

#: Descents, each in the frame of the curvature where the last has ended; and calls of one, for each parameter and else.
MOST_DESCENTS, CALLS, CALLS_EACH = 10, 60, 8
#: A quadratic may still fall so far, for each parameter and else, at the end of the last descent.
STILL_FALLS, STILL_FALLS_EACH = 1.0, 0.05
FEW_CALLS = 10
#: Modes that are descended to, each far below the one before.
MOST_MODES = 4
#: As far from its start, relative to that, a descent is taken to have no end; and one that is out of evaluations is.
ENDLESS, ENDLESS_SO_FAR = 1e15, 1e6
#: Positions with mass that a surrogate needs to begin with, for each parameter and else; and tries to find them, each
#: that much nearer to the lowest point than the one before.
FEWEST, FEWEST_EACH, MOST_TRIES, NEARER = 3, 1, 6, 0.5
#: Differences that are taken once the frame is known, in its units.
SMALL = 0.05


@dataclass(frozen=True, eq=False)
class Start:
    """Where the chains are, and the frame."""

    position: np.ndarray  # (chains, dim)
    frame: Whitening


def typical_height(dim: int) -> float:
    """Return how far above the lowest potential there is mass worth learning."""
    return 12.0 + 1.5 * dim


def find(record: EvaluationRecord, state: State, rng: np.random.Generator) -> Start:
    """Descend from where the chains start, and measure the curvature; `state` has been evaluated."""
    dim = state.position.shape[1]
    position, potential = np.array(state.position), np.array(state.potential)
    first = int(np.argmin(potential))
    for _ in range(MOST_MODES):
        low, frame = _mode(record, _row(state, first), rng)
        position[first], potential[first] = low.position, low.potential
        for i in np.argsort(state.potential):
            if i == first:
                continue
            if (state.position[i] == state.position[first]).all():  # one start for all: spread about its end
                position[i] = frame.from_white(rng.standard_normal((1, dim)))[0]
            else:
                position[i], potential[i] = _join(record, _row(state, i), frame, low.potential)
        lower = int(np.argmin(potential))
        if potential[lower] > low.potential - typical_height(dim):
            break
        # Another chain is far below already: this was not the lowest mode.
        state, first = State(position.copy(), potential.copy()), lower
    far = potential > low.potential + typical_height(dim)
    position[far] = on_the_way(frame, position[far])
    return Start(position, frame)


def _mode(record: EvaluationRecord, start: State, rng: np.random.Generator) -> tuple[Descended, Whitening]:
    """Return the lowest point of descents that begin at one state, and the frame there."""
    dim = start.position.shape[1]
    frame, scaled = Whitening(np.zeros(dim), np.eye(dim)), False
    begun, calls = start.position[0], CALLS + CALLS_EACH * dim
    for _ in range(MOST_DESCENTS):
        slope = _slope(record, frame, start.position[0], scaled)
        try:
            low = minimise(
                slope,
                start,
                frame,
                calls,
                scaled=scaled,
                told=partial(_refuse_endless, record, begun, ENDLESS),
            )
        except BudgetError:
            _refuse_endless(record, begun, ENDLESS_SO_FAR, _lowest(record))
            raise
        curved = measure(record, low, _axes(low.inverse))
        frame, scaled = curved.frame, True
        if curved.falls < STILL_FALLS + STILL_FALLS_EACH * dim:
            break
        start = State(low.position[None], np.array([low.potential]), curved.gradient[None])
    _surround(record, frame, rng)
    return low, frame


def _slope(
    record: EvaluationRecord, frame: Whitening, position: np.ndarray, scaled: bool
) -> Exact | Differences:
    """Return gradients, exact ones if there are any."""
    if record.gradient:
        return Exact(record)
    step = np.full(len(position), SMALL) if scaled else FIRST_DIFFERENCE * (1.0 + np.abs(position))
    return Differences(record, frame, step)


def _axes(inverse: np.ndarray) -> np.ndarray:
    """Return axes along which an inverse Hessian is the identity; none is absurdly narrow against the others."""
    width = np.sqrt(np.maximum(np.diag(inverse), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(inverse / width / width[:, None])
    return np.asarray(width[:, None] * (vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))))


def _surround(record: EvaluationRecord, frame: Whitening, rng: np.random.Generator) -> None:
    """See that enough positions with mass are known for a surrogate to begin with, nearer and nearer to the centre."""
    dim = frame.mean.size
    for turn in range(MOST_TRIES):
        lacking = FEWEST + FEWEST_EACH * dim - len(record.training().select())
        if lacking <= 0:
            break
        record.evaluate(frame.from_white(NEARER ** (1 + turn) * rng.standard_normal((lacking, dim))))


def _lowest(record: EvaluationRecord) -> np.ndarray:
    """Return the position of the lowest potential that is known."""
    best = min(record.heard, key=lambda each: float(each.potential.min(initial=np.inf)))
    return np.asarray(best.position[int(best.potential.argmin())])


def _refuse_endless(record: EvaluationRecord, begun: np.ndarray, far: float, position: np.ndarray) -> None:
    """Raise if a descent has come absurdly far from where it began."""
    away = position - begun
    if np.abs(away).max() > far * (1.0 + np.abs(begun).max()):
        raise improper(record.evaluator.target, away, "goes on rising")


def _join(
    record: EvaluationRecord, start: State, frame: Whitening, lowest: float
) -> tuple[np.ndarray, float]:
    """Bring one more chain nearer to the typical set, of this mode or of another; return where it is, and how high."""
    dim = start.position.shape[1]
    calls = FEW_CALLS if record.gradient else 2
    slope = _slope(record, frame, start.position[0], scaled=True)
    found = minimise(slope, start, frame, calls, enough=lowest + 0.5 * dim + 4.0, scaled=True)
    return found.position, found.potential


def _row(state: State, i: int) -> State:
    """Return the state of one chain."""
    gradient = None if state.gradient is None else state.gradient[i : i + 1]
    return State(state.position[i : i + 1], state.potential[i : i + 1], gradient)


def on_the_way(frame: Whitening, position: np.ndarray) -> np.ndarray:
    """Return positions on the line to the frame's centre, at the distance of the typical set or nearer."""
    white = frame.to_white(position)
    distance = np.linalg.norm(white, axis=1, keepdims=True)
    return frame.from_white(white * np.minimum(1.0, np.sqrt(white.shape[1]) / np.maximum(distance, 1e-300)))
