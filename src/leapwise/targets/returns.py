"""What a target's functions return: made a new float64 array, or refused with `OutputError`."""

from __future__ import annotations

from typing import Any

import numpy as np

from leapwise.errors import OutputError


def checked_pair(value: Any, what: str, expected: str) -> tuple[Any, Any]:
    """Return the two things that a function must return together."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        got = f"{len(value)} things" if isinstance(value, (tuple, list)) else type(value).__name__
        raise OutputError(f"{what} must return {expected}, got {got}; return the two as a tuple")
    return value[0], value[1]


def checked_scalars(value: Any, n: int, vectorized: bool, what: str) -> np.ndarray:
    """Return `value` as new float64 of shape ``(n,)``, or say what is wrong."""
    array = checked_real(value, what)
    if array.size != n or (vectorized and array.shape != (n,)):
        expected = f"shape ({n},), one number for each row" if vectorized else "a single number"
        hint = (
            "sum over the data inside the function" if array.size > n else "return one number for each point"
        )
        hint = "flatten it" if array.size == n and array.ndim else hint
        raise OutputError(f"{what} must return {expected}, got shape {array.shape}; {hint}")
    return array.reshape(n)


def checked_rows(value: Any, n: int, width: int | None, vectorized: bool, what: str) -> np.ndarray:
    """Return `value` as new float64 of shape ``(n, width)``, any width if None, or say what is wrong."""
    array = checked_real(value, what)
    rows = array if vectorized else array[None]
    if rows.ndim != 2 or len(rows) != n or (width is not None and rows.shape[1] != width):
        one = "m" if width is None else str(width)
        expected = f"({n}, {one})" if vectorized else f"({one},)"
        same_size = width is not None and array.size == n * width
        hint = "reshape or transpose it" if same_size else "return one entry for each component"
        raise OutputError(f"{what} must return shape {expected}, got {array.shape}; {hint}")
    return rows


def checked_real(value: Any, what: str) -> np.ndarray:
    """Return `value` as a new float64 array, or say why it is not real numbers."""
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an array library says when it cannot give its numbers away
        raise OutputError(
            f"{what} must return real numbers, got {type(value).__name__} that NumPy cannot read ({error}); "
            "convert the result to a NumPy array"
        ) from error
    if array.dtype.kind not in "fiu" or np.ma.is_masked(value):
        hint = "convert the result to float, without missing entries"
        raise OutputError(
            f"{what} must return real numbers, got {type(value).__name__} of dtype {array.dtype}; "
            + ("is a return statement missing?" if value is None else hint)
        )
    return array.astype(float)
