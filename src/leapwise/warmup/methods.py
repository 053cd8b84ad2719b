"""Methods that train a surrogate: the paper's `RNSHMC`, `ARNSHMC` and `RNSRMHMC`, and `Auto`, which tunes itself.

They are settings, which `sample` takes as ``method=``. For the paper's methods its ``tune`` is the number of
exploration steps of each chain with exact HMC. Each of its ``draws`` costs one exact value and no gradient.

The names are those of the paper (Zhang, Shahbaba, Zhao, 2017; see `leapwise`). RNS-HMC is random network surrogate HMC:
the surrogate is a network with random hidden units, trained once. ARNS-HMC is its adaptive form: the surrogate keeps
learning while draws are made. RMHMC is Riemannian manifold HMC, whose mass matrix depends on the position; RNS-RMHMC
takes that matrix from the curvature of the surrogate. Here all three work with any surrogate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_positive, require_whole
from leapwise.dynamics import EuclideanMetric, HessianMetric, ImplicitSolver, UnitMetric, require_solver
from leapwise.errors import InputError
from leapwise.kernels import HMC, RMHMC, SurrogateHMC, SurrogateRMHMC
from leapwise.kernels.trajectory import TrajectorySettings
from leapwise.surrogates import Fitted, Surrogate, TrainingSet

#: Largest number of evaluations to train on by default. A guess.
MOST_TRAINING = 1000


def vanishing(t: int) -> float:
    r"""Return the default refit probability :math:`a_t = (1 + t)^{-1/2}` at step t = 1, 2, ...

    It goes to zero, which convergence requires, but its sum diverges, so refits never stop.

    Examples
    --------
    >>> vanishing(99)
    0.1
    """
    return float((1 + t) ** -0.5)


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """Settings that the paper's methods share: how to explore, and what to train on.

    Parameters
    ----------
    explore : HMC, optional
        Kernel of the exploration.
    collect : {"all", "accepted"}
        What to train on: all exact evaluations with their gradients, along trajectories and at rejected proposals too;
        or, as in the paper, only the values of accepted proposals.
    skip : int, optional
        Exploration steps before evaluations are collected; by default a fifth of all.
    max_training : int, optional
        Largest number of evaluations to train on, evenly thinned; by default 1000, or the number that the surrogate
        advises.
    """

    explore: HMC | None = None
    collect: Literal["all", "accepted"] = "all"
    skip: int | None = None
    max_training: int | None = None

    def check_training(self, surrogate: object) -> None:
        """Raise if a setting is wrong."""
        name = type(self).__name__
        if isinstance(surrogate, type) or not callable(getattr(surrogate, "fit", None)):
            fitted = callable(getattr(surrogate, "potential_and_gradient", None))
            hint = "; a trained one goes into SurrogateHMC" if fitted else ""
            got = surrogate.__name__ if isinstance(surrogate, type) else type(surrogate).__name__
            raise InputError(
                f"{name} needs a recipe such as SoftplusNetwork(1000) as its surrogate, got {got}{hint}"
            )
        if self.explore is not None and not isinstance(self.explore, HMC):
            raise InputError(
                f"explore must be an HMC, got {self.explore!r}; leave it out for the default of {name}"
            )
        if self.collect not in ("all", "accepted"):
            raise InputError(f"collect must be 'all' or 'accepted', got {self.collect!r}; choose one of them")
        if self.skip is not None:
            require_whole("skip", self.skip, 0)
        if self.max_training is not None:
            require_whole("max_training", self.max_training, 2)

    def most_training(self, surrogate: Surrogate, dim: int) -> int:
        """Return the largest number of evaluations to train on."""
        if self.max_training is not None:
            return self.max_training
        advised: Any = getattr(surrogate, "advised_evaluations", None)
        with_gradients = self.collect == "all"
        return MOST_TRAINING if advised is None else int(advised(dim, with_gradients))


@dataclass(frozen=True, eq=False)
class RNSHMC(Training):
    """Random network surrogate HMC (Algorithm 3 of the paper), with any surrogate.

    Kept draws come from `SurrogateHMC` with a surrogate that is trained once, after exploration, and never changes.

    Parameters
    ----------
    surrogate : Surrogate
        A recipe, such as ``SoftplusNetwork(1000)``.
    step_size, n_steps, trajectory_length, jitter, metric, target_acceptance
        As for `HMC`, both for exploration and for draws. Settings that are left out are learned in the exploration. A
        learned step size is divided by four for the draws, because steps on a surrogate are cheap.
    explore : HMC, optional
        Another kernel for the exploration. The draws then use its settings where none are given here.
    collect, skip, max_training
        What to train on, see `Training`.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> method = lw.RNSHMC(lw.SoftplusNetwork(50), step_size=0.5, n_steps=5)
    >>> run = lw.sample(target, draws=100, tune=50, chains=2, method=method, random_seed=1)
    >>> run.posterior.cost.n_values, run.posterior.cost.n_gradients
    (200, 0)
    """

    surrogate: Surrogate
    step_size: ArrayLike | None = None
    n_steps: int | tuple[int, int] | None = None
    trajectory_length: float | None = None
    jitter: float = 0.4
    metric: EuclideanMetric | Literal["unit", "diagonal", "dense"] | None = None
    target_acceptance: float = 0.8

    is_exact = True

    def __post_init__(self) -> None:
        self.check_training(self.surrogate)
        self.exploration  # noqa: B018  raises if a setting is wrong

    @property
    def exploration(self) -> HMC:
        """Kernel of the exploration."""
        if self.explore is not None:
            return self.explore
        return HMC(
            self.step_size,
            self.n_steps,
            self.trajectory_length,
            self.jitter,
            metric=self.metric,
            target_acceptance=self.target_acceptance,
        )

    def kernel(self, surrogate: Fitted, explored: HMC, training: TrainingSet) -> SurrogateHMC:
        """Return the kernel of the draws; settings that were not given are those of the exploration."""
        lengths = TrajectorySettings(self.step_size, self.n_steps, self.trajectory_length, self.jitter)
        if not lengths.is_set:
            lengths = explored if self.step_size is not None else _finer(explored)
        metric = self.metric if isinstance(self.metric, EuclideanMetric) else explored.metric
        return SurrogateHMC(
            lengths.step_size,
            lengths.n_steps,
            lengths.trajectory_length,
            lengths.jitter,
            surrogate=surrogate,
            metric=metric if isinstance(metric, EuclideanMetric) else UnitMetric(),
        )


@dataclass(frozen=True, eq=False)
class ARNSHMC(RNSHMC):
    r"""Adaptive random network surrogate HMC (Algorithm 4 of the paper), with any surrogate that can be updated.

    After a short exploration the surrogate is updated with every exact value of the draws. At step t the sampler
    switches to the updated surrogate with the refit probability :math:`a_t`. With :math:`a_t \to 0`, and under the
    usual containment condition, such an adaptive chain converges to the posterior, but no finite number of its draws is
    exact: results say how many of them are ``adaptive``. With `freeze_after` the sampler switches a last time after
    that many draws. The surrogate then never changes, and all later draws are exact.

    Parameters
    ----------
    surrogate, step_size, n_steps, trajectory_length, jitter, metric, target_acceptance
        As for `RNSHMC`.
    explore, collect, skip, max_training
        As for `RNSHMC`. With ``collect="accepted"`` the surrogate is updated with accepted proposals only, as in the
        paper (where a rejected step counts the old position once more), instead of with every proposal.
    refit_probability : callable
        :math:`a_t` as a function of t = 1, 2, ...; by default :math:`(1 + t)^{-1/2}`.
    freeze_after : int, optional
        Number of draws of each chain after which the surrogate stops changing; by default it never does.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> method = lw.ARNSHMC(lw.SoftplusNetwork(50), step_size=0.5, n_steps=5, freeze_after=60)
    >>> run = lw.sample(target, draws=100, tune=20, chains=2, method=method, random_seed=1)
    >>> run.exact, run.n_adaptive, run.exact_draws.shape
    (False, 60, (2, 40, 2))
    """

    refit_probability: Callable[[int], float] = vanishing
    freeze_after: int | None = None

    is_exact = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.refit_probability):
            raise InputError(
                f"refit_probability must be a function of the step, got {self.refit_probability!r}; "
                "for example lambda t: 1 / t"
            )
        if self.freeze_after is not None:
            require_whole("freeze_after", self.freeze_after, 0)


@dataclass(frozen=True, eq=False)
class RNSRMHMC(Training):
    """Random network surrogate HMC on a Riemannian manifold: the surrogate's curvature is the metric.

    Kept draws come from `SurrogateRMHMC` with a surrogate that is trained once, after exploration, and never changes.

    Parameters
    ----------
    surrogate : Surrogate
        A recipe, such as ``SoftplusNetwork(1000)``.
    step_size, n_steps, trajectory_length, jitter
        Of the draws, as for `RMHMC`. In this metric, step sizes of 0.2 to 0.5 and a length of 1.5 suit most posteriors.
    form : {"full", "diagonal", "softabs"}
        How the metric is made from the Hessian, see `HessianMetric`. "full" is cheaper, but only for convex potentials:
        no trajectory enters or leaves a region where the Hessian is not positive definite, so mass there is missed.
    floor : float, optional
        Smallest curvature, for the other two forms; by default a twentieth of the typical curvature.
    solver : ImplicitSolver
        Tolerances of the implicit equations.
    explore : HMC, optional
        Kernel of the exploration; by default ``HMC()``, which tunes itself.
    collect, skip, max_training
        What to train on, see `Training`.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> method = lw.RNSRMHMC(lw.SoftplusNetwork(50), step_size=0.5, n_steps=3)
    >>> run = lw.sample(target, draws=100, tune=50, chains=2, method=method, random_seed=1)
    >>> run.posterior.cost.n_gradients
    0
    """

    surrogate: Surrogate
    step_size: ArrayLike | None = None
    n_steps: int | tuple[int, int] | None = None
    trajectory_length: float | None = None
    jitter: float = 0.4
    form: Literal["full", "diagonal", "softabs"] = "softabs"
    floor: float | None = None
    solver: ImplicitSolver = field(default_factory=ImplicitSolver)

    is_exact = True

    def __post_init__(self) -> None:
        self.check_training(self.surrogate)
        if not TrajectorySettings(self.step_size, self.n_steps, self.trajectory_length, self.jitter).is_set:
            raise InputError(
                "RNSRMHMC needs step_size and n_steps (or trajectory_length); step_size=0.3, n_steps=5 is a good start"
            )
        if self.form not in ("full", "diagonal", "softabs"):
            raise InputError(
                f"form must be 'full', 'diagonal' or 'softabs', got {self.form!r}; 'softabs' suits any potential"
            )
        if self.floor is not None:
            require_positive(self.floor, "floor", ())
        require_solver(self.solver)

    @property
    def exploration(self) -> HMC:
        """Kernel of the exploration."""
        return HMC() if self.explore is None else self.explore

    def kernel(self, surrogate: Fitted, explored: HMC, training: TrainingSet) -> SurrogateRMHMC:
        """Return the kernel of the draws."""
        HessianMetric(surrogate)  # raises if it has no Hessian
        floor = typical_curvature(surrogate, training) / 20.0 if self.floor is None else self.floor
        return SurrogateRMHMC(
            self.step_size,
            self.n_steps,
            self.trajectory_length,
            self.jitter,
            surrogate=surrogate,
            metric=HessianMetric(surrogate, self.form, floor),
            solver=self.solver,
        )


def _finer(explored: HMC) -> TrajectorySettings:
    """Return the same trajectories with a quarter of the step size."""
    step_size = np.asarray(explored.step_size) / 4.0
    if explored.trajectory_length is not None:
        return TrajectorySettings(step_size, None, explored.trajectory_length, explored.jitter)
    assert explored.n_steps is not None
    low, high = (1, explored.n_steps) if isinstance(explored.n_steps, int) else explored.n_steps
    return TrajectorySettings(step_size, (4 * low, 4 * high), None, explored.jitter)


SurrogateMethod = RNSHMC | RNSRMHMC
Method = HMC | RMHMC | SurrogateMethod


def typical_curvature(surrogate: Fitted, training: TrainingSet) -> float:
    """Return the median absolute value of the Hessian's diagonal at up to 20 training points."""
    chosen = training.position[:: 1 + (len(training) - 1) // 20]
    diagonal = np.abs(np.diagonal(surrogate.hessian(chosen), axis1=1, axis2=2))
    found = float(np.median(diagonal))
    return found if np.isfinite(found) and found > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Auto:
    """Train a surrogate in the adaptation, then make draws at one exact value each.

    This is the default of `sample`. It finds the typical set and explores it with chains on a surrogate that is trained
    on every exact evaluation. It looks for mass that the surrogate may cut off, and stops when further training would
    cost more evaluations than it saves. Kept draws come from a frozen `SurrogateTransition`. If the surrogate cannot be
    trusted, steps with exact gradients are mixed in, up to all of them, and the run says so. ``docs/how-it-works.md``
    describes each stage.

    Other modes are looked for as follows, if neither `tune` nor `max_evaluations` is given:

    - for forward models by about 16 descents from all over the prior;
    - for log-densities with a gradient by about a dozen descents from far around the mode that was found;
    - for log-densities without a gradient not at all: a mode is found only if a chain starts near it. Give ``init=``
      with starts far apart if there may be several.

    Chains jump between the modes that were found (`Jumps`). A mode that was not found is missed, and no diagnostic
    shows it. Other mass that can be missed without a warning: the tips of a very thin curved ridge, a long tail along
    which other parameters follow a narrow bent ridge, a wide region of mass under a narrow spike, and the mass of very
    heavy tails, such as that of a Student t with two degrees of freedom beyond its 99.5 % quantile
    (``docs/limits.md``).

    Parameters
    ----------
    surrogate : Surrogate, optional
        The only candidate, for example ``SoftplusNetwork(1000)``. By default several are tried, and the one that
        predicts exact potentials best is chosen: a quadratic, a quadratic with hidden units, a Gaussian process on
        gradients; for a `ForwardTarget`, emulators of its outputs.
    settings : leapwise.adaptation.settings.AdaptationSettings, optional
        Constants of the adaptation, and switches that turn its stages off, for experiments with the method itself. See
        the last example, and that module.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> run = lw.sample(target, draws=100, chains=2, method=lw.Auto(lw.QuadraticNetwork()), random_seed=1)
    >>> run.posterior.cost.n_values <= 200, run.posterior.cost.n_gradients
    (True, 0)

    Without the stage that follows the tails of single parameters:

    >>> from dataclasses import replace
    >>> from leapwise.adaptation.settings import DEFAULT
    >>> method = lw.Auto(settings=replace(DEFAULT, stages=replace(DEFAULT.stages, tails=False)))
    >>> run = lw.sample(target, draws=100, chains=2, method=method, random_seed=1)
    >>> run.posterior.cost.n_values <= 200
    True
    """

    surrogate: Surrogate | None = None
    settings: Any = None

    is_exact = True

    def __post_init__(self) -> None:
        if self.surrogate is not None and (
            isinstance(self.surrogate, type) or not callable(getattr(self.surrogate, "fit", None))
        ):
            raise InputError(
                f"Auto takes a recipe such as SoftplusNetwork(1000) as its surrogate, got {self.surrogate!r}; leave it "
                "out, and one is chosen"
            )
        if self.settings is not None:
            _require_settings(self.settings)


def _require_settings(settings: Any) -> None:
    """Raise unless all settings of the adaptation are there, each of the class of its default.

    The class itself is checked when a run begins: `leapwise.adaptation` is above this package and not imported here.
    """
    remedy = "leave it out, or change leapwise.adaptation.settings.DEFAULT with dataclasses.replace"
    if not is_dataclass(settings) or isinstance(settings, type):
        raise InputError(f"Auto takes an AdaptationSettings as its settings, got {settings!r}; {remedy}")
    for each in fields(settings):
        found = getattr(settings, each.name)
        if each.default is not MISSING and not isinstance(found, type(each.default)):
            raise InputError(
                f"{each.name} in the settings of Auto must be {type(each.default).__name__}, got {found!r}; {remedy}"
            )
