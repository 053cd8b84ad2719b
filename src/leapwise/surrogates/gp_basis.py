r"""Kernel nodes and their derivatives by centre: the basis in which the mean of a Gaussian process is a sum.

A process that observes values and gradients at centres :math:`c_j` has the mean

.. math:: f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - g\, \varphi'(\rho_j)\, r_j \cdot \gamma_j, \qquad
    r_j = z - c_j, \quad \rho_j = g \|r_j\|^2 / 2, \quad g = 1/\ell^2:

a radial network whose nodes also lean in directions :math:`\gamma_j`. With :math:`p_k = g^k \varphi^{(k)}` and
:math:`w_k = \alpha p_k - (r \cdot \gamma)\, p_{k+1}` for each node, the derivatives of the sum are

.. math::
    \nabla = \sum w_1 r - p_1 \gamma, \qquad
    H = \sum w_2\, r r^T + w_1 I - p_2 (\gamma r^T + r \gamma^T),

    \mathrm{tr}(A\, \partial H) = \sum w_3 (r^T A r)\, r + w_2 (\mathrm{tr} A\, r + 2 A r)
    - p_3 \big((r^T A r)\, \gamma + 2 (\gamma^T A r)\, r\big) - p_2 (\mathrm{tr} A\, \gamma + 2 A \gamma),

and the other contraction is the same with :math:`A = u u^T`. All of it is products with ``(n, dim)`` matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.surrogates.contractions import blocks
from leapwise.surrogates.profiles import Profile
from leapwise.surrogates.radial import RadialBasis


@dataclass(frozen=True, eq=False)
class LeaningBasis:
    """Radial nodes, followed by the derivatives of all of them by their centres.

    The ``s + s dim`` features are those of a `RadialBasis` of one length, then for each node the ``dim`` derivatives by
    its centre.

    Parameters
    ----------
    centres : ndarray of shape (s, dim)
    length : float
    profile : Profile

    Examples
    --------
    >>> from leapwise.surrogates.profiles import SquaredExponential
    >>> LeaningBasis(np.zeros((1, 2)), 1.0, SquaredExponential()).features(np.zeros((1, 2))).tolist()
    [[1.0, 0.0, 0.0]]
    """

    centres: np.ndarray
    length: float
    profile: Profile

    @property
    def size(self) -> int:
        """Number of features."""
        return int(len(self.centres) + self.centres.size)

    @cached_property
    def nodes(self) -> RadialBasis:
        """The nodes themselves."""
        return RadialBasis(self.centres, np.full(len(self.centres), self.length), self.profile)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        value, first = self.profile.derivatives(self.nodes.distance(white), 1)
        leaning = (first / -(self.length**2))[:, :, None] * (white[:, None] - self.centres)
        return np.concatenate([value, leaning.reshape(len(white), -1)], axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        n, dim = white.shape
        p = self._powers(white, 2)
        apart = np.swapaxes(white[:, None] - self.centres, 1, 2)  # (n, dim, s)
        leaning = apart[..., None] * (np.swapaxes(apart, 1, 2) * -p[2][..., None])[:, None]
        np.einsum("nisi->nis", leaning)[...] -= p[1][:, None]
        return np.concatenate([apart * p[1][:, None], leaning.reshape(n, dim, -1)], axis=2)

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        alpha, lean = self._split(weights)
        value, first = self.profile.derivatives(self.nodes.distance(white), 1)
        along = self._along(white, lean / self.length**2)
        return np.asarray(value @ alpha - np.einsum("ns,ns->n", first, along))

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        alpha, lean = self._split(weights)
        value, first, second = self.profile.derivatives(self.nodes.distance(white), 2)
        along = self._along(white, lean / self.length**2)  # powers of the length go onto the smaller arrays
        total = value @ alpha - np.einsum("ns,ns->n", first, along)
        slope = first * alpha
        along *= second
        slope -= along
        return total, (self._radii_sum(slope, white) - first @ lean) / self.length**2

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        alpha, lean = self._split(weights)
        p, along = self._powers(white, 3), self._along(white, lean)
        w1, w2 = (p[k] * alpha - p[k + 1] * along for k in (1, 2))
        dim = white.shape[1]
        hessian = w1.sum(axis=1)[:, None, None] * np.eye(dim)
        for rows in blocks(len(white), self.centres.size):
            apart = white[rows, None] - self.centres
            # sum of w2 r r^T - p2 (lean r^T + r lean^T), as half of it and its transpose
            half = np.matmul(
                np.swapaxes(0.5 * w2[rows, :, None] * apart - p[2][rows, :, None] * lean, 1, 2), apart
            )
            hessian[rows] += half + np.swapaxes(half, 1, 2)
        return hessian

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        _, lean = self._split(weights)
        radius = np.einsum("nd,nd->n", velocity, white)[:, None] - velocity @ self.centres.T  # r . u
        slope = velocity @ lean.T  # lean . u
        square = np.einsum("nd,nd->n", velocity, velocity)[:, None]
        vector, free = self._third(white, weights, radius**2, radius * slope, square)
        return vector + 2.0 * np.einsum("nd,nd->n", free, velocity)[:, None] * velocity

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        _, lean = self._split(weights)
        image = np.matmul(matrix, white[:, :, None])[:, :, 0]
        form = np.einsum("nd,nd->n", white, image)[:, None] - 2.0 * image @ self.centres.T
        mixed = image @ lean.T
        for rows in blocks(len(white), self.centres.size):
            pulled = np.matmul(self.centres, matrix[rows])
            form[rows] += np.einsum("nsd,sd->ns", pulled, self.centres)  # now r^T A r
            mixed[rows] -= np.einsum("nsd,sd->ns", pulled, lean)  # now r^T A lean
        size = np.trace(matrix, axis1=1, axis2=2)[:, None]
        vector, free = self._third(white, weights, form, mixed, size)
        return vector + 2.0 * np.matmul(matrix, free[:, :, None])[:, :, 0]

    def _third(
        self, white: np.ndarray, weights: np.ndarray, form: np.ndarray, mixed: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the part along r and the leanings, and the vector that is still to be multiplied by 2 A."""
        alpha, lean = self._split(weights)
        p, along = self._powers(white, 4), self._along(white, lean)
        w2, w3 = (p[k] * alpha - p[k + 1] * along for k in (2, 3))
        vector = self._radii_sum(w3 * form + w2 * size - 2.0 * p[3] * mixed, white)
        vector -= (p[3] * form + p[2] * size) @ lean
        return vector, self._radii_sum(w2, white) - p[2] @ lean

    def _split(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.centres)
        return weights[:n], weights[n:].reshape(self.centres.shape)

    def _powers(self, white: np.ndarray, order: int) -> list[np.ndarray]:
        """Return the derivatives of the nodes, each times one more power of the squared inverse length."""
        parts = self.profile.derivatives(self.nodes.distance(white), order)
        return [part * self.length ** (-2 * k) for k, part in enumerate(parts)]

    def _along(self, white: np.ndarray, lean: np.ndarray) -> np.ndarray:
        return white @ lean.T - np.einsum("sd,sd->s", self.centres, lean)

    def _radii_sum(self, factors: np.ndarray, white: np.ndarray) -> np.ndarray:
        return factors.sum(axis=1, keepdims=True) * white - factors @ self.centres
