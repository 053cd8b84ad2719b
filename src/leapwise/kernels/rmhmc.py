"""Riemannian manifold HMC (RMHMC): Hamiltonian Monte Carlo with a metric that depends on the position.

`RMHMC` needs a metric G(q) from the user, and exact gradients. The steps of its generalised leapfrog are implicit
equations, solved by iteration; a proposal is rejected where they are not solved. The function `riemannian_step` makes
such a step under any force; `SurrogateRMHMC` uses it with the gradients and the Hessian of a surrogate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from leapwise.dynamics import (
    ImplicitSolver,
    RiemannianMetric,
    RiemannianPoint,
    evaluate_metric,
    generalized_leapfrog,
    require_solver,
    riemannian_energy,
    riemannian_momentum,
)
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import metropolis
from leapwise.kernels.hmc import MAX_ENERGY_ERROR, count_start_gradients
from leapwise.kernels.state import Info, State
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.trajectory import ExactForce, TrajectoryForce, TrajectorySettings, require_acceptance


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
