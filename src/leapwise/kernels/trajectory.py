"""What trajectories are made of: the force that drives them, and their step size and number of steps.

A `TrajectoryForce` gives the gradient along the trajectory and the exact potential at its end. It is the only
difference between exact kernels (`ExactForce`) and surrogate kernels (`SurrogateForce`): momenta, integrator and accept
rule are the same code. `TrajectorySettings` draws the step size and the number of steps, independently of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import ask_surrogate, require_positive, require_real
from leapwise.dynamics import EuclideanMetric, PhasePoint, leapfrog, plain_leapfrog
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.base import KnownForce, State
from leapwise.kernels.streams import AnyStreams
from leapwise.surrogates import Fitted
from leapwise.surrogates.compiled import CompiledSurrogate

#: More steps than this in one trajectory are an input error. A guess: at a microsecond a step they would take 10 s.
MOST_STEPS = 10**7


class TrajectoryForce(Protocol):
    """The force that drives a batch of chains from a state to proposals."""

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the state, with the force stored in it, and the force's potentials and gradients there."""
        ...

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Return the ends of leapfrog trajectories, and the number of steps taken."""
        ...

    def evaluate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients at positions. The function must not change during a transition."""
        ...

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray | None]:
        """Return the proposals with their exact potentials, and the discrepancy of a surrogate there.

        `potential` and `gradient` are those of the force. Proposals that are not `complete` are not evaluated; their
        potential is +inf.
        """
        ...

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return the number of exact evaluations of each chain."""
        ...


def unknown_gradients(state: State) -> np.ndarray:
    """Return for which chains the exact gradient is not known, ``(chains,)``."""
    if state.gradient is None:
        return np.ones(len(state.position), dtype=bool)
    return np.isnan(state.gradient).any(axis=1)


@dataclass(frozen=True, eq=False)
class ExactForce:
    """The exact potential and gradient: one exact gradient for each step."""

    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the stored gradients; evaluate those that are missing because a surrogate made the last step."""
        gradient = state.gradient
        unknown = unknown_gradients(state)
        if unknown.any():
            gradient = np.array(np.empty_like(state.position) if gradient is None else gradient)
            gradient[unknown] = self.evaluate(state.position[unknown])[1]
            state = replace(state, gradient=gradient)
        assert gradient is not None
        return state, state.potential, gradient

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Run leapfrog that stops when the energy diverges, because each step is expensive."""
        return leapfrog(self.evaluate, metric, start, step_size, n_steps)

    def evaluate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return exact potentials and gradients."""
        evaluation = self.evaluator.value_and_gradient(position)
        assert evaluation.gradient is not None
        return evaluation.potential, evaluation.gradient

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, None]:
        """Return the proposals; their exact potentials are known from the last step."""
        return State(position, potential, gradient), None

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return one evaluation for each step."""
        return n_taken


@dataclass(frozen=True, eq=False)
class SurrogateForce:
    """A surrogate: no exact evaluation along the trajectory, one exact value at its end.

    What the surrogate returns is not trusted. A trajectory that meets a number that is not finite is abandoned, in both
    directions. An exception, or an array of the wrong shape, raises a `SurrogateError`.

    Parameters
    ----------
    surrogate : Fitted
    compiled : CompiledSurrogate
        Its potential and gradient as plain functions.
    evaluator : Evaluator
    """

    surrogate: Fitted
    compiled: CompiledSurrogate
    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the surrogate's gradients: the stored ones if they are of this surrogate."""
        force = state.known_force
        if force is None or force.surrogate is not self.surrogate or force.gradient is None:
            with np.errstate(all="ignore"):
                force = KnownForce(self.surrogate, self.gradient(state.position))
            state = replace(state, known_force=force)
        assert force.gradient is not None
        return state, np.zeros(len(state.position)), force.gradient

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Run all steps of leapfrog, because they are cheap."""
        return plain_leapfrog(self.gradient, metric, start, step_size, n_steps), n_steps

    def evaluate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros, because potentials are not needed along the trajectory, and the surrogate's gradients."""
        return np.zeros(len(position)), self.gradient(position)

    def gradient(self, position: np.ndarray) -> np.ndarray:
        """Return the surrogate's gradients."""
        return ask_surrogate(self.surrogate, self.compiled.gradient, position.shape, "gradients", position)

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return the surrogate's potentials."""
        return ask_surrogate(
            self.surrogate, self.compiled.potential, position.shape[:1], "potentials", position
        )

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray]:
        """Evaluate one exact value for each proposal."""
        exact, discrepancy = np.full(len(position), np.inf), np.full(len(position), np.nan)
        if complete.any():
            found = self.evaluator.value(position if complete.all() else position[complete])
            exact[complete], position = found.potential, found.into(position, complete)
            with np.errstate(all="ignore"):
                discrepancy[complete] = exact[complete] - self.potential(found.position)
        return State(position, exact, known_force=KnownForce(self.surrogate, gradient)), discrepancy

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return one evaluation for each proposal."""
        return complete.astype(int)


@dataclass(frozen=True, eq=False)
class TrajectorySettings:
    r"""Step size and number of steps of a trajectory, given in one of two ways.

    - With `n_steps`, the number of steps is uniform on :math:`\{1, \ldots, L\}`, or on the range given, and every step
      has the size `step_size`.
    - With `trajectory_length`, the time is uniform within a relative distance of `jitter` from it, and is divided into
      the smallest number of equal steps that are not larger than `step_size`.

    In both cases the draw does not depend on the state, which reversibility requires.

    Parameters
    ----------
    step_size : float or array_like of shape (chains,), optional
        Size of a step, or the largest size allowed.
    n_steps : int or pair of int, optional
        Largest number of steps, or smallest and largest; (L, L) is a fixed number.
    trajectory_length : float, optional
        Mean time of a trajectory.
    jitter : float
        Relative half-width of the range of trajectory times.
    """

    step_size: ArrayLike | None = None
    n_steps: int | tuple[int, int] | None = None
    trajectory_length: float | None = None
    jitter: float = 0.4

    #: Whether all chains of a step have the same length.
    common_length = False

    def __post_init__(self) -> None:
        if self.step_size is not None:
            object.__setattr__(self, "step_size", read_step_size(self.step_size))
        if self.trajectory_length is not None:
            require_positive(self.trajectory_length, "trajectory_length", ())
        if self.n_steps is not None:
            _require_step_range(self.n_steps)
        if self.n_steps is not None and self.trajectory_length is not None:
            raise InputError("give n_steps or trajectory_length, not both")
        if not is_number(self.jitter) or not 0 <= self.jitter < 1:
            raise InputError(f"jitter must be a number of at least 0 and below 1, got {self.jitter!r}")

    @property
    def is_set(self) -> bool:
        """Whether trajectories can be drawn."""
        return self.step_size is not None and (self.n_steps is not None or self.trajectory_length is not None)

    def draw(self, streams: AnyStreams) -> tuple[np.ndarray, np.ndarray]:
        """Return the step size and number of steps of each chain's next trajectory."""
        if not self.is_set:
            raise InputError(
                f"{type(self).__name__} has no settings to step with; give step_size and n_steps, "
                "or let sample() tune it"
            )
        given = chain_step_sizes(self.step_size, streams)
        uniforms = streams.common_uniforms() if self.common_length else streams.uniforms()
        if self.trajectory_length is not None:
            time = self.trajectory_length * (1.0 + self.jitter * (2.0 * uniforms - 1.0))
            wanted = np.ceil(time / given)
            if wanted.max() > MOST_STEPS:
                raise InputError(
                    f"a trajectory of {wanted.max():.3g} steps would never end; give a larger step_size "
                    "or a smaller trajectory_length"
                )
            n_steps = np.maximum(1, wanted).astype(int)
            return time / n_steps, n_steps
        assert self.n_steps is not None
        low, high = (1, self.n_steps) if isinstance(self.n_steps, (int, np.integer)) else self.n_steps
        step_size = given if given.ndim else np.full(streams.n_chains, given)
        return step_size, low + np.floor(uniforms * (high - low + 1)).astype(int)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return replace(self, **changes)


