r"""The smooth part of a potential: linear, quadratic and radial features, alone or with hidden units, and a guard.

In whitened coordinates :math:`z` of dimension :math:`d` the trend is

.. math:: l^T z + \tfrac12 z^T A z + \sum_k r_k \, d \log\Big(1 + \frac{|z|^2}{s_k d}\Big),
    \qquad s_k = \tfrac14, 1, 4.

There is no constant feature: a surrogate adds its own offset. The weights of the quadratic part are the coordinates
of :math:`A` in an orthonormal basis of the symmetric matrices (features :math:`z_i^2/2` and :math:`z_i z_j/\sqrt2`). A
ridge on these weights is therefore a ridge on the Frobenius norm of :math:`A`, and does not depend on how the whitened
coordinates are rotated. Values and gradients are computed from the matrix, without forming the :math:`d^2/2` features.

The radial features and the guard are functions :math:`\varphi(\rho)` of :math:`\rho = |z|^2/2`. Their gradient,
Hessian H and third derivative T are

.. math::
    \nabla = \varphi' z, \qquad H = \varphi' I + \varphi'' z z^T, \qquad
    T_{ijk} = \varphi'' (\delta_{ij} z_k + \delta_{ik} z_j + \delta_{jk} z_i) + \varphi''' z_i z_j z_k.

The guard, and a lower bound on the eigenvalues of the Hessian, make a surrogate grow outside the trained region.
`QuadraticBasis` is a trend with hidden units; it has closed forms for the Gram matrix of gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.checks import require_dim, require_flag
from leapwise.surrogates.base import Basis
from leapwise.surrogates.features import SoftplusBasis, SumBasis

#: Scales of the radial terms, relative to the typical squared distance d: a factor of 4 to either side. A guess.
RADIAL_SCALES = np.array([0.25, 1.0, 4.0])
#: The smallest eigenvalue of a trend's Hessian. A whitened Gaussian has 1; wide posteriors need less. A guess.
MIN_CURVATURE = 0.02


class CentredBasis(ABC):
    """Features that depend only on the distance from the origin; a subclass gives their profiles."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of features."""

    @abstractmethod
    def profiles(self, rho: np.ndarray, order: int) -> np.ndarray:
        r"""Return the derivatives of all features by :math:`\rho`, up to `order`: ``(order + 1, n, size)``."""

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return self.profiles(_half_square(white), 0)[0]

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return their derivatives, ``(n, dim, size)``."""
        return white[:, :, None] * self.profiles(_half_square(white), 1)[1][:, None, :]

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return self._sums(white, weights, 0)[0]

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient."""
        value, first = self._sums(white, weights, 1)
        return value, first[:, None] * white

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return its Hessian."""
        _, first, second = self._sums(white, weights, 2)
        outer = white[:, :, None] * white[:, None, :]
        return first[:, None, None] * np.eye(white.shape[1]) + second[:, None, None] * outer

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        along = np.einsum("ij,ij->i", white, velocity)
        square = np.einsum("ij,ij->i", velocity, velocity)
        _, _, second, third = (part[:, None] for part in self._sums(white, weights, 3))
        return second * (square[:, None] * white + 2 * along[:, None] * velocity) + (
            third * along[:, None] ** 2 * white
        )

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`."""
        image = np.matmul(matrix, white[:, :, None])[:, :, 0]
        along = np.einsum("ij,ij->i", white, image)
        total = np.trace(matrix, axis1=1, axis2=2)
        _, _, second, third = (part[:, None] for part in self._sums(white, weights, 3))
        return second * (total[:, None] * white + 2 * image) + third * along[:, None] * white

    def _sums(self, white: np.ndarray, weights: np.ndarray, order: int) -> np.ndarray:
        """Return the weighted sums of the profiles, ``(order + 1, n)``."""
        return np.asarray((self.profiles(_half_square(white), order) * weights).sum(axis=-1))


@dataclass(frozen=True)
class RadialTrend(CentredBasis):
    r"""Three terms for heavy tails, :math:`d \log(1 + |z|^2 / (s d))` with s = 1/4, 1, 4."""

    dim: int

    @property
    def size(self) -> int:
        """Number of features."""
        return RADIAL_SCALES.size

    def profiles(self, rho: np.ndarray, order: int) -> np.ndarray:
        r"""Return derivatives of :math:`d \log(1 + 2\rho/(s d))`."""
        d = self.dim
        scale = RADIAL_SCALES * d
        slope = 2.0 / (scale + 2.0 * rho[:, None])
        chain = (d * np.log1p(2.0 * rho[:, None] / scale), d * slope, -d * slope**2, 2 * d * slope**3)
        return np.stack(chain[: order + 1])


