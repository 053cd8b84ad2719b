"""How a target's functions are called, by keyword or with a vector, and checks of what they return.

What they return is checked for shape and dtype, and copied into new float64 arrays.

A result of the wrong shape or dtype is an `OutputError`. Whether the numbers are finite is for the evaluator to judge
(`leapwise.execution.evaluator`); arguments that users pass are checked in `leapwise.checks`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise.errors import InputError, OutputError
from leapwise.targets.variables import Variable, split


@dataclass(frozen=True, eq=False)
class Values:
    """Log-densities of n points, in the target's own parameters, with what else was computed there.

    Attributes
    ----------
    log_density : ndarray of shape (n,)
    gradient : ndarray of shape (n, dim) or None
        Of the log-density; None if it was not asked for.
    outputs : ndarray of shape (n, m) or None
        Of a forward model; NaN in rows where it was not run, None if there is none or it was not run at all.
    n_run : int or None
        How many rows the model was run on, if not on all of them.

    Examples
    --------
    >>> values = Values(np.array([-1.0, np.nan]))
    >>> values.failures()
    array([False,  True])
    """

    log_density: np.ndarray
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None
    n_run: int | None = None

    def failures(self) -> np.ndarray:
        """Return which rows are NaN, +inf, or have a non-finite gradient where the density is not zero."""
        failed = ~(self.log_density < np.inf)  # NaN as well
        if self.gradient is not None:
            failed |= ~np.isfinite(self.gradient).all(axis=1) & (self.log_density > -np.inf)
        return failed

    def row(self, i: int) -> Values:
        """Return row `i` alone."""
        return Values(
            self.log_density[i : i + 1],
            None if self.gradient is None else self.gradient[i : i + 1],
            None if self.outputs is None else self.outputs[i : i + 1],
        )

    def scatter(self, rows: np.ndarray, log_density: np.ndarray) -> Values:
        """Return these values at `rows`, a mask; the others were not run and have the `log_density` given."""
        full = np.array(log_density)
        full[rows] = self.log_density
        gradient = outputs = None
        if self.gradient is not None:
            gradient = np.zeros((len(rows), self.gradient.shape[1]))
            gradient[rows] = self.gradient
        if self.outputs is not None:
            outputs = np.full((len(rows), self.outputs.shape[1]), np.nan)
            outputs[rows] = self.outputs
        return Values(full, gradient, outputs, len(self.log_density) if self.n_run is None else self.n_run)


def stack(parts: Sequence[Values]) -> Values:
    """Join values of the same kind; where the model was not run, its outputs are NaN."""
    gradients = [part.gradient for part in parts if part.gradient is not None]
    width = next((part.outputs.shape[1] for part in parts if part.outputs is not None), None)
    outputs = None
    if width is not None:
        not_run = [np.full((len(part.log_density), width), np.nan) for part in parts]
        outputs = np.concatenate(
            [nan if part.outputs is None else part.outputs for part, nan in zip(parts, not_run, strict=True)]
        )
    log_density = np.concatenate([part.log_density for part in parts])
    return Values(log_density, np.concatenate(gradients) if gradients else None, outputs)


def checked_pair(value: Any, what: str, expected: str) -> tuple[Any, Any]:
    """Return the two things that a function must return together."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        got = f"{len(value)} things" if isinstance(value, (tuple, list)) else type(value).__name__
        raise OutputError(f"{what} must return {expected}, got {got}; return the two as a tuple")
    return value[0], value[1]


def checked_scalars(value: Any, n: int, vectorized: bool, what: str, given: str = "") -> np.ndarray:
    """Return `value` as new float64 of shape ``(n,)``, or raise; `given` says what the function was called with."""
    array = checked_real(value, what)
    if array.size != n or (vectorized and array.shape != (n,)):
        expected = f"shape ({n},), one number for each row" if vectorized else "a single number"
        hint = (
            "sum over the data inside the function" if array.size > n else "return one number for each point"
        )
        hint = "flatten it" if array.size == n and array.ndim else hint
        raise OutputError(f"{what} must return {expected}, got shape {array.shape}{given}; {hint}")
    return array.reshape(n)


def checked_rows(
    value: Any,
    n: int,
    width: int | None,
    vectorized: bool,
    what: str,
    remedy: str = "return one entry for each component",
    given: str = "",
) -> np.ndarray:
    """Return `value` as new float64 of shape ``(n, width)``, any width if None, or raise; as `checked_scalars`."""
    array = checked_real(value, what)
    rows = array if vectorized else array[None]
    if rows.ndim != 2 or len(rows) != n or (width is not None and rows.shape[1] != width):
        one = "m" if width is None else str(width)
        expected = f"({n}, {one})" if vectorized else f"({one},)"
        same_size = width is not None and array.size == n * width
        hint = "reshape or transpose it" if same_size else remedy
        raise OutputError(f"{what} must return shape {expected}, got {array.shape}{given}; {hint}")
    return rows