def is_number(value: object) -> bool:
    """Return whether `value` is one real number; True and False are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def require_acceptance(value: object) -> None:
    """Raise unless `value` can be a target acceptance rate."""
    if not is_number(value) or not 0 < value < 1:  # type: ignore[operator]
        raise InputError(f"target_acceptance must be a number between 0 and 1, got {value!r}")


def require_euclidean(metric: object) -> None:
    """Raise unless `metric` is a Euclidean metric, a word for one, or None."""
    is_word = isinstance(metric, str) and metric in ("unit", "diagonal", "dense")
    is_object = isinstance(metric, EuclideanMetric) and not isinstance(metric, type)
    if metric is not None and not is_word and not is_object:
        raise InputError(
            f"metric must be 'unit', 'diagonal', 'dense' or a metric object, got {metric!r}; "
            "a covariance goes in as DenseMetric(covariance), a metric that depends on the position with RMHMC"
        )


def read_step_size(value: Any) -> float | np.ndarray:
    """Return one positive number, or a read-only array with one for each chain."""
    array = require_real(value, "step_size")
    if array.ndim > 1:
        raise InputError(
            f"step_size must be one number, or one for each chain, got an array of shape {array.shape}"
        )
    step_size = require_positive(array, "step_size", array.shape)
    return step_size if step_size.ndim else float(step_size)


def chain_step_sizes(step_size: ArrayLike | None, streams: AnyStreams) -> np.ndarray:
    """Return step sizes as an array of shape () or (chains,); raise if their number is not that of the chains."""
    given = np.asarray(step_size, dtype=float)
    if given.shape not in ((), (streams.n_chains,)):
        raise InputError(
            f"step_size must be one number, or one for each of the {streams.n_chains} chains, got {given.size}"
        )
    return given


def _require_step_range(n_steps: Any) -> None:
    pair = n_steps if isinstance(n_steps, tuple) and len(n_steps) == 2 else (1, n_steps)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in pair)
    if not whole or not 1 <= pair[0] <= pair[1]:
        raise InputError(
            f"n_steps must be a positive whole number, or a pair (smallest, largest) of them, got {n_steps!r}"
        )
