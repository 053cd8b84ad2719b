r"""Many outputs from one set of features: polynomials up to the third degree, and softplus nodes if asked for.

Component k of the outputs is, in whitened coordinates,

.. math::
    a_k(z) = b_k + l_k \cdot z + \tfrac12 z^T B_k z + \tfrac16 T_k[z, z, z] + \sum_i v_{ik}\, a(w_i \cdot z + d_i).

A potential that depends on z through the components alone has derivatives that are sums over components of products of
its own derivatives with those of :math:`a_k`; the methods here form just these sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.surrogates.bases import SoftplusBasis
from leapwise.surrogates.contractions import quadratic_forms
from leapwise.surrogates.cubic import CubicForms
from leapwise.surrogates.softplus import sigmoid
from leapwise.surrogates.trend import TrendBasis


@dataclass(frozen=True, eq=False)
class Emulator:
    """Components ``(n, p)`` as functions of whitened positions ``(n, dim)``.

    Attributes
    ----------
    constant : ndarray of shape (p,)
    trend_weights : ndarray of shape (trend.size, p)
        Of a `TrendBasis` without radial terms.
    cubic : CubicForms or None
    nodes : SoftplusBasis or None
    node_weights : ndarray of shape (nodes.size, p)

    Examples
    --------
    >>> emulator = Emulator(np.zeros(1), TrendBasis(2).weights_of(np.ones(2), 2 * np.eye(2))[:, None])
    >>> emulator.components(np.array([[1.0, 2.0]]))
    array([[8.]])
    """

    constant: np.ndarray
    trend_weights: np.ndarray
    cubic: CubicForms | None = None
    nodes: SoftplusBasis | None = None
    node_weights: np.ndarray | None = None

    @cached_property
    def trend(self) -> TrendBasis:
        """The basis of the linear and quadratic parts."""
        return TrendBasis(int((np.sqrt(9 + 8 * len(self.trend_weights)) - 3) / 2))

    @cached_property
    def linear(self) -> np.ndarray:
        """The vectors l_k, ``(p, dim)``."""
        return np.ascontiguousarray(self.trend_weights[: self.trend.dim].T)

    @cached_property
    def matrices(self) -> np.ndarray:
        """The matrices B_k, ``(p, dim, dim)``."""
        return self.trend.matrix(np.ascontiguousarray(self.trend_weights.T))

    def components(self, white: np.ndarray) -> np.ndarray:
        """Return components ``(n, p)``."""
        value = self.constant + self.trend.features(white) @ self.trend_weights
        if self.cubic is not None:
            value = value + self.cubic.values(white)
        if self.nodes is not None:
            value = value + self.nodes.features(white) @ self._node_weights
        return value

    def components_and_slopes(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return components, and the Jacobian ``(n, p, dim)`` of all but the softplus nodes."""
        n, p = len(white), len(self.constant)
        image = (white @ self._flat).reshape(n, p, self.trend.dim)
        value = self.constant + np.matmul(0.5 * image + self.linear, white[:, :, None])[:, :, 0]
        slopes = image + self.linear
        if self.cubic is not None:
            more, steeper = self.cubic.values_and_slopes(white)
            value, slopes = value + more, slopes + steeper
        if self.nodes is not None:
            value = value + self.nodes.features(white) @ self._node_weights
        return value, slopes

    def pull_back(self, white: np.ndarray, slopes: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the transposed Jacobian times `cotangent` ``(n, p)``, ``(n, dim)``; `slopes` as returned above."""
        pulled = np.matmul(cotangent[:, None, :], slopes)[:, 0, :]
        if self.nodes is not None:
            first = self._node_slopes(white)
            pulled = pulled + (first * (cotangent @ self._node_weights.T)) @ self.nodes.input_weights
        return pulled

    def jacobian(self, white: np.ndarray) -> np.ndarray:
        """Return the whole Jacobian, ``(n, p, dim)``."""
        _, slopes = self.components_and_slopes(white)
        if self.nodes is None:
            return slopes
        scaled = self._node_weights.T * self._node_slopes(white)[:, None, :]
        return slopes + np.matmul(scaled, self.nodes.input_weights)

    def hessian(self, white: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k \nabla^2 a_k`, ``(n, dim, dim)``."""
        p, d, _ = self.matrices.shape
        total = (cotangent @ self.matrices.reshape(p, -1)).reshape(-1, d, d)
        if self.cubic is not None:
            total = total + self.cubic.hessian(white, cotangent)
        if self.nodes is not None:
            total = total + self.nodes.hessian(white, cotangent @ self._node_weights.T)
        return total

    def mixed(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_{kj} \partial_i \partial_j a_k\, Y_{kj}` for `matrix` Y ``(n, p, dim)``, ``(n, dim)``."""
        p, d, _ = self.matrices.shape
        total = matrix.reshape(len(white), p * d) @ self.matrices.reshape(p * d, d)
        if self.cubic is not None:
            total = total + self.cubic.mixed(white, matrix)
        if self.nodes is not None:
            inputs = self.nodes.input_weights
            along = np.einsum("sk,nks->ns", self._node_weights, matrix @ inputs.T)
            total = total + (self._node_curvature(white) * along) @ inputs
        return total

    def laplacian(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(M \nabla^2 a_k)` for symmetric M ``(n, dim, dim)``, ``(n, p)``."""
        p, d, _ = self.matrices.shape
        total = matrix.reshape(len(white), d * d) @ self.matrices.reshape(p, d * d).T
        if self.cubic is not None:
            total = total + self.cubic.laplacian(white, matrix)
        if self.nodes is not None:
            forms = quadratic_forms(matrix, self.nodes.input_weights)
            total = total + (self._node_curvature(white) * forms) @ self._node_weights
        return total

    def trace(self, white: np.ndarray, cotangent: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k\, \mathrm{tr}(M\, \partial_i \nabla^2 a_k)`, ``(n, dim)``."""
        total = np.zeros_like(white)
        if self.cubic is not None:
            total = total + self.cubic.trace(cotangent, matrix)
        if self.nodes is not None:
            total = total + self.nodes.trace(white, cotangent @ self._node_weights.T, matrix)
        return total

    @cached_property
    def _flat(self) -> np.ndarray:
        """All B_k beside one another, ``(dim, p dim)``."""
        return np.ascontiguousarray(np.moveaxis(self.matrices, 0, 1).reshape(self.trend.dim, -1))

    @property
    def _node_weights(self) -> np.ndarray:
        assert self.node_weights is not None
        return self.node_weights

    def _node_slopes(self, white: np.ndarray) -> np.ndarray:
        assert self.nodes is not None
        return sigmoid(white @ self.nodes.input_weights.T + self.nodes.input_biases)

    def _node_curvature(self, white: np.ndarray) -> np.ndarray:
        slope = self._node_slopes(white)
        return slope * (1.0 - slope)