@dataclass(frozen=True)
class Guard(CentredBasis):
    r"""A potential that is zero up to the distance `radius` from the origin and rises quadratically beyond it.

    With :math:`t = (|z| - R)_+` the one feature is :math:`\tfrac12 (t^2 - 1 + 1/(1 + t^2))`: zero up to R, below
    :math:`t^2/2` by less than 1/2 beyond, and with three continuous derivatives everywhere.

    Examples
    --------
    >>> Guard(2.0).features(np.array([[1.0, 0.0], [12.0, 0.0]])).round(3).tolist()
    [[0.0], [49.505]]
    """

    radius: float

    @property
    def size(self) -> int:
        """Number of features."""
        return 1

    def profiles(self, rho: np.ndarray, order: int) -> np.ndarray:
        r"""Return derivatives by :math:`\rho`, from those by the distance r with :math:`dr/d\rho = 1/r`."""
        r = np.maximum(np.sqrt(2.0 * rho), self.radius)
        t = r - self.radius
        u = 1.0 / (1.0 + t * t)
        g1 = t * (1.0 - u) * (1.0 + u)
        chain = [0.5 * t * t * t * t * u, g1 / r]
        if order > 1:
            g2 = 1.0 - (1.0 - 3.0 * t * t) * u**3
            chain.append((g2 - g1 / r) / r**2)
        if order > 2:
            g3 = 12.0 * t * (1.0 - t * t) * u**4
            chain.append((g3 - 3.0 * g2 / r + 3.0 * g1 / r**2) / r**3)
        return np.stack(chain[: order + 1])[:, :, None]


