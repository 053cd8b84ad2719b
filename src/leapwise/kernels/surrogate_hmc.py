"""Hamiltonian Monte Carlo along trajectories of a surrogate: one exact value for each draw.

A draw is one trajectory on the surrogate, whose end is accepted on the energy H = U + K with the exact potential U. The
paper's methods use these kernels. `leapwise.kernels.transition`, which `Auto` uses, instead makes several inner steps
on the surrogate alone, and accepts where they end on the discrepancy D = U - U~.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from leapwise.dynamics import (
    EuclideanMetric,
    HessianMetric,
    ImplicitSolver,
    RiemannianMetric,
    UnitMetric,
    require_solver,
)
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.base import Info, State
from leapwise.kernels.hmc import euclidean_step, riemannian_step
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.trajectory import SurrogateForce, TrajectorySettings
from leapwise.surrogates import Fitted
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate


@dataclass(frozen=True, eq=False)
class SurrogateKernel(TrajectorySettings):
    """Base class of kernels whose trajectories follow a trained surrogate."""

    surrogate: Fitted | None = None

    is_exact = True
    common_length = True  # so that every call of the surrogate serves all chains

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_fitted(type(self).__name__, self.surrogate)

    # The compiled functions of the surrogate cannot be pickled, and are made again when needed.
    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @cached_property
    def _compiled(self) -> CompiledSurrogate:
        """The surrogate's potential and gradient as plain functions."""
        return compile_surrogate(self.surrogate)  # type: ignore[arg-type]

    def force(self, evaluator: Evaluator) -> SurrogateForce:
        """Return the force that drives its trajectories."""
        assert self.surrogate is not None
        return SurrogateForce(self.surrogate, self._compiled, evaluator)


@dataclass(frozen=True, eq=False)
class EuclideanSurrogateKernel(SurrogateKernel):
    """A surrogate kernel whose momenta have a distribution that does not depend on the position."""

    metric: EuclideanMetric = field(default_factory=UnitMetric)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.metric, EuclideanMetric) or isinstance(self.metric, type):
            raise InputError(
                f"metric must be a metric object such as UnitMetric(), got {self.metric!r}; "
                "a covariance goes in as DenseMetric(covariance)"
            )


@dataclass(frozen=True, eq=False)
class SurrogateHMC(EuclideanSurrogateKernel):
    r"""HMC along the trajectories of a trained surrogate (the exploitation phase of Algorithm 3 of the paper).

    **Invariant because** momenta are drawn from :math:`N(0, M)`, independently of the position; leapfrog preserves
    volume and is reversible for *any* force that is a function of the position alone, and the surrogate never changes;
    lengths are drawn independently of the state; a trajectory that is abandoned is abandoned in both directions; and
    `metropolis` accepts on :math:`H = U + K` with the *exact* potential. So a poor surrogate costs acceptance, not
    invariance.

    To reach all of the posterior, the surrogate must be finite wherever there is mass. A trajectory that meets a number
    that is not finite is abandoned, in both directions, so such a region is never visited.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        As for `HMC`.
    surrogate : Fitted
        A trained surrogate on unconstrained positions. For a target with ``bounds=``, train it on positions and
        potentials as an `Evaluator` returns them, which include the Jacobian.
    metric : EuclideanMetric
        Distribution of momenta.

    Examples
    --------
    >>> import numpy as np
    >>> from leapwise import Evaluator, SoftplusNetwork, State, Streams, Target, TrainingSet
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((100, 2))
    >>> network = SoftplusNetwork(40).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, dim=2))
    >>> state = State.from_evaluation(evaluator.value(np.zeros((4, 2))))
    >>> state, info = SurrogateHMC(0.5, 4, surrogate=network).step(Streams(1, 4), state, evaluator)
    >>> evaluator.counts.n_values, evaluator.counts.n_gradients
    (8, 0)
    """

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by one surrogate trajectory and one exact value."""
        return euclidean_step(self, self.metric, self.force(evaluator), streams, state)


@dataclass(frozen=True, eq=False)
class SurrogateRMHMC(SurrogateKernel):
    r"""Riemannian HMC along the trajectories of a trained surrogate, whose Hessian gives the metric.

    **Invariant because** the same metric :math:`G`, a function of the position alone, is used for the momenta
    :math:`p \sim N(0, G(q))`, for the dynamics and for the energy
    :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p`; with the surrogate's force the generalised leapfrog still
    preserves volume and is reversible wherever its equations are solved and the step back returns to the start (within
    the solver's tolerances), and the proposal is rejected elsewhere; and `metropolis` accepts on that energy with the
    *exact* :math:`U`.

    To reach all of the posterior, the metric must be positive definite wherever there is mass. No trajectory enters or
    leaves a region where it is not, so such a region is never visited.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        As for `HMC`.
    surrogate : Fitted
        A trained surrogate.
    metric : RiemannianMetric, optional
        By default the surrogate's Hessian. Proposals are rejected where it is not positive definite; if that can
        happen, use ``HessianMetric(surrogate, "diagonal")`` or ``"softabs"``.
    solver : ImplicitSolver
        Tolerances of the implicit equations.

    Examples
    --------
    >>> import numpy as np
    >>> from leapwise import Evaluator, QuadraticNetwork, State, Streams, Target, TrainingSet
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((20, 2))
    >>> quadratic = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, dim=2))
    >>> state = State.from_evaluation(evaluator.value(np.zeros((4, 2))))
    >>> state, info = SurrogateRMHMC(0.5, 4, surrogate=quadratic).step(Streams(1, 4), state, evaluator)
    >>> bool(info.accepted.all()), evaluator.counts.n_values
    (True, 8)
    """

    metric: RiemannianMetric | None = None
    solver: ImplicitSolver = field(default_factory=ImplicitSolver)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is None:
            assert self.surrogate is not None
            object.__setattr__(self, "metric", HessianMetric(self.surrogate))
        require_solver(self.solver)
        if not isinstance(self.metric, RiemannianMetric) or isinstance(self.metric, type):
            raise InputError(
                f"metric must have a method at(position), got {self.metric!r}; leave it out for the surrogate's Hessian"
            )

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by one surrogate trajectory and one exact value."""
        assert self.metric is not None
        return riemannian_step(self, self.metric, self.solver, self.force(evaluator), streams, state)


def _require_fitted(kernel: str, surrogate: object) -> None:
    known = all(callable(getattr(surrogate, name, None)) for name in ("potential", "potential_and_gradient"))
    if isinstance(surrogate, type) or not known:
        hint = "; train it first with .fit(training, rng)" if hasattr(surrogate, "fit") else ""
        got = surrogate.__name__ if isinstance(surrogate, type) else type(surrogate).__name__
        raise InputError(
            f"{kernel} needs surrogate=, a trained surrogate with methods potential and potential_and_gradient, "
            f"got {got}{hint}"
        )
