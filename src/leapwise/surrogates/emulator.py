r"""Emulators of many outputs from one shared set of features.

The last link of the chain `outputs` -> `output_space` -> `emulator`: it knows neither likelihood nor prior. It learns
components as functions of whitened positions z, for the `OutputSurrogate` of `outputs`; `output_space` has compressed
the outputs to these components.

**Emulator.** Component k of the compressed outputs is, in whitened coordinates,

.. math::
    a_k(z) = b_k + l_k \cdot z + \tfrac12 z^T B_k z + \tfrac16 T_k[z, z, z] + \sum_i v_{ik}\, s(w_i \cdot z + d_i),

a polynomial of the third degree plus, if wanted, hidden softplus units. A potential that depends on z through the
components alone has derivatives that are sums over components of its own derivatives times those of :math:`a_k`. The
methods of `Emulator` form just these sums.

**Cubic forms.** A form :math:`\tfrac16 T[z, z, z]` with a symmetric tensor T has the weights
:math:`\sqrt{m_{ijk}}\, T_{ijk}` of the features :math:`\tfrac16 \sqrt{m_{ijk}}\, z_i z_j z_k`,
:math:`i \le j \le k`, where :math:`m_{ijk}` is 1, 3 or 6, the number of different orders of the indices. The sum of
squared weights is then the squared Frobenius norm of T, so a ridge does not depend on the choice of axes.

**Features and penalties.** `OutputFeatures` rotates the coordinates to the directions in which the outputs bend: the
eigenvectors of :math:`\sum_k B_k^2` of a quadratic fit, with eigenvalues :math:`\mu_i^2`. In the rotated coordinates
the squared weights are penalised by one strength times

- 1/100 for linear features, or 0 if they explain nearly everything, and 0 for the constant,
- :math:`1/(r_i r_j)` for :math:`z_i z_j`, with :math:`r_i = \mu_i/\mu_{\max} + 10^{-3}`,
- :math:`30/(r_i r_j r_k)` for :math:`z_i z_j z_k`: a direction with little curvature is expected to have little third
  derivative too,
- the number of hidden units for each of them.

With the factor 30 cubic features matter little while there are few evaluations, and explain what quadratic ones leave
once there are many. A quadratic alone stops improving at a few times as many evaluations as it has features. A linear
model must be learned from little more evaluations than it has parameters, even if measurement errors are tiny;
therefore linear features that explain all but a hundredth are not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from leapwise.surrogates.features import SoftplusBasis, quadratic_forms, sigmoid
from leapwise.surrogates.ridge import solve_ridge
from leapwise.surrogates.trend import TrendBasis


@dataclass(frozen=True)
class CubicBasis:
    """All products of three coordinates as features.

    Examples
    --------
    >>> basis = CubicBasis(2)
    >>> basis.size, basis.features(np.array([[1.0, 2.0]])) @ np.array([6.0, 0.0, 0.0, 0.0])
    (4, array([1.]))
    """

    dim: int

    @classmethod
    def largest(cls, dim: int, max_size: int) -> CubicBasis:
        """Return the basis of the most coordinates, at most `dim`, that has at most `max_size` features."""
        return max((cls(k) for k in range(dim + 1) if cls(k).size <= max_size), key=lambda basis: basis.dim)

    @property
    def size(self) -> int:
        """Number of features."""
        return self.dim * (self.dim + 1) * (self.dim + 2) // 6

    @cached_property
    def triples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Indices i <= j <= k of all features, and the square roots of their numbers of orders."""
        i, j, k = np.indices((self.dim,) * 3).reshape(3, -1)
        i, j, k = (index[(i <= j) & (j <= k)] for index in (i, j, k))
        return i, j, k, np.sqrt(np.where(i == k, 1.0, np.where((i == j) | (j == k), 3.0, 6.0)))

    def products(self, numbers: np.ndarray) -> np.ndarray:
        """Return the product of three `numbers` ``(dim,)`` for each feature, ``(size,)``."""
        i, j, k, _ = self.triples
        return np.asarray(numbers[i] * numbers[j] * numbers[k])

    def features(self, points: np.ndarray) -> np.ndarray:
        """Return all features of points ``(n, dim)``, ``(n, size)``."""
        i, j, k, root = self.triples
        return points[:, i] * points[:, j] * points[:, k] * (root / 6.0)

    def gradient_features(self, points: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        i, j, k, root = self.triples
        rows, columns = np.zeros((len(points), self.dim, self.size)), np.arange(self.size)
        for one, two, three in ((i, j, k), (j, k, i), (k, i, j)):
            rows[:, one, columns] += points[:, two] * points[:, three] * (root / 6.0)
        return rows

    def tensors(self, weights: np.ndarray) -> np.ndarray:
        """Return the symmetric tensors ``(p, dim, dim, dim)`` of weights ``(size, p)``."""
        i, j, k, root = self.triples
        tensors = np.empty((weights.shape[1], self.dim, self.dim, self.dim))
        for a, b, c in ((i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)):
            tensors[:, a, b, c] = weights.T / root
        return tensors


@dataclass(frozen=True, eq=False)
class CubicForms:
    r"""Cubic forms :math:`\tfrac16 T_k[y, y, y]` of projections :math:`y = A^T z`.

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
        """Triples i <= j <= k of coordinates, and the weights of their products, ``(triples, p)``."""
        i, j, k, root = CubicBasis(self.axes.shape[1]).triples
        return (i, j, k), np.ascontiguousarray((self.tensors[:, i, j, k] * (root**2 / 6.0)).T)

    @property
    def is_wide(self) -> bool:
        """Whether slopes are more numerous than products of three coordinates, from which values are then cheaper."""
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
        """Return the sums of all tensors with weights `cotangent` ``(n, p)``, ``(n, r, r, r)``."""
        p, r = self.tensors.shape[:2]
        return (cotangent @ self.tensors.reshape(p, -1)).reshape(-1, r, r, r)

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs of indices, and the weights of their products, ``(pairs, p r)``."""
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
        Weights of a `TrendBasis` without radial terms.
    cubic : CubicForms or None
    hidden : SoftplusBasis or None
    hidden_weights : ndarray of shape (hidden.size, p) or None

    Examples
    --------
    >>> emulator = Emulator(np.zeros(1), TrendBasis(2).weights_of(np.ones(2), 2 * np.eye(2))[:, None])
    >>> emulator.components(np.array([[1.0, 2.0]]))
    array([[8.]])
    """

    constant: np.ndarray
    trend_weights: np.ndarray
    cubic: CubicForms | None = None
    hidden: SoftplusBasis | None = None
    hidden_weights: np.ndarray | None = None

    @cached_property
    def trend(self) -> TrendBasis:
        """The basis of the linear and quadratic terms."""
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
        if self.hidden is not None:
            value = value + self.hidden.features(white) @ self._output_weights
        return value

    def components_and_slopes(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return components, and the Jacobian ``(n, p, dim)`` of their polynomial part."""
        n, p = len(white), len(self.constant)
        image = (white @ self._flat).reshape(n, p, self.trend.dim)
        value = self.constant + np.matmul(0.5 * image + self.linear, white[:, :, None])[:, :, 0]
        slopes = image + self.linear
        if self.cubic is not None:
            more, steeper = self.cubic.values_and_slopes(white)
            value, slopes = value + more, slopes + steeper
        if self.hidden is not None:
            value = value + self.hidden.features(white) @ self._output_weights
        return value, slopes

    def pull_back(self, white: np.ndarray, slopes: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return the transposed Jacobian times `cotangent` ``(n, p)``; `slopes` are from `components_and_slopes`."""
        pulled = np.matmul(cotangent[:, None, :], slopes)[:, 0, :]
        if self.hidden is not None:
            first = self._hidden_slopes(white)
            pulled = pulled + (first * (cotangent @ self._output_weights.T)) @ self.hidden.input_weights
        return pulled

    def jacobian(self, white: np.ndarray) -> np.ndarray:
        """Return the Jacobian of all components, ``(n, p, dim)``."""
        _, slopes = self.components_and_slopes(white)
        if self.hidden is None:
            return slopes
        scaled = self._output_weights.T * self._hidden_slopes(white)[:, None, :]
        return slopes + np.matmul(scaled, self.hidden.input_weights)

    def hessian(self, white: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k \nabla^2 a_k` for `cotangent` c ``(n, p)``, ``(n, dim, dim)``."""
        p, d, _ = self.matrices.shape
        total = (cotangent @ self.matrices.reshape(p, -1)).reshape(-1, d, d)
        if self.cubic is not None:
            total = total + self.cubic.hessian(white, cotangent)
        if self.hidden is not None:
            total = total + self.hidden.hessian(white, cotangent @ self._output_weights.T)
        return total

    def mixed(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_{kj} \partial_i \partial_j a_k\, Y_{kj}` for `matrix` Y ``(n, p, dim)``, ``(n, dim)``."""
        p, d, _ = self.matrices.shape
        total = matrix.reshape(len(white), p * d) @ self.matrices.reshape(p * d, d)
        if self.cubic is not None:
            total = total + self.cubic.mixed(white, matrix)
        if self.hidden is not None:
            inputs = self.hidden.input_weights
            along = np.einsum("sk,nks->ns", self._output_weights, matrix @ inputs.T)
            total = total + (self._hidden_curvature(white) * along) @ inputs
        return total

    def laplacian(self, white: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(M \nabla^2 a_k)` for symmetric M ``(n, dim, dim)``, ``(n, p)``."""
        p, d, _ = self.matrices.shape
        total = matrix.reshape(len(white), d * d) @ self.matrices.reshape(p, d * d).T
        if self.cubic is not None:
            total = total + self.cubic.laplacian(white, matrix)
        if self.hidden is not None:
            forms = quadratic_forms(matrix, self.hidden.input_weights)
            total = total + (self._hidden_curvature(white) * forms) @ self._output_weights
        return total

    def trace(self, white: np.ndarray, cotangent: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sum_k c_k\, \mathrm{tr}(M\, \partial_i \nabla^2 a_k)`, ``(n, dim)``."""
        total = np.zeros_like(white)
        if self.cubic is not None:
            total = total + self.cubic.trace(cotangent, matrix)
        if self.hidden is not None:
            total = total + self.hidden.trace(white, cotangent @ self._output_weights.T, matrix)
        return total

    @cached_property
    def _flat(self) -> np.ndarray:
        """All B_k side by side, ``(dim, p dim)``."""
        return np.ascontiguousarray(np.moveaxis(self.matrices, 0, 1).reshape(self.trend.dim, -1))

    @property
    def _output_weights(self) -> np.ndarray:
        assert self.hidden_weights is not None
        return self.hidden_weights

    def _hidden_slopes(self, white: np.ndarray) -> np.ndarray:
        assert self.hidden is not None
        return sigmoid(white @ self.hidden.input_weights.T + self.hidden.input_biases)

    def _hidden_curvature(self, white: np.ndarray) -> np.ndarray:
        slope = self._hidden_slopes(white)
        return slope * (1.0 - slope)


# The following values are guesses that work on the built-in problems, unless a comment derives them.
#: Relative penalty of linear features: small, but enough that rounding does not decide weights that the evaluations
#: leave open.
_LINEAR_PENALTY = 0.01
#: Relative penalty of cubic features; see the module's docstring.
_CUBIC_PENALTY = 30.0
#: Largest number of cubic features, which bounds the cost of a fit: 21 directions have 1771 of them.
_MAX_CUBIC = 2000
#: Added to all relevances, so that no direction is excluded for good.
_LEAST_RELEVANCE = 1e-3
#: Quadratic fits in a row that improve the rotation; each uses the relevances of the one before.
_ROUNDS = 3
#: Evaluations that determine a linear model, as a multiple of its number of coefficients.
_ENOUGH = 1.5
#: Smallest singular value of the positions that determine a linear model, as a share of the largest: about the square
#: root of the rounding error, so that half of the digits remain.
_FLATTEST = 1e-7
#: Share of the outputs' spread that a linear model may leave if it explains nearly everything.
_NEARLY_NOTHING = 0.01


@dataclass(frozen=True, eq=False)
class OutputFeatures:
    """Linear, quadratic, cubic, softplus and constant features, and their penalties.

    Attributes
    ----------
    rotation : ndarray of shape (dim, dim)
        Columns are the directions of the new axes.
    relevance : ndarray of shape (dim,)
        How much the outputs bend along each axis, in increasing order, at most about 1.
    cubic : CubicBasis
        Cubic features of the last, most relevant, of the rotated coordinates.
    hidden : SoftplusBasis or None
        Hidden units of the coordinates before rotation.
    linear_penalty : float
        Relative penalty of linear features.
    """

    rotation: np.ndarray
    relevance: np.ndarray
    cubic: CubicBasis = field(default_factory=lambda: CubicBasis(0))
    hidden: SoftplusBasis | None = None
    linear_penalty: float = _LINEAR_PENALTY

    @classmethod
    def learn(cls, white: np.ndarray, components: np.ndarray) -> OutputFeatures:
        """Find the rotation from quadratic fits of components ``(n, p)`` at whitened positions ``(n, dim)``."""
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

    def with_hidden(
        self, white: np.ndarray, n_hidden: int, gain: float, rng: np.random.Generator
    ) -> OutputFeatures:
        """Return the same features with other hidden units, whose kinks pass through training positions."""
        if not n_hidden:
            return replace(self, hidden=None)
        dim = len(self.rotation)
        inputs = rng.standard_normal((n_hidden, dim)) * (gain / np.sqrt(dim))
        return replace(self, hidden=SoftplusBasis.through(white, inputs, rng))

    @property
    def trend(self) -> TrendBasis:
        """The basis of linear and quadratic features."""
        return TrendBasis(len(self.rotation))

    @property
    def axes(self) -> np.ndarray:
        """The axes of the cubic features, ``(dim, cubic.dim)``."""
        return self.rotation[:, len(self.rotation) - self.cubic.dim :]

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of all features; the constant comes last and has none."""
        dim = len(self.rotation)
        i, j = np.triu_indices(dim)
        quadratic = 1.0 / (self.relevance[i] * self.relevance[j])
        cubic = _CUBIC_PENALTY / self.cubic.products(self.relevance[dim - self.cubic.dim :])
        n_hidden = 0 if self.hidden is None else self.hidden.size
        parts = [np.full(dim, self.linear_penalty), quadratic, cubic, np.full(n_hidden, n_hidden), [0.0]]
        return np.concatenate(parts)

    def rows(self, white: np.ndarray) -> np.ndarray:
        """Return all features of whitened positions ``(n, dim)``, the constant last."""
        parts = [self.trend.features(white @ self.rotation), self.cubic.features(white @ self.axes)]
        if self.hidden is not None:
            parts.append(self.hidden.features(white))
        return np.concatenate([*parts, np.ones((len(white), 1))], axis=1)

    def gradient_rows(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features by whitened coordinates, ``(n dim, n_features)``."""
        n, dim = white.shape
        parts = [
            self.rotation @ self.trend.gradient_features(white @ self.rotation),
            self.axes @ self.cubic.gradient_features(white @ self.axes),
        ]
        if self.hidden is not None:
            parts.append(self.hidden.gradient_features(white))
        return np.concatenate([*parts, np.zeros((n, dim, 1))], axis=2).reshape(n * dim, -1)

    def emulator(self, weights: np.ndarray) -> Emulator:
        """Return the emulator with weights ``(n_features, p)`` of the features."""
        size, dim = self.trend.size, len(self.rotation)
        matrices = self.rotation @ self.trend.matrix(weights[:size].T) @ self.rotation.T
        trend = self.trend.weights_of((self.rotation @ weights[:dim]).T, matrices).T
        after = size + self.cubic.size
        cubic = CubicForms(self.axes, self.cubic.tensors(weights[size:after])) if self.cubic.dim else None
        return Emulator(
            weights[-1], trend, cubic, self.hidden, None if self.hidden is None else weights[after:-1]
        )


def determines_lines(white: np.ndarray) -> bool:
    """Whether values at positions ``(n, dim)`` determine a linear function well."""
    n, dim = white.shape
    if n < _ENOUGH * (dim + 1):
        return False
    sizes = np.linalg.svd(np.column_stack([np.ones(n), white]), compute_uv=False)
    return bool(sizes[-1] > _FLATTEST * sizes[0])


def _is_nearly_linear(white: np.ndarray, components: np.ndarray) -> bool:
    """Whether a linear function is well determined and explains nearly all of the components ``(n, p)``."""
    if not determines_lines(white):
        return False
    lines = np.column_stack([np.ones(len(white)), white])
    left = components - lines @ np.linalg.lstsq(lines, components, rcond=None)[0]
    varied = np.linalg.norm(components - components.mean(axis=0))
    return bool(np.linalg.norm(left) < _NEARLY_NOTHING * varied)
