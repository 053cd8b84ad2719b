"""Hamiltonian Monte Carlo on surrogates of the potential: one exact value a draw."""

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
)
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.hmc import euclidean_step
from leapwise.kernels.rmhmc import riemannian_step
from leapwise.kernels.state import Info, State
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.trajectory import Lengths, SurrogateGuide
from leapwise.surrogates import Fitted
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate


@dataclass(frozen=True, eq=False)
class Guided(Lengths):
    """What kernels share that follow a trained surrogate."""

    surrogate: Fitted | None = None

    is_exact = True
    together = True  # one length for all chains of a step, so that each step serves all of them

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_fitted(type(self).__name__, self.surrogate)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @cached_property
    def _compiled(self) -> CompiledSurrogate:
        """The surrogate as bare functions."""
        return compile_surrogate(self.surrogate)  # type: ignore[arg-type]

    def guide(self, evaluator: Evaluator) -> SurrogateGuide:
        """Return what leads its trajectories."""
        assert self.surrogate is not None
        return SurrogateGuide(self.surrogate, self._compiled, evaluator)


@dataclass(frozen=True, eq=False)
class EuclideanGuided(Guided):
    """The same, with momenta whose distribution does not depend on the position."""

    metric: EuclideanMetric = field(default_factory=UnitMetric)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.metric, EuclideanMetric) or isinstance(self.metric, type):
            raise InputError(
                f"metric must be a metric object such as UnitMetric(), got {self.metric!r}; "
                "a covariance goes in as DenseMetric(covariance)"
            )


@dataclass(frozen=True, eq=False)
class SurrogateHMC(EuclideanGuided):
    r"""HMC along the trajectories of a trained surrogate (the exploitation phase of Algorithm 3).

    Invariant because: momenta are drawn from :math:`N(0, M)`, independent of the position; leapfrog preserves
    volume and is reversible for *any* force that is a function of the position alone, and the surrogate never
    changes; lengths are drawn independently of the state; trajectories are given up symmetrically; and `metropolis`
    accepts on :math:`H = U + K` with the *exact* potential. So a poor surrogate costs acceptance, not invariance.

    To reach all of the posterior, the surrogate must be finite wherever there is mass: trajectories that meet something
    else are given up, both ways, and what is there is never visited.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        As for `HMC`.
    surrogate : Fitted
        A trained surrogate, of positions without bounds: for a target with ``bounds=``, train it on positions and
        potentials as an `Evaluator` gives them, which include the Jacobian.
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
        return euclidean_step(self, self.metric, self.guide(evaluator), streams, state)


@dataclass(frozen=True, eq=False)
class SurrogateRMHMC(Guided):
    r"""Riemannian HMC along the trajectories of a trained surrogate, whose curvature is the metric.

    Invariant because: the same metric :math:`G`, a function of the position alone, gives the momenta
    :math:`p \sim N(0, G(q))`, the dynamics and the energy :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p`;
    with the surrogate's force the generalised leapfrog still preserves volume and is reversible wherever its equations
    are solved and the way back returns (to the solver's tolerances), and is rejected elsewhere; and `metropolis`
    accepts on that energy with the *exact* :math:`U`.

    To reach all of the posterior, the metric must be positive definite wherever there is mass: no trajectory enters
    or leaves a region where it is not, and what is there is never visited.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        As for `HMC`.
    surrogate : Fitted
        A trained surrogate.
    metric : RiemannianMetric, optional
        Its Hessian by default, which must be positive definite: proposals are rejected where it is not. Take
        ``HessianMetric(surrogate, "diagonal")`` or ``"softabs"`` where it may not be.
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
        if not isinstance(self.solver, ImplicitSolver):
            raise InputError(
                f"solver must be an ImplicitSolver, got {self.solver!r}; leave it out, or make one"
            )
        if not isinstance(self.metric, RiemannianMetric) or isinstance(self.metric, type):
            raise InputError(
                f"metric must have a method at(position), got {self.metric!r}; leave it out for the surrogate's Hessian"
            )

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by one surrogate trajectory and one exact value."""
        assert self.metric is not None
        return riemannian_step(self, self.metric, self.solver, self.guide(evaluator), streams, state)


def _require_fitted(kernel: str, surrogate: object) -> None:
    known = all(callable(getattr(surrogate, name, None)) for name in ("potential", "potential_and_gradient"))
    if isinstance(surrogate, type) or not known:
        hint = "; train it first with .fit(training, rng)" if hasattr(surrogate, "fit") else ""
        got = surrogate.__name__ if isinstance(surrogate, type) else type(surrogate).__name__
        raise InputError(
            f"{kernel} needs surrogate=, a trained surrogate with methods potential and potential_and_gradient, "
            f"got {got}{hint}"
        )
