"""What a run hands back: draws, statistics and cost of each phase, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.results import datatree
from leapwise.results.summary import Summary, summarise
from leapwise.results.surrogate_report import SurrogateReport
from leapwise.results.target_report import TargetReport

if TYPE_CHECKING:
    from xarray import DataTree


@dataclass(frozen=True)
class Cost:
    """What was spent in one phase.

    Attributes
    ----------
    n_values, n_gradients : int
        Exact log-densities alone, and log-densities with their gradients.
    n_metrics : int
        Evaluations of a Riemannian metric.
    n_failures : int
        Positions where the target failed and the failure was taken as a rejection.
    value_seconds, gradient_seconds : float
        Time inside the target.
    seconds : float
        Wall time of the whole phase.

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

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Cost)))

    @property
    def n_exact(self) -> int:
        """All exact evaluations, with gradient or without."""
        return self.n_values + self.n_gradients

    @property
    def model_seconds(self) -> float:
        """Time inside the target."""
        return self.value_seconds + self.gradient_seconds

    @property
    def sampler_seconds(self) -> float:
        """Time everywhere else."""
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
        ``n_exact, accepted``; with exact gradients ``left``, whether the trajectory was given up outside the support;
        with a surrogate ``discrepancy``, exact potential less the surrogate's at the proposal; in a self-tuned run
        ``inner_acceptance, proposal_potential`` (exact), and ``part``, 1 for steps with exact gradients, if there were
        any beside others; where chains jump between modes ``mode``, in which the draw is, from 1 (0 is unknown).
    cost : Cost
        What the phase cost.
    """

    draws: np.ndarray
    stats: dict[str, np.ndarray]
    cost: Cost


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """Everything that `sample` found out.

    Attributes
    ----------
    names : str or tuple of str
        One vector variable of that name, or one scalar variable for each name.
    posterior, warmup : Record
        The kept draws, and those made while tuning (there may be none).
    settings : dict
        The method and the settings it was given or found.
    seed : int or None
        What the random numbers came from.
    versions : dict of str to str
        Of this library and of those that it stands on.
    complete : bool
        False if the run was interrupted: the draws are fewer than asked for.
    n_adaptive : int
        How many kept draws of each chain, the first ones, were made while the kernel was still learning.
    kernel : object
        What the draws came from, or the last of them if it was still learning; with its surrogate, if it has one.
    training : TrainingSet or None
        What the surrogate was trained on, or was to be if training failed or was interrupted.
    surrogate : SurrogateReport or None
        How the surrogate of a self-tuned run was learnt and trusted.
    failures : ndarray of shape (n, dim) or None
        Parameters at which the target failed for good, warm-up included.
    target : TargetReport or None
        What kind of target it was, and how well it fits its data.

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

    def summary(self, all: bool = False) -> Summary:
        """Tabulate the parameters, the cost, and warnings that ask for action.

        Parameters
        ----------
        all : bool
            Show every parameter, however many; otherwise those with the fewest effective draws.

        Examples
        --------
        >>> draws = np.random.default_rng(1).normal(size=(4, 500, 1))
        >>> run = Run(("mu",), Record(draws, {}, Cost(n_values=2000)), Record(draws[:, :0], {}, Cost()))
        >>> run.summary().rows[0]["parameter"]
        'mu'
        >>> run.summary().warnings
        []
        """
        return summarise(self, show_all=all)

    def to_datatree(self) -> DataTree:
        """Return an ArviZ `DataTree`: posterior, sample_stats, and the same of the warm-up if it was kept.

        Of a self-tuned run there is a group ``surrogate`` too: exact evaluations and sd(D) of each round of warm-up,
        and all else that `SurrogateReport` has as attributes.
        """
        return datatree.to_datatree(self)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the `DataTree` to a netCDF file, which `xarray.open_datatree` reads.

        The folder is made if it is missing; an older file of that name is replaced once the new one is whole.
        Needs the extra ``netcdf``.
        """
        return datatree.save(self, path)

    def plot_surrogate(self, path: str | PathLike[str]) -> Path:
        """Draw how well the surrogate did: exact against predicted potentials of the draws, and sd(D) in warm-up.

        The ending of `path` chooses the format: .png, .pdf, .svg. Needs the extra ``plots``.
        """
        from leapwise.results.surrogate_plot import plot_surrogate

        return plot_surrogate(self, path)
