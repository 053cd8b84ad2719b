"""What passes between steps of a kernel, and what is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from leapwise.dynamics import InvertedMetric, RiemannianMetric
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels.streams import AnyStreams


class KnownForce(NamedTuple):
    """A surrogate, with its gradients ``(chains, dim)`` and potentials ``(chains,)`` where the chains are, as known."""

    surrogate: object
    gradient: np.ndarray | None = None
    potential: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class State:
    """Where the chains are, with the exact answers there, so that none is paid for twice.

    `known_metric` and `known_force` hold a metric and a surrogate with what they are where the chains are.
    """

    position: np.ndarray  # (chains, dim)
    potential: np.ndarray  # (chains,)
    gradient: np.ndarray | None = None  # (chains, dim), where known; NaN in rows where it is not
    known_metric: tuple[RiemannianMetric, InvertedMetric] | None = None
    known_force: KnownForce | None = None

    @classmethod
    def from_evaluation(cls, evaluation: Evaluation) -> State:
        """Start from exact answers."""
        return cls(evaluation.position, evaluation.potential, evaluation.gradient)

    def accept(self, accepted: np.ndarray, proposal: State) -> State:
        """Take the proposal's rows where it was accepted."""
        rows = accepted[:, None]
        return State(
            np.where(rows, proposal.position, self.position),
            np.where(accepted, proposal.potential, self.potential),
            _chosen(rows, proposal.gradient, self.gradient),
            known_force=_joined(accepted, self.known_force, proposal.known_force),
        )


def _chosen(rows: np.ndarray, new: np.ndarray | None, old: np.ndarray | None) -> np.ndarray | None:
    """Take the new gradients where `rows`, the old ones elsewhere, and NaN for those that are not known."""
    if new is None and old is None:
        return None
    return np.where(rows, np.nan if new is None else new, np.nan if old is None else old)


def _joined(accepted: np.ndarray, old: KnownForce | None, new: KnownForce | None) -> KnownForce | None:
    """Take the new rows where accepted, if both are of one force."""
    if old is None or new is None or old.surrogate is not new.surrogate:
        return None
    return KnownForce(
        new.surrogate,
        _both(accepted[:, None], new.gradient, old.gradient),
        _both(accepted, new.potential, old.potential),
    )


def _both(rows: np.ndarray, new: np.ndarray | None, old: np.ndarray | None) -> np.ndarray | None:
    """Take the new where `rows`, if both are known."""
    return None if new is None or old is None else np.where(rows, new, old)


@dataclass(frozen=True, eq=False)
class Info:
    """One step of each chain, for the record and for warm-up; every array has one entry a chain.

    Attributes
    ----------
    accepted : ndarray of bool
    acceptance_rate : ndarray
        Probability with which the proposal was accepted.
    step_size, n_steps : ndarray
        As used in this step.
    energy : ndarray
        Of the chain after the step, with the momentum that brought it there.
    energy_error : ndarray
        Energy of the proposal minus that of the start; NaN if the trajectory was given up.
    diverging : ndarray of bool
        Whether the trajectory was given up, or its energy rose by more than 1000.
    n_exact : ndarray of int
        Exact evaluations (values or gradients) spent.
    proposal, proposal_momentum : ndarray of shape (chains, dim)
        Where the trajectory ended.
    n_metrics : ndarray of int
        Evaluations of a Riemannian metric.
    unsolved : ndarray of bool
        Whether an implicit equation was not solved, or not reversibly, and the proposal rejected for it.
    discrepancy : ndarray
        Exact potential less the surrogate's at the proposal; NaN if there was none.
    inner_acceptance : ndarray
        Mean probability with which inner steps on a surrogate were accepted.
    proposal_potential : ndarray
        Exact potential of the proposal of a surrogate; NaN if there was none.
    part : ndarray of int
        Which kernel of a mixture made the step.
    left : ndarray of bool
        Whether the trajectory was given up because it left the support.
    mode : ndarray of int
        In which of the modes that chains jump between the chain is after the step, from 1.
    """

    accepted: np.ndarray
    acceptance_rate: np.ndarray
    step_size: np.ndarray
    n_steps: np.ndarray
    energy: np.ndarray
    energy_error: np.ndarray
    diverging: np.ndarray
    n_exact: np.ndarray
    proposal: np.ndarray
    proposal_momentum: np.ndarray
    n_metrics: np.ndarray | None = None
    unsolved: np.ndarray | None = None
    discrepancy: np.ndarray | None = None
    inner_acceptance: np.ndarray | None = None
    proposal_potential: np.ndarray | None = None
    part: np.ndarray | None = None
    left: np.ndarray | None = None
    mode: np.ndarray | None = None


class Kernel(Protocol):
    """A Markov transition of a batch of chains."""

    @property
    def is_exact(self) -> bool:
        """Whether it leaves the exact posterior invariant; `sample` refuses a kernel that does not."""
        ...

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain once."""
        ...
