r"""Likelihoods of a forward model's outputs, which may have parameters of their own.

Any object of the form `Likelihood` can be used. Those here take data of any shape, or a dict of data sets, and flatten
them one after another into a vector of m entries, like the outputs. Data that are NaN are missing: they do not count.

What is observed is :math:`\mu_j = a f_j + b`, where :math:`f` are the outputs, :math:`a` is `scale` and :math:`b` is
`offset`. Observations are independent given :math:`\mu`, unless a covariance is given. Each argument is a number, an
array of the data's shape, or the name of a variable of the prior, which is then sampled with the others; for a dict of
data sets it may be a dict of these. A variable is a scalar, or has the shape of the data set.

A family writes only its pointwise maths: ``_log_pdf``, its derivatives ``_slope`` and ``_argument_slopes``, and
``_draw``. `_Observations` does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import betaln, digamma, expit, gammaln, xlogy

from leapwise.checks import require_covariance, require_names, require_positive, require_real
from leapwise.errors import InputError
from leapwise.targets.variables import Variable, columns

_LOG = logging.getLogger("leapwise")

#: An argument: a number, an array, the name of a variable, or a dict of these with one for each data set.
Argument = ArrayLike | Mapping[str, ArrayLike]
#: Values of variables by name, each of shape ``(n, *shape)``.
Own = Mapping[str, np.ndarray]
#: Values of the arguments of a family, or derivatives by them, each ``(k,)`` or ``(n, k)`` for k observations.
Given = dict[str, np.ndarray]

_HUGE = float(np.finfo(float).max)
#: Residuals of more standard deviations have no density, since their squares overflow.
_FAR = 1.3e154
#: Counts above this are not exact as floats.
_MOST_COUNTS = 2.0**53
#: NumPy draws no Poisson numbers of a larger mean than about 9.2e18.
_MOST_POISSON = 9e18
_LOG_2PI = np.log(2 * np.pi)


class Likelihood(Protocol):
    """Log-density of data given outputs, with derivatives, for batches with one point per row.

    It may be called with predicted outputs that the model would never return: it returns -inf where they are
    impossible, and does not raise.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the variables of the prior that it needs."""
        ...

    @property
    def positive(self) -> tuple[str, ...]:
        """Those of them that must be positive."""
        ...

    @property
    def outputs(self) -> tuple[Variable, ...]:
        """The layout of the vector of outputs, of m entries."""
        ...

    @property
    def data(self) -> np.ndarray:
        """The data ``(m,)``, NaN where they are missing."""
        ...

    @property
    def observed(self) -> np.ndarray:
        """Which data are not missing, ``(m,)``."""
        ...

    def log_density(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood ``(n,)`` of outputs ``(n, m)`` and its own parameters."""
        ...

    def gradient(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return its gradient in the outputs, ``(n, m)``."""
        ...

    def parameter_gradient(self, outputs: np.ndarray, own: Own) -> dict[str, np.ndarray]:
        """Return its gradient in each of its own parameters, ``(n, *shape)``."""
        ...

    def pointwise(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood of each observation, ``(n, m)``; zero where it is missing."""
        ...

    def sample(self, outputs: np.ndarray, own: Own | None, rng: np.random.Generator) -> np.ndarray:
        """Draw replicated data, ``(n, m)``."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return what identifies it, as JSON can hold it."""
        ...


@dataclass(frozen=True, eq=False)
class _Use:
    """One use of a variable: its name, the data set that it is used for, and where that lies in the vector."""

    name: str
    each: Variable
    where: slice

    def take(self, own: Own) -> np.ndarray:
        """Return its values, ``(n, 1)`` or ``(n, size)``."""
        found = np.asarray(own[self.name], dtype=float)
        self.require_shape(found.shape[1:])
        return found.reshape(len(found), self.each.size if found.ndim > 1 else 1)

    def require_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless a variable of this shape fits the data set."""
        if shape not in ((), self.each.shape):
            either = f" or have the shape {self.each.shape} of the data" if self.each.shape else ""
            raise InputError(
                f"the variable {self.name!r} of the likelihood must be a scalar{either}, got shape {shape}; "
                "change its shape, or name another"
            )


@dataclass(frozen=True, eq=False)
class _Quantity:
    """An argument of a likelihood: for each entry of the data a number, or a variable."""

    values: np.ndarray  # (m,), NaN where a variable is used
    uses: tuple[_Use, ...]
    positive: bool

    @classmethod
    def parse(
        cls,
        label: str,
        given: Argument,
        sets: Sequence[Variable],
        named: bool,
        *,
        positive: bool,
        default: float | None = None,
    ) -> _Quantity:
        """Check an argument; `named` says whether the user gave a dict of data sets."""
        where = columns(sets)
        if isinstance(given, Mapping):
            if not named:
                raise InputError(
                    f"{label} is a dict, but data is a single array; give a number, an array or a name, or a dict "
                    "of data sets too"
                )
            strange = [key for key in given if key not in where]
            if strange:
                raise InputError(
                    f"{label} has the key {strange[0]!r:.80}, which is not a data set; use some of {list(where)}"
                )
        parts, uses = [], []
        for each in sets:
            what = f"{label} of {each.name!r}" if named else label
            by_default = isinstance(given, Mapping) and each.name not in given
            value = given.get(each.name, default) if isinstance(given, Mapping) else given
            if isinstance(value, str):
                uses.append(_Use(_require_name(what, value), each, where[each.name]))
                value = np.nan
            elif value is None:
                raise InputError(f"{what} is missing; give a number, an array or the name of a variable")
            elif positive and not by_default:
                value = require_positive(value, what, each.shape)
            else:
                value = require_real(value, what)
                if value.ndim and value.shape != each.shape:
                    raise InputError(
                        f"{what} must be one number or an array of shape {each.shape}, got shape {value.shape}; "
                        "give one entry per observation"
                    )
            parts.append(np.broadcast_to(value, each.shape).reshape(-1))
        # A single number stays a broadcast array: the logarithm of a copy may differ in the last bit.
        return cls(parts[0] if len(parts) == 1 else np.concatenate(parts), tuple(uses), positive)

    def at(self, own: Own, n: int) -> np.ndarray:
        """Return its values, ``(m,)`` if they are numbers, else ``(n, m)``; -1 where they ought to be positive."""
        if not self.uses:
            return self.values
        found = np.tile(self.values, (n, 1))
        for use in self.uses:
            value = use.take(own)
            if self.positive:
                value = np.where((value <= 0) | np.isinf(value), -1.0, value)
            found[:, use.where] = value
        return found

    def collect(self, slopes: np.ndarray, into: dict[str, np.ndarray]) -> None:
        """Add derivatives ``(n, m)`` by this argument to those by its variables."""
        for use in self.uses:
            part, total = slopes[:, use.where], into[use.name]
            total += part.sum(axis=1) if total.ndim == 1 else part.reshape(total.shape)

    def identity(self, sets: Sequence[Variable]) -> dict[str, Any]:
        """Return the number, the list of numbers or the name for each data set."""
        names = {use.each.name: use.name for use in self.uses}
        return {
            name: names.get(name) or _one_or_all(self.values[where]) for name, where in columns(sets).items()
        }


class _Observations:
    """Data sets, missing values, scale and offset, and batching for a family of likelihoods."""

    _tag: ClassVar[str]  # stored in ledgers: it must stay when a class is renamed
    _least_mean: ClassVar[float] = -np.inf  # smaller means are impossible
    _data_are: ClassVar[str] = "real numbers"  # in the message for others

    data: np.ndarray
    observed: np.ndarray
    outputs: tuple[Variable, ...]
    parameters: tuple[str, ...]
    positive: tuple[str, ...]

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        arguments: Mapping[str, Argument | None],
        scale: Argument | None,
        offset: Argument | None,
        default: float | None = None,
    ) -> None:
        sets, named = _data_sets(data)
        self.outputs = tuple(Variable(name, values.shape) for name, values in sets.items())
        self.data = np.concatenate([values.ravel() for values in sets.values()])
        self.observed = ~np.isnan(self.data)
        self._complete = bool(self.observed.all())
        self._y = self._take(self.data)

        def parse(label: str, given: Argument, **rules: Any) -> _Quantity:
            return _Quantity.parse(label, given, self.outputs, named, **rules)

        self._arguments = {
            label: parse(label, given, positive=True, default=default)
            for label, given in arguments.items()
            if given is not None
        }
        self._scale = None if scale is None else parse("scale", scale, positive=False, default=1.0)
        self._offset = None if offset is None else parse("offset", offset, positive=False, default=0.0)
        if self._scale is not None and (self._scale.values == 0).any():
            raise InputError(
                "scale must not be 0, got 0: the data would not depend on the outputs; give another"
            )
        self._quantities = dict(self._arguments)
        self._quantities |= {
            label: each
            for label, each in (("scale", self._scale), ("offset", self._offset))
            if each is not None
        }
        self.parameters = _variables_of(self._quantities)
        self.positive = _variables_of(self._arguments)
        self._require_kind()
        if not self._complete:
            _LOG.info("%d of %d data are missing (NaN) and left out", (~self.observed).sum(), self.data.size)

    def __repr__(self) -> str:
        names = f", parameters={self.parameters}" if self.parameters else ""
        return f"{type(self).__name__}({self.data.size} data{names})"

    def require_variables(self, variables: Sequence[Variable]) -> None:
        """Raise unless these variables contain all parameters of the likelihood, in shapes that fit the data."""
        shapes = {each.name: each.shape for each in variables}
        self._require_names(shapes)
        for quantity in self._quantities.values():
            for use in quantity.uses:
                use.require_shape(shapes[use.name])

    def log_density(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood ``(n,)`` of outputs ``(n, m)`` and its own parameters."""
        return np.asarray(self._terms(outputs, own).sum(axis=1))

    def pointwise(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood of each observation, ``(n, m)``; zero where it is missing."""
        return self._spread_out(self._terms(outputs, own))

    def gradient(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return its gradient in the outputs, ``(n, m)``."""
        with np.errstate(all="ignore"):
            slope = self._mean_slope(self._mean(outputs, own), own)
            if self._scale is not None:
                slope = _times(slope, self._take(self._values(self._scale, own, len(outputs))))
        return self._spread_out(slope)

    def parameter_gradient(self, outputs: np.ndarray, own: Own) -> dict[str, np.ndarray]:
        """Return its gradient in each of its own parameters, ``(n, *shape)``."""
        own = self._require_names(own)
        found = {name: np.zeros_like(own[name], dtype=float) for name in self.parameters}
        with np.errstate(all="ignore"):
            mean, given = self._mean(outputs, own), self._given(own, len(outputs))
            bad = self._impossible(mean, given)
            slopes = self._argument_slopes(self._y, mean, given) if self.positive else {}
            slopes = {label: np.where(bad, 0.0, slope) for label, slope in slopes.items()}
            if any(each is not None and each.uses for each in (self._scale, self._offset)):
                slopes["offset"] = self._mean_slope(mean, own)
                slopes["scale"] = _times(slopes["offset"], self._take(outputs))
            for label, quantity in self._quantities.items():
                if quantity.uses:
                    quantity.collect(self._spread_out(_finite(slopes[label])), found)
        return {name: _finite(total) for name, total in found.items()}

    def sample(self, outputs: np.ndarray, own: Own | None, rng: np.random.Generator) -> np.ndarray:
        """Draw replicated data, ``(n, m)``, of missing observations too; NaN where the outputs are impossible."""
        with np.errstate(all="ignore"):
            mean, given = self._mean(outputs, own, all_of_them=True), self._given(own, len(outputs), True)
            bad = self._impossible(mean, given) | np.isnan(mean)
            given = {label: np.where(bad, 1.0, value) for label, value in given.items()}
            return np.where(bad, np.nan, self._draw(rng, np.where(bad, 1.0, mean), given))

    def identity(self) -> dict[str, Any]:
        """Return what identifies it, as JSON can hold it: family, data by data set, and arguments by data set."""
        data = {
            each.name: [None if np.isnan(y) else y for y in self.data[where].tolist()]
            for each, where in zip(self.outputs, columns(self.outputs).values(), strict=True)
        }
        found: dict[str, Any] = {"class": self._tag, "data": data}
        found["shapes"] = {each.name: list(each.shape) for each in self.outputs}
        return found | {
            label: quantity.identity(self.outputs) for label, quantity in self._quantities.items()
        }

    # What a family gives; y is (k,), mean is (n, k), arguments are (k,) or (n, k).

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        """Return the log-density of each observation."""
        raise NotImplementedError

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        """Return its derivative by the mean; finite wherever the log-density is, or an overflow."""
        raise NotImplementedError

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        """Return its derivative by each argument."""
        raise NotImplementedError

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        """Draw an observation for each mean."""
        raise NotImplementedError

    def _allowed(self) -> np.ndarray:
        """Return which of the observations are of the right kind."""
        return np.ones(self._y.shape, dtype=bool)

    # What they share.

    def _take(self, values: np.ndarray) -> np.ndarray:
        """Return the entries ``(..., k)`` of observations that are not missing."""
        return values if self._complete else values[..., self.observed]

    def _spread_out(self, values: np.ndarray) -> np.ndarray:
        """Return ``(n, m)`` with zeros where data are missing."""
        if self._complete:
            return values
        found = np.zeros((len(values), self.data.size))
        found[:, self.observed] = values
        return found

    def _values(self, quantity: _Quantity, own: Own | None, n: int) -> np.ndarray:
        return quantity.at(self._require_names(own) if quantity.uses else {}, n)

    def _mean(self, outputs: np.ndarray, own: Own | None, all_of_them: bool = False) -> np.ndarray:
        """Return scale times outputs plus offset, of observations only unless all are asked for."""
        found = outputs
        with np.errstate(over="ignore", invalid="ignore"):
            if self._scale is not None:
                found = self._values(self._scale, own, len(outputs)) * found
            if self._offset is not None:
                found = found + self._values(self._offset, own, len(outputs))
        return found if all_of_them else self._take(found)

    def _given(self, own: Own | None, n: int, all_of_them: bool = False) -> Given:
        found = {label: self._values(each, own, n) for label, each in self._arguments.items()}
        return found if all_of_them else {label: self._take(each) for label, each in found.items()}

    def _impossible(self, mean: np.ndarray, given: Given) -> np.ndarray:
        """Return where mean or arguments are outside of what the family allows; NaN counts as inside."""
        bad = (mean < self._least_mean) | np.isinf(mean)
        for value in given.values():
            bad = bad | (value < 0)
        return bad

    def _terms(self, outputs: np.ndarray, own: Own | None) -> np.ndarray:
        """Return the log-density of each observation that is not missing, ``(n, k)``."""
        with np.errstate(all="ignore"):
            mean, given = self._mean(outputs, own), self._given(own, len(outputs))
            return np.where(self._impossible(mean, given), -np.inf, self._log_pdf(self._y, mean, given))

    def _mean_slope(self, mean: np.ndarray, own: Own | None) -> np.ndarray:
        """Return the derivative by what is observed, ``(n, k)``; zero where it is impossible."""
        given = self._given(own, len(mean))
        return np.where(self._impossible(mean, given), 0.0, _finite(self._slope(self._y, mean, given)))

    def _require_names(self, own: Mapping[str, Any] | None) -> Any:
        """Return `own` if it has a value for each parameter."""
        lacking = [name for name in self.parameters if name not in (own or {})]
        if lacking:
            raise InputError(
                f"{type(self).__name__} needs the variables {lacking}, got {sorted(own or {})}; add them to the prior"
            )
        return own or {}

    def _require_kind(self) -> None:
        """Raise unless all observations are of the right kind."""
        bad = ~self._allowed()
        if not bad.any():
            return
        entry = int(np.flatnonzero(self.observed)[np.flatnonzero(bad)[0]])
        for each, where in zip(self.outputs, columns(self.outputs).values(), strict=True):
            if where.start <= entry < where.stop:
                index = tuple(int(i) for i in np.unravel_index(entry - where.start, each.shape))
                label = f"data of {each.name!r}" if len(self.outputs) > 1 else "data"
                place = f" at index {index[0] if len(index) == 1 else index}" if index else ""
                raise InputError(
                    f"{label} must be {self._data_are}, got {self.data[entry]:g}{place}; fix it, set it to NaN if it "
                    "is missing, or use another likelihood"
                )


class GaussianLikelihood(_Observations):
    r"""Observations of the outputs with Gaussian errors.

    With `sd` and `relative_sd`, an observation has the standard deviation :math:`\sqrt{\sigma^2 + (r \mu)^2}`, where
    :math:`\mu` is the output, or scale times output plus offset.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    sd : float, array_like or str, or dict of these, optional
        Standard deviation of the errors, if they are independent: a number, one for each observation, or the name of a
        variable.
    covariance : array_like of shape (m, m), optional
        Their covariance, if they are not. Give either this or `sd`.
    relative_sd : float, array_like or str, or dict of these, optional
        Standard deviation of further errors, in units of the output: 0.1 is ten per cent. It may stand alone if no
        observation is zero.
    scale, offset : float, array_like or str, or dict of these, optional
        Observed is scale times output plus offset.

    Attributes
    ----------
    data : ndarray of shape (m,)
    sd : ndarray of shape (m,)
        NaN where it is a variable, zero where only the relative one is given.

    Examples
    --------
    >>> likelihood = GaussianLikelihood([1.0, 2.0], sd=0.1)
    >>> likelihood.gradient(np.array([[1.0, 2.1]]))
    array([[ -0., -10.]])

    The standard deviation of one data set is to be sampled too:

    >>> both = GaussianLikelihood({"prey": [30.0, 47.2], "predator": [4.0]}, sd={"prey": "sigma", "predator": 0.5})
    >>> both.parameters
    ('sigma',)
    >>> both.log_density(np.array([[31.0, 46.2, 4.0]]), {"sigma": np.array([1.0])})
    array([-3.06366...])
    """

    _tag = "GaussianLikelihood"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        sd: Argument | None = None,
        *,
        covariance: ArrayLike | None = None,
        relative_sd: Argument | None = None,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        either = None if sd is None or relative_sd is None else 0.0  # a data set may have only one of the two
        super().__init__(data, {"sd": sd, "relative_sd": relative_sd}, scale, offset, either)
        if covariance is not None and relative_sd is not None:
            raise InputError(
                "GaussianLikelihood takes no relative_sd together with covariance; give sd instead of the covariance"
            )
        if (sd is None) == (covariance is None) and (sd is not None or relative_sd is None):
            raise InputError("GaussianLikelihood needs either sd or covariance; give exactly one of them")
        m = int(self.observed.sum())
        self._matrix: np.ndarray | None = None
        self._factor: np.ndarray | None = None  # of all data; the other one is of those that are not missing
        self._observed_factor: np.ndarray | None = None
        if covariance is None:
            self.sd = self._arguments["sd"].values if sd is not None else np.zeros(self.data.size)
            if relative_sd is not None:
                self._require_errors(self._arguments["relative_sd"].values)
            with np.errstate(divide="ignore"):
                log_det = 2.0 * np.log(self._take(self.sd)).sum()
        else:
            self._matrix, self._factor = require_covariance(covariance, self.data.size)
            self.sd = np.sqrt(np.diag(self._matrix))
            self._observed_factor = self._factor
            if not self._complete:
                self._observed_factor = np.linalg.cholesky(self._matrix[np.ix_(self.observed, self.observed)])
            log_det = 2.0 * np.log(np.diag(self._observed_factor)).sum()
        self._constant = -0.5 * (m * np.log(2 * np.pi) + log_det)
        #: Whether the errors depend on no variable and no output: the log-density is then quadratic in the means.
        self._fixed = relative_sd is None and not (sd is not None and self._arguments["sd"].uses)

    @property
    def is_plain(self) -> bool:
        """Whether it is one complete vector of data with errors given as numbers, and nothing else."""
        return (
            self._fixed
            and self._complete
            and self._scale is self._offset is None
            and len(self.outputs) == 1
            and self.outputs[0] == Variable("y", self.data.shape)
        )

    def log_density(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood ``(n,)`` of outputs ``(n, m)`` and its own parameters."""
        if not self._fixed:
            return super().log_density(outputs, own)
        z = self._whiten(self._mean(outputs, own))
        return np.asarray(self._constant - 0.5 * np.einsum("ij,ij->i", z, z))

    def pointwise(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood of each observation, ``(n, m)``; zero where it is missing."""
        if self._factor is not None:
            raise InputError(
                "pointwise log-likelihoods are not defined for errors with a covariance, got correlated observations; "
                "give sd= if they are independent"
            )
        return super().pointwise(outputs, own)

    def identity(self) -> dict[str, Any]:
        """Return what identifies it, as JSON can hold it."""
        found = super().identity()
        return found if self._matrix is None else found | {"covariance": self._matrix.tolist()}

    def _mean_slope(self, mean: np.ndarray, own: Own | None) -> np.ndarray:
        if not self._fixed:
            return super()._mean_slope(mean, own)
        z = self._whiten(mean)
        with np.errstate(over="ignore"):
            if self._observed_factor is None:
                return np.asarray(-z / self._take(self.sd))
            return -solve_triangular(self._observed_factor, z.T, lower=True, trans=1, check_finite=False).T

    def _whiten(self, mean: np.ndarray) -> np.ndarray:
        """Return residuals with unit covariance, :math:`C^{-1} r` where the covariance is :math:`C C^T`."""
        with np.errstate(over="ignore"):  # far enough away, the likelihood is zero, and -inf is right
            residual = mean - self._y
            if self._observed_factor is None:
                return np.asarray(residual / self._take(self.sd))
        # No check here: whether NaN in the outputs is a failure is for the evaluator to judge.
        return solve_triangular(self._observed_factor, residual.T, lower=True, check_finite=False).T

    def _total_sd(self, mean: np.ndarray, given: Given) -> tuple[np.ndarray, ...]:
        r"""Return sd, relative sd, total s, and :math:`r \mu / s`, which is between -1 and 1."""
        sd, relative = given.get("sd", np.zeros(1)), given.get("relative_sd", np.zeros(1))
        part = np.clip(relative * mean, -1e300, 1e300)
        total = np.maximum(np.hypot(sd, part), np.finfo(float).tiny)
        return sd, relative, total, part / total

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        total = self._total_sd(mean, given)[2]
        return -0.5 * ((y - mean) / total) ** 2 - np.log(total) - 0.5 * _LOG_2PI

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        _, relative, total, share = self._total_sd(mean, given)
        z = _residual(y - mean, total)
        return (z + (z**2 - 1.0) * (relative * share)) / total

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        sd, _, total, share = self._total_sd(mean, given)
        excess = _residual(y - mean, total) ** 2 - 1.0  # d total / d sd is sd / total, and so on
        return {"sd": excess * (sd / total) / total, "relative_sd": excess * (mean * share) / total}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        noise = rng.standard_normal(mean.shape)
        if self._factor is not None:
            return mean + noise @ self._factor.T
        return mean + self._total_sd(mean, given)[2] * noise

    def _require_errors(self, relative: np.ndarray) -> None:
        """Raise unless each observation has an error, and zeros one that is not relative."""
        if (neither := (self.sd == 0) & (relative == 0)).any():
            lacking = next(name for name, where in columns(self.outputs).items() if neither[where].any())
            raise InputError(f"the data set {lacking!r} has neither sd nor relative_sd; give one of them")
        if ((self.sd == 0) & (self.data == 0)).any():
            raise InputError(
                "relative_sd alone gives an observation of 0 no error at all, got such data; give sd too"
            )


class StudentTLikelihood(_Observations):
    r"""Observations of the outputs with errors that have Student's t distribution: outliers matter less.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    df : float, array_like or str, or dict of these
        Degrees of freedom; few of them mean heavy tails.
    sd : float, array_like or str, or dict of these
        Scale of the errors, which is their standard deviation if `df` is large.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = StudentTLikelihood([1.0, 2.0, 90.0], df=4, sd="sigma")
    >>> likelihood.log_density(np.array([[1.0, 2.0, 3.0]]), {"sigma": np.array([1.0])})
    array([-21.80761...])
    """

    _tag = "StudentTLikelihood"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        df: Argument,
        sd: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(df=df, sd=sd), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        df, sd = given["df"], given["sd"]
        tail = -0.5 * (df + 1.0) * np.log1p(((y - mean) / sd) ** 2 / df)
        return tail - betaln(0.5, 0.5 * df) - 0.5 * np.log(df) - np.log(sd)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        df, sd = given["df"], given["sd"]
        z = _residual(y - mean, sd)
        return (df + 1.0) * (z / (df + z**2)) / sd

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        df, sd = given["df"], given["sd"]
        z = _residual(y - mean, sd)
        pull = (df + 1.0) * (z * (z / (df + z**2)))
        norm = digamma(0.5 * (df + 1.0)) - digamma(0.5 * df) - 1.0 / df
        return {"df": 0.5 * (norm - np.log1p(z**2 / df) + pull / df), "sd": (pull - 1.0) / sd}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return mean + given["sd"] * rng.standard_t(given["df"], mean.shape)


class LogNormalLikelihood(_Observations):
    """Positive observations whose logarithms are normal about the logarithm of the output.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    sd : float, array_like or str, or dict of these
        Standard deviation of the logarithms; 0.1 is an error of about ten per cent.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = LogNormalLikelihood([1.0, 20.0], sd=0.1)
    >>> likelihood.log_density(np.array([[1.0, 22.0], [1.0, -22.0]]))
    array([-0.68264...,        -inf])
    """

    _tag = "LogNormalLikelihood"
    _least_mean = 0.0
    _data_are = "positive"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        sd: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(sd=sd), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        z = (np.log(y) - np.log(mean)) / given["sd"]
        return -0.5 * z**2 - np.log(y) - np.log(given["sd"]) - 0.5 * _LOG_2PI

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return _residual(np.log(y) - np.log(mean), given["sd"]) / given["sd"] / mean

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        z = _residual(np.log(y) - np.log(mean), given["sd"])
        return {"sd": (z**2 - 1.0) / given["sd"]}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return mean * np.exp(given["sd"] * rng.standard_normal(mean.shape))

    def _allowed(self) -> np.ndarray:
        return np.asarray(self._y > 0)


class PoissonLikelihood(_Observations):
    """Counts whose means are the outputs.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The counts, or several data sets by name. NaN are left out.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> PoissonLikelihood([3, 0], offset="background").gradient(np.ones((1, 2)), {"background": np.array([1.0])})
    array([[ 0.5, -1. ]])
    """

    _tag = "PoissonLikelihood"
    _least_mean = 0.0
    _data_are = "counts, which are whole numbers from 0 on"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, {}, scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return xlogy(y, mean) - mean - gammaln(y + 1.0)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return np.where(y == 0, 0.0, y / mean) - 1.0

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return _draw_poisson(rng, mean)

    def _allowed(self) -> np.ndarray:
        return _are_counts(self._y)


class NegativeBinomialLikelihood(_Observations):
    r"""Counts that vary more than Poisson ones: mean :math:`\mu`, the output, and variance :math:`\mu + \mu^2/\phi`.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The counts, or several data sets by name. NaN are left out.
    dispersion : float, array_like or str, or dict of these
        :math:`\phi`; if it is large, the counts are nearly Poisson.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = NegativeBinomialLikelihood([3, 0], dispersion="phi")
    >>> likelihood.log_density(np.ones((1, 2)), {"phi": np.array([1.0])})
    array([-3.46573...])
    """

    _tag = "NegativeBinomialLikelihood"
    _least_mean = 0.0
    _data_are = "counts, which are whole numbers from 0 on"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        dispersion: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(dispersion=dispersion), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = given["dispersion"]
        ways = -betaln(y + 1.0, phi) - np.log(y + phi)  # log of gamma(y + phi) / gamma(phi) / y!
        return ways + xlogy(y, mean / (mean + phi)) - phi * np.log1p(mean / phi)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = given["dispersion"]
        return np.where(y == 0, -1.0, (y - mean) / mean) * (phi / (mean + phi))

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        phi = given["dispersion"]
        ways = digamma(y + phi) - digamma(phi)
        return {"dispersion": ways - np.log1p(mean / phi) + (mean - y) / (mean + phi)}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = np.broadcast_to(given["dispersion"], mean.shape)
        return _draw_poisson(rng, mean * (rng.standard_gamma(phi) / phi))

    def _allowed(self) -> np.ndarray:
        return _are_counts(self._y)


class BinomialLikelihood(_Observations):
    """Numbers of successes in n trials; the outputs are the logits of the probability of success.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The successes, or several data sets by name. NaN are left out.
    n : int, array_like of int, or dict of these
        Number of trials.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> BinomialLikelihood([3, 0], n=4).log_density(np.zeros((1, 2)))
    array([-4.15888...])
    """

    _tag = "BinomialLikelihood"
    _data_are = "whole numbers from 0 to n"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        n: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(n=n), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        n = given["n"]
        ways = -betaln(y + 1.0, n - y + 1.0) - np.log(n + 1.0)
        return ways - y * np.logaddexp(0.0, -mean) - (n - y) * np.logaddexp(0.0, mean)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return y * expit(-mean) - (given["n"] - y) * expit(mean)

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return rng.binomial(given["n"].astype(np.int64), expit(mean)).astype(float)

    def _allowed(self) -> np.ndarray:
        n = self._arguments["n"]
        if n.uses:
            raise InputError(
                f"n must be whole numbers, got the name {n.uses[0].name!r}; give the numbers of trials"
            )
        if not _are_counts(n.values).all():
            bad = n.values[~_are_counts(n.values)][0]
            raise InputError(f"n must be whole numbers, got {bad:g}; give the numbers of trials")
        return _are_counts(self._y) & (self._y <= self._take(n.values))


class BernoulliLikelihood(BinomialLikelihood):
    """Successes (1) and failures (0); the outputs are the logits of the probability of success.

    Parameters
    ----------
    data : array_like, or dict of array_like
        Zeros and ones, or several data sets by name. NaN are left out.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> BernoulliLikelihood([1, 0]).gradient(np.zeros((1, 2)))
    array([[ 0.5, -0.5]])
    """

    _tag = "BernoulliLikelihood"
    _data_are = "0 or 1"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, 1.0, scale=scale, offset=offset)


def _data_sets(data: ArrayLike | Mapping[str, ArrayLike]) -> tuple[dict[str, np.ndarray], bool]:
    """Return data sets by name, NaN where data are missing, and whether the user named them."""
    if not isinstance(data, Mapping):
        sets = {"y": _real_or_missing(data, "data")}
    elif data:
        require_names(list(data), len(data), "y")
        sets = {str(name): _real_or_missing(values, f"data of {name!r}") for name, values in data.items()}
    else:
        raise InputError("data must have at least one data set, got an empty dict; give observations")
    for name, values in sets.items():
        if not values.size:
            label = f"data of {name!r}" if isinstance(data, Mapping) else "data"
            raise InputError(
                f"{label} must have at least one observation, got shape {values.shape}; give observations"
            )
    if all(np.isnan(values).all() for values in sets.values()):
        raise InputError("data must have at least one observation, got only NaN; give observations")
    return sets, isinstance(data, Mapping)


def _real_or_missing(value: Any, label: str) -> np.ndarray:
    """Return float64 with NaN where data are missing."""
    try:
        missing = np.isnan(np.asarray(value))
    except (TypeError, ValueError):
        return require_real(value, label)  # it raises
    if np.ma.is_masked(value) or not missing.any():
        return require_real(value, label)
    found = require_real(np.where(missing, 0.0, value), label)
    found[missing] = np.nan
    return found


def _require_name(label: str, name: str) -> str:
    """Return the name of a variable, refusing numbers in quotes."""
    try:
        float(name)
    except ValueError:
        if name:
            return str(name)
    raise InputError(
        f"{label} must be real numbers or the name of a variable, got {name!r}; drop the quotes, or fill in a name"
    )


def _all_given(**arguments: Argument) -> dict[str, Argument | None]:
    """Return the arguments if none is None."""
    for label, given in arguments.items():
        if given is None:
            raise InputError(f"{label} is missing; give a number, an array or the name of a variable")
    return dict(arguments)


def _variables_of(quantities: Mapping[str, _Quantity]) -> tuple[str, ...]:
    """Return the names of all variables used, each once."""
    return tuple(dict.fromkeys(use.name for each in quantities.values() for use in each.uses))


def _finite(slopes: np.ndarray) -> np.ndarray:
    """Return slopes with the largest numbers in place of infinities."""
    return np.clip(slopes, -_HUGE, _HUGE)


def _times(slopes: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return slopes by a factor, where zero times infinity is zero."""
    return np.where(slopes == 0, 0.0, _finite(slopes * factor))


def _residual(difference: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return residuals in standard deviations, for slopes; limited to where there is a density."""
    return np.clip(difference / sd, -_FAR, _FAR)


def _are_counts(values: np.ndarray) -> np.ndarray:
    return (values >= 0) & (values == np.floor(values)) & (values <= _MOST_COUNTS)


def _draw_poisson(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Draw counts as floats; NaN where the mean is too large."""
    known = mean <= _MOST_POISSON
    return np.where(known, rng.poisson(np.where(known, mean, 0.0)), np.nan)


def _one_or_all(values: np.ndarray) -> float | list[float]:
    """Return one number if all are the same."""
    return float(values[0]) if (values == values[0]).all() else values.tolist()