def checked_real(value: Any, what: str) -> np.ndarray:
    """Return `value` as a new float64 array, or raise if it is not real numbers."""
    try:
        array = np.asarray(value)
    except Exception as error:  # array libraries raise whatever they like when they cannot convert
        raise OutputError(
            f"{what} must return real numbers, got {type(value).__name__} that NumPy cannot read ({error}); "
            "convert the result to a NumPy array"
        ) from error
    if array.dtype.kind not in "fiu" or np.ma.is_masked(value):
        hint = "convert the result to float, without missing entries"
        kind, dtype = type(value).__name__, str(array.dtype)
        raise OutputError(
            f"{what} must return real numbers, got {kind if kind == dtype else f'{kind} of dtype {dtype}'}; "
            + ("is a return statement missing?" if value is None else hint)
        )
    return array.astype(float)


def keywords(
    forward: Callable[..., Any], variables: Sequence[Variable], what: str = "forward"
) -> tuple[Variable, ...] | None:
    """Return the variables that the model's signature names, by which it is called; None if it takes a vector."""
    try:
        signature = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):  # a builtin or compiled function
        return None
    if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in signature):
        raise InputError(
            f"{what} takes any arguments (* or **), so it is not known which variables it sees; name them in its "
            "signature"
        )
    by_place = [each.name for each in signature if each.kind is each.POSITIONAL_ONLY]
    if len(by_place) > 1:
        raise InputError(
            f"{what} takes {', '.join(by_place)} by position only, but it is called by keyword or with one vector; "
            "remove the / from its signature"
        )
    if by_place and any(each.name in {one.name for one in variables} for each in signature):
        raise InputError(
            f"{what} takes {by_place[0]} by position only, but the rest by keyword; remove the /"
        )
    usable = [each for each in signature if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    required = [each.name for each in usable if each.default is each.empty]
    found = tuple(each for each in variables if each.name in {one.name for one in usable})
    listed = ", ".join(each.name for each in variables)
    if not found:
        if len(required) > 1:
            raise InputError(
                f"{what} asks for {', '.join(required)}, but the prior has {listed}; use the same names, or let "
                "it take one vector"
            )
        return None
    unknown = [name for name in required if name not in {each.name for each in found}]
    if unknown:
        raise InputError(
            f"{what} asks for {', '.join(map(repr, unknown))}, for which there is no prior; the prior has {listed}; "
            "add it to the Prior, or give it a default value"
        )
    return found


class ByKeyword:
    """A function of named variables, as a function of the vector that has them.

    Parameters
    ----------
    function : callable
        Takes numbers, and arrays of the variables' shapes; with a first axis of n points if it is vectorised.
    variables : sequence of Variable
        The layout of the vector.
    names : collection of str
        Those that the function takes.
    vectorized : bool
    """

    def __init__(
        self,
        function: Callable[..., Any],
        variables: Sequence[Variable],
        names: Collection[str],
        vectorized: bool,
    ) -> None:
        self.function, self.variables = function, tuple(variables)
        self.names, self.vectorized = frozenset(names), vectorized

    def __call__(self, point: np.ndarray) -> Any:
        """Call the function with its part of a vector ``(dim,)`` or ``(n, dim)``."""
        given: dict[str, Any] = {
            name: value.copy() if value.ndim else float(value)
            for name, value in split(self.variables, point).items()
            if name in self.names
        }
        return self.function(**given)


def matched(value: Any, layout: Sequence[Variable] | None, what: str) -> list[tuple[Variable, Any]]:
    """Return each data set with what the model returned for it."""
    names = [] if layout is None else [each.name for each in layout]
    if not isinstance(value, Mapping):
        raise OutputError(
            f"{what} must return a dict with one array for each of {', '.join(names)}, got "
            f"{type(value).__name__}; return {{{', '.join(f'{name!r}: ...' for name in names)}}}"
        )
    if layout is None or set(value) != set(names):
        expected = ", ".join(names) if names else "one array, since the likelihood names no data sets"
        raise OutputError(
            f"{what} returned outputs {', '.join(map(str, value))}, expected {expected}; rename them, or name derived "
            "quantities in qoi="
        )
    return [(each, value[each.name]) for each in layout]


def shaped(value: Any, n: int, variable: Variable, vectorized: bool, what: str) -> np.ndarray:
    """Return outputs of one data set as rows ``(n, size)``, or raise if they do not have its shape."""
    array = checked_real(value, what)
    expected = (n, *variable.shape) if vectorized else variable.shape
    if array.shape != expected:
        raise OutputError(
            f"{what} must return outputs of shape {expected}, as its data or qoi= have, got {array.shape}; reshape or "
            "transpose them"
        )
    return array.reshape(n, variable.size)
