r"""Features of whitened positions, with the derivatives that dynamics and metrics need.

Two kinds of hidden units of section 3.2 of the paper, and sums of bases. In this file H is the Hessian of a weighted
sum, d the dimension, and :math:`d_i` with an index the bias of a unit.

**Additive units** (`SoftplusBasis`) are softplus functions :math:`a(t) = \log(1 + e^t)` of random projections
:math:`t_i = w_i \cdot z + d_i`. A weighted sum :math:`\sum_i v_i\, a(t_i)` has

.. math::
    \nabla = \sum_i v_i a'(t_i)\, w_i, \qquad
    H = \sum_i v_i a''(t_i)\, w_i w_i^T, \qquad
    u^T (\partial_k H)\, u = \sum_i v_i a'''(t_i) (w_i \cdot u)^2 w_{ik}.

The first is eq. (12) of the paper. For :math:`\mathrm{tr}(A\, \partial_k H)` replace :math:`(w_i \cdot u)^2` by
:math:`w_i^T A w_i`.

**Radial units** (`RadialBasis`) are functions :math:`\varphi(\rho_i)` of
:math:`\rho_i = \|z - c_i\|^2 / 2 \ell_i^2`. With :math:`r = z - c_i` and :math:`g = 1 / \ell_i^2`, one unit has

.. math::
    \nabla = g \varphi' r, \qquad H = g \varphi' I + g^2 \varphi'' r r^T,

    \mathrm{tr}(A\, \partial_k H) = g^2 \varphi'' \big(2 A r + (\mathrm{tr} A)\, r\big)_k
    + g^3 \varphi''' (r^T A r)\, r_k,

and :math:`u^T (\partial_k H) u` is the same with :math:`A = u u^T`. A `RadialProfile` gives :math:`\varphi` and its
derivatives.

Contractions with a vector cost O(s d) and with a matrix O(s d^2) for s units: the tensor of third derivatives is never
formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from leapwise.errors import InputError
from leapwise.surrogates.base import Basis

#: Arguments of exp are cut here; exp(710) overflows. Above it, log(1 + exp(t)) equals t in double precision.
_MAX_EXPONENT = 700.0
#: Entries of a block in `softplus_sums`: 128 kB, which stays in a processor's second-level cache.
_CACHED_ENTRIES = 2**14
#: Temporary arrays in contractions have at most this many entries (8 MB), if a single row does not need more. A guess.
MAX_ENTRIES = 2**20


def softplus(t: np.ndarray) -> np.ndarray:
    """Return ``log(1 + exp(t))`` without overflow; overwrites `t`.

    Examples
    --------
    >>> softplus(np.array([-1e4, 0.0, 1e4])).round(4)
    array([0.000e+00, 6.931e-01, 1.000e+04])
    """
    excess = _cut(t)
    np.exp(t, out=t)
    t += 1.0
    np.log(t, out=t)
    return t if excess is None else np.add(t, excess, out=t)


def sigmoid(t: np.ndarray) -> np.ndarray:
    """Return ``exp(t) / (1 + exp(t))``, the slope of softplus, without overflow; overwrites `t`."""
    np.minimum(t, _MAX_EXPONENT, out=t)
    np.exp(t, out=t)
    return t / (1.0 + t)


def softplus_and_slope(t: np.ndarray) -> np.ndarray:
    """Return ``log(1 + exp(t))``; overwrites `t` with the slope ``exp(t) / (1 + exp(t))``.

    Examples
    --------
    >>> t = np.array([-1e4, 0.0, 1e4])
    >>> softplus_and_slope(t).round(4), t
    (array([0.000e+00, 6.931e-01, 1.000e+04]), array([0. , 0.5, 1. ]))
    """
    excess = _cut(t)
    np.exp(t, out=t)
    value = t + 1.0
    t /= value
    np.log(value, out=value)
    return value if excess is None else np.add(value, excess, out=value)


def softplus_sums(t: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``softplus(t) @ weights``; overwrites `t` ``(n, s)`` with ``sigmoid(t) * weights``.

    Works in blocks of rows that stay in the cache, because large temporary arrays would cost more than the arithmetic.
    """
    n, size = t.shape
    sums, step = np.empty(n), max(1, _CACHED_ENTRIES // max(1, size))
    scratch = np.empty((min(n, step), size))
    for start in range(0, n, step):
        part = t[start : start + step]
        value = scratch[: len(part)]
        excess = _cut(part)
        np.exp(part, out=part)
        np.add(part, 1.0, out=value)
        part /= value
        part *= weights
        np.log(value, out=value)
        if excess is not None:
            value += excess
        sums[start : start + step] = value @ weights
    return sums


def _cut(t: np.ndarray) -> np.ndarray | None:
    """Cut `t` in place where exp would overflow; return the part above, or None if nothing was cut."""
    if not t.size or t.max() <= _MAX_EXPONENT:
        return None
    excess = np.maximum(t - _MAX_EXPONENT, 0.0)
    np.minimum(t, _MAX_EXPONENT, out=t)
    return excess


def row_blocks(n: int, entries: int) -> Iterator[slice]:
    """Split `n` rows into blocks so that temporary arrays with `entries` numbers per row stay small."""
    step = max(1, MAX_ENTRIES // max(1, entries))
    return (slice(start, start + step) for start in range(0, n, step))


def outer_sums(factors: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``sum_i factors[n, i] w_i w_i^T`` for all n, ``(n, dim, dim)``."""
    dim = vectors.shape[1]
    sums = np.empty((len(factors), dim, dim))
    for rows in row_blocks(len(factors), vectors.size):
        np.matmul(factors[rows, None, :] * vectors.T, vectors, out=sums[rows])
    return sums


def quadratic_forms(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``w_i^T A_n w_i``, ``(n, s)``, for matrices ``(n, dim, dim)`` and vectors ``(s, dim)``."""
    forms = np.empty((len(matrix), len(vectors)))
    for rows in row_blocks(len(matrix), vectors.size):
        forms[rows] = np.einsum("nsd,sd->ns", np.matmul(vectors, matrix[rows]), vectors)
    return forms


@dataclass(frozen=True, eq=False)
class SoftplusBasis:
    """Additive hidden units: softplus of projections.

    Parameters
    ----------
    input_weights : ndarray of shape (s, dim)
    input_biases : ndarray of shape (s,)

    Examples
    --------
    >>> basis = SoftplusBasis(np.eye(2), np.zeros(2))
    >>> basis.features(np.zeros((1, 2))).round(4)
    array([[0.6931, 0.6931]])
    """

    input_weights: np.ndarray
    input_biases: np.ndarray

    @classmethod
    def through(cls, white: np.ndarray, directions: np.ndarray, rng: np.random.Generator) -> SoftplusBasis:
        """Choose biases so that each unit bends at one of the points ``(n, dim)``, drawn at random."""
        bends = white[rng.integers(len(white), size=len(directions))]
        return cls(directions, -np.einsum("sd,sd->s", directions, bends))

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.input_weights)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return softplus(self._projection(white))

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        return self.slopes(white)[:, None, :] * self.input_weights.T

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        slope = self.slopes(white)
        return (slope.T @ slope) * (self.input_weights @ self.input_weights.T)

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        return np.asarray(np.einsum("ns,ns->s", self.slopes(white), target @ self.input_weights.T))

    def slopes(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives a'(t) of all units, ``(n, size)``; times the input weights they are gradients."""
        return sigmoid(self._projection(white))

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return self.features(white) @ weights

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        slope = self._projection(white)
        value = softplus_sums(slope, weights)  # turns `slope` into slopes times weights
        return value, slope @ self.input_weights

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        slope = self.slopes(white)
        return outer_sums(weights * slope * (1.0 - slope), self.input_weights)

    def hessian_product(self, white: np.ndarray, weights: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian times a vector ``(n, dim)``, at the cost of a gradient."""
        slope = self.slopes(white)
        return (weights * slope * (1.0 - slope) * (vector @ self._columns)) @ self.input_weights

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        return self._third(white, weights, (velocity @ self._columns) ** 2)

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        return self._third(white, weights, quadratic_forms(matrix, self.input_weights))

    def _third(self, white: np.ndarray, weights: np.ndarray, form: np.ndarray) -> np.ndarray:
        slope = self.slopes(white)
        third = slope * (1.0 - slope) * (1.0 - 2.0 * slope)  # a'''
        return (weights * third * form) @ self.input_weights

    @cached_property
    def _columns(self) -> np.ndarray:
        """The transposed input weights, contiguous: products with few rows are ten times faster than with a view."""
        return np.ascontiguousarray(self.input_weights.T)

    def _projection(self, white: np.ndarray) -> np.ndarray:
        projection = white @ self._columns
        projection += self.input_biases
        return projection


class RadialProfile(Protocol):
    """A function of half the squared scaled distance, with derivatives.

    A network needs the first three derivatives, a kernel that also observes gradients the fourth.
    """

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives at `rho`, arrays of the same shape."""
        ...


@dataclass(frozen=True)
class SquaredExponential:
    r"""The profile :math:`e^{-\rho}`.

    Examples
    --------
    >>> [float(value) for value in SquaredExponential().derivatives(np.array(0.0), 2)]
    [1.0, -1.0, 1.0]
    """

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives."""
        value = np.exp(-rho)
        minus = -value if order > 0 else value
        return tuple(minus if k % 2 else value for k in range(order + 1))


@dataclass(frozen=True)
class RationalQuadratic:
    r"""The profile :math:`(1 + \rho / \alpha)^{-\alpha}`: a mixture of squared exponentials of many lengths.

    Examples
    --------
    >>> [float(value) for value in RationalQuadratic(2.0).derivatives(np.array(2.0), 1)]
    [0.25, -0.125]
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha must be a positive number, got {self.alpha!r}; try 1.0")

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives."""
        inverse = 1.0 / (1.0 + rho / self.alpha)
        terms = [inverse**self.alpha]
        for k in range(order):  # each derivative lowers the exponent by one
            terms.append(terms[-1] * inverse * (-(self.alpha + k) / self.alpha))
        return tuple(terms)


@dataclass(frozen=True, eq=False)
class RadialBasis:
    """Radial hidden units: functions of the distance to centres.

    Parameters
    ----------
    centres : ndarray of shape (s, dim)
    lengths : ndarray of shape (s,)
        Widths of the units, in whitened coordinates.
    profile : RadialProfile
        The function of half the squared scaled distance.

    Examples
    --------
    >>> basis = RadialBasis(np.zeros((1, 2)), np.ones(1), SquaredExponential())
    >>> basis.features(np.array([[0.0, 0.0], [1.0, 1.0]])).round(4)
    array([[1.    ],
           [0.3679]])
    """

    centres: np.ndarray
    lengths: np.ndarray
    profile: RadialProfile

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
        return np.maximum(half, 0.0, out=half)  # rounding can make it slightly negative

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return self.profile.derivatives(self.distance(white), 0)[0]

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        return (white[:, :, None] - self.centres.T) * self._slopes(white)[:, None, :]

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        slope = self._slopes(white)
        # r_i . r_j = (z - c_i) . z - (z - c_i) . c_j, summed over positions with weights slope_i slope_j
        along = slope * (white @ self._columns)
        squares = np.einsum("nd,nd->n", white, white)
        cross = along.T @ slope
        weighted = slope * np.sqrt(squares)[:, None]
        return weighted.T @ weighted - cross - cross.T + (slope.T @ slope) * (self.centres @ self.centres.T)

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        slope = self._slopes(white)
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
        centres_sum = outer @ self.centres
        hessian = outer_sums(outer, self.centres)
        mixed = (0.5 * outer.sum(axis=1, keepdims=True) * white - centres_sum)[:, :, None] * white[:, None, :]
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
        image = np.matmul(matrix, white[:, :, None])[:, :, 0]
        form = np.einsum("nd,nd->n", white, image)[:, None] - 2.0 * image @ self._columns
        form += quadratic_forms(matrix, self.centres)  # r^T A r
        size = np.trace(matrix, axis1=1, axis2=2)[:, None]
        second, third = self._third(white, weights)
        straight = 2.0 * np.matmul(matrix, self._radii_sum(second, white)[:, :, None])[:, :, 0]
        return straight + self._radii_sum(second * size + third * form, white)

    @cached_property
    def _columns(self) -> np.ndarray:
        """The transposed centres, contiguous, which makes products with few rows faster."""
        return np.ascontiguousarray(self.centres.T)

    @cached_property
    def _squares(self) -> np.ndarray:
        return np.asarray(np.einsum("sd,sd->s", self.centres, self.centres))

    def _slopes(self, white: np.ndarray) -> np.ndarray:
        """Return the factors ``(n, size)`` of the vectors from the centres in the gradients of all features."""
        return self.precision * self.profile.derivatives(self.distance(white), 1)[1]

    def _third(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _, _, second, third = self.profile.derivatives(self.distance(white), 3)
        return second * (weights * self.precision**2), third * (weights * self.precision**3)

    def _radii_sum(self, factors: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the sums ``(n, dim)`` of factors ``(n, size)`` times the vectors from the centres."""
        return factors.sum(axis=1, keepdims=True) * white - factors @ self.centres


@dataclass(frozen=True, eq=False)
class SumBasis:
    """The features of several bases, one after the other.

    Examples
    --------
    >>> part = SoftplusBasis(np.eye(2), np.zeros(2))
    >>> SumBasis((part, part)).size
    4
    """

    bases: Sequence[Basis]

    @property
    def size(self) -> int:
        """Number of features."""
        return sum(basis.size for basis in self.bases)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return np.concatenate([basis.features(white) for basis in self.bases], axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        return np.concatenate([basis.gradient_features(white) for basis in self.bases], axis=2)

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return _total(basis.value(white, part) for basis, part in self.parts(weights))

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        pairs = [basis.value_and_gradient(white, part) for basis, part in self.parts(weights)]
        return _total(value for value, _ in pairs), _total(gradient for _, gradient in pairs)

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        return _total(basis.hessian(white, part) for basis, part in self.parts(weights))

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        return _total(basis.quadratic(white, part, velocity) for basis, part in self.parts(weights))

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        return _total(basis.trace(white, part, matrix) for basis, part in self.parts(weights))

    def parts(self, weights: np.ndarray) -> Iterator[tuple[Basis, np.ndarray]]:
        """Return each basis with its weights."""
        ends = np.cumsum([basis.size for basis in self.bases])
        return zip(self.bases, np.split(weights, ends[:-1]), strict=True)


def _total(parts: Iterator[np.ndarray]) -> np.ndarray:
    total = next(parts)
    for part in parts:
        total = total + part
    return total
