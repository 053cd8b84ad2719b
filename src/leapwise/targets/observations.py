r"""Observations: data sets, missing values, scale and offset, and batching, for every family of likelihoods.

`Likelihood` is the form of a likelihood. `Observations` has all of it but the pointwise maths of a family:
``_log_pdf``, its derivatives ``_slope`` and ``_argument_slopes``, and ``_draw``. The families are in
`leapwise.targets.likelihoods`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_names, require_positive, require_real
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
class Quantity:
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
    ) -> Quantity:
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


class Observations:
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

        def parse(label: str, given: Argument, **rules: Any) -> Quantity:
            return Quantity.parse(label, given, self.outputs, named, **rules)

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
            _LOG.warning(
                "%d of %d data are missing (NaN) and left out", (~self.observed).sum(), self.data.size
            )

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

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Known arguments, each a number or an array: ``y_sd`` are the standard deviations of the data set y."""
        found = {}
        for label, quantity in self._quantities.items():
            for each, where in zip(self.outputs, columns(self.outputs).values(), strict=True):
                values = quantity.values[where]
                if not np.isnan(values).any():  # NaN stands for a variable
                    same = (values == values[0]).all()
                    found[f"{each.name}_{label}"] = values[0] if same else values.reshape(each.shape)
        return {name: np.asarray(value) for name, value in found.items()}

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

    def _values(self, quantity: Quantity, own: Own | None, n: int) -> np.ndarray:
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


def _variables_of(quantities: Mapping[str, Quantity]) -> tuple[str, ...]:
    """Return the names of all variables used, each once."""
    return tuple(dict.fromkeys(use.name for each in quantities.values() for use in each.uses))


def _finite(slopes: np.ndarray) -> np.ndarray:
    """Return slopes with the largest numbers in place of infinities."""
    return np.clip(slopes, -_HUGE, _HUGE)


def _times(slopes: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return slopes by a factor, where zero times infinity is zero."""
    return np.where(slopes == 0, 0.0, _finite(slopes * factor))


def _one_or_all(values: np.ndarray) -> float | list[float]:
    """Return one number if all are the same."""
    return float(values[0]) if (values == values[0]).all() else values.tolist()
