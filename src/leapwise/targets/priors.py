"""A prior composed of named variables, which may depend on each other.

The log-density is the sum over the variables of that of each given those that its arguments name: for
``Prior(tau=HalfNormal(1), theta=Normal(0, "tau", shape=8))`` it is log p(tau) + log p(theta | tau). Such names make a
hierarchy. They form a graph without cycles, so a draw begins with the variables that depend on none.

The families are in `leapwise.targets.families`. Frozen distributions of scipy.stats may be used in their place.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from leapwise.checks import require_names, require_positive
from leapwise.errors import InputError
from leapwise.targets import families as known
from leapwise.targets.family import Family, plain
from leapwise.targets.variables import Variable, columns, lengths_of_dims, split

#: Step of central differences relative to the scale: the error of rounding is then as large as that of the formula.
_STEP = float(np.cbrt(np.finfo(float).eps))
#: Largest step relative to the distance from the ends of the support, where log-densities bend without end. A guess.
_NEAR_END = 1e-4


class Prior:
    """A prior of named variables of any shape.

    Parameters
    ----------
    **variables : Family or frozen distribution of scipy.stats
        One for each variable. Their order is that of the vector of parameters. An argument of a family may be the name
        of another variable, in any order. Distributions of scipy are continuous, or a ``multivariate_normal``; those
        that have a closed form here take it. The gradient of the others is made of differences of their ``logpdf``:
        it only steers the proposals, and draws stay exact with any fixed force, so nothing is lost but some speed.

    Attributes
    ----------
    families : dict of str to Family
        The distribution of each variable.
    variables : tuple of Variable
        Their names, shapes and dims.
    dim : int
        Number of parameters.
    names : tuple of str
        A label for each parameter.

    Examples
    --------
    >>> from leapwise.targets.families import HalfNormal, LogNormal, Normal
    >>> prior = Prior(a=LogNormal(0, 1), tau=HalfNormal(2), theta=Normal(0, "tau", shape=3))
    >>> prior
    Prior(a=LogNormal(0, 1), tau=HalfNormal(2), theta=Normal(0, 'tau', shape=(3,)))
    >>> prior.names
    ('a', 'tau', 'theta[0]', 'theta[1]', 'theta[2]')
    >>> prior.log_density(np.array([[1.0, 1.0, 0.0, 0.0, 0.0]]))
    array([-4.71969...])
    """

    def __init__(self, /, **variables: Any) -> None:
        if not variables:
            raise InputError("Prior needs at least one variable, got none; give for example a=Normal(0, 1)")
        for name in variables:
            if not name.isidentifier():
                raise InputError(
                    f"names of variables must be as in Python, got {name!r}; use letters, digits and _ only"
                )
        require_names(list(variables), len(variables), "")
        self.families = {name: _as_variable(name, value) for name, value in variables.items()}
        self.variables = tuple(Variable(name, each.shape, each.dims) for name, each in self.families.items())
        lengths_of_dims(self.variables)  # it raises unless they agree
        self._order = _sorted(self.families)
        for name, family in self.families.items():
            _check_named(name, family, self.families)
        self._columns = columns(self.variables)
        self.dim = sum(each.size for each in self.variables)
        self.names = tuple(label for each in self.variables for label in each.labels)

    def __repr__(self) -> str:
        return f"Prior({', '.join(f'{name}={family!r}' for name, family in self.families.items())})"

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        """The support of each parameter as (lower, upper), with None where there is no end.

        Examples
        --------
        >>> from leapwise.targets.families import HalfNormal, Uniform
        >>> Prior(a=HalfNormal(1), b=Uniform(-1, 1)).bounds
        [(0.0, None), (-1.0, 1.0)]
        """
        ends = [np.concatenate([each.support[i].ravel() for each in self.families.values()]) for i in (0, 1)]
        lower, upper = ([end if np.isfinite(end) else None for end in side.tolist()] for side in ends)
        return list(zip(lower, upper, strict=True))

    @property
    def locations(self) -> dict[str, tuple[Any, Any]]:
        """Mean and sd of each `Normal` variable that names a variable in one of them: numbers, arrays or names.

        Examples
        --------
        >>> from leapwise.targets.families import HalfNormal, Normal
        >>> Prior(tau=HalfNormal(1), theta=Normal(0, "tau", shape=8)).locations
        {'theta': (0.0, 'tau')}
        """
        return {
            name: (family.mean, family.sd)
            for name, family in self.families.items()
            if isinstance(family, known.Normal) and family.named
        }

    @property
    def is_hierarchical(self) -> bool:
        """Whether an argument of a variable is the name of another one."""
        return any(self.parents(each.name) for each in self.variables)

    def parents(self, name: str) -> tuple[str, ...]:
        """Return the variables that the arguments of this one name, each once.

        Examples
        --------
        >>> from leapwise.targets.families import HalfNormal, Normal
        >>> Prior(tau=HalfNormal(1), theta=Normal(0, "tau", shape=8)).parents("theta")
        ('tau',)
        """
        if name not in self.families:
            raise InputError(
                f"the prior has no variable {name!r}; it has {', '.join(map(repr, self.families))}"
            )
        return tuple(dict.fromkeys(self.families[name].named.values()))

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of parameters ``(n, dim)``; -inf outside the support."""
        values = self._split(points)
        terms = [
            family.log_density(values[name], **self._named(family, values))
            for name, family in self.families.items()
        ]
        return np.asarray(np.sum(terms, axis=0))

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient, ``(n, dim)``; finite everywhere, but meaningless outside the support."""
        values = self._split(points)
        found = np.zeros((len(points), self.dim))
        for name, family in self.families.items():
            in_values, in_arguments = family.gradients(values[name], **self._named(family, values))
            slopes = [(name, in_values), *((family.named[key], slope) for key, slope in in_arguments.items())]
            for variable, slope in slopes:
                where = self._columns[variable]
                found[:, where] += slope.reshape(len(points), where.stop - where.start)
        return found

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one point, ``(dim,)``: each variable after those that it names."""
        values: dict[str, np.ndarray] = {}
        for name in self._order:
            family = self.families[name]
            values[name] = family.sample(rng, **self._named(family, values))
        return np.concatenate([values[each.name].ravel() for each in self.variables])

    def identity(self) -> dict[str, Any]:
        """Return what identifies the prior, as plain data that JSON can hold; dims do not count.

        Examples
        --------
        >>> from leapwise.targets.families import Normal
        >>> Prior(a=Normal(0, 2)).identity()
        {'variables': [{'name': 'a', 'shape': [], 'family': 'normal', 'mean': 0.0, 'sd': 2.0}]}
        """
        return {
            "variables": [
                {"name": name, "shape": list(family.shape)} | family.identity()
                for name, family in self.families.items()
            ]
        }

    def _split(self, points: np.ndarray) -> dict[str, np.ndarray]:
        if np.ndim(points) != 2 or np.shape(points)[1] != self.dim:
            raise InputError(
                f"points must have shape (n, {self.dim}), got {np.shape(points)}; give one point per row"
            )
        return split(self.variables, np.asarray(points, dtype=float))

    @staticmethod
    def _named(family: Family, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the values of the arguments that are names."""
        return {argument: values[name] for argument, name in family.named.items()}


@dataclass(frozen=True, eq=False, repr=False)
class ScipyFamily(Family):
    """A frozen continuous distribution of scipy.stats that has no closed form here.

    Its gradient is made of central differences of its ``logpdf``, inside the support. Trajectories with any fixed force
    can be corrected, so this costs no exactness.

    Parameters
    ----------
    distribution : frozen distribution

    Examples
    --------
    >>> from scipy import stats
    >>> family = ScipyFamily(stats.weibull_min(2.0))
    >>> family.gradients(np.array([1.0]))[0].round(6)
    array([-1.])
    """

    distribution: Any
    _quartiles: np.ndarray = field(init=False)

    tag = "scipy"

    def __post_init__(self) -> None:
        shapes = (np.shape(value) for value in _scipy_parameters(self.distribution).values())
        object.__setattr__(self, "shape", np.broadcast_shapes((), *shapes))
        if np.isnan(self.support).any():
            raise InputError(
                f"{self!r} has parameters that scipy.stats does not accept; see its documentation for their limits"
            )
        super().__post_init__()
        with np.errstate(all="ignore"):
            quartiles = np.stack([np.asarray(self.distribution.ppf(share)) for share in (0.25, 0.5, 0.75)])
            heights = self.distribution.logpdf(quartiles)
        if not np.isfinite(heights).any(axis=0).all():
            raise InputError(
                f"{self!r} must have a finite logpdf at its quartiles, got {reprlib.repr(heights.tolist())}; "
                "check its parameters"
            )
        object.__setattr__(self, "_quartiles", quartiles)

    def __repr__(self) -> str:
        parts = [reprlib.repr(np.asarray(value).tolist()) for value in self.distribution.args]
        parts += [
            f"{key}={np.asarray(value).tolist()!r:.60}" for key, value in self.distribution.kwds.items()
        ]
        return f"{self.distribution.dist.name}({', '.join(parts)})"

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """None: scipy has its arguments."""
        return ()

    @cached_property
    def support(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the support, of the variable's shape."""
        lower, upper = self.distribution.support()
        return np.broadcast_to(lower, self.shape), np.broadcast_to(upper, self.shape)

    def identity(self) -> dict[str, Any]:
        """Return its name, parameters and quartiles; a histogram has no parameters that tell it from another."""
        parameters = {key: plain(value) for key, value in _scipy_parameters(self.distribution).items()}
        return {"family": self.tag, "distribution": self.distribution.dist.name} | {
            "parameters": parameters,
            "quartiles": plain(self._quartiles),
        }

    def _log(self, x: np.ndarray, *arguments: Any) -> np.ndarray:
        return np.asarray(self.distribution.logpdf(x))

    def _slopes(self, x: np.ndarray, *arguments: Any) -> tuple[Any, ...]:
        first, middle, third = self._quartiles
        lower, upper = self.support
        to_end = np.minimum(x - lower, upper - x)
        step = np.minimum(_STEP * np.maximum(np.abs(x - middle), third - first), _NEAR_END * to_end)
        ahead, behind = x + step, x - step
        return ((self._log(ahead) - self._log(behind)) / (ahead - behind),)

    def _draw(self, rng: np.random.Generator, *arguments: Any) -> Any:
        return self.distribution.rvs(size=self.shape, random_state=rng)


def as_family(value: Any) -> Family:
    """Return a family, or that of a frozen distribution of scipy.stats.

    Examples
    --------
    >>> from scipy import stats
    >>> as_family(stats.expon(scale=[0.5, 2.0])), as_family(stats.weibull_min(2.0))
    (Exponential([2.0, 0.5]), weibull_min(2.0))
    """
    if isinstance(value, Family):
        return value
    from scipy import stats  # slow to import, and only those who use it need it

    distribution = getattr(value, "dist", value)
    if isinstance(distribution, stats.rv_discrete):
        raise InputError(
            f"distributions must be continuous, got the discrete {distribution.name} of scipy.stats; sum it out, or "
            "use a continuous one"
        )
    if type(value).__name__ == "multivariate_normal_frozen":
        return known.MultivariateNormal(value.mean, value.cov_object.covariance)
    if isinstance(value, stats.rv_continuous) or value is stats.multivariate_normal:
        name = getattr(value, "name", None) or "multivariate_normal"
        raise InputError(
            f"distributions must have their parameters, got {name} of scipy.stats without any; call it with them, "
            f"as in stats.{name}(...)"
        )
    if not isinstance(distribution, stats.rv_continuous):
        raise InputError(
            "a variable must be a family such as Normal(0, 1) or a frozen distribution of scipy.stats, got "
            f"{value!r:.80}; give one of these"
        )
    own = type(getattr(stats, distribution.name or "", None)) is type(distribution)
    return (_closed_form(value) if own else None) or ScipyFamily(value)


def _scipy_parameters(distribution: Any) -> dict[str, np.ndarray]:
    """Return the parameters of a frozen distribution by name, loc and scale as well."""
    names = [name.strip() for name in (distribution.dist.shapes or "").split(",") if name.strip()]
    given = dict(zip([*names, "loc", "scale"], distribution.args, strict=False)) | distribution.kwds
    return {
        key: np.asarray(value, dtype=float) for key, value in ({"loc": 0.0, "scale": 1.0} | given).items()
    }


def _closed_form(distribution: Any) -> Family | None:
    """Return the family of a distribution of scipy's own, None if there is none with such parameters."""
    given = _scipy_parameters(distribution)
    shape = np.broadcast_shapes(*(value.shape for value in given.values()))
    loc, scale = given["loc"], given["scale"]
    require_positive(scale, f"scale of {distribution.dist.name}", scale.shape)
    at_zero = not loc.any()
    match distribution.dist.name:
        case "norm":
            return known.Normal(loc, scale, shape=shape)
        case "cauchy":
            return known.Cauchy(loc, scale, shape=shape)
        case "t":
            return known.StudentT(given["df"], loc, scale, shape=shape)
        case "uniform":
            return known.Uniform(loc, loc + scale, shape=shape)
        case "truncnorm":
            return known.TruncatedNormal(
                loc, scale, loc + given["a"] * scale, loc + given["b"] * scale, shape=shape
            )
        case "lognorm" if at_zero:
            return known.LogNormal(np.log(scale), given["s"], shape=shape)
        case "halfnorm" if at_zero:
            return known.HalfNormal(scale, shape=shape)
        case "halfcauchy" if at_zero:
            return known.HalfCauchy(scale, shape=shape)
        case "expon" if at_zero:
            return known.Exponential(1 / scale, shape=shape)
        case "gamma" if at_zero:
            return known.Gamma(given["a"], 1 / scale, shape=shape)
        case "invgamma" if at_zero:
            return known.InverseGamma(given["a"], scale, shape=shape)
        case "beta" if at_zero and (scale == 1).all():
            return known.Beta(given["a"], given["b"], shape=shape)
        case "loguniform" | "reciprocal" if at_zero:
            return known.LogUniform(given["a"] * scale, given["b"] * scale, shape=shape)
    return None


def _as_variable(name: str, value: Any) -> Family:
    try:
        return as_family(value)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _sorted(families: Mapping[str, Family]) -> tuple[str, ...]:
    """Return the variables so that each comes after those that it names, which must exist."""
    listed = ", ".join(families)
    for name, family in families.items():
        for argument, parent in family.named.items():
            if parent == name:
                raise InputError(
                    f"{argument} of {name} names {name} itself; give a number, or another variable"
                )
            if parent not in families:
                raise InputError(
                    f"{argument} of {name} names {parent!r}, but the variables are {listed}; add it, or give a number"
                )
    try:
        graph = {name: tuple(family.named.values()) for name, family in families.items()}
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise InputError(
            f"variables must not depend on each other in a circle, got {' -> '.join(error.args[1])}; "
            "give a number in place of one of the names"
        ) from error


def _check_named(name: str, family: Family, families: Mapping[str, Family]) -> None:
    """Raise unless the variables that one names have shapes and supports that fit."""
    for argument, parent in family.named.items():
        shape, (lower, _) = families[parent].shape, families[parent].support
        if shape not in ((), family.shape):
            raise InputError(
                f"{argument} of {name} names {parent}, which must be a number or have the shape {family.shape} of "
                f"{name}, got shape {shape}; give {name} the shape {shape}, or {parent} another"
            )
        if argument in family.positive and not (lower >= 0).all():
            raise InputError(
                f"{argument} of {name} must be positive, but {parent}={families[parent]!r} may be negative; give "
                f"{parent} a family of positive numbers, such as HalfNormal"
            )