@dataclass(frozen=True)
class TrendBasis:
    r"""Linear and quadratic features, and optionally radial ones; no constant.

    The weights are ``dim`` linear ones, ``dim (dim + 1) / 2`` quadratic ones (rows of the upper triangle), and three
    radial ones. In all methods with `weights` they may also differ from row to row, with shape ``(n, size)``.

    Parameters
    ----------
    dim : int
    radial : bool
        Whether to include :math:`d \log(1 + |z|^2 / (s d))` for s = 1/4, 1, 4.

    Examples
    --------
    >>> basis = TrendBasis(2)
    >>> basis.value(np.array([[1.0, 2.0]]), basis.weights_of(np.zeros(2), np.eye(2)))
    array([2.5])
    """

    dim: int
    radial: bool = False

    def __post_init__(self) -> None:
        require_dim(self.dim)
        require_flag("radial", self.radial)

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows and columns of the upper triangle, and the entry of A that a weight of 1 stands for."""
        i, j = np.triu_indices(self.dim)
        return i, j, np.where(i == j, 1.0, np.sqrt(0.5))

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Indices i, j and factors f of the quadratic features ``f z_i z_j``."""
        i, j, scale = self._pairs
        return i, j, np.where(i == j, 0.5, scale)

    @cached_property
    def _radial(self) -> RadialTrend:
        return RadialTrend(self.dim)

    @property
    def n_quadratic(self) -> int:
        """Number of quadratic features."""
        return self.dim * (self.dim + 1) // 2

    @property
    def size(self) -> int:
        """Number of features."""
        return self.dim + self.n_quadratic + (RADIAL_SCALES.size if self.radial else 0)

    @property
    def quadratic_part(self) -> slice:
        """The quadratic weights, as a slice of all weights."""
        return slice(self.dim, self.dim + self.n_quadratic)

    def matrix(self, weights: np.ndarray) -> np.ndarray:
        """Return A, ``(..., dim, dim)``, of weights ``(..., size)``."""
        return self.symmetric(weights[..., self.quadratic_part])

    def symmetric(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the matrices ``(..., dim, dim)`` with coordinates ``(..., n_quadratic)``."""
        i, j, scale = self._pairs
        matrix = np.empty((*coordinates.shape[:-1], self.dim, self.dim))
        matrix[..., i, j] = matrix[..., j, i] = scale * coordinates
        return matrix

    def coordinates(self, matrix: np.ndarray) -> np.ndarray:
        """Return the coordinates ``(..., n_quadratic)`` of the symmetric parts of matrices ``(..., dim, dim)``."""
        i, j, scale = self._pairs
        return np.asarray((matrix[..., i, j] + matrix[..., j, i]) * (0.5 / scale))

    def weights_of(self, linear: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the weights ``(..., size)`` for l ``(..., dim)`` and symmetric A; radial weights are zero."""
        weights = np.zeros((*linear.shape[:-1], self.size))
        weights[..., : self.dim] = linear
        weights[..., self.quadratic_part] = self.coordinates(matrix)
        return weights

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        i, j, factor = self.pairs
        quadratic = white[:, i] * white[:, j] * factor
        parts = [white, quadratic, *([self._radial.features(white)] if self.radial else [])]
        return np.concatenate(parts, axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return their derivatives, ``(n, dim, size)``."""
        i, j, scale = self._pairs
        rows = np.zeros((len(white), self.dim, self.size))
        rows[:, :, : self.dim] = np.eye(self.dim)
        columns = np.arange(self.dim, self.dim + self.n_quadratic)
        rows[:, i, columns] = white[:, j] * scale
        rows[:, j, columns] = white[:, i] * scale
        if self.radial:
            rows[:, :, self.dim + self.n_quadratic :] = self._radial.gradient_features(white)
        return rows

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        moment = self.weights_of(target.sum(axis=0), white.T @ target)
        if self.radial:
            along = np.einsum("ij,ij->i", white, target)
            moment[self.dim + self.n_quadratic :] = along @ self.radial_slopes(white)
        return moment

    def radial_slopes(self, white: np.ndarray) -> np.ndarray:
        """Return the factors of the positions in the gradients of the radial features, ``(n, 0 or 3)``."""
        return self._radial.profiles(_half_square(white), 1)[1] if self.radial else np.zeros((len(white), 0))

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return self.value_and_gradient(white, weights)[0]

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient."""
        linear, matrix, radial = self._parts(weights)
        image = white @ matrix if matrix.ndim == 2 else np.matmul(matrix, white[:, :, None])[:, :, 0]
        value = np.einsum("ij,ij->i", white, 0.5 * image + linear)
        gradient = image + linear
        if radial is not None:
            more, slope = self._radial.value_and_gradient(white, radial)
            value, gradient = value + more, gradient + slope
        return value, gradient

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return its Hessian."""
        _, matrix, radial = self._parts(weights)
        hessian = np.array(np.broadcast_to(matrix, (len(white), self.dim, self.dim)))
        return hessian if radial is None else hessian + self._radial.hessian(white, radial)

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        _, _, radial = self._parts(weights)
        return np.zeros_like(white) if radial is None else self._radial.quadratic(white, radial, velocity)

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`."""
        _, _, radial = self._parts(weights)
        return np.zeros_like(white) if radial is None else self._radial.trace(white, radial, matrix)

    def _parts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Split weights into l, A and the radial ones."""
        radial = weights[..., self.dim + self.n_quadratic :] if self.radial else None
        return weights[..., : self.dim], self.matrix(weights), radial


def _half_square(white: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * np.einsum("ij,ij->i", white, white))


def nearest_convex(matrix: np.ndarray, least: float = MIN_CURVATURE) -> np.ndarray | None:
    """Return the nearest symmetric matrix with eigenvalues of at least `least`; None if `matrix` is one.

    Examples
    --------
    >>> nearest_convex(np.diag([1.0, -1.0])).round(6).tolist()
    [[1.0, 0.0], [0.0, 0.02]]
    >>> nearest_convex(np.eye(2)) is None
    True
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= least:
        return None
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def guard_radius(white: np.ndarray) -> float:
    """Return where the guard begins: 1.5 times the largest distance of the positions ``(n, dim)``, plus 1.

    Both numbers are guesses. They leave room around the training points for trajectories that go a little further.
    """
    return 1.0 + 1.5 * float(np.sqrt(np.square(white).sum(axis=1).max()))


@dataclass(frozen=True, eq=False)
class QuadraticBasis(SumBasis):
    """A trend, then additive hidden units, if any."""

    @classmethod
    def draw(
        cls,
        white: np.ndarray,
        n_hidden: int,
        gain: float,
        radial: bool,
        spread: np.ndarray,
        rng: np.random.Generator,
    ) -> QuadraticBasis:
        """Draw hidden units that bend at training points ``(n, dim)``.

        Their input weights are normal with covariance `spread`, of trace dim, times the squared gain over dim.
        """
        dim = white.shape[1]
        bases: list[Basis] = [TrendBasis(dim, radial)]
        if n_hidden:
            directions = rng.standard_normal((n_hidden, dim)) @ np.linalg.cholesky(spread).T
            directions *= gain / np.sqrt(dim)
            bases.append(SoftplusBasis.through(white, directions, rng))
        return cls(tuple(bases))

    @property
    def trend(self) -> TrendBasis:
        """The first part."""
        trend = self.bases[0]
        assert isinstance(trend, TrendBasis)
        return trend

    @property
    def hidden(self) -> SoftplusBasis:
        """The second part, which may be empty."""
        if len(self.bases) == 1:
            return SoftplusBasis(np.zeros((0, self.trend.dim)), np.zeros(0))
        hidden = self.bases[1]
        assert isinstance(hidden, SoftplusBasis)
        return hidden

    def rotated(self, rotation: np.ndarray) -> QuadraticBasis:
        """Return the basis for positions that have been multiplied by an orthogonal matrix, ``white @ rotation``."""
        hidden = self.hidden
        return type(self)((self.trend, SoftplusBasis(hidden.input_weights @ rotation, hidden.input_biases)))

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        gram, cross = np.empty((self.size, self.size)), self.gradient_cross(white)
        a = np.zeros(self.size, dtype=bool)
        a[self.trend.quadratic_part] = True
        gram[np.ix_(a, a)] = self._quadratic_gram(white)
        gram[np.ix_(a, ~a)], gram[np.ix_(~a, a)] = cross, cross.T
        gram[np.ix_(~a, ~a)] = self.gradient_others(white)
        return gram

    def gradient_cross(self, white: np.ndarray) -> np.ndarray:
        """Return the block of the Gram matrix with quadratic features as rows and all others as columns."""
        trend, hidden = self.trend, self.hidden
        i, j, factor = trend.pairs
        # A feature with gradients g_n has products with the quadratic features that are the coordinates of the
        # symmetric part of sum_n z_n g_n^T. For linear features and hidden units this matrix has rank one.
        left = np.hstack([np.tile(white.sum(axis=0)[:, None], trend.dim), white.T @ hidden.slopes(white)])
        right = np.hstack([np.eye(trend.dim), hidden.input_weights.T])
        products = factor[:, None] * (left[i] * right[j] + left[j] * right[i])
        squares = np.einsum("nr,na,nb->rab", trend.radial_slopes(white), white, white, optimize=True)
        return np.hstack([products[:, : trend.dim], trend.coordinates(squares).T, products[:, trend.dim :]])

    def gradient_others(self, white: np.ndarray) -> np.ndarray:
        """Return the block of the Gram matrix without quadratic features."""
        trend, hidden = self.trend, self.hidden
        slopes, radial = hidden.slopes(white), trend.radial_slopes(white)
        squares = np.einsum("nd,nd->n", white, white)[:, None]
        linear_radial, linear_hidden = white.T @ radial, hidden.input_weights.T * slopes.sum(axis=0)
        radial_hidden = radial.T @ (slopes * (white @ hidden.input_weights.T))
        return np.block(
            [
                [len(white) * np.eye(trend.dim), linear_radial, linear_hidden],
                [linear_radial.T, radial.T @ (squares * radial), radial_hidden],
                [linear_hidden.T, radial_hidden.T, hidden.gradient_gram(white)],
            ]
        )

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        parts = self.trend.gradient_moment(white, target), self.hidden.gradient_moment(white, target)
        return np.concatenate(parts)

    def _quadratic_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the block of quadratic features: tr(B S B') for all unit matrices B, B' and the second moment S."""
        i, j, factor = self.trend.pairs
        moment, unit = white.T @ white, np.eye(white.shape[1])
        ways = ((i, i, j, j), (i, j, j, i), (j, i, i, j), (j, j, i, i))
        total = sum(moment[np.ix_(p, q)] * unit[np.ix_(r, s)] for p, q, r, s in ways)
        return np.asarray(np.outer(factor, factor) * total)
