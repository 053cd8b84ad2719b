"""One-dimensional variables that can be drawn and integrated exactly, from which exact targets are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, stdtr


@dataclass(frozen=True)
class Variable:
    """A variable with density proportional to exp(-V).

    Parameters
    ----------
    potential_and_slope : callable
        V and its derivative, element by element.
    below : callable
        The distribution function.
    draw : callable
        Takes a generator and a shape.
    """

    potential_and_slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    below: Callable[[np.ndarray], np.ndarray]
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Return points and weights that sum to one: the trapezoidal rule in the inverse sinh, for any tail."""
        s = np.linspace(-30.0, 30.0, 6001)
        with np.errstate(all="ignore"):
            z = np.sinh(s)
            weight = np.exp(-self.potential_and_slope(z)[0]) * np.cosh(s)
        inside = weight > 0
        return z[inside], weight[inside] / weight[inside].sum()


def _gumbel(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tail = np.exp(-z)
    return z + tail, 1.0 - tail


def _log_exponential(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    head = np.exp(z)
    return head - z, head - 1.0


_FREEDOM = 5.0


def _student(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return 0.5 * (_FREEDOM + 1.0) * np.log1p(z**2 / _FREEDOM), (_FREEDOM + 1.0) * z / (_FREEDOM + z**2)


_WEIGHT, _LEFT, _RIGHT = (
    0.35,
    (-1.6, 0.6),
    (1.2, 0.9),
)  # of the left mode; mean and standard deviation of both


def _mixture(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (a, s), (b, t) = _LEFT, _RIGHT
    left = np.log(_WEIGHT / s) - 0.5 * ((z - a) / s) ** 2
    right = np.log((1.0 - _WEIGHT) / t) - 0.5 * ((z - b) / t) ** 2
    share = expit(left - right)  # of the left mode, given z
    return -np.logaddexp(left, right), share * (z - a) / s**2 + (1.0 - share) * (z - b) / t**2


def _draw_mixture(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    left = rng.random(shape) < _WEIGHT
    return np.where(left, _LEFT[0], _RIGHT[0]) + np.where(left, _LEFT[1], _RIGHT[1]) * rng.standard_normal(
        shape
    )


def _below_mixture(z: np.ndarray) -> np.ndarray:
    (a, s), (b, t) = _LEFT, _RIGHT
    return _WEIGHT * ndtr((z - a) / s) + (1.0 - _WEIGHT) * ndtr((z - b) / t)


NORMAL = Variable(lambda z: (0.5 * z**2, z), ndtr, lambda rng, shape: rng.standard_normal(shape))
GUMBEL = Variable(_gumbel, lambda z: np.exp(-np.exp(-z)), lambda rng, shape: rng.gumbel(size=shape))
LOG_EXPONENTIAL = Variable(
    _log_exponential, lambda z: -np.expm1(-np.exp(z)), lambda rng, shape: np.log(rng.exponential(size=shape))
)
STUDENT = Variable(_student, lambda z: stdtr(_FREEDOM, z), lambda rng, shape: rng.standard_t(_FREEDOM, shape))
MIXTURE = Variable(_mixture, _below_mixture, _draw_mixture)
