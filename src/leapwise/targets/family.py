"""What all families of prior distributions share: checks of their arguments, batches, and support.

A family describes one variable, which may have any shape. An argument is a number, an array that broadcasts to the
shape, or the name of another variable of the same `leapwise.targets.priors.Prior`. So the gradient is taken in the
value and in the arguments.

A subclass writes the pointwise maths: ``_log``, ``_slopes`` and ``_draw``. It may overflow or divide by zero there: far
out, and at the ends of the support, the limits are what is wanted, and whatever is not a number becomes a density of
zero.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_positive, require_real, require_whole
from leapwise.errors import InputError
from leapwise.targets.variables import require_dims

_LEAST, _MOST = np.finfo(float).tiny, np.finfo(float).max

Array = np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """What all families share: checks of the arguments, batches, support.

    Parameters
    ----------
    shape : int or tuple of int
        Of the variable; that of the arguments if it is not given.
    dims : str or tuple of str, optional
        Names of its axes in results, one for each.

    Examples
    --------
    >>> from leapwise.targets.families import Normal
    >>> family = Normal("mu", [1.0, 2.0], dims="place")
    >>> family, family.named
    (Normal('mu', [1.0, 2.0], dims=('place',)), {'mean': 'mu'})
    """

    shape: Any = field(default=(), kw_only=True)
    dims: Any = field(default=None, kw_only=True)

    #: A name that ledgers may store: it must stay when the class is renamed.
    tag: ClassVar[str]
    #: Arguments that must be positive, and those that must be numbers.
    positive: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()
    #: The support of families that have no arguments ``lower`` and ``upper``.
    limits: ClassVar[tuple[float, float]] = (-np.inf, np.inf)

    def __post_init__(self) -> None:
        for name in self.arguments:
            value = self._checked(name, getattr(self, name))
            object.__setattr__(self, name, value)
        object.__setattr__(self, "shape", self._whole_shape())
        if self.dims is not None:
            object.__setattr__(self, "dims", require_dims("dims", self.dims, self.shape))
        lower, upper = self.support
        if (bad := np.flatnonzero(~(lower < upper))).size:
            ends = f"{lower.flat[bad[0]]:g} and {upper.flat[bad[0]]:g}"
            raise InputError(f"{self._kind} needs lower < upper, got {ends}; swap or widen them")

    def __repr__(self) -> str:
        parts = [_show(getattr(self, name)) for name in self.arguments]
        if self.shape != self._shape_of_numbers():
            parts.append(f"shape={self.shape}")
        if self.dims is not None:
            parts.append(f"dims={self.dims}")
        return f"{self._kind}({', '.join(parts)})"

    @property
    def _kind(self) -> str:
        return type(self).__name__

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments, in their order."""
        return tuple(each.name for each in fields(self)[2:])

    @cached_property
    def named(self) -> dict[str, str]:
        """The arguments that are names of variables, and those names."""
        given = {name: getattr(self, name) for name in self.arguments}
        return {name: value for name, value in given.items() if isinstance(value, str)}

    @cached_property
    def support(self) -> tuple[Array, Array]:
        """Lower and upper ends of the support, of the variable's shape; infinite where there is none."""
        own = [getattr(self, end) for end in ("lower", "upper") if end in self.arguments]
        lower, upper = (
            np.broadcast_to(np.asarray(end, dtype=float), self.shape) for end in own or self.limits
        )
        return lower, upper

    def log_density(self, values: Array, **named: Array) -> Array:
        """Return the log-density ``(n,)`` of values ``(n, *shape)``; -inf outside the support, never NaN.

        Parameters
        ----------
        values : ndarray of shape (n, *shape)
        **named : ndarray of shape (n,) or (n, *shape)
            Values of the arguments that are names.
        """
        values = np.asarray(values, dtype=float)
        with np.errstate(all="ignore"):
            total = _sum_entries(self._log(values, *self._numbers(named)))
        inside = self._inside(values, named).all(axis=tuple(range(1, values.ndim)))
        return np.where(inside & (total < np.inf), total, -np.inf)  # NaN is not below infinity

    def gradients(self, values: Array, **named: Array) -> tuple[Array, dict[str, Array]]:
        """Return the gradient in the values, and in each argument that is a name; 0 where it is not finite.

        Takes the same arguments as `log_density`, and returns arrays of their shapes.
        """
        values = np.asarray(values, dtype=float)
        with np.errstate(all="ignore"):
            slopes = self._slopes(values, *self._numbers(named))
            inside = self._inside(values, named)
            free = ("", *(name for name in self.arguments if name not in self.fixed))
            found = {
                name: np.where(inside & np.isfinite(slope), slope, 0.0)
                for name, slope in zip(free, slopes, strict=True)
                if not name or name in named
            }
        in_values = found.pop("")
        return in_values, {
            name: _sum_entries(slope) if np.ndim(named[name]) < values.ndim else slope
            for name, slope in found.items()
        }

    def sample(self, rng: np.random.Generator, **named: ArrayLike) -> Array:
        """Draw one value, of the variable's shape, given those of the arguments that are names."""
        given = {
            # A draw of another variable may be rounded to 0 or infinity, which no generator takes.
            name: np.clip(value, _LEAST, _MOST) if name in self.positive else np.asarray(value)
            for name, value in named.items()
        }
        numbers = [given.get(name, getattr(self, name)) for name in self.arguments]
        with np.errstate(all="ignore"):
            return np.asarray(self._draw(rng, *numbers), dtype=float).reshape(self.shape)

    def identity(self) -> dict[str, Any]:
        """Return what identifies it, as plain data: a tag and the arguments; infinite limits are None."""
        return {"family": self.tag} | {name: plain(getattr(self, name)) for name in self.arguments}

    def _log(self, x: Array, *arguments: Any) -> Array:
        """Return log-densities that sum to those of the rows, ``(n, ...)``."""
        raise NotImplementedError

    def _slopes(self, x: Array, *arguments: Any) -> tuple[Any, ...]:
        """Return derivatives in the value and in each argument that is not fixed, to broadcast to that of `x`."""
        raise NotImplementedError

    def _draw(self, rng: np.random.Generator, *arguments: Any) -> Any:
        """Return one value of the variable's shape."""
        raise NotImplementedError

    def _checked(self, name: str, value: Any) -> float | Array | str:
        """Return an argument as a number, an array of numbers or a name."""
        if isinstance(value, str):
            if name in self.fixed:
                raise InputError(
                    f"{name} of {self._kind} must be numbers, got {value!r}; only arguments that do not decide the "
                    "support or a covariance may name a variable"
                )
            return str(value)
        numbers = self._as_numbers(name, value)
        numbers.flags.writeable = False
        return numbers if numbers.ndim else float(numbers)

    def _as_numbers(self, name: str, value: Any) -> Array:
        what = f"{name} of {self._kind}"
        numbers = require_real(value, what)
        return require_positive(numbers, what, numbers.shape).copy() if name in self.positive else numbers

    def _shape_of_numbers(self) -> tuple[int, ...]:
        """Return the shape that the arguments have together; ValueError if they have none."""
        shapes = (np.shape(getattr(self, name)) for name in self.arguments if name not in self.named)
        return np.broadcast_shapes((), *shapes)

    def _whole_shape(self) -> tuple[int, ...]:
        """Return the shape, which the arguments must broadcast to."""
        asked = self.shape if isinstance(self.shape, (tuple, list)) else (self.shape,)
        shape = tuple(require_whole("each number in shape", length, 1) for length in asked)
        try:
            whole = np.broadcast_shapes(shape, self._shape_of_numbers())
        except ValueError:
            whole = (0,)
        if 0 in whole or (shape and whole != shape):
            numbers = (name for name in self.arguments if name not in self.named)
            shapes = ", ".join(f"{name} {np.shape(getattr(self, name))}" for name in numbers)
            raise InputError(
                f"arguments of {self._kind} must broadcast to its shape{f' {shape}' if shape else ''}, got shapes "
                f"{shapes}; give one number for all entries, or one for each"
            )
        return whole

    def _numbers(self, named: Mapping[str, Array]) -> list[Any]:
        """Return the arguments so that they broadcast with values ``(n, *shape)``."""
        return [
            _widened(np.asarray(named[name]), len(self.shape) + 1)
            if name in self.named
            else getattr(self, name)
            for name in self.arguments
        ]

    def _inside(self, values: Array, named: Mapping[str, Array]) -> Array:
        """Return for each entry whether it is in the support, and whether the arguments allow any."""
        lower, upper = self.support
        inside = (values >= lower) & (values <= upper)
        for name in self.named:
            if name in self.positive:
                inside &= _widened(np.asarray(named[name]), values.ndim) > 0
        return np.asarray(inside)


def _sum_entries(terms: Array) -> Array:
    """Return the sum over all axes but the first."""
    return np.asarray(terms.sum(axis=tuple(range(1, terms.ndim))))


def _widened(values: Array, ndim: int) -> Array:
    """Return one number for each row so that it broadcasts over the entries of the row."""
    return values.reshape(*values.shape, *(1,) * (ndim - values.ndim))


def _show(value: Any) -> str:
    """Return an argument for people, never long."""
    if isinstance(value, np.ndarray):
        return reprlib.repr(value.tolist())
    return f"{value:.12g}" if isinstance(value, float) else repr(value)


def plain(value: Any) -> Any:
    """Return an argument as JSON can hold it; equal numbers are one number, infinities None.

    Examples
    --------
    >>> plain(np.ones(3)), plain([1.0, np.inf]), plain("tau")
    (1.0, [1.0, None], 'tau')
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        return value
    if array.size and (array == array.flat[0]).all():
        return float(array.flat[0]) if np.isfinite(array.flat[0]) else None
    entries = array.astype(object)
    entries[~np.isfinite(array)] = None
    return entries.tolist()
