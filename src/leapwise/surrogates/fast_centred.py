r"""Radial terms and the guard as bare functions of the squared distance from the origin, :math:`|z|^2`.

The gradient of :math:`\varphi(|z|^2/2)` is :math:`\varphi'\, z`, so values and the factors :math:`\varphi'` say all. Up
to the guard's radius, where trajectories spend nearly all their time, it costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.trend import RADIAL_SCALES, Guard


class Centred(NamedTuple):
    """Functions of squares ``(n,)``: values, and what to multiply positions with; None where all are zero."""

    value: Callable[[np.ndarray], np.ndarray | None]
    slope: Callable[[np.ndarray], np.ndarray | None]


def radial_terms(weights: np.ndarray, dim: int) -> Centred:
    """Return the sum of the radial terms of a trend, with these weights ``(3,)``."""
    scales, heights, slopes = RADIAL_SCALES * dim, dim * weights, 2.0 * dim * weights

    def value(square: np.ndarray) -> np.ndarray:
        return np.log1p(square[:, None] / scales).dot(heights)

    def slope(square: np.ndarray) -> np.ndarray:
        return np.divide(1.0, square[:, None] + scales).dot(slopes)

    return Centred(value, slope)


def guard_term(guard: Guard, weight: float) -> Centred:
    """Return a weight times the guard."""
    radius = float(guard.radius)
    least = radius * radius

    def value(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:  # False for NaN
            return None
        t = np.maximum(np.sqrt(square), radius) - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (0.5 * t * t * t * t * u)

    def slope(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:
            return None
        r = np.maximum(np.sqrt(square), radius)
        t = r - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (t * (1.0 - u) * (1.0 + u) / r)

    return Centred(value, slope)


def total(parts: list[Callable[[np.ndarray], np.ndarray | None]], square: np.ndarray) -> np.ndarray | None:
    """Return the sum of parts, None if none has anything to say."""
    found = None
    for part in parts:
        more = part(square)
        if more is not None:
            found = more if found is None else found + more
    return found
