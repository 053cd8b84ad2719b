"""A posterior given by its log-density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from understudy.errors import InputError, OutputError
from understudy.targets.transforms import Bounds, Transform


@dataclass(frozen=True, eq=False)
class Raw:
    """What a target says about n points, before transforms: checked for shape and dtype, not for finiteness."""

    log_density: np.ndarray  # (n,)
    gradient: np.ndarray | None = None  # (n, dim)
    outputs: np.ndarray | None = None  # (n, m), of a forward model


class AnyTarget(Protocol):
    """What the evaluator needs to know of a target."""

    dim: int
    names: str | tuple[str, ...]
    transform: Transform
    vectorized: bool
    has_gradient: bool

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Evaluate the rows of ``(n, dim)``; a target that is not vectorised is given one row at a time."""
        ...

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw parameters ``(dim,)`` to start a chain from, if the target knows a prior to draw from."""
        ...


class Target:
    """A posterior given by its log-density, up to a constant.

    Parameters
    ----------
    log_density : callable
        Takes parameters ``(dim,)`` and returns a number; -inf outside the support. With ``vectorized=True``
        takes ``(n, dim)`` and returns ``(n,)``.
    gradient : callable, optional
        Takes the same and returns the gradient of the log-density, ``(dim,)`` or ``(n, dim)``.
    dim : int
        Number of parameters.
    names : str or sequence of str, optional
        One name for the whole vector (default ``"x"``), or one name for each parameter.
    bounds : pair or sequence of pairs, optional
        ``(lower, upper)`` for each parameter (one pair holds for all), None where there is no bound. Chains
        move in unconstrained space; the Jacobian is added for you, and draws come back inside the bounds.
    vectorized : bool
        Whether the callables take many points at once.
    returns_gradient : bool
        Set it if `log_density` returns ``(log_density, gradient)``.
    value_and_gradient : callable, optional
        Returns ``(log_density, gradient)`` together, for models where they share their work; used instead of
        `gradient` whenever both are needed, while `log_density` serves where a value is enough.

    Examples
    --------
    >>> target = Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=3)
    >>> target
    Target(dim=3, gradient=True, vectorized=False)
    """

    def __init__(
        self,
        log_density: Callable[[np.ndarray], Any],
        gradient: Callable[[np.ndarray], Any] | None = None,
        *,
        dim: int,
        names: str | Sequence[str] | None = None,
        bounds: Bounds | None = None,
        vectorized: bool = False,
        returns_gradient: bool = False,
        value_and_gradient: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        require_callable("log_density", log_density)
        if gradient is not None:
            require_callable("gradient", gradient)
        if value_and_gradient is not None:
            require_callable("value_and_gradient", value_and_gradient)
        if (gradient is not None) + (value_and_gradient is not None) + returns_gradient > 1:
            raise InputError(
                "give the gradient in one way only: gradient=, value_and_gradient= or returns_gradient=True"
            )
        self.dim = require_dim(dim)
        self.names = require_names(names, self.dim, default="x")
        self.transform = Transform.from_bounds(bounds, self.dim)
        self.vectorized = bool(vectorized)
        self.has_gradient = bool(gradient or value_and_gradient or returns_gradient)
        self._log_density = log_density
        self._gradient = gradient
        self._both = log_density if returns_gradient else value_and_gradient
        self._value_is_pair = bool(returns_gradient)

    def __repr__(self) -> str:
        return f"Target(dim={self.dim}, gradient={self.has_gradient}, vectorized={self.vectorized})"

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Call the user's functions on the rows of `parameters` and check what comes back."""
        point = parameters if self.vectorized else parameters[0]
        n = len(parameters)
        if gradient and self._both is not None:
            value, slope = _pair(self._both(point), "value_and_gradient")
        elif gradient:
            assert self._gradient is not None
            value, slope = self._log_density(point), self._gradient(point)
        else:
            value, slope = self._log_density(point), None
            if self._value_is_pair:
                value, slope = _pair(value, "log_density, with returns_gradient=True,")[0], None
        return Raw(
            log_density=checked_scalars(value, n, self.vectorized, "log_density"),
            gradient=None if slope is None else checked_rows(slope, n, self.dim, self.vectorized, "gradient"),
        )

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Return None: a bare log-density has no prior to draw from."""
        return None


def require_callable(name: str, value: object) -> None:
    """Raise unless `value` can be called."""
    if not callable(value):
        raise InputError(f"{name} must be a function of the parameters, got {type(value).__name__}")


def require_dim(dim: object) -> int:
    """Return `dim` if it is a positive integer."""
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
        raise InputError(f"dim must be a positive integer, got {dim!r}; give the number of parameters")
    return int(dim)


def require_names(names: str | Sequence[str] | None, dim: int, default: str) -> str | tuple[str, ...]:
    """Return one name for the vector, or a tuple of `dim` different names."""
    if names is None:
        return default
    if isinstance(names, str):
        return names
    listed = tuple(names)
    if not all(isinstance(name, str) for name in listed) or len(set(listed)) != len(listed):
        raise InputError(f"names must be different strings, got {list(listed)!r}")
    if len(listed) != dim:
        raise InputError(f"names must have one entry for each of the {dim} parameters, got {len(listed)}")
    return listed


def checked_scalars(value: Any, n: int, vectorized: bool, what: str) -> np.ndarray:
    """Return `value` as float64 of shape ``(n,)``, or say what is wrong with it."""
    array = _real(value, what)
    expected = f"shape ({n},), one number a row," if vectorized else "a single number"
    if array.size != n or (vectorized and array.shape != (n,)):
        hint = "sum over the data inside the function" if array.size > n else "return one value a point"
        raise OutputError(f"{what} must return {expected} got shape {array.shape}; {hint}")
    return array.reshape(n)


def checked_rows(value: Any, n: int, width: int | None, vectorized: bool, what: str) -> np.ndarray:
    """Return `value` as float64 of shape ``(n, width)`` (any width if None), or say what is wrong with it."""
    array = _real(value, what)
    if not vectorized:
        array = array[None]
    if array.ndim != 2 or len(array) != n or (width is not None and array.shape[1] != width):
        expected = f"({n}, {width or 'm'})" if vectorized else f"({width or 'm'},)"
        got = array.shape if vectorized else array.shape[1:]
        raise OutputError(f"{what} must return shape {expected}, got {got}; one entry for each component")
    return array


def _real(value: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise OutputError(f"{what} must return real numbers, got {type(value).__name__}: {error}") from error
    if array.dtype.kind not in "fiu":
        raise OutputError(
            f"{what} must return real numbers, got dtype {array.dtype} ({type(value).__name__}); "
            "convert the result to float (and take the real part only if the model means it)"
        )
    return array.astype(float, copy=False)


def _pair(value: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise OutputError(f"{what} must return (log_density, gradient), got {type(value).__name__}")
    return value[0], value[1]
