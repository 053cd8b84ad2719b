r"""Radial nodes: functions of the distance to centres.

Nodes are :math:`\varphi(\rho_i)` with :math:`\rho_i = \|z - c_i\|^2 / 2 \ell_i^2` (section 3.2 of the paper). With
:math:`r = z - c_i`, :math:`g = 1 / \ell_i^2`, one of them has

.. math::
    \nabla = g \varphi' r, \qquad H = g \varphi' I + g^2 \varphi'' r r^T,

    \mathrm{tr}(A\, \partial_k H) = g^2 \varphi'' \big(2 A r + (\mathrm{tr} A)\, r\big)_k
    + g^3 \varphi''' (r^T A r)\, r_k,

and :math:`u^T (\partial_k H) u` is the same with :math:`A = u u^T`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.surrogates.contractions import outer_sums, quadratic_forms
from leapwise.surrogates.profiles import Profile


@dataclass(frozen=True, eq=False)
class RadialBasis:
    """Functions of the distance to centres.

    Parameters
    ----------
    centres : ndarray of shape (s, dim)
    lengths : ndarray of shape (s,)
        Widths of the nodes, in whitened units.
    profile : Profile
        The function of half the squared scaled distance.

    Examples
    --------
    >>> from leapwise.surrogates.profiles import SquaredExponential
    >>> basis = RadialBasis(np.zeros((1, 2)), np.ones(1), SquaredExponential())
    >>> basis.features(np.array([[0.0, 0.0], [1.0, 1.0]])).round(4)
    array([[1.    ],
           [0.3679]])
    """

    centres: np.ndarray
    lengths: np.ndarray
    profile: Profile

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.centres)

    @cached_property
    def precision(self) -> np.ndarray:
        """One over squared lengths, ``(size,)``."""
        return 1.0 / self.lengths**2

    def distance(self, white: np.ndarray) -> np.ndarray:
        """Return half the squared scaled distances to the centres, ``(n, size)``."""
        half = white @ self._columns
        half *= -1.0
        half += 0.5 * np.einsum("nd,nd->n", white, white)[:, None]
        half += 0.5 * self._squares
        half *= self.precision
        return np.maximum(half, 0.0, out=half)  # rounding may leave it just below

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return self.profile.derivatives(self.distance(white), 0)[0]

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        slope = self.precision * self.profile.derivatives(self.distance(white), 1)[1]
        return (white[:, :, None] - self.centres.T) * slope[:, None, :]

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        slope = self.precision * self.profile.derivatives(self.distance(white), 1)[1]
        # r_i . r_j = (z - c_i) . z - (z - c_i) . c_j, summed over positions with weights slope_i slope_j
        along = slope * (white @ self._columns)
        squares = np.einsum("nd,nd->n", white, white)
        cross = along.T @ slope
        weighted = slope * np.sqrt(squares)[:, None]
        return weighted.T @ weighted - cross - cross.T + (slope.T @ slope) * (self.centres @ self.centres.T)

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        slope = self.precision * self.profile.derivatives(self.distance(white), 1)[1]
        along = np.einsum("nd,nd->n", white, target)[:, None] - target @ self._columns
        return np.asarray(np.einsum("ns,ns->s", slope, along))

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return self.features(white) @ weights

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        value, slope = self.profile.derivatives(self.distance(white), 1)
        return value @ weights, self._radii_sum(slope * (weights * self.precision), white)

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        _, first, second = self.profile.derivatives(self.distance(white), 2)
        inner, outer = first @ (weights * self.precision), second * (weights * self.precision**2)
        lean = outer @ self.centres  # sum of outer_i c_i
        hessian = outer_sums(outer, self.centres)
        mixed = (0.5 * outer.sum(axis=1, keepdims=True) * white - lean)[:, :, None] * white[:, None, :]
        hessian += mixed + np.swapaxes(mixed, 1, 2)
        return hessian + inner[:, None, None] * np.eye(white.shape[1])

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        along = np.einsum("nd,nd->n", velocity, white)[:, None] - velocity @ self._columns  # r . u
        speed = np.einsum("nd,nd->n", velocity, velocity)[:, None]
        second, third = self._third(white, weights)
        straight = 2.0 * np.einsum("ns,ns->n", second, along)[:, None] * velocity
        return straight + self._radii_sum(second * speed + third * along**2, white)

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        pulled = np.matmul(matrix, white[:, :, None])[:, :, 0]
        form = np.einsum("nd,nd->n", white, pulled)[:, None] - 2.0 * pulled @ self._columns
        form += quadratic_forms(matrix, self.centres)  # r^T A r
        size = np.trace(matrix, axis1=1, axis2=2)[:, None]
        second, third = self._third(white, weights)
        straight = 2.0 * np.matmul(matrix, self._radii_sum(second, white)[:, :, None])[:, :, 0]
        return straight + self._radii_sum(second * size + third * form, white)

    @cached_property
    def _columns(self) -> np.ndarray:
        """The transposed centres, laid out for fast products with few rows."""
        return np.ascontiguousarray(self.centres.T)

    @cached_property
    def _squares(self) -> np.ndarray:
        return np.asarray(np.einsum("sd,sd->s", self.centres, self.centres))

    def _third(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _, _, second, third = self.profile.derivatives(self.distance(white), 3)
        return second * (weights * self.precision**2), third * (weights * self.precision**3)

    def _radii_sum(self, factors: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the sums ``(n, dim)`` of factors ``(n, size)`` times the vectors from the centres."""
        return factors.sum(axis=1, keepdims=True) * white - factors @ self.centres
