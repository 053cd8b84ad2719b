"""Walks on a surrogate alone: they cost no exact evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.dynamics import DenseMetric
from leapwise.execution import Evaluator
from leapwise.kernels import Jumps, SharedStream, State, SurrogateTransition
from leapwise.kernels.transition import walk_on_surrogate
from leapwise.surrogates import Whitening
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate
from leapwise.warmup.tuners import fisher_metric

#: Acceptance that inner steps are made small enough for.
INNER_ACCEPTANCE = 0.85


#: Largest step of a swing, and the relative half-width of the spread of their lengths. A step of a half turn would
#: resonate with whatever the surrogate differs from a normal by.
LONGEST_STEP, JITTER = 1.3, 0.25
#: A step that is accepted so rarely, at so large a share of places, is halved, so many times at most; and inner steps
#: of the walks that look for such places.
RARELY, FEW_PLACES, MOST_HALVINGS, N_FINER = 0.3, 0.015, 3, 10
#: Chains and steps that the coordinates are learnt from.
N_CHAINS, N_SETTLE, N_STEPS = 64, 8, 12
#: Trajectories that take so many steps take no more: what would need them is too rough to be worth it.
MOST_STEPS = 24


#: Where the longest step is accepted more often than this, the surrogate is so near to a normal that nothing is narrow.
HARDLY_BENT = 0.93


class Energy(Protocol):
    """Anything with potentials and gradients."""

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        ...

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients ``(n, dim)``."""
        ...


@dataclass(frozen=True, eq=False)
class Tempered:
    """A surrogate times a constant below one: walks on it go further out."""

    surrogate: Energy
    exponent: float

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials."""
        return self.exponent * self.surrogate.potential(position)

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients."""
        potential, gradient = self.surrogate.potential_and_gradient(position)
        return self.exponent * potential, self.exponent * gradient

    def compiled(self) -> CompiledSurrogate:
        """Return both as bare functions."""
        potential, gradient = compile_surrogate(self.surrogate)  # type: ignore[arg-type]
        exponent = self.exponent
        return CompiledSurrogate(
            lambda position: exponent * potential(position), lambda position: exponent * gradient(position)
        )


def transition(
    surrogate: Energy,
    frame: Whitening,
    step_size: float,
    length: float,
    inner_steps: int,
    jumps: Jumps | None = None,
) -> SurrogateTransition:
    """Return the kernel that swings about the centre of the frame, with lengths in its units.

    With jumps there is no one centre: trajectories are straight, and the frame tells how wide modes are.
    """
    return SurrogateTransition(
        step_size,
        trajectory_length=length,
        surrogate=surrogate,  # type: ignore[arg-type]
        metric=DenseMetric(frame.factor @ frame.factor.T),
        inner_steps=inner_steps,
        centre=frame.mean if jumps is None else None,
        jitter=JITTER,
        jumps=jumps,
    )


