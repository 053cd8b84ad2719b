r"""Many outputs from one set of features: polynomials up to the third degree, and softplus nodes if asked for.

Component k of the outputs is, in whitened coordinates,

.. math::
    a_k(z) = b_k + l_k \cdot z + \tfrac12 z^T B_k z + \tfrac16 T_k[z, z, z] + \sum_i v_{ik}\, a(w_i \cdot z + d_i).

A potential that depends on z through the components alone has derivatives that are sums over components of products of
its own derivatives with those of :math:`a_k`; the methods here form just these sums.

Cubic features, and many cubic forms at once.

A form :math:`\tfrac16 T[z, z, z]` with a symmetric tensor T has the weights :math:`\sqrt{m_{ijk}}\, T_{ijk}` of the
features :math:`\tfrac16 \sqrt{m_{ijk}}\, z_i z_j z_k`, :math:`i \le j \le k`, where :math:`m_{ijk}` is 1, 3 or 6, the
number of different orders of the indices. Squared weights then add up to the squared Frobenius norm of T, so a ridge
does not depend on the choice of axes.

The shared features of an `OutputSurrogate`: in which coordinates, and how much each is penalised.

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
from functools import cached_property

import numpy as np

from leapwise.surrogates.bases import SoftplusBasis, quadratic_forms, sigmoid
from leapwise.surrogates.ridge import solve_ridge
from leapwise.surrogates.trend import TrendBasis


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
