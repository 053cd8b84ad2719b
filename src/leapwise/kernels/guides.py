"""What leads a trajectory: the exact potential, or a surrogate of it.

A guide gives the force along the way and, at the end, the exact potential of where it led. That is all in which exact
and surrogate kernels differ: momenta, motion and acceptance are the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from leapwise.checks import ask_surrogate
from leapwise.dynamics import EuclideanMetric, PhasePoint, glide, leapfrog
from leapwise.execution import Evaluator
from leapwise.kernels.state import KnownForce, State
from leapwise.surrogates import Fitted
from leapwise.surrogates.fast import Fast


class Guide(Protocol):
    """Leads a batch of chains from a state to proposals."""

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the state, which remembers from now on, and the force's potentials and gradients there."""
        ...

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Return where leapfrog leads, and the steps taken."""
        ...

    def force(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients of positions, by a rule that is fixed for the whole transition."""
        ...

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray | None]:
        """Return the proposals with their exact potentials, and the discrepancy of a surrogate there.

        `potential` and `gradient` are the force's. Proposals that are not `complete` are not evaluated; their
        potential is +inf.
        """
        ...

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return the exact evaluations of each chain, from its steps taken and whether it arrived."""
        ...


def unknown_gradients(state: State) -> np.ndarray:
    """Return of which chains the exact gradient is not known, ``(chains,)``."""
    if state.gradient is None:
        return np.ones(len(state.position), dtype=bool)
    return np.isnan(state.gradient).any(axis=1)


@dataclass(frozen=True, eq=False)
class ExactGuide:
    """The exact potential and gradient, at one gradient a step."""

    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return what the state knows; its gradient is paid for if a surrogate brought it here without."""
        gradient = state.gradient
        unknown = unknown_gradients(state)
        if unknown.any():
            gradient = np.array(np.empty_like(state.position) if gradient is None else gradient)
            gradient[unknown] = self.force(state.position[unknown])[1]
            state = replace(state, gradient=gradient)
        assert gradient is not None
        return state, state.potential, gradient

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Follow leapfrog while energies are sane: each step is dear."""
        return leapfrog(self.force, metric, start, step_size, n_steps)

    def force(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return exact potentials and gradients."""
        evaluation = self.evaluator.value_and_gradient(position)
        assert evaluation.gradient is not None
        return evaluation.potential, evaluation.gradient

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, None]:
        """Return what the last step found."""
        return State(position, potential, gradient), None

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return one for each step."""
        return n_taken


@dataclass(frozen=True, eq=False)
class SurrogateGuide:
    """A surrogate: it costs nothing on the way, and one exact value at the end.

    What it returns is not trusted. Anything that is not finite gives the trajectory up, both ways; an exception or
    arrays of another shape are a `SurrogateError`.

    Parameters
    ----------
    surrogate : Fitted
    fast : Fast
        Its potential and gradient as bare functions.
    evaluator : Evaluator
    """

    surrogate: Fitted
    fast: Fast
    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the surrogate's gradients, from the last step if it is the same surrogate as then."""
        force = state.known_force
        if force is None or force.surrogate is not self.surrogate or force.gradient is None:
            with np.errstate(all="ignore"):
                force = KnownForce(self.surrogate, self.slope(state.position))
            state = replace(state, known_force=force)
        assert force.gradient is not None
        return state, np.zeros(len(state.position)), force.gradient

    def follow(
        self, metric: EuclideanMetric, start: PhasePoint, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Follow leapfrog to the end: steps cost nothing."""
        return glide(self.slope, metric, start, step_size, n_steps), n_steps

    def force(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return no potentials, for which there is no need on the way, and the surrogate's gradients."""
        return np.zeros(len(position)), self.slope(position)

    def slope(self, position: np.ndarray) -> np.ndarray:
        """Return the surrogate's gradients."""
        return ask_surrogate(self.surrogate, self.fast.gradient, position.shape, "gradients", position)

    def height(self, position: np.ndarray) -> np.ndarray:
        """Return the surrogate's potentials."""
        return ask_surrogate(self.surrogate, self.fast.potential, position.shape[:1], "potentials", position)

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray]:
        """Pay one exact value for each proposal."""
        exact, discrepancy = np.full(len(position), np.inf), np.full(len(position), np.nan)
        if complete.any():
            found = self.evaluator.value(position if complete.all() else position[complete])
            exact[complete], position = found.potential, found.into(position, complete)
            with np.errstate(all="ignore"):
                discrepancy[complete] = exact[complete] - self.height(found.position)
        return State(position, exact, known_force=KnownForce(self.surrogate, gradient)), discrepancy

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return one for each proposal that was made."""
        return complete.astype(int)