def walk(
    kernel: SurrogateTransition, position: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Return where the inner steps of a kernel lead, and their mean acceptance."""
    dynamics, state = kernel.inner_dynamics(_no_evaluator()), State(position, np.zeros(len(position)))
    start = dynamics.begin(state)
    end, found = walk_on_surrogate(kernel, dynamics, SharedStream(rng, len(position)), start)
    moved = (end.position != start.position).any(axis=1)
    return dynamics.finish(end, moved, state)[0], float(found.acceptance.mean())


def trace(
    kernel: SurrogateTransition, position: np.ndarray, rng: np.random.Generator, n_steps: int
) -> np.ndarray:
    """Return successive positions of walks that go on, the first of them included, ``(n_steps + 1, n, dim)``."""
    dynamics, state = kernel.inner_dynamics(_no_evaluator()), State(position, np.zeros(len(position)))
    point, streams, found = dynamics.begin(state), SharedStream(rng, len(position)), [position]
    for _ in range(n_steps):
        end, _ = walk_on_surrogate(kernel, dynamics, streams, point)
        moved = (end.position != point.position).any(axis=1)
        state = State(dynamics.finish(end, moved, state)[0], state.potential)
        found.append(state.position)
        point = end
    return np.stack(found)


def find_step(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    length: float = 1.5,
    wanted: float = INNER_ACCEPTANCE,
    *,
    everywhere: bool = True,
    jumps: Jumps | None = None,
) -> float:
    """Return a step size at which inner steps are mostly accepted, and at hardly any place that has mass never."""
    longest = step_size = min(length, LONGEST_STEP)
    while True:
        _, accepted = walk(transition(surrogate, frame, step_size, length, 2, jumps), position, rng)
        if accepted >= wanted or step_size < length / MOST_STEPS:
            break
        step_size *= 0.75
    if not everywhere or (step_size == longest and accepted > HARDLY_BENT):
        return step_size
    return _for_narrow_places(surrogate, frame, position, rng, length, step_size, jumps)


def _for_narrow_places(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    length: float,
    step_size: float,
    jumps: Jumps | None,
) -> float:
    """Return the step size, halved until walks with half of it come to no places that it cannot come to.

    At the tips of a banana the valley is many times narrower than in its middle. Where a step is unstable chains of the
    surrogate hardly ever go, so that the mean over the places they go to does not tell of it; a finer walk does.
    """
    position = position[rng.integers(len(position), size=N_CHAINS)]
    for _ in range(MOST_HALVINGS):
        finer = transition(surrogate, frame, 0.5 * step_size, length, N_FINER, jumps)
        position, _ = walk(finer, position, rng)
        rates = _acceptances(transition(surrogate, frame, step_size, length, 2, jumps), position, rng)
        if np.quantile(rates, FEW_PLACES) > RARELY or step_size < length / MOST_STEPS:
            break
        step_size *= 0.5
    return step_size


def _acceptances(kernel: SurrogateTransition, position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return how likely inner steps from each position are accepted."""
    dynamics, state = kernel.inner_dynamics(_no_evaluator()), State(position, np.zeros(len(position)))
    found = walk_on_surrogate(kernel, dynamics, SharedStream(rng, len(position)), dynamics.begin(state))[1]
    return np.asarray(found.acceptance)


def settle(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    jumps: Jumps | None = None,
) -> Whitening:
    """Return coordinates in which the surrogate's own posterior, or each mode of it, is about a standard normal.

    From draws of the surrogate and its gradients there, by `fisher_metric`; the frame stays as it is if walks leave
    what numbers can hold.
    """
    step_size = find_step(surrogate, frame, position, rng)
    kernel = transition(surrogate, frame, step_size, 2.0, 1)
    position = position[rng.integers(len(position), size=N_CHAINS)]
    draws = trace(kernel, position, rng, N_SETTLE + N_STEPS)
    found = np.concatenate(draws[N_SETTLE + 2 :: 3])
    with np.errstate(all="ignore"):
        gradient = surrogate.potential_and_gradient(found)[1]
    if not (np.isfinite(found).all() and np.isfinite(gradient).all()):
        return frame
    within = within_mode(found, jumps)
    metric = fisher_metric(within, gradient, "dense", DenseMetric(frame.factor @ frame.factor.T))
    if not isinstance(metric, DenseMetric):
        return frame
    return Whitening(within.mean(axis=0), np.linalg.cholesky(np.asarray(metric.covariance)))


def within_mode(position: np.ndarray, jumps: Jumps | None) -> np.ndarray:
    """Return positions relative to the first place of the mode they belong to; as they are, where nothing jumps.

    Where each place is a mode of its own, that is the middle of the mode.
    """
    if jumps is None:
        return position
    first = np.unique(np.asarray(jumps.component_modes), return_index=True)[1]
    return position - jumps.centres[first[jumps.modes(position)]]


def _no_evaluator() -> Evaluator:
    """Stand for what a walk never asks."""
    return None  # type: ignore[return-value]
