"""What `sample` returns: a `Run` of draws, statistics and cost, with reports about its surrogate and its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import InputError
from leapwise.estimates import Sharpening
from leapwise.results import datatree, estimating
from leapwise.results.estimates import PROBABILITIES, Estimates, Evidence, Precision
from leapwise.results.predictive import OutputEmulator, Prediction
from leapwise.results.statistics import Statistics, statistics
from leapwise.results.summary import Summary, summarise
from leapwise.targets import AnyTarget, ForwardTarget, GaussianLikelihood
from leapwise.targets.transforms import Transform
from leapwise.targets.variables import Variable, named, split

if TYPE_CHECKING:
    from xarray import DataTree


@dataclass(frozen=True, eq=False)
class SurrogateReport:
    """How well the surrogate of a self-tuned run was trained, and how far it was trusted.

    Attributes
    ----------
    kind : str
        The kind of surrogate that was selected.
    sd : float
        sd(D) at the end of warm-up, on positions not trained on.
    usual : float
        Median of D at the end of warm-up.
    surprises : float
        Share of the last trials of warm-up where the potential was more than 1 below its prediction.
    exact_share : float
        Share of the draws' steps that take exact gradients; 1 if the surrogate is not used at all.
    reason : str
        Why `exact_share` is not zero, or trust not full; otherwise empty.
    history : ndarray of shape (rounds, 2)
        Exact evaluations and sd(D), as warm-up went on.
    fingerprint : str
        Hash of the frozen surrogate, the same before the first draw and after the last; empty if it was not used.
    has_gradient : bool
        Whether the target has a gradient, so that exact steps are possible.
    n_modes : int
        Separate modes of the surrogate, between which chains jump (`leapwise.kernels.jumps`).
    tail : str
        Which tail of a parameter the surrogate cuts, and how much of it, at the end of warm-up; empty if none.
    """

    kind: str
    sd: float
    usual: float
    surprises: float
    exact_share: float
    reason: str
    history: np.ndarray
    fingerprint: str = ""
    has_gradient: bool = True
    n_modes: int = 1
    tail: str = ""


#: chi^2 this many standard deviations above its mean is no fit. A guess: chance is excluded, and small errors of the
#: model are not reported.
MISFIT_SDS = 6.0


class EvaluatedPositions(Protocol):
    """Positions and their exact potentials: the state of chains, or a training set."""

    @property
    def position(self) -> np.ndarray:
        """Unbounded positions, one in each row."""
        ...

    @property
    def potential(self) -> np.ndarray:
        """Exact potentials."""
        ...


@dataclass(frozen=True)
class TargetReport:
    """What kind of target a run had, and how well it fits its data.

    Attributes
    ----------
    is_forward : bool
        Whether it is a forward model with a likelihood and a prior.
    has_gradient : bool
        Whether methods with exact gradients can sample it.
    is_bounded : bool
        Whether some of its parameters have bounds.
    misfit : float
        chi^2 where the potential is lowest; NaN unless it is a forward model with a `GaussianLikelihood` of known
        noise, and without a hierarchy.
    n_outputs : int
        Number of observations.

    Examples
    --------
    >>> TargetReport(is_forward=True, misfit=9.0, n_outputs=8).fits
    True
    >>> TargetReport(is_forward=True, misfit=90.0, n_outputs=8).fits
    False
    """

    is_forward: bool = False
    has_gradient: bool = True
    is_bounded: bool = False
    misfit: float = np.nan
    n_outputs: int = 0

    @classmethod
    def of(cls, target: AnyTarget, *evaluated: EvaluatedPositions | None) -> TargetReport:
        """Describe a target, from its lowest known potential too; nothing is evaluated."""
        likelihood = getattr(target, "likelihood", None)
        kind = target.emulates_outputs, target.has_gradient, not target.transform.is_identity
        some = [each for each in evaluated if each is not None and len(each.position)]
        if not isinstance(likelihood, GaussianLikelihood) or not likelihood.is_plain or not some:
            return cls(*kind)
        if getattr(
            target.prior, "is_hierarchical", False
        ):  # the lowest potential is in a neck, not at a usual fit
            return cls(*kind)
        best = min(some, key=lambda each: float(each.potential.min()))
        return cls(*kind, _misfit(target, best), likelihood.data.size)

    @property
    def fits(self) -> bool:
        """Whether the errors explain the misfit; True if that is not known.

        For a correct model, chi^2 at a draw has the chi-squared distribution of as many degrees of freedom as there are
        outputs, for any prior.
        """
        return not self.misfit > self.n_outputs + MISFIT_SDS * np.sqrt(2.0 * self.n_outputs)


def _misfit(target: AnyTarget, evaluated: EvaluatedPositions) -> float:
    """Return chi^2 at the lowest potential, which is twice that potential without prior, Jacobian and constant."""
    lowest = int(evaluated.potential.argmin())
    position = evaluated.position[[lowest]]
    likelihood, prior = target.likelihood, target.prior  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        best = likelihood.log_density(likelihood.data[None])
        assert prior is not None
        others = np.ravel(prior.log_density(target.transform.to_parameters(position)))
        others = others + target.transform.log_jacobian(position)
        return float(2.0 * (best + others + evaluated.potential[lowest])[0])


#: Time inside the target may exceed wall time by 1 % because clocks are not exact. A guess.
CLOCK_NOISE = 1.01


@dataclass(frozen=True)
class Cost:
    """What one phase of a run cost.

    Attributes
    ----------
    n_values, n_gradients : int
        Exact log-densities alone, and log-densities with their gradients.
    n_metrics : int
        Evaluations of a Riemannian metric.
    n_failures : int
        Positions where the target failed and was rejected.
    value_seconds, gradient_seconds : float
        Time inside the target, summed over workers if there were several.
    seconds : float
        Wall time of the whole phase.
    in_parallel : bool
        Whether evaluations may have run at the same time, on an executor or several cores.
    n_failed_attempts : int
        Evaluations that failed, also those of which a retry succeeded.

    Examples
    --------
    >>> total = Cost(n_values=4, seconds=1.0) + Cost(n_gradients=60, seconds=2.0)
    >>> total.n_exact, total.seconds
    (64, 3.0)
    """

    n_values: int = 0
    n_gradients: int = 0
    n_metrics: int = 0
    n_failures: int = 0
    value_seconds: float = 0.0
    gradient_seconds: float = 0.0
    seconds: float = 0.0
    in_parallel: bool = False
    n_failed_attempts: int = 0

    def __add__(self, other: Cost) -> Cost:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Cost)}
        return Cost(**sums | {"in_parallel": self.in_parallel or other.in_parallel})

    @property
    def n_exact(self) -> int:
        """All exact evaluations, with gradient or without."""
        return self.n_values + self.n_gradients

    @property
    def model_seconds(self) -> float:
        """Time inside the target, summed over workers if there were several."""
        return self.value_seconds + self.gradient_seconds

    @property
    def sampler_seconds(self) -> float:
        """Wall time outside the target; NaN if it is not known.

        It is not known if evaluations ran in parallel, because their time is then a sum over workers and not wall time.
        It is not known either if the time inside the target exceeds the wall time, because evaluations of an earlier
        call were replayed.
        """
        if self.in_parallel or self.model_seconds > CLOCK_NOISE * self.seconds:
            return float("nan")
        return max(self.seconds - self.model_seconds, 0.0)


@dataclass(frozen=True, eq=False)
class Record:
    """One phase of a run, warm-up or kept draws.

    Attributes
    ----------
    draws : ndarray of shape (chains, draws, dim)
        In the user's own coordinates.
    stats : dict of str to ndarray of shape (chains, draws)
        In ArviZ's words: ``lp, acceptance_rate, step_size, n_steps, diverging, energy, energy_error``, and
        ``n_exact, accepted``. With exact gradients ``left``, whether the trajectory was stopped outside the support.
        With a surrogate ``discrepancy``, exact minus predicted potential at the proposal. In a self-tuned run
        ``inner_acceptance, proposal_potential`` (exact), and ``part``, 1 for steps with exact gradients, if only some
        were. Where chains jump between modes ``mode``, the number of the draw's mode, from 1 (0 is unknown).
    cost : Cost
        What the phase cost.
    outputs : ndarray of shape (chains, kept, m) or None
        Outputs of the forward model at draws 0, `every`, 2 `every`, ...
    every : int
        Outputs of every so many draws are kept; 0 for none.
    """

    draws: np.ndarray
    stats: dict[str, np.ndarray]
    cost: Cost
    outputs: np.ndarray | None = None
    every: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The result of `sample`.

    Attributes
    ----------
    names : str or tuple of str
        One vector variable of that name, or one scalar variable for each name.
    posterior, warmup : Record
        The kept draws, and the steps of warm-up (there may be none).
    settings : dict
        The method with its settings, given or tuned.
    seed : int or None
        Seed of all random numbers.
    versions : dict of str to str
        Of Python, this library and its dependencies.
    complete : bool
        False if the run was interrupted, with fewer draws than asked for.
    n_adaptive : int
        Number of kept draws of each chain, from the first, that were made while the kernel was still learning.
    kernel : object
        The kernel that made the draws, the last one if it was still learning, with its surrogate if it has one.
    training : TrainingSet or None
        The surrogate's training set, also if training failed or was interrupted.
    surrogate : SurrogateReport or None
        How well the surrogate of a self-tuned run was trained and trusted.
    failures : ndarray of shape (n, dim) or None
        Parameters at which the target failed, also when retried, warm-up included.
    target : TargetReport or None
        The kind of target, and how well it fits its data.
    variables : tuple of Variable
        The layout of the parameters: ``run["k"]`` has the draws of the variable k in its shape.
    coords : dict of str to list
        Labels along the dims of variables.
    model : ForwardTarget or None
        The target, if it is a forward model; predictions are computed from it.
    groups : dict of str to dict
        Of a run that was loaded: what had been computed from its model, by group of the `DataTree`.
    loaded_outputs : tuple of Variable
        Of such a run: the layout of its outputs.
    stored_estimates : Estimates or None
        Of such a run: the estimates of its parameters.
    stored_evidence : Evidence or None
        Of such a run: its evidence, if it was known.
    transform : Transform or None
        From unbounded positions to parameters; None if the run was loaded.
    precision : Precision or None
        The precision that was asked for and the one that was reached, if draws were to stop by it.
    known_sharpening : Sharpening or None
        What the last check of that precision made of these draws.

    Examples
    --------
    >>> draws = np.random.default_rng(1).normal(size=(4, 500, 2))
    >>> run = Run("x", Record(draws, {}, Cost(n_values=2000)), Record(draws[:, :0], {}, Cost()))
    >>> run
    Run(4 chains x 500 draws, 2 parameters)
    >>> run.parameter_names
    ('x[0]', 'x[1]')
    >>> run.to_datatree()["posterior"]["x"].dims
    ('chain', 'draw', 'x_dim_0')
    """

    names: str | tuple[str, ...]
    posterior: Record
    warmup: Record
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    n_adaptive: int = 0
    kernel: Any = None
    training: Any = None
    surrogate: SurrogateReport | None = None
    failures: np.ndarray | None = None
    target: TargetReport | None = None
    variables: tuple[Variable, ...] = ()
    coords: dict[str, list[Any]] = field(default_factory=dict)
    model: ForwardTarget | None = None
    groups: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    loaded_outputs: tuple[Variable, ...] = ()
    stored_estimates: Estimates | None = None
    stored_evidence: Evidence | None = None
    transform: Transform | None = None
    precision: Precision | None = None
    known_sharpening: Sharpening | None = None

    def __post_init__(self) -> None:
        if not self.variables:
            object.__setattr__(self, "variables", named(self.names, self.draws.shape[2]))

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of a variable by its name, ``(chains, draws, *shape)``."""
        found = split(self.variables, self.draws)
        if name not in found:
            raise InputError(
                f"there is no variable {name!r} in this run, which has {', '.join(found)}; take one of these"
            )
        return found[name]

    def __repr__(self) -> str:
        chains, draws, dim = self.draws.shape
        notes = "" if self.complete else ", interrupted"
        return f"Run({chains} chains x {draws} draws, {dim} parameters{notes})"

    @property
    def draws(self) -> np.ndarray:
        """The kept draws ``(chains, draws, dim)`` in the user's own coordinates."""
        return self.posterior.draws

    @property
    def exact(self) -> bool:
        """Whether all kept draws come from one frozen kernel that leaves the posterior invariant."""
        return self.n_adaptive == 0

    @property
    def exact_draws(self) -> np.ndarray:
        """The kept draws that came from a frozen kernel: all of them, unless the method was adaptive."""
        return self.posterior.draws[:, self.n_adaptive :]

    @property
    def cost(self) -> Cost:
        """What the whole run cost, warm-up included."""
        return self.warmup.cost + self.posterior.cost

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """One label for each parameter."""
        if isinstance(self.names, str):
            return tuple(f"{self.names}[{i}]" for i in range(self.draws.shape[2]))
        return self.names

    @property
    def output_variables(self) -> tuple[Variable, ...]:
        """The layout of the outputs that were kept: data sets, then derived quantities; empty if there are none."""
        outputs = self.posterior.outputs
        if self.model is None or outputs is None:
            return self.loaded_outputs
        found = self.model.output_variables
        # Otherwise it is not known: the model may have run in other processes only.
        known = sum(each.size for each in found) == outputs.shape[2]
        return found if known else (Variable("y", (outputs.shape[2],)),)

    def predict(self, inputs: Mapping[str, ArrayLike] | ArrayLike) -> Prediction:
        """Predict the model's outputs at other inputs, by an emulator: the model is not run.

        The emulator learns from the outputs at the draws, derived quantities included. It is trained at the first call.

        Parameters
        ----------
        inputs : dict of str to array, or array
            The variables that the model sees, by name: ``(n, *shape)`` each, or of the variable's shape for one point.
            Or rows of the vector of inputs, ``(n, n_inputs)``.

        Returns
        -------
        Prediction
            `outputs` and `error`, each a dict of arrays ``(n, *shape)``. The error is a guide: it combines errors at
            draws that an emulator has not seen, and how much several emulators differ. NaN beyond all draws.

        Examples
        --------
        >>> import leapwise as lw
        >>> t = np.array([0.0, 1.0, 2.0])
        >>> target = lw.ForwardTarget(
        ...     lambda a, k: a * np.exp(-k * t),
        ...     lw.GaussianLikelihood([2.1, 1.2, 0.6], sd=0.1),
        ...     lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0)),
        ... )
        >>> run = lw.sample(target, draws=100, random_seed=1)
        >>> found = run.predict({"a": [2.0, 2.1], "k": 0.6})
        >>> bool(abs(found.outputs["y"] - [[2.0], [2.1]] * np.exp(-0.6 * t)).max() < 0.01), found.error["y"].shape
        (True, (2, 3))
        """
        return self._emulator.predict(inputs)

    @cached_property
    def _emulator(self) -> OutputEmulator:
        """Trained when it is first needed."""
        return OutputEmulator(self)

    def estimate(
        self,
        f: str | Sequence[str] | Callable[..., Any] | None = None,
        *,
        probabilities: Sequence[float] = PROBABILITIES,
        plain: bool = False,
    ) -> Estimates:
        """Estimate means, standard deviations and quantiles, sharpened by the surrogate where that is possible.

        Expectations of the surrogate are known to any precision without an exact evaluation, and the draws say how far
        the posterior is from it. Together they are often many times more precise than the draws alone, and as exact.
        Where the surrogate cannot be used, estimates are those of the draws, and `reason` says why.

        Parameters
        ----------
        f : str, sequence of str, or callable, optional
            Names of variables, or of kept outputs of a `ForwardTarget`. Or a function of variables, which are its
            arguments by name, or of the whole vector; they have a first axis of rows. It returns an array with this
            axis, or a dict of such arrays. All parameters by default.
        probabilities : sequence of float
            Of the quantiles.
        plain : bool
            Use the draws alone.

        Returns
        -------
        Estimates
            A table to print. By name: means, standard deviations, quantiles, and their Monte Carlo standard errors.

        Examples
        --------
        >>> import leapwise as lw
        >>> target = lw.Target(lambda x: -np.cosh(x).sum(), lambda x: -np.sinh(x), dim=2)
        >>> run = lw.sample(target, draws=200, random_seed=1)
        >>> found = run.estimate(lambda x: {"energy": np.cosh(x).sum(axis=1), "product": x[:, 0] * x[:, 1]})
        >>> bool(found["product"].mcse_mean < 0.3 * run.estimate("x", plain=True)["x"].mcse_mean[0])
        True
        """
        with estimating.showing_work():
            return estimating.estimate(self, f, probabilities, plain=plain)

    def log_evidence(self) -> Evidence:
        """Estimate the logarithm of the evidence, which is the integral of prior times likelihood.

        It needs a surrogate that the draws were made with. Of a `ForwardTarget` with a `Prior` and one of our
        likelihoods it is the evidence itself. Of other targets it is known up to the constant of the log-density that
        was given.

        Returns
        -------
        Evidence
            Its `value` and `error`, and whether it `is_normalised`.

        Examples
        --------
        >>> import leapwise as lw
        >>> target = lw.Target(lambda x: -0.5 * x @ x - np.log(2 * np.pi), lambda x: -x, dim=2)
        >>> found = lw.sample(target, draws=200, random_seed=1).log_evidence()
        >>> bool(abs(found.value) < 0.01), found.is_normalised
        (True, False)
        """
        with estimating.showing_work():
            return estimating.evidence(self)

    @cached_property
    def sharpening(self) -> Sharpening:
        """What sharpened estimates are made of, or why there are none; found when it is first needed."""
        if self.known_sharpening is not None:
            return self.known_sharpening
        return estimating.sharpening_of(self, estimating.plain_reason(self))

    @cached_property
    def default_estimates(self) -> Estimates:
        """Estimates of all parameters, made when they are first needed."""
        return estimating.estimate(self, None, PROBABILITIES, plain=False)

    @cached_property
    def statistics(self) -> Statistics:
        """Moments, quantiles and convergence of the draws."""
        return statistics(self.draws)

    def summary(self, all: bool = False, plain: bool = False) -> Summary:
        """Tabulate the parameters, the cost, and warnings that ask for action.

        Parameters
        ----------
        all : bool
            Show every parameter, however many; otherwise those with the fewest effective draws.
        plain : bool
            Show means, standard deviations, quantiles and errors of the draws alone, also where `estimate` can sharpen
            them.

        Examples
        --------
        >>> draws = np.random.default_rng(1).normal(size=(4, 500, 1))
        >>> run = Run(("mu",), Record(draws, {}, Cost(n_values=2000)), Record(draws[:, :0], {}, Cost()))
        >>> run.summary().rows[0]["parameter"]
        'mu'
        >>> run.summary().warnings
        []
        """
        return summarise(self, show_all=all, plain=plain)

    def to_datatree(self, predictive: bool | None = None) -> DataTree:
        """Return an ArviZ `DataTree`: posterior, sample_stats, and the same of warm-up if its steps were recorded.

        A run of a `ForwardTarget` also has ``predictions`` (outputs of the model at the draws, and its derived
        quantities), and with one of our likelihoods ``observed_data``, ``constant_data`` (its known arguments),
        ``posterior_predictive`` (replicated data, seeded) and ``log_likelihood`` (of
        each datum), so that `arviz_stats.loo` and predictive checks work. None of them costs an evaluation. A
        self-tuned run has a group ``surrogate``: exact evaluations and sd(D) of each round of warm-up, and the other
        fields of `SurrogateReport` as attributes.

        Parameters
        ----------
        predictive : bool, optional
            Whether to make ``posterior_predictive`` and ``log_likelihood``; by default if the outputs take at most
            64 MiB.
        """
        return datatree.to_datatree(self, predictive)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the `DataTree` to a netCDF file, which `load` and `xarray.open_datatree` read; its name ends in .nc.

        The folder is made if it is missing; an older file of that name is replaced once the new one is complete.
        Needs the extra ``netcdf``.
        """
        return datatree.save(self, path)

    def plot_surrogate(self, path: str | PathLike[str]) -> Path:
        """Plot how good the surrogate was: exact against predicted potentials of the draws, and sd(D) in warm-up.

        The ending of `path` chooses the format: .png, .pdf, .svg. Needs the extra ``plots``.
        """
        from leapwise.results.plots import plot_surrogate

        return plot_surrogate(self, path)


def load(path: str | PathLike[str]) -> Run:
    """Return the run that `Run.save` wrote: draws, statistics, cost, reports and groups of the `DataTree`.

    Its kernel, model and training set are not in the file.

    Examples
    --------
    >>> import tempfile
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2, names=["a", "b"])
    >>> run = lw.sample(target, draws=50, chains=2, random_seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = lw.load(run.save(f"{folder}/run.nc"))
    >>> bool((again["a"] == run["a"]).all()), str(again.summary()) == str(run.summary())
    (True, True)
    """
    parts = datatree.read(path)
    for phase in ("posterior", "warmup"):
        parts[phase] = Record(**parts[phase] | {"cost": Cost(**parts[phase]["cost"])})
    for name, kind in (("surrogate", SurrogateReport), ("target", TargetReport)):
        parts[name] = None if parts[name] is None else kind(**parts[name])
    return Run(**parts)


class LazyRecord(Record):
    """A record that stays on disk until its draws or statistics are first asked for.

    Parameters
    ----------
    load : callable
        Returns draws ``(chains, draws, dim)``, statistics and outputs.
    shape : tuple of int
        Of the draws, which is known without reading them.
    cost : Cost
    every : int
        As for `Record`.

    Examples
    --------
    >>> record = LazyRecord(lambda: (np.zeros((4, 10, 2)), {}, None), (4, 10, 2), Cost())
    >>> record.shape, record.draws.shape
    ((4, 10, 2), (4, 10, 2))
    """

    def __init__(
        self,
        load: Callable[[], tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None]],
        shape: tuple[int, int, int],
        cost: Cost,
        every: int = 0,
    ) -> None:
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "_load", load)
        object.__setattr__(self, "_shape", shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Chains, draws and parameters."""
        return self._shape

    def __getattr__(self, name: str) -> Any:
        if name not in ("draws", "stats", "_outputs"):
            raise AttributeError(name)
        for each, value in zip(("draws", "stats", "_outputs"), self._load(), strict=True):
            object.__setattr__(self, each, value)
        return getattr(self, name)

    @property
    def outputs(self) -> np.ndarray | None:
        """Outputs of the forward model."""
        return self._outputs
