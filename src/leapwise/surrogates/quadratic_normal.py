r"""The normal equations of a quadratic with hidden nodes, with the structure that gradients give them.

Turn the whitened coordinates so that :math:`\sum_j z_j z_j^T = \mathrm{diag}(e)` over the points with gradients. A
quadratic's gradient is :math:`A z`, and

.. math:: \omega \sum_j |A z_j|^2 + \lambda \|A\|^2
    = \sum_{ab} \big(\tfrac\omega2 (e_a + e_b) + \lambda\big) A_{ab}^2 :

the gradient rows make the equations for A diagonal (elsewhere they are called a Lyapunov equation). With the
coordinates a of A first, then all other weights u, and features :math:`F = [F_a, F_u]` of value rows, the equations
have the matrix

.. math::
    M = \begin{bmatrix} D & C \\ C^T & U \end{bmatrix} + F^T F, \qquad
    D = \mathrm{diag}\big(\tfrac\omega2 (e_a + e_b) + \lambda\big),

where C and U, of gradient rows, have closed forms too: gradients of nodes and of radial terms are multiples of their
directions and of positions. The rows of gradients, d times as many as values, are never formed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from leapwise.surrogates.quadratic_basis import QuadraticBasis
from leapwise.surrogates.training import WhiteSet


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """What evaluations say about all weights, in turned coordinates.

    Attributes
    ----------
    basis : QuadraticBasis
    white : WhiteSet
        With gradients, whose positions have a diagonal second moment.
    gradient_weight : float
        How much gradient rows count.
    penalty : ndarray of shape (basis.size + 1,)
        Relative penalties of all weights, the offset last.
    rotation : ndarray of shape (dim, dim)
        Positions times this are the turned ones.
    moments : ndarray of shape (dim,)
        The second moment of the turned positions.
    """

    basis: QuadraticBasis
    white: WhiteSet
    gradient_weight: float
    penalty: np.ndarray
    rotation: np.ndarray
    moments: np.ndarray

    @classmethod
    def turned(
        cls, basis: QuadraticBasis, white: WhiteSet, gradient_weight: float, penalty: np.ndarray
    ) -> Self:
        """Turn the coordinates of evaluations, some of which have gradients."""
        assert white.gradient is not None
        where = white.position[white.has_gradient]
        moments, rotation = np.linalg.eigh(where.T @ where)
        turned = replace(white, position=white.position @ rotation, gradient=white.gradient @ rotation)
        return cls(
            basis.rotated(rotation), turned, gradient_weight, penalty, rotation, np.maximum(moments, 0.0)
        )

    @cached_property
    def points(self) -> np.ndarray:
        """Positions with gradients, ``(k, dim)``."""
        return np.asarray(self.white.position[self.white.has_gradient])

    @cached_property
    def slopes(self) -> np.ndarray:
        """Their gradients, ``(k, dim)``."""
        assert self.white.gradient is not None
        return self.white.gradient

    @cached_property
    def quadratic(self) -> np.ndarray:
        """Which weights are those of A, ``(size + 1,)``."""
        chosen = np.zeros(self.basis.size + 1, dtype=bool)
        chosen[self.basis.trend.quadratic_part] = True
        return chosen

    def diagonal(self, ridge: float) -> np.ndarray:
        """Return D as a matrix ``(dim, dim)``, an entry for each of A."""
        return np.add.outer(self.moments, self.moments) * (0.5 * self.gradient_weight) + ridge

    @cached_property
    def cross(self) -> np.ndarray:
        """C, ``(n_quadratic, m)``; the offset is last, and gradients say nothing of it."""
        return np.pad(self.gradient_weight * self.basis.gradient_cross(self.points), ((0, 0), (0, 1)))

    @cached_property
    def others(self) -> np.ndarray:
        """U, ``(m, m)``."""
        return np.pad(self.gradient_weight * self.basis.gradient_others(self.points), (0, 1))

    def other_slopes(self, where: np.ndarray) -> np.ndarray:
        """Return gradients of all other features but the offset, ``(n, dim, m - 1)``."""
        trend = self.basis.trend
        linear = np.broadcast_to(np.eye(trend.dim), (len(where), trend.dim, trend.dim))
        radial = where[:, :, None] * trend.radial_slopes(where)[:, None, :]
        return np.concatenate([linear, radial, self.basis.nodes.gradient_features(where)], axis=2)

    @cached_property
    def features(self) -> np.ndarray:
        """F, ``(n, size + 1)``, in the order of the weights."""
        features = np.ones((len(self.white.value), self.basis.size + 1))
        features[:, :-1] = self.basis.features(self.white.position)
        return features

    @cached_property
    def moment(self) -> np.ndarray:
        """All rows times their targets, ``(size + 1,)``."""
        return self.features.T @ self.white.value + self.slope_moment

    @cached_property
    def slope_moment(self) -> np.ndarray:
        """Gradient rows times gradients, ``(size + 1,)``."""
        moment = self.basis.gradient_moment(self.points, self.slopes)
        return np.append(self.gradient_weight * moment, 0.0)

    @cached_property
    def gram(self) -> np.ndarray:
        """M without the ridge, ``(size + 1, size + 1)``."""
        gram = self.features.T @ self.features
        gram[:-1, :-1] += self.gradient_weight * self.basis.gradient_gram(self.points)
        return gram

    def downhill(self, weights: np.ndarray, ridge: float) -> np.ndarray:
        """Return minus half the gradient of the penalised sum of squares, from residuals: round-off stays small."""
        value, slope = self.basis.value_and_gradient(self.white.position, weights[:-1])
        left = self.slopes - slope[self.white.has_gradient]
        moment = self.features.T @ (self.white.value - value - weights[-1])
        moment[:-1] += self.gradient_weight * self.basis.gradient_moment(self.points, left)
        return moment - ridge * self.penalty * weights

    def turned_back(self, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)`` in the coordinates before turning."""
        return self._rotate(weights, self.rotation)

    def turned_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)`` in turned coordinates."""
        return self._rotate(weights, self.rotation.T)

    def _rotate(self, weights: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        trend, rotated = self.basis.trend, np.array(weights)
        matrix = rotation @ trend.matrix(weights[: trend.size]) @ rotation.T
        rotated[: trend.dim] = rotation @ weights[: trend.dim]
        rotated[trend.quadratic_part] = trend.coordinates(matrix)
        return rotated
