"""The shared features of an `OutputSurrogate`: in which coordinates, and how much each is penalised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from understudy.surrogates.bases import SoftplusBasis
from understudy.surrogates.emulator import Emulator
from understudy.surrogates.ridge import solve_ridge
from understudy.surrogates.trend import TrendBasis

_LINEAR_PENALTY = 0.01
_ROUNDS = 3
_LEAST_RELEVANCE = 1e-3


@dataclass(frozen=True, eq=False)
class OutputFeatures:
    """Linear, quadratic, softplus and constant features of rotated whitened coordinates.

    Attributes
    ----------
    rotation : ndarray of shape (dim, dim)
        Columns are the directions of the new axes.
    relevance : ndarray of shape (dim,)
        How much the outputs bend along them, at most about 1.
    nodes : SoftplusBasis or None
        Of coordinates before rotation.
    """

    rotation: np.ndarray
    relevance: np.ndarray
    nodes: SoftplusBasis | None = None

    @classmethod
    def learn(
        cls, white: np.ndarray, components: np.ndarray, n_hidden: int, gain: float, rng: np.random.Generator
    ) -> OutputFeatures:
        """Find directions from quadratic fits, then draw nodes whose kinks pass through training points."""
        n, dim = white.shape
        found = cls(np.eye(dim), np.ones(dim))
        for _ in range(_ROUNDS):
            weights = solve_ridge(found.rows(white), components, penalty=found.penalty).weights
            matrices = found.emulator(weights).matrices
            values, vectors = np.linalg.eigh(np.tensordot(matrices, matrices, axes=([0, 2], [0, 1])))
            if not values[-1] > 0:
                break
            relevance = np.sqrt(np.maximum(values, 0.0) / values[-1]) + _LEAST_RELEVANCE
            found = cls(vectors, relevance)
        if not n_hidden:
            return found
        inputs = rng.standard_normal((n_hidden, dim)) * (gain / np.sqrt(dim))
        kinks = white[rng.integers(n, size=n_hidden)]
        return cls(
            found.rotation,
            found.relevance,
            SoftplusBasis(inputs, -np.einsum("sd,sd->s", inputs, kinks)),
        )

    @property
    def trend(self) -> TrendBasis:
        """The basis of linear and quadratic features."""
        return TrendBasis(len(self.rotation))

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of all features; none for the constant, which comes last."""
        dim = len(self.rotation)
        i, j = np.triu_indices(dim)
        quadratic = 1.0 / (self.relevance[i] * self.relevance[j])
        n_hidden = 0 if self.nodes is None else self.nodes.size
        return np.concatenate([np.full(dim, _LINEAR_PENALTY), quadratic, np.full(n_hidden, n_hidden), [0.0]])

    def rows(self, white: np.ndarray) -> np.ndarray:
        """Return features of positions ``(n, dim)``, a constant last."""
        parts = [self.trend.features(white @ self.rotation)]
        if self.nodes is not None:
            parts.append(self.nodes.features(white))
        return np.concatenate([*parts, np.ones((len(white), 1))], axis=1)

    def gradient_rows(self, white: np.ndarray) -> np.ndarray:
        """Return derivatives of all features by the coordinates before rotation, ``(n dim, n_features)``."""
        n, dim = white.shape
        parts = [self.rotation @ self.trend.gradient_features(white @ self.rotation)]
        if self.nodes is not None:
            parts.append(self.nodes.gradient_features(white))
        return np.concatenate([*parts, np.zeros((n, dim, 1))], axis=2).reshape(n * dim, -1)

    def emulator(self, weights: np.ndarray) -> Emulator:
        """Return the emulator with weights ``(n_features, p)``, in coordinates before rotation."""
        size, dim = self.trend.size, len(self.rotation)
        matrices = self.rotation @ self.trend.matrix(weights[:size].T) @ self.rotation.T
        trend = self.trend.weights_of((self.rotation @ weights[:dim]).T, matrices).T
        if self.nodes is None:
            return Emulator(weights[-1], trend)
        return Emulator(weights[-1], trend, self.nodes, weights[size:-1])
