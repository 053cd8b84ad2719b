"""What kernels share: `State`, `Info` and the protocol `Kernel`; and `Mixture`, a kernel made of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from leapwise.checks import require_real
from leapwise.dynamics import InvertedMetric, RiemannianMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels.streams import AnyStreams


class KnownForce(NamedTuple):
    """A surrogate with its gradients ``(chains, dim)`` and potentials ``(chains,)`` at the chains, if computed."""

    surrogate: object
    gradient: np.ndarray | None = None
    potential: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class State:
    """Positions of the chains, with everything already computed there, so that nothing is evaluated twice.

    Parameters
    ----------
    position : ndarray of shape (chains, dim)
    potential : ndarray of shape (chains,)
        Exact potentials.
    gradient : ndarray of shape (chains, dim), optional
        Exact gradients; NaN in rows where the gradient is not known.
    known_metric : tuple, optional
        A Riemannian metric and its values at the positions.
    known_force : KnownForce, optional
        A surrogate and its values at the positions.
    outputs : ndarray of shape (chains, m), optional
        Outputs of the forward model at the positions; NaN in rows where they are not known.
    """

    position: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray | None = None
    known_metric: tuple[RiemannianMetric, InvertedMetric] | None = None
    known_force: KnownForce | None = None
    outputs: np.ndarray | None = None

    @classmethod
    def from_evaluation(cls, evaluation: Evaluation) -> State:
        """Return the state of chains at evaluated positions."""
        return cls(evaluation.position, evaluation.potential, evaluation.gradient, outputs=evaluation.outputs)

    def with_outputs(self, evaluations: Sequence[Evaluation], before: State | None = None) -> State:
        """Return this state with the outputs of its positions, from evaluations or from the state before.

        A kernel need not carry outputs along: whatever it did, the chain is where it was, or at a position that was
        evaluated on the way, to the last bit. One that moves chains elsewhere (`FreeMoves`) sets their outputs itself.
        """
        if self.outputs is not None:
            return self
        known = [each for each in evaluations if each.outputs is not None]
        if before is not None and before.outputs is not None:
            known = [Evaluation(before.position, before.potential, outputs=before.outputs), *known]
        if not known:
            return self
        outputs = np.full((len(self.position), known[-1].outputs.shape[1]), np.nan)  # type: ignore[union-attr]
        for each in known:
            chain, row = np.nonzero((self.position[:, None] == each.position[None]).all(axis=2))
            outputs[chain] = each.outputs[row]  # type: ignore[index]
        return replace(self, outputs=outputs)

    def accept(self, accepted: np.ndarray, proposal: State) -> State:
        """Return the proposal's rows where it was accepted, and this state's rows elsewhere."""
        rows = accepted[:, None]
        return State(
            np.where(rows, proposal.position, self.position),
            np.where(accepted, proposal.potential, self.potential),
            _choose_gradient(rows, proposal.gradient, self.gradient),
            known_force=_choose_force(accepted, self.known_force, proposal.known_force),
        )


def _choose_gradient(rows: np.ndarray, new: np.ndarray | None, old: np.ndarray | None) -> np.ndarray | None:
    """Return the new gradients where `rows`, the old ones elsewhere, and NaN where the one needed is not known."""
    if new is None and old is None:
        return None
    return np.where(rows, np.nan if new is None else new, np.nan if old is None else old)


def _choose_force(accepted: np.ndarray, old: KnownForce | None, new: KnownForce | None) -> KnownForce | None:
    """Return the new rows where accepted, or None if the two are not of one surrogate."""
    if old is None or new is None or old.surrogate is not new.surrogate:
        return None
    return KnownForce(
        new.surrogate,
        _choose(accepted[:, None], new.gradient, old.gradient),
        _choose(accepted, new.potential, old.potential),
    )


def _choose(rows: np.ndarray, new: np.ndarray | None, old: np.ndarray | None) -> np.ndarray | None:
    """Return the new values where `rows` and the old ones elsewhere, or None if one of them is not known."""
    return None if new is None or old is None else np.where(rows, new, old)


@dataclass(frozen=True, eq=False)
class Info:
    """What happened in one step. Every array has one entry for each chain.

    Attributes
    ----------
    accepted : ndarray of bool
    acceptance_rate : ndarray
        Acceptance probability of the proposal.
    step_size, n_steps : ndarray
        Step size and number of steps of this step's trajectory.
    energy : ndarray
        Energy after the step, with the momentum that belongs to it.
    energy_error : ndarray
        Energy of the proposal minus energy of the start. NaN if the trajectory was abandoned.
    diverging : ndarray of bool
        Whether the trajectory was abandoned, or its energy rose by more than 1000.
    n_exact : ndarray of int
        Exact evaluations (values or gradients) used.
    proposal, proposal_momentum : ndarray of shape (chains, dim)
        End of the trajectory.
    n_metrics : ndarray of int
        Evaluations of a Riemannian metric.
    unsolved : ndarray of bool
        Whether the proposal was rejected because an implicit equation was not solved, or not reversibly.
    discrepancy : ndarray
        Exact potential minus the surrogate's at the proposal. NaN if there was no proposal.
    inner_acceptance : ndarray
        Mean acceptance probability of the inner steps on a surrogate.
    proposal_potential : ndarray
        Exact potential at the proposal of a surrogate. NaN if there was no proposal.
    part : ndarray of int
        Index of the kernel of a `Mixture` that made the step.
    left : ndarray of bool
        Whether the trajectory was abandoned because it left the support.
    mode : ndarray of int
        Mode of the chain after the step, counted from 1, for kernels that jump between modes.
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
    """A Markov kernel for a batch of chains."""

    @property
    def is_exact(self) -> bool:
        """Whether it leaves the exact posterior invariant. `sample` refuses a kernel that does not."""
        ...

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain once."""
        ...


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""One of several kernels at each step, chosen at random.

    **Invariant because** every kernel :math:`P_i` leaves the posterior :math:`\pi` invariant and the weights
    :math:`w_i` do not depend on the state, so :math:`\pi \sum_i w_i P_i = \sum_i w_i \pi P_i = \pi`. It is reversible
    if all of them are. One choice serves all chains of a step; the law of each single chain is the same as with choices
    of its own.

    Parameters
    ----------
    kernels : sequence of kernels
        Exact kernels.
    weights : array_like
        Relative frequency of each kernel; they are divided by their sum.

    Examples
    --------
    >>> from leapwise import HMC, Evaluator, Streams, Target, UnitMetric
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> state = State.from_evaluation(evaluator.value_and_gradient(np.zeros((4, 2))))
    >>> short, long = HMC(0.5, 1, metric=UnitMetric()), HMC(0.5, (8, 8), metric=UnitMetric())
    >>> state, info = Mixture((short, long), [0.1, 0.9]).step(Streams(1, 4), state, evaluator)
    >>> info.part
    array([1, 1, 1, 1])
    """

    kernels: tuple[Kernel, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        kernels = tuple(self.kernels)
        weights = require_real(self.weights, "weights")
        if not kernels or weights.shape != (len(kernels),):
            raise InputError(
                f"a mixture needs as many weights as kernels, at least one, got {len(kernels)} kernels and weights of "
                f"shape {weights.shape}; give one weight for each kernel"
            )
        if not (weights >= 0).all() or not weights.sum() > 0:
            raise InputError(f"weights must be at least 0, and one of them more, got {weights.tolist()}")
        for kernel in kernels:
            if isinstance(kernel, type) or not callable(getattr(kernel, "step", None)):
                raise InputError(f"a mixture is of kernels such as HMC(0.1, 10, metric=...), got {kernel!r}")
        object.__setattr__(self, "kernels", kernels)
        object.__setattr__(self, "weights", tuple((weights / weights.sum()).tolist()))

    @property
    def is_exact(self) -> bool:
        """Whether all of its kernels are exact."""
        return all(kernel.is_exact for kernel in self.kernels)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Choose a kernel, and let it move every chain."""
        uniform = float(streams.common_uniforms()[0])
        index = int(np.searchsorted(np.cumsum(self.weights), uniform, side="right"))
        part = min(index, len(self.kernels) - 1)  # rounding may leave the sum of the weights below 1
        state, info = self.kernels[part].step(streams, state, evaluator)
        return state, replace(info, part=np.full(streams.n_chains, part))
