r"""The shared features of an `OutputSurrogate`: in which coordinates, and how much each is penalised.

A quadratic fit is looked at for the directions in which its outputs bend, the eigenvectors of :math:`\sum_k B_k^2` with
eigenvalues :math:`\mu_i^2`. In those coordinates the squared weights are penalised by

- 1/100 for linear features, or nothing if they explain nearly all, and nothing for the constant,
- :math:`1/(r_i r_j)` for :math:`z_i z_j`, with :math:`r_i = \mu_i/\mu_{\max} + 10^{-3}`,
- :math:`30/(r_i r_j r_k)` for :math:`z_i z_j z_k`: what hardly bends is not expected to bend again,
- the number of hidden nodes for each of them,

all times one strength. With the factor 30 cubic features say little while there are few evaluations, and take what
quadratic ones leave once there are many: a quadratic alone stops learning when it has seen a few times as many
evaluations as it has features. A model that is linear must be learnt as one, from little more evaluations than it has
parameters, or small errors of measurement would never be met: therefore linear features that explain all but a
hundredth are free. There are at most 2000 cubic features, of the directions that bend most.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from leapwise.surrogates.bases import SoftplusBasis
from leapwise.surrogates.cubic import CubicBasis, CubicForms
from leapwise.surrogates.emulator import Emulator
from leapwise.surrogates.ridge import solve_ridge
from leapwise.surrogates.trend import TrendBasis

_LINEAR_PENALTY = 0.01
#: How many times as many evaluations as a linear model has coefficients determine its own, and how much smaller the
#: smallest singular value of their positions may be than the largest.
_ENOUGH, _FLATTEST = 1.5, 1e-7
#: Share of what outputs vary by that a linear model may leave to be nearly all there is.
_NEARLY_NOTHING = 0.01
_CUBIC_PENALTY = 30.0
_MAX_CUBIC = 2000
_ROUNDS = 3
_LEAST_RELEVANCE = 1e-3


@dataclass(frozen=True, eq=False)
class OutputFeatures:
    """Linear, quadratic, cubic, softplus and constant features of rotated whitened coordinates.

    Attributes
    ----------
    rotation : ndarray of shape (dim, dim)
        Columns are the directions of the new axes.
    relevance : ndarray of shape (dim,)
        How much the outputs bend along them, least first, at most about 1.
    cubic : CubicBasis
        Of the last of the new coordinates.
    nodes : SoftplusBasis or None
        Of coordinates before rotation.
    linear_penalty : float
        Of linear features.
    """

    rotation: np.ndarray
    relevance: np.ndarray
    cubic: CubicBasis = field(default_factory=lambda: CubicBasis(0))
    nodes: SoftplusBasis | None = None
    linear_penalty: float = _LINEAR_PENALTY

    @classmethod
    def learn(cls, white: np.ndarray, components: np.ndarray) -> OutputFeatures:
        """Find directions from quadratic fits."""
        dim = white.shape[1]
        penalty = 0.0 if _is_nearly_linear(white, components) else _LINEAR_PENALTY
        found = cls(np.eye(dim), np.ones(dim), linear_penalty=penalty)
        for _ in range(_ROUNDS):
            weights = solve_ridge(found.rows(white), components, penalty=found.penalty).weights
            matrices = found.emulator(weights).matrices
            values, vectors = np.linalg.eigh(np.tensordot(matrices, matrices, axes=([0, 2], [0, 1])))
            if not values[-1] > 0:
                break
            relevance = np.sqrt(np.maximum(values, 0.0) / values[-1]) + _LEAST_RELEVANCE
            found = replace(found, rotation=vectors, relevance=relevance)
        return replace(found, cubic=CubicBasis.largest(dim, _MAX_CUBIC))

    def with_nodes(
        self, white: np.ndarray, n_hidden: int, gain: float, rng: np.random.Generator
    ) -> OutputFeatures:
        """Return the same features with other nodes, whose kinks pass through training points."""
        if not n_hidden:
            return replace(self, nodes=None)
        dim = len(self.rotation)
        inputs = rng.standard_normal((n_hidden, dim)) * (gain / np.sqrt(dim))
        return replace(self, nodes=SoftplusBasis.through(white, inputs, rng))

    @property
    def trend(self) -> TrendBasis:
        """The basis of linear and quadratic features."""
        return TrendBasis(len(self.rotation))

    @property
    def axes(self) -> np.ndarray:
        """The directions that cubic features are made of, ``(dim, cubic.dim)``."""
        return self.rotation[:, len(self.rotation) - self.cubic.dim :]

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of all features; none for the constant, which comes last."""
        dim = len(self.rotation)
        i, j = np.triu_indices(dim)
        quadratic = 1.0 / (self.relevance[i] * self.relevance[j])
        cubic = _CUBIC_PENALTY / self.cubic.products(self.relevance[dim - self.cubic.dim :])
        n_hidden = 0 if self.nodes is None else self.nodes.size
        parts = [np.full(dim, self.linear_penalty), quadratic, cubic, np.full(n_hidden, n_hidden), [0.0]]
        return np.concatenate(parts)

    def rows(self, white: np.ndarray) -> np.ndarray:
        """Return features of positions ``(n, dim)``, a constant last."""
        parts = [self.trend.features(white @ self.rotation), self.cubic.features(white @ self.axes)]
        if self.nodes is not None:
            parts.append(self.nodes.features(white))
        return np.concatenate([*parts, np.ones((len(white), 1))], axis=1)

    def gradient_rows(self, white: np.ndarray) -> np.ndarray:
        """Return derivatives of all features by the coordinates before rotation, ``(n dim, n_features)``."""
        n, dim = white.shape
        parts = [
            self.rotation @ self.trend.gradient_features(white @ self.rotation),
            self.axes @ self.cubic.gradient_features(white @ self.axes),
        ]
        if self.nodes is not None:
            parts.append(self.nodes.gradient_features(white))
        return np.concatenate([*parts, np.zeros((n, dim, 1))], axis=2).reshape(n * dim, -1)

    def emulator(self, weights: np.ndarray) -> Emulator:
        """Return the emulator with weights ``(n_features, p)``, in coordinates before rotation."""
        size, dim = self.trend.size, len(self.rotation)
        matrices = self.rotation @ self.trend.matrix(weights[:size].T) @ self.rotation.T
        trend = self.trend.weights_of((self.rotation @ weights[:dim]).T, matrices).T
        after = size + self.cubic.size
        cubic = CubicForms(self.axes, self.cubic.tensors(weights[size:after])) if self.cubic.dim else None
        return Emulator(
            weights[-1], trend, cubic, self.nodes, None if self.nodes is None else weights[after:-1]
        )


def determine_lines(white: np.ndarray) -> bool:
    """Whether values at positions ``(n, dim)`` would determine a linear function well."""
    n, dim = white.shape
    if n < _ENOUGH * (dim + 1):
        return False
    sizes = np.linalg.svd(np.column_stack([np.ones(n), white]), compute_uv=False)
    return bool(sizes[-1] > _FLATTEST * sizes[0])


def _is_nearly_linear(white: np.ndarray, components: np.ndarray) -> bool:
    """Whether a linear function of positions explains nearly all of components ``(n, p)``, and is well determined."""
    if not determine_lines(white):
        return False
    lines = np.column_stack([np.ones(len(white)), white])
    left = components - lines @ np.linalg.lstsq(lines, components, rcond=None)[0]
    varied = np.linalg.norm(components - components.mean(axis=0))
    return bool(np.linalg.norm(left) < _NEARLY_NOTHING * varied)
