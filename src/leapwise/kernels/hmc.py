"""Hamiltonian Monte Carlo with exact gradients.

`HMC` draws a momentum, follows one leapfrog trajectory and accepts or rejects its end. Each leapfrog step costs one
exact gradient. The function `euclidean_step` makes such a step under any force; `SurrogateHMC` uses it with the
gradients of a surrogate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from leapwise.dynamics import EuclideanMetric, PhasePoint, kinetic_energy
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import metropolis
from leapwise.kernels.state import Info, State
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.trajectory import (
    ExactForce,
    TrajectoryForce,
    TrajectorySettings,
    require_acceptance,
    require_euclidean,
    unknown_gradients,
)

#: A trajectory whose energy rises by more than this is reported as diverging. The limit of Stan and PyMC; such a
#: proposal is accepted with probability exp(-1000), so the value has no effect on draws.
MAX_ENERGY_ERROR = 1000.0


@dataclass(frozen=True, eq=False)
class HMC(TrajectorySettings):
    r"""Hamiltonian Monte Carlo (Algorithm 1 of the paper).

    Each step draws a momentum, runs one leapfrog trajectory with exact gradients, and accepts or rejects its end.

    **Invariant because** momenta are drawn from :math:`N(0, M)`, independently of the position; leapfrog preserves
    volume and is reversible (`leapwise.dynamics.leapfrog`); the number and size of its steps are drawn independently of
    the state; a trajectory that is abandoned is abandoned in both directions; and `metropolis` accepts on the exact
    energy.

    The warm-up of `sample` learns the settings that are left out. If `step_size` is given and `metric` is not, the
    metric is the identity. If neither a step size nor a length is given, the warm-up chooses between a single length
    and `NUTS`, and aims at an acceptance rate of at least 0.9 where the scale of the posterior varies.

    Parameters
    ----------
    step_size : float or array_like of shape (chains,), optional
        Size of a leapfrog step.
    n_steps : int or pair of int, optional
        The number of steps is uniform on {1..n_steps}, or on the given range; (L, L) is a fixed number.
    trajectory_length : float, optional
        Instead of `n_steps`: mean time of a trajectory, varied by `jitter`, divided into steps of at most `step_size`.
    jitter : float
        Relative half-width of that variation.
    metric : EuclideanMetric or {"unit", "diagonal", "dense"}, optional
        Distribution of momenta. A word asks the warm-up to learn a metric of that shape. By default "dense" up to 200
        dimensions and "diagonal" above.
    target_acceptance : float
        Acceptance rate that the step size is tuned for.

    Examples
    --------
    >>> from leapwise import Evaluator, State, Streams, Target, UnitMetric
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> state = State.from_evaluation(evaluator.value_and_gradient(np.zeros((4, 2))))
    >>> state, info = HMC(0.5, 4, metric=UnitMetric()).step(Streams(1, 4), state, evaluator)
    >>> state.position.shape, info.n_exact.sum() == evaluator.counts.n_gradients - 4
    ((4, 2), np.True_)
    """

    metric: EuclideanMetric | Literal["unit", "diagonal", "dense"] | None = None
    target_acceptance: float = 0.8

    is_exact = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_euclidean(self.metric)
        require_acceptance(self.target_acceptance)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by one trajectory."""
        metric = self.metric
        if metric is None or isinstance(metric, str):
            raise InputError(
                "HMC has no metric to step with; give metric=UnitMetric(), or let sample() tune it"
            )
        return count_start_gradients(
            state, *euclidean_step(self, metric, ExactForce(evaluator), streams, state)
        )


def count_start_gradients(before: State, state: State, info: Info) -> tuple[State, Info]:
    """Add to the counts the gradients at the start of the step that were not known, after a surrogate's step."""
    unknown = unknown_gradients(before)
    return state, replace(info, n_exact=info.n_exact + unknown) if unknown.any() else info


def euclidean_step(
    settings: TrajectorySettings,
    metric: EuclideanMetric,
    force: TrajectoryForce,
    streams: AnyStreams,
    state: State,
) -> tuple[State, Info]:
    """Draw momenta, run leapfrog trajectories under a force, and accept on the exact energy."""
    step_size, n_steps = settings.draw(streams)
    momentum = metric.momentum(streams.normals(state.position.shape[1]))
    state, potential, gradient = force.begin(state)
    start = PhasePoint(state.position, momentum, potential, gradient, np.ones(len(momentum), dtype=bool))
    end, n_taken = force.follow(metric, start, step_size, n_steps)
    proposal, discrepancy = force.finish(end.position, end.potential, end.gradient, end.complete)
    energy = state.potential + kinetic_energy(metric, momentum)
    end_energy = np.where(end.complete, proposal.potential + kinetic_energy(metric, end.momentum), np.nan)
    error = end_energy - energy
    accepted, probability = metropolis(energy, end_energy, streams.uniforms())
    return state.accept(accepted, proposal), Info(
        accepted=accepted,
        acceptance_rate=probability,
        step_size=step_size,
        n_steps=n_steps,
        energy=np.where(accepted, end_energy, energy),
        energy_error=error,
        diverging=~(error <= MAX_ENERGY_ERROR),
        n_exact=force.n_exact(n_taken, end.complete),
        proposal=end.position,
        proposal_momentum=end.momentum,
        discrepancy=discrepancy,
        left=~end.complete & np.isposinf(end.potential),
    )
