"""Checks of what users pass: each returns the value in a normal form, or raises `InputError`.

These are checks of arguments, before anything runs. What the user's functions return later is checked in
`leapwise.targets.calls` for shape and dtype, and in `leapwise.execution.evaluator` for numbers that are not finite.
The one exception is `ask_surrogate`, which checks what a user's surrogate returns.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leapwise.errors import InputError, LeapwiseError, SurrogateError


def require_callable(name: str, value: object, *, optional: bool = False) -> None:
    """Raise unless `value` can be called, or is None and optional."""
    if not callable(value) and not (optional and value is None):
        raise InputError(
            f"{name} must be a function, got {type(value).__name__}; give the function itself, not its result"
        )


def require_whole(name: str, value: object, least: int) -> int:
    """Return `value` if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def require_flag(name: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {type(value).__name__}; give one of the two")
    return bool(value)


def require_version(version: object) -> None:
    """Raise unless `version`, of a user's model, is a string or None."""
    if version is not None and not isinstance(version, str):
        raise InputError(
            f"version must be a string of your own choice, got {version!r:.80}; for example 'mesh 2, data of May'"
        )


def require_dim(dim: object) -> int:
    """Return `dim` if it is a positive integer."""
    if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
        raise InputError(f"dim must be a positive integer, got {dim!r}; give the number of parameters")
    return int(dim)


def require_names(names: str | Sequence[str] | None, dim: int, default: str) -> str | tuple[str, ...]:
    """Return one name for the vector, or a tuple of `dim` different names."""
    if names is None:
        return default
    if not isinstance(names, (str, Sequence, np.ndarray)):
        raise InputError(
            f"names must be a string or a list of strings, got {type(names).__name__}; list them in order"
        )
    listed = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in listed):
        raise InputError(f"names must be strings, got {list(listed)!r}; put them in quotes")
    if not all(listed) or len(set(listed)) != len(listed):
        raise InputError(
            f"names must be different strings, got {list(listed)!r}; rename the repeated or empty ones"
        )
    if len({name.replace("/", "_") for name in listed}) != len(listed):  # results/datatree.py replaces them
        raise InputError(
            f"names must differ in more than / and _, got {list(listed)!r}; rename one, since a DataTree allows "
            "no / in names and has _ in its place"
        )
    taken = sorted({"chain", "draw"}.intersection(listed))
    if taken:
        raise InputError(f"names must not contain {taken}, which name the axes of the results; choose others")
    if isinstance(names, str):
        return names
    if len(listed) != dim:
        raise InputError(
            f"names must have one entry for each of the {dim} parameters, got {len(listed)}; "
            "give a single string to name the whole vector"
        )
    return tuple(str(name) for name in listed)


def require_real(value: Any, name: str) -> np.ndarray:
    """Return `value` as a new float64 array of finite numbers."""
    if np.ma.is_masked(value):
        raise InputError(
            f"{name} has missing entries, got a masked array; fill them, with NaN where it is allowed"
        )
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError("it has complex or non-numeric entries")
    except Exception as error:
        raise InputError(
            f"{name} must be real numbers, got {reprlib.repr(value)} ({error}); convert it to a float array"
        ) from error
    bad = ~np.isfinite(array)
    if bad.any():
        raise InputError(f"{name} must be finite, got {_first(array, bad)}; drop or fix such entries")
    return array.astype(float)


def require_positive(value: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return `value` broadcast to `shape`, insisting on finite numbers above zero."""
    array = require_real(value, name)
    if not array.size or not (array > 0).all():
        got = _first(array, array <= 0) if array.size else "nothing"
        raise InputError(f"{name} must be positive, got {got}; check its sign and units")
    if array.ndim and array.shape != shape:
        raise InputError(
            f"{name} must be one number or an array of shape {shape}, got shape {array.shape}; "
            "give one entry per component"
        )
    return np.broadcast_to(array, shape)


def require_covariance(value: Any, size: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return a covariance ``(size, size)``, of any size if None, and its lower Cholesky factor."""
    matrix = require_real(value, "covariance")
    if matrix.ndim != 2 or matrix.shape != (size or len(matrix), size or len(matrix)):
        expected = "be a square matrix" if size is None else f"have shape ({size}, {size}) to match the data"
        raise InputError(
            f"covariance must {expected}, got shape {matrix.shape}; "
            "if the components are independent, give their standard deviations or variances instead"
        )
    scale = np.sqrt(np.abs(np.diag(matrix)))
    if (np.abs(matrix - matrix.T) > 1e-8 * np.outer(scale, scale)).any():
        raise InputError("covariance must be symmetric, got a matrix that is not; check how it was computed")
    try:
        return matrix, np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError as error:
        raise InputError(
            "covariance must be positive definite, got a matrix that is not; "
            "add the measurement variance, or a small multiple of the identity, to its diagonal"
        ) from error


def ask_surrogate(
    surrogate: object, function: Callable[..., Any], shape: tuple[int, ...], what: str, *arguments: np.ndarray
) -> np.ndarray:
    """Call a function of a surrogate and return float64 of the shape given, or raise `SurrogateError`."""
    name = type(surrogate).__name__
    try:
        found = np.asarray(function(*arguments), dtype=float)
    except LeapwiseError:
        raise
    except Exception as error:
        raise SurrogateError(
            f"the surrogate {name} raised {type(error).__name__} when asked for {what}: {error}; "
            "fix it, or use another"
        ) from error
    if found.shape != shape:
        raise SurrogateError(
            f"the surrogate {name} must return {what} of shape {shape}, got {found.shape}; fix it, or use another"
        )
    return found


def _first(array: np.ndarray, bad: np.ndarray) -> str:
    """Return the first bad entry in words, with its index if there are several entries."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    where = f" at index {index[0] if len(index) == 1 else index}" if index else ""
    return f"{array[index]:g}{where}"
