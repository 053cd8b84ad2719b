"""What leads a trajectory: the exact potential, or a stand-in of it.

A guide gives the force along the way and, at the end, the exact potential of where it led. That is all in which exact
and surrogate kernels differ: momenta, motion and acceptance are the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from understudy.errors import SurrogateError, UnderstudyError
from understudy.kernels.state import State
from understudy.surrogates import Fitted
from understudy.targets import Evaluator


class Guide(Protocol):
    """Leads a batch of chains from a state to proposals."""

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the state, which remembers from now on, and the force's potentials and gradients there."""
        ...

    def force(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients of positions, by a rule that is fixed for the whole transition."""
        ...

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray | None]:
        """Return the proposals with their exact potentials, and the discrepancy of a stand-in there.

        `potential` and `gradient` are the force's. Proposals that are not `complete` are not evaluated; their
        potential is +inf.
        """
        ...

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return the exact evaluations of each chain, from its steps taken and whether it arrived."""
        ...


@dataclass(frozen=True, eq=False)
class ExactGuide:
    """The exact potential and gradient, at one gradient a step."""

    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return what the state knows."""
        assert state.gradient is not None
        return state, state.potential, state.gradient

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
    """A stand-in: it costs nothing on the way, and one exact value at the end.

    What it returns is not trusted. Anything that is not finite gives the trajectory up, both ways; an exception or
    arrays of another shape are a `SurrogateError`.
    """

    surrogate: Fitted
    evaluator: Evaluator

    def begin(self, state: State) -> tuple[State, np.ndarray, np.ndarray]:
        """Return the surrogate's answers, from the last step if it is the same surrogate as then."""
        if state.known_force is None or state.known_force[0] is not self.surrogate:
            state = replace(state, known_force=(self.surrogate, *self.force(state.position)))
        assert state.known_force is not None
        _, potential, gradient = state.known_force
        return state, potential, gradient

    def force(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the surrogate's potentials and gradients."""
        try:
            with np.errstate(all="ignore"):
                potential, gradient = self.surrogate.potential_and_gradient(position)
                potential, gradient = np.asarray(potential, dtype=float), np.asarray(gradient, dtype=float)
        except UnderstudyError:
            raise
        except Exception as error:
            raise SurrogateError(
                f"the surrogate {type(self.surrogate).__name__} raised {type(error).__name__}: {error}; mend its "
                "potential_and_gradient, or use another"
            ) from error
        if potential.shape != position.shape[:1] or gradient.shape != position.shape:
            raise SurrogateError(
                f"the surrogate {type(self.surrogate).__name__} must return potentials of shape {position.shape[:1]} "
                f"and gradients of shape {position.shape}, got {potential.shape} and {gradient.shape}; mend its "
                "potential_and_gradient, or use another"
            )
        return potential, gradient

    def finish(
        self, position: np.ndarray, potential: np.ndarray, gradient: np.ndarray, complete: np.ndarray
    ) -> tuple[State, np.ndarray]:
        """Pay one exact value for each proposal."""
        exact = np.full(len(position), np.inf)
        if complete.any():
            exact[complete] = self.evaluator.value(position[complete]).potential
        found = State(position, exact, known_force=(self.surrogate, potential, gradient))
        with np.errstate(invalid="ignore"):
            return found, np.where(complete, exact - potential, np.nan)

    def n_exact(self, n_taken: np.ndarray, complete: np.ndarray) -> np.ndarray:
        """Return one for each proposal that was made."""
        return complete.astype(int)
