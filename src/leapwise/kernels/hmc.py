"""Hamiltonian Monte Carlo with exact gradients, with a constant metric (`HMC`) or one of the position (`RMHMC`).

`HMC` draws a momentum, follows one leapfrog trajectory and accepts or rejects its end. Each leapfrog step costs one
exact gradient.

`RMHMC`, Riemannian manifold HMC, needs a metric G(q) from the user. The steps of its generalised leapfrog are implicit
equations, solved by iteration; a proposal is rejected where they are not solved.

The functions `euclidean_step` and `riemannian_step` make such steps under any force. `SurrogateHMC` and
`SurrogateRMHMC` use them with the derivatives of a surrogate (`leapwise.kernels.surrogate_hmc`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from leapwise.dynamics import (
    EuclideanMetric,
    ImplicitSolver,
    PhasePoint,
    RiemannianMetric,
    RiemannianPoint,
    evaluate_metric,
    generalized_leapfrog,
    kinetic_energy,
    require_solver,
    riemannian_energy,
    riemannian_momentum,
)
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import metropolis
from leapwise.kernels.base import Info, State
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


@dataclass(frozen=True, eq=False)
class RMHMC(TrajectorySettings):
    r"""Riemannian manifold HMC (Girolami and Calderhead, 2011; section 2.2 of the paper).

    Like `HMC`, with a mass matrix :math:`G(q)` that depends on the position, and the generalised leapfrog.

    **Invariant because** the same metric :math:`G` is used for the momenta :math:`p \sim N(0, G(q))`, for the dynamics
    and for the energy :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p`; the generalised leapfrog preserves volume
    and is reversible wherever its implicit equations are solved and the step back returns to the start, which is
    checked at every step (`leapwise.dynamics.generalized`), and the proposal is rejected elsewhere; lengths are drawn
    independently of the state; and `metropolis` accepts on that energy with the exact :math:`U`.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        As for `HMC`. `sample` tunes a step size that is left out. The default length is 1.5, about a quarter period.
    metric : RiemannianMetric
        For example the Fisher information; the built-in problems have it as `Problem.metric`. It is evaluated at
        unconstrained *positions*, not at parameters inside their bounds. Its contraction ν must be correct: unlike a
        wrong gradient, a wrong ν destroys the preservation of volume and biases the draws. `sample` checks it at the
        start.
    target_acceptance : float
        Acceptance rate that the step size is tuned for.
    solver : ImplicitSolver
        Tolerances of the implicit equations.

    Examples
    --------
    A one-dimensional metric that grows away from the origin, G(q) = 1 + q^2:

    >>> from dataclasses import dataclass
    >>> from leapwise import Evaluator, State, Streams, Target
    >>> @dataclass
    ... class Local:
    ...     q: np.ndarray
    ...     def __post_init__(self):
    ...         self.matrix = 1.0 + self.q[:, :, None] ** 2
    ...         self.cholesky = np.sqrt(self.matrix)
    ...     def quadratic_contraction(self, velocity):
    ...         return 2.0 * self.q * velocity**2
    ...     def trace_contraction(self):
    ...         return 2.0 * self.q / (1.0 + self.q**2)
    >>> class Metric:
    ...     def at(self, position):
    ...         return Local(position)
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=1))
    >>> state = State.from_evaluation(evaluator.value_and_gradient(np.ones((4, 1))))
    >>> state, info = RMHMC(0.5, 4, metric=Metric()).step(Streams(1, 4), state, evaluator)
    >>> bool(info.unsolved.any())
    False
    """

    metric: RiemannianMetric | None = None
    target_acceptance: float = 0.8
    solver: ImplicitSolver = field(default_factory=ImplicitSolver)

    is_exact = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.metric, RiemannianMetric) or isinstance(self.metric, type):
            raise InputError(
                f"RMHMC needs a metric with a method at(position), got {self.metric!r}; "
                "the built-in problems have one as problem.metric"
            )
        require_solver(self.solver)
        require_acceptance(self.target_acceptance)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by one trajectory."""
        assert self.metric is not None
        force = ExactForce(evaluator)
        moved = riemannian_step(self, self.metric, self.solver, force, streams, state)
        return count_start_gradients(state, *moved)


def riemannian_step(
    settings: TrajectorySettings,
    metric: RiemannianMetric,
    solver: ImplicitSolver,
    force: TrajectoryForce,
    streams: AnyStreams,
    state: State,
) -> tuple[State, Info]:
    """Draw momenta, run generalised leapfrog trajectories under a force, and accept on the exact energy."""
    step_size, n_steps = settings.draw(streams)
    known = state.known_metric is not None and state.known_metric[0] is metric
    local = state.known_metric[1] if known else evaluate_metric(metric, state.position)  # type: ignore[index]
    momentum = riemannian_momentum(local, streams.normals(state.position.shape[1]))
    usable = np.isfinite(momentum).all(axis=1)
    state, potential, gradient = force.begin(state)
    start = RiemannianPoint(state.position, momentum, potential, gradient, local, usable, ~usable)
    end, n_taken, n_metrics = generalized_leapfrog(force.evaluate, metric, start, step_size, n_steps, solver)
    proposal, discrepancy = force.finish(end.position, end.potential, end.gradient, end.complete)
    energy = riemannian_energy(replace(start, potential=state.potential))
    end_energy = riemannian_energy(replace(end, potential=proposal.potential))
    end_energy = np.where(end.complete, end_energy, np.nan)
    accepted, probability = metropolis(energy, end_energy, streams.uniforms())
    new = state.accept(accepted, proposal)
    # A metric object cannot be assembled from rows of two others, so it is stored only if all chains agree.
    if accepted.all() or not accepted.any():
        new = replace(new, known_metric=(metric, end.local if accepted.all() else local))
    return new, Info(
        accepted=accepted,
        acceptance_rate=probability,
        step_size=step_size,
        n_steps=n_steps,
        energy=np.where(accepted, end_energy, energy),
        energy_error=end_energy - energy,
        diverging=~(end_energy - energy <= MAX_ENERGY_ERROR) & ~end.unsolved,
        n_exact=force.n_exact(n_taken, end.complete),
        proposal=end.position,
        proposal_momentum=end.momentum,
        n_metrics=n_metrics + (not known),
        unsolved=end.unsolved,
        discrepancy=discrepancy,
        left=~end.complete & ~end.unsolved & np.isposinf(end.potential),
    )
