r"""Cubic features, and many cubic forms at once.

A form :math:`\tfrac16 T[z, z, z]` with a symmetric tensor T has the weights :math:`\sqrt{m_{ijk}}\, T_{ijk}` of the
features :math:`\tfrac16 \sqrt{m_{ijk}}\, z_i z_j z_k`, :math:`i \le j \le k`, where :math:`m_{ijk}` is 1, 3 or 6, the
number of different orders of the indices. Squared weights then add up to the squared Frobenius norm of T, so a ridge
does not depend on the choice of axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class CubicBasis:
    """All products of three coordinates.

    Examples
    --------
    >>> basis = CubicBasis(2)
    >>> basis.size, basis.features(np.array([[1.0, 2.0]])) @ np.array([6.0, 0.0, 0.0, 0.0])
    (4, array([1.]))
    """

    dim: int

    @classmethod
    def largest(cls, dim: int, max_size: int) -> CubicBasis:
        """Return the one with the most coordinates, at most `dim`, that has at most `max_size` features."""
        return max((cls(k) for k in range(dim + 1) if cls(k).size <= max_size), key=lambda basis: basis.dim)

    @property
    def size(self) -> int:
        """Number of features."""
        return self.dim * (self.dim + 1) * (self.dim + 2) // 6

    @cached_property
    def _triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Indices i, j, k of all features, and the roots of the numbers of their orders."""
        i, j, k = np.indices((self.dim,) * 3).reshape(3, -1)
        i, j, k = (index[(i <= j) & (j <= k)] for index in (i, j, k))
        return i, j, k, np.sqrt(np.where(i == k, 1.0, np.where((i == j) | (j == k), 3.0, 6.0)))

    def products(self, numbers: np.ndarray) -> np.ndarray:
        """Return the product of three of `numbers` ``(dim,)`` for each feature, ``(size,)``."""
        i, j, k, _ = self._triples
        return np.asarray(numbers[i] * numbers[j] * numbers[k])

    def features(self, points: np.ndarray) -> np.ndarray:
        """Return all features of points ``(n, dim)``, ``(n, size)``."""
        i, j, k, root = self._triples
        return points[:, i] * points[:, j] * points[:, k] * (root / 6.0)

    def gradient_features(self, points: np.ndarray) -> np.ndarray:
        """Return their derivatives, ``(n, dim, size)``."""
        i, j, k, root = self._triples
        rows, columns = np.zeros((len(points), self.dim, self.size)), np.arange(self.size)
        for one, two, three in ((i, j, k), (j, k, i), (k, i, j)):
            rows[:, one, columns] += points[:, two] * points[:, three] * (root / 6.0)
        return rows

    def tensors(self, weights: np.ndarray) -> np.ndarray:
        """Return T, ``(p, dim, dim, dim)``, of weights ``(size, p)``."""
        i, j, k, root = self._triples
        tensors = np.empty((weights.shape[1], self.dim, self.dim, self.dim))
        for a, b, c in ((i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)):
            tensors[:, a, b, c] = weights.T / root
        return tensors


@dataclass(frozen=True, eq=False)
class CubicForms:
    r"""Forms :math:`\tfrac16 T_k[y, y, y]` of some projections :math:`y = A^T z` of the coordinates.

    Attributes
    ----------
    axes : ndarray of shape (dim, r)
        The columns of A.
    tensors : ndarray of shape (p, r, r, r)
        Symmetric.
    """

    axes: np.ndarray
    tensors: np.ndarray

    @cached_property
    def weights(self) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Triples i <= j <= k of coordinates, and what their products are multiplied with, ``(triples, p)``."""
        i, j, k, root = CubicBasis(self.axes.shape[1])._triples
        return (i, j, k), np.ascontiguousarray((self.tensors[:, i, j, k] * (root**2 / 6.0)).T)

    @property
    def is_wide(self) -> bool:
        """Whether there are more slopes than products of three coordinates, through which values are then cheaper."""
        p, r = self.tensors.shape[:2]
        return p * r > CubicBasis(r).size

    def values(self, white: np.ndarray) -> np.ndarray:
        """Return values ``(n, p)``."""
        if not self.is_wide:
            return self.values_and_slopes(white)[0]
        (i, j, k), weights = self.weights
        y = white @ self.axes
        return (y[:, i] * y[:, j] * y[:, k]) @ weights

    def values_and_slopes(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values ``(n, p)`` and their Jacobian ``(n, p, dim)``."""
        y = white @ self.axes
        i, j, flat = self._pairs
        image = ((y[:, i] * y[:, j]) @ flat).reshape(len(y), len(self.tensors), y.shape[1])  # T[y, y]
        return np.matmul(image, y[:, :, None])[:, :, 0] / 6.0, 0.5 * image @ self.axes.T

    def hessian(self, white: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k T_k[y]` in the coordinates z, ``(n, dim, dim)``."""
        y = white @ self.axes
        return self.axes @ np.matmul(self._weighted(cotangent), y[:, None, :, None])[..., 0] @ self.axes.T

    def mixed(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_{kj} \partial_i \partial_j a_k\, Y_{kj}` for Y ``(n, p, dim)``, ``(n, dim)``."""
        y, seen = white @ self.axes, matrix @ self.axes
        outer = (seen[:, :, :, None] * y[:, None, None, :]).reshape(len(y), self.tensors[..., 0].size)
        return outer @ self.tensors.reshape(-1, y.shape[1]) @ self.axes.T

    def laplacian(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(M \nabla^2 a_k)` for symmetric M ``(n, dim, dim)``, ``(n, p)``."""
        y, seen = white @ self.axes, self.axes.T @ matrix @ self.axes
        outer = (seen[:, :, :, None] * y[:, None, None, :]).reshape(len(y), self.tensors[0].size)
        return outer @ self.tensors.reshape(len(self.tensors), -1).T

    def trace(self, cotangent: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k\, \mathrm{tr}(M\, \partial_i \nabla^2 a_k)`, ``(n, dim)``."""
        seen = self.axes.T @ matrix @ self.axes
        return np.asarray(np.einsum("nijl,njl->ni", self._weighted(cotangent), seen) @ self.axes.T)

    def _weighted(self, cotangent: np.ndarray) -> np.ndarray:
        """Return the sums of all tensors with weights ``(n, p)``, ``(n, r, r, r)``."""
        p, r = self.tensors.shape[:2]
        return (cotangent @ self.tensors.reshape(p, -1)).reshape(-1, r, r, r)

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs of indices, and what their products are multiplied with, ``(pairs, p r)``."""
        p, r = self.tensors.shape[:2]
        i, j = np.triu_indices(r)
        flat = self.tensors[:, :, i, j] * np.where(i == j, 1.0, 2.0)
        return i, j, np.ascontiguousarray(np.moveaxis(flat, 2, 0).reshape(len(i), p * r))
