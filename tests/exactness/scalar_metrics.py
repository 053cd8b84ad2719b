"""Metrics in one dimension that are easy, holed, or so steep that implicit equations have several solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class ScalarMetric:
    """A metric in one dimension, from G(q) and its derivative; none where q is above `end`."""

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    end: float = np.inf

    def at(self, position: np.ndarray) -> LocalScalarMetric:
        value = np.where(position > self.end, np.nan, self.value(position))
        return LocalScalarMetric(value[:, :, None], np.sqrt(value)[:, :, None], self.slope(position))


@dataclass
class LocalScalarMetric:
    matrix: np.ndarray
    cholesky: np.ndarray
    slope: np.ndarray

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        return self.slope * velocity**2

    def trace_contraction(self) -> np.ndarray:
        return self.slope / self.matrix[:, :, 0]


#: The curvature of a Gumbel variable's potential plus one; the same with a hole; and one that changes so fast that
#: the implicit equations have several solutions.
CURVATURE = ScalarMetric(lambda q: 1.0 + np.exp(-q), lambda q: -np.exp(-q))
HOLED = replace(CURVATURE, end=1.5)
STEEP = ScalarMetric(lambda q: 0.5 + np.exp(2.0 * q), lambda q: 2.0 * np.exp(2.0 * q))
