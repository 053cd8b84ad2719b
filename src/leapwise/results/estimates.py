"""What `Run.estimate` and `Run.log_evidence` return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from leapwise.errors import InputError
from leapwise.estimates import Columns, Figure, Figures, Part, means
from leapwise.results.tables import add_rows, as_text, decimals, empty_table, few_digits, fixed
from leapwise.targets.variables import Variable, split

#: Quantiles of a summary.
PROBABILITIES = (0.05, 0.5, 0.95)
#: Quantiles that fit beside the other columns of a table.
_MOST_QUANTILES = 5
#: The names of the numbers of a `Figure`, as they are stored.
_FIELDS = ("", "mcse_", "plain_", "plain_mcse_", "effective_")


class Estimate(NamedTuple):
    """Estimates of one variable; each array has its shape.

    Attributes
    ----------
    mean, mcse_mean : ndarray
        Mean and its Monte Carlo standard error.
    sd, mcse_sd : ndarray
        Standard deviation and its error.
    quantiles, mcse_quantiles : ndarray of shape (number of probabilities, *shape)
        Quantiles and their errors.
    effective : ndarray
        As many independent draws would know the mean as precisely.
    gain : ndarray
        Variance of the plain mean over that of this one.
    """

    mean: np.ndarray
    mcse_mean: np.ndarray
    sd: np.ndarray
    mcse_sd: np.ndarray
    quantiles: np.ndarray
    mcse_quantiles: np.ndarray
    effective: np.ndarray
    gain: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Estimates:
    """What `Run.estimate` returns: print it, or take one variable by its name.

    Attributes
    ----------
    variables : tuple of Variable
        Names and shapes of what was estimated.
    figures : Figures
        All numbers, in rows for all variables one after another.
    probabilities : tuple of float
        Of the quantiles.
    reason : str
        Why the estimates are those of the draws alone; empty if they are sharpened.
    cross_fitted : bool
        Whether surrogates were trained on the draws of the other half of the chains.
    seconds : float
        Time that the points of the surrogate took.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -np.cosh(x).sum(), lambda x: -np.sinh(x), dim=2)
    >>> found = lw.sample(target, draws=200, random_seed=1).estimate()
    >>> bool((abs(found["x"].mean) < 4 * found["x"].mcse_mean).all()), bool((found["x"].gain > 10).all())
    (True, True)
    >>> found.covariance.shape
    (2, 2)
    """

    variables: tuple[Variable, ...]
    figures: Figures
    probabilities: tuple[float, ...] = PROBABILITIES
    reason: str = ""
    cross_fitted: bool = False
    seconds: float = 0.0
    columns: Columns | None = None
    parts: list[Part] = field(default_factory=list)

    @property
    def is_sharpened(self) -> bool:
        """Whether the surrogate was used."""
        return not self.reason

    @property
    def labels(self) -> tuple[str, ...]:
        """One label for each row."""
        return tuple(label for each in self.variables for label in each.labels)

    def __getitem__(self, name: str) -> Estimate:
        """Return the estimates of a variable."""
        names = [each.name for each in self.variables]
        if name not in names:
            raise InputError(
                f"there is no estimate of {name!r}, only of {', '.join(names)}; take one of these"
            )
        mean, sd, each = self.figures.mean, self.figures.sd, self.figures.quantiles
        quantiles, errors = (
            np.array([getattr(one, key) for one in each]).reshape(len(each), len(mean.value))
            for key in ("value", "error")
        )
        rows = (mean.value, mean.error, sd.value, sd.error, quantiles, errors, mean.effective, mean.gain)
        return Estimate(*(split(self.variables, row)[name] for row in rows))

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance matrix of all rows, ``(k, k)``."""
        return self._covariance[0]

    @cached_property
    def mcse_covariance(self) -> np.ndarray:
        """Monte Carlo standard errors of the covariance matrix."""
        return self._covariance[1]

    @cached_property
    def _covariance(self) -> np.ndarray:
        columns, centre = self.columns, self.figures.mean.value
        if columns is None:
            raise InputError(
                "a run that was loaded has no covariance of these; estimate again with plain=True"
            )
        found = np.empty((2, len(centre), len(centre)))

        def products(values: np.ndarray, row: int) -> np.ndarray:
            return (values[..., [row]] - centre[row]) * (values[..., row:] - centre[row:])

        for row in range(len(centre)):
            controls = None if columns.controls is None else products(columns.controls, row)
            points = [products(each, row) for each in columns.points]
            one = means(Columns(products(columns.draws, row), points, controls), self.parts)
            found[:, row, row:] = found[:, row:, row] = one.value, one.error
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict of plain numbers for each row of the table."""
        figure, each = self.figures, self.figures.quantiles
        found: dict[str, np.ndarray] = {
            "mean": figure.mean.value,
            "mcse_mean": figure.mean.error,
            "sd": figure.sd.value,
            "mcse_sd": figure.sd.error,
        }
        for probability, one in zip(self.probabilities, each, strict=True):
            found |= {quantile_name(probability): one.value, f"mcse_{quantile_name(probability)}": one.error}
        found |= {"effective": figure.mean.effective, "gain": figure.mean.gain}
        return [
            {"name": label, **{key: float(values[i]) for key, values in found.items()}}
            for i, label in enumerate(self.labels)
        ]

    def worst(self) -> dict[str, float]:
        """Return the effective draws of the row known least: of means, quantiles (tail), and squares."""
        tails = [one.effective for one in self.figures.quantiles] or [self.figures.mean.effective]
        found = {
            "bulk": self.figures.mean.effective,
            "tail": np.array(tails),
            "squares": self.figures.sd.effective,
        }
        return {key: float(np.min(values)) if np.size(values) else np.nan for key, values in found.items()}

    def about(self) -> str:
        """Return how the estimates were made, in a sentence."""
        if not self.is_sharpened:
            return f"Estimates of the draws alone: {self.reason}."
        gain = self.figures.mean.gain[np.isfinite(self.figures.mean.gain)]
        if not gain.size:
            return "Sharpened by the surrogate."
        low, high = (f"{each:,.{int(each < 10)}f}" for each in (gain.min(), gain.max()))
        by = low if low == high else f"{low} to {high}"
        trained = ", trained again on half of the draws each" if self.cross_fitted else ""
        return f"Sharpened by the surrogate{trained}: the variances of means are divided by {by}."

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        yield from self._more_quantiles()
        yield self.about()

    def _table(self) -> Table:
        """Return the table; means have the digits that their errors leave, other numbers as many."""
        few = len(self.probabilities) <= _MOST_QUANTILES
        table = empty_table(
            "", "mean", "MCSE", "sd", "MCSE", *(self._per_cent() if few else []), "effective", "gain"
        )
        mean, sd, quantiles = self.figures
        places, small = decimals(mean.error, digits=1), decimals(mean.error, digits=2)
        cells = [fixed(mean.value, places), fixed(mean.error, small)]
        cells += [fixed(sd.value, places), fixed(sd.error, small)]
        cells += [fixed(each.value, places) for each in quantiles] if few else []
        cells += [[few_digits(each) for each in values] for values in (mean.effective, mean.gain)]
        add_rows(table, self.labels, cells)
        return table

    def _more_quantiles(self) -> Iterator[Table]:
        """Return tables of the quantiles, if they are too many for the first."""
        places, names = decimals(self.figures.mean.error, digits=1), self._per_cent()
        if len(names) <= _MOST_QUANTILES:
            return
        for first in range(0, len(names), _MOST_QUANTILES):
            some = slice(first, first + _MOST_QUANTILES)
            table = empty_table("", *names[some])
            add_rows(table, self.labels, [fixed(each.value, places) for each in self.figures.quantiles[some]])
            yield table

    def _per_cent(self) -> list[str]:
        return [f"{100 * each:.4g}%" for each in self.probabilities]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the numbers of each variable by name, ``(statistics, *shape)``, in the order of `statistics`."""
        rows = np.array([row for figure in self._all() for row in figure])
        return split(self.variables, rows)

    def statistics(self) -> list[str]:
        """Return the names of the rows of `to_arrays`."""
        names = ["mean", "sd", *(quantile_name(each) for each in self.probabilities)]
        return [f"{before}{name}" for name in names for before in _FIELDS]

    def _all(self) -> list[Figure]:
        return [self.figures.mean, self.figures.sd, *self.figures.quantiles]

    @classmethod
    def from_arrays(
        cls, variables: tuple[Variable, ...], arrays: Mapping[str, np.ndarray], **about: Any
    ) -> Estimates:
        """Return the estimates that `to_arrays` was called on."""
        found = [arrays[each.name] for each in variables]
        rows = np.concatenate([each.reshape(len(each), -1) for each in found], axis=1)
        mean, sd, *quantiles = (
            Figure(*rows[i : i + len(_FIELDS)]) for i in range(0, len(rows), len(_FIELDS))
        )
        return cls(variables, Figures(mean, sd, tuple(quantiles)), **about)


def quantile_name(probability: float) -> str:
    """Return a name for a quantile.

    Examples
    --------
    >>> quantile_name(0.05), quantile_name(0.975)
    ('q5', 'q97.5')
    """
    return f"q{100 * probability:g}"


class Precision(NamedTuple):
    """The largest Monte Carlo error of means and standard deviations of parameters, in standard deviations.

    Attributes
    ----------
    asked, reached : float
        The largest that was to be allowed, and that of the draws; infinite if it is not known.
    """

    asked: float
    reached: float

    @property
    def is_reached(self) -> bool:
        """Whether the draws are precise enough."""
        return self.reached <= self.asked


class Evidence(NamedTuple):
    """What `Run.log_evidence` returns.

    Attributes
    ----------
    value, error : float
        The logarithm of the evidence, and its standard error.
    is_normalised : bool
        Whether prior and likelihood are known to be normalised. Otherwise the value is the logarithm of the integral of
        the density that was given, so it is known up to the constant of that density.
    """

    value: float
    error: float
    is_normalised: bool

    def __str__(self) -> str:
        note = "" if self.is_normalised else ", up to the constant of your log-density"
        return f"log evidence {self.value:.3f} +- {self.error:.3f}{note}"
