"""Chains on the surrogate alone: they cost no exact evaluation.

The kernel of the draws (`SurrogateTransition`) moves by inner steps on the surrogate and then pays for one exact value.
Here only its inner steps are used: to move the exploring chains, to draw from the surrogate, to choose step sizes, and
to learn the frame in which the surrogate's posterior is about standard normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.adaptation.settings import DEFAULT, AdaptationSettings
from leapwise.dynamics import DenseMetric
from leapwise.execution import Evaluator
from leapwise.kernels import Jumps, SharedStream, State, SurrogateTransition
from leapwise.kernels.transition import walk_on_surrogate
from leapwise.surrogates import Whitening
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate
from leapwise.warmup.tuners import fisher_metric


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
    """A surrogate times an inverse temperature below one: chains on it go further out."""

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


def surrogate_kernel(
    surrogate: Energy,
    frame: Whitening,
    step_size: float,
    length: float,
    inner_steps: int,
    jumps: Jumps | None = None,
    settings: AdaptationSettings = DEFAULT,
) -> SurrogateTransition:
    """Return the kernel whose trajectories turn about the centre of the frame; lengths are in its units.

    With jumps there is no single centre: trajectories are straight, and the frame holds the widths of modes.
    """
    return SurrogateTransition(
        step_size,
        trajectory_length=length,
        surrogate=surrogate,  # type: ignore[arg-type]
        metric=DenseMetric(frame.factor @ frame.factor.T),
        inner_steps=inner_steps,
        centre=frame.mean if jumps is None else None,
        jitter=settings.chains.jitter,
        jumps=jumps,
    )


def move(
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
    """Return successive positions of chains, the first ones included, ``(n_steps + 1, n, dim)``."""
    dynamics, state = kernel.inner_dynamics(_no_evaluator()), State(position, np.zeros(len(position)))
    point, streams, found = dynamics.begin(state), SharedStream(rng, len(position)), [position]
    for _ in range(n_steps):
        end, _ = walk_on_surrogate(kernel, dynamics, streams, point)
        moved = (end.position != point.position).any(axis=1)
        state = State(dynamics.finish(end, moved, state)[0], state.potential)
        found.append(state.position)
        point = end
    return np.stack(found)


def find_step_size(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    length: float = 1.5,
    *,
    wanted: float | None = None,
    jumps: Jumps | None = None,
    settings: AdaptationSettings = DEFAULT,
) -> float:
    """Return a step size with which inner steps are mostly accepted.

    Parameters
    ----------
    surrogate, frame, position, rng
        What the steps are tried on, and from where.
    length : float
        Of the trajectories.
    wanted : float, optional
        Mean acceptance, ``settings.chains.acceptance`` if not given.
    jumps : Jumps, optional
    settings : AdaptationSettings
    """
    chains = settings.chains
    wanted = chains.acceptance if wanted is None else wanted
    step_size = min(length, chains.longest_step)
    while True:
        kernel = surrogate_kernel(surrogate, frame, step_size, length, 2, jumps, settings)
        _, accepted = move(kernel, position, rng)
        if accepted >= wanted or step_size < length / chains.max_steps:
            break
        step_size *= 0.75
    return step_size


def learn_frame(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    jumps: Jumps | None = None,
    settings: AdaptationSettings = DEFAULT,
) -> Whitening:
    """Return the frame in which the surrogate's own posterior, or each of its modes, is about standard normal.

    It comes from draws of the surrogate and its gradients there (`fisher_metric`). The frame stays as it is if chains
    leave the range of floating-point numbers.
    """
    chains = settings.chains
    step_size = find_step_size(surrogate, frame, position, rng, settings=settings)
    kernel = surrogate_kernel(surrogate, frame, step_size, 2.0, 1, settings=settings)
    position = position[rng.integers(len(position), size=chains.n_chains)]
    draws = trace(kernel, position, rng, chains.n_discarded + chains.n_steps)
    found = np.concatenate(draws[chains.n_discarded + 2 :: 3])
    with np.errstate(all="ignore"):
        gradient = surrogate.potential_and_gradient(found)[1]
    if not (np.isfinite(found).all() and np.isfinite(gradient).all()):
        return frame
    relative = relative_to_mode(found, jumps)
    metric = fisher_metric(relative, gradient, "dense", DenseMetric(frame.factor @ frame.factor.T))
    if not isinstance(metric, DenseMetric):
        return frame
    return Whitening(relative.mean(axis=0), np.linalg.cholesky(np.asarray(metric.covariance)))


def relative_to_mode(position: np.ndarray, jumps: Jumps | None) -> np.ndarray:
    """Return positions relative to the first component of the mode they belong to; unchanged without jumps.

    Where each component is a mode of its own, that is the middle of the mode.
    """
    if jumps is None:
        return position
    first = np.unique(np.asarray(jumps.component_modes), return_index=True)[1]
    return position - jumps.centres[first[jumps.modes(position)]]


def _no_evaluator() -> Evaluator:
    """Return a placeholder: inner steps never call the evaluator."""
    return None  # type: ignore[return-value]
