"""A Riemannian metric for two dimensions, with no zero entries and cheap derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise import batched_cholesky

BASE = np.array([[1.0, -0.4], [-0.4, 0.8]])


class DenseCurvature:
    """G = C + diag(h(q)) with a constant C that is not diagonal and h = 1 + tanh, between 0 and 2."""

    def at(self, position: np.ndarray) -> LocalDenseCurvature:
        tanh = np.tanh(position)
        matrix = BASE + (1.0 + tanh)[:, :, None] * np.eye(2)
        return LocalDenseCurvature(matrix, batched_cholesky(matrix), 1.0 - tanh**2)


@dataclass
class LocalDenseCurvature:
    matrix: np.ndarray
    cholesky: np.ndarray
    slope: np.ndarray  # of h

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        return self.slope * velocity**2

    def trace_contraction(self) -> np.ndarray:
        a, b, c = self.matrix[:, 0, 0], self.matrix[:, 0, 1], self.matrix[:, 1, 1]
        inverse_diagonal = np.stack([c, a], axis=1) / (a * c - b**2)[:, None]
        return self.slope * inverse_diagonal
