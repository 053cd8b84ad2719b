r"""Solves the normal equations of a quadratic with hidden nodes, and chooses the ridge.

**Solving.** In the notation of `leapwise.surrogates.quadratic_solver`, with the residuals y of value rows as further
unknowns, the equations are

.. math::
    \begin{bmatrix} D & C & F_a^T \\ C^T & U + \lambda P & F_u^T \\ F_a & F_u & -I \end{bmatrix}
    \begin{bmatrix} a \\ u \\ y \end{bmatrix} = \begin{bmatrix} b_a \\ b_u \\ 0 \end{bmatrix}.

D is diagonal, so a goes first; then y, by the Cholesky factor of :math:`I + F_a D^{-1} F_a^T`; then u. With p entries
of A, m other weights and n values that is :math:`O(p (m + n)^2)`. With more values than entries of A the whole matrix
is factorised instead. Either way two steps of refinement repair round-off.

**The ridge** is chosen by leaving evaluations out, a sample of them, each from a fit to all others (see
`leapwise.surrogates.ridge`). With fewer values than entries of A, value rows are a small part of all rows and are set
aside for this choice. A left-out gradient then has the hat matrix

.. math::
    P_{jj} = \omega \Big( \mathrm{diag}\big(B (z \circ z)\big) + B \circ z z^T
    + E (U + \lambda P - C^T D^{-1} C)^{-1} E^T \Big), \qquad B_{ab} = \frac{1}{2 D_{ab}},

where a column of E is the gradient of another feature less :math:`\hat A z`, the quadratic that stands in for it.

The normal equations of a quadratic with hidden nodes, with the structure that gradients give them.

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.linalg.lapack import dpotrs

from leapwise.surrogates.base import Basis
from leapwise.surrogates.bases import SoftplusBasis, SumBasis
from leapwise.surrogates.ridge import (
    DECADES,
    factorise,
    feature_scale,
    score,
    search,
)
from leapwise.surrogates.training import WhiteSet
from leapwise.surrogates.trend import TrendBasis


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


#: So many evaluations are left out to choose a ridge.
N_LEFT_OUT = 32

Solve = Callable[[np.ndarray], np.ndarray]


def choose_ridge(equations: NormalEquations) -> float:
    """Return the strength with which gradients predict best what is left out."""
    sample, a = LeftOut.sample(equations), equations.quadratic
    others = np.diag(equations.others) / np.where(equations.penalty[~a] > 0, equations.penalty[~a], 1.0)
    squares = np.append(_entries(equations.diagonal(0.0)), others[:-1])
    return search(lambda ridge: (sample.score(ridge), None), feature_scale(squares) * DECADES)[0]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Evaluations to leave out of a fit to gradients, one at a time.

    Attributes
    ----------
    equations : NormalEquations
    chosen : ndarray of int, shape (n,)
        Gradients by number.
    where : ndarray of shape (n, dim)
        Their positions.
    reach : ndarray of shape (n, 1 + dim, m - 1)
        Values of the other features, then their gradients.
    """

    equations: NormalEquations
    chosen: np.ndarray
    where: np.ndarray
    reach: np.ndarray

    @classmethod
    def sample(cls, equations: NormalEquations) -> Self:
        """Choose evaluations evenly."""
        chosen = np.arange(len(equations.points))[:: max(1, len(equations.points) // N_LEFT_OUT)]
        where, rows = equations.points[chosen], equations.white.has_gradient[chosen]
        values = equations.features[rows][:, ~equations.quadratic][:, None, :-1]
        return cls(equations, chosen, where, np.concatenate([values, equations.other_slopes(where)], axis=1))

    def score(self, ridge: float) -> float:
        """Return the weighted sum of squared errors of values and gradients, each predicted by the others' gradients.

        Gradients leave the offset open, so errors of values are compared with their mean.
        """
        white, weight, where = self.equations.white, self.equations.gradient_weight, self.where
        weights, scaled, factor = self._fit(ridge)
        value, slope = self.equations.basis.value_and_gradient(where, weights)
        value = white.value[white.has_gradient[self.chosen]] - value
        slope = self.equations.slopes[self.chosen] - slope
        to_value, to_slope = self._hat(0.5 / self.equations.diagonal(ridge), scaled, factor)
        kept = np.eye(where.shape[1]) - weight * to_slope
        # Where an evaluation decides its own prediction the matrix is singular up to rounding.
        np.einsum("nii->ni", kept)[...] += np.finfo(float).eps
        slope = np.linalg.solve(kept, slope[:, :, None])[:, :, 0]
        value = value + weight * np.einsum("nd,nd->n", to_value, slope)
        return score(np.append(value - value.mean(), np.sqrt(weight) * slope))

    def _fit(self, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all weights but the offset, fitted to all gradients; C over D; and the factor that u goes through."""
        equations, a = self.equations, self.equations.quadratic[:-1]
        penalty, cross = equations.penalty[:-1][~a], equations.cross[:, :-1]
        moment, diagonal = equations.slope_moment[:-1], _entries(equations.diagonal(ridge))
        scaled = cross / diagonal[:, None]
        factor, _ = factorise(equations.others[:-1, :-1] - cross.T @ scaled, penalty, ridge)
        weights = np.empty(len(a))
        weights[~a] = dpotrs(factor, moment[~a] - scaled.T @ moment[a], lower=1)[0]
        weights[a] = moment[a] / diagonal - scaled @ weights[~a]
        return weights, scaled, factor

    def _hat(self, half: np.ndarray, scaled: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what gradients add to predictions of their own values ``(n, dim)`` and gradients ``(n, dim, dim)``."""
        where, reach, trend = self.where, np.array(self.reach), self.equations.basis.trend
        images = _images(trend.symmetric(scaled.T), where)
        reach[:, 1:] -= images
        reach[:, 0] -= 0.5 * np.einsum("ndm,nd->nm", images, where)
        reach = _solve(factor, reach.reshape(-1, reach.shape[2]).T).T.reshape(reach.shape)
        to_slope = where[:, :, None] * where[:, None, :] * half
        to_value = np.einsum("nij,nj->ni", to_slope, where)
        np.einsum("nii->ni", to_slope)[...] += np.square(where) @ half
        to_all = reach @ np.swapaxes(reach[:, 1:], 1, 2)
        return to_value + to_all[:, 0], to_slope + to_all[:, 1:]


def minimiser(equations: NormalEquations, ridge: float) -> np.ndarray:
    """Return all weights ``(size + 1,)``."""
    few = len(equations.features) < equations.basis.trend.n_quadratic
    solve = _eliminated(equations, ridge) if few else _factorised(equations, ridge)
    weights = solve(equations.moment)
    for _ in range(2):
        weights = weights + solve(equations.downhill(weights, ridge))
    return weights


def minimiser_with_curvature(equations: NormalEquations, ridge: float, weights: np.ndarray) -> np.ndarray:
    """Return weights of which those of A are given, and the others best for it."""
    a, features = equations.quadratic, equations.features
    matrix = equations.others + features[:, ~a].T @ features[:, ~a]
    factor, _ = factorise(matrix, equations.penalty[~a], ridge)
    weights = np.where(a, weights, 0.0)
    for _ in range(3):
        weights[~a] += dpotrs(factor, equations.downhill(weights, ridge)[~a], lower=1)[0]
    return weights


def _factorised(equations: NormalEquations, ridge: float) -> Solve:
    """Factorise the whole matrix."""
    factor, _ = factorise(equations.gram, equations.penalty, ridge)
    return lambda right: np.asarray(dpotrs(factor, right, lower=1)[0])


def _eliminated(equations: NormalEquations, ridge: float) -> Solve:
    """Eliminate the entries of A, then the residuals of values."""
    a, cross, diagonal = equations.quadratic, equations.cross, _entries(equations.diagonal(ridge))
    features, m = equations.features, equations.cross.shape[1]
    columns = np.hstack([cross, features[:, a].T])
    scaled = columns / np.sqrt(diagonal)[:, None]
    gram = scaled.T @ scaled
    inner = cholesky(np.eye(len(features)) + gram[m:, m:], lower=True, check_finite=False)
    between = _solve(inner, features[:, ~a] - gram[m:, :m])
    outer, _ = factorise(equations.others - gram[:m, :m] + between.T @ between, equations.penalty[~a], ridge)

    def solve(right: np.ndarray) -> np.ndarray:
        first = columns.T @ (right[a] / diagonal)
        residual = _solve(inner, -first[m:])
        others = dpotrs(outer, right[~a] - first[:m] + between.T @ residual, lower=1)[0]
        residual = solve_triangular(inner, between @ others - residual, lower=True, trans="T")
        weights = np.empty(len(right))
        weights[~a] = others
        weights[a] = (right[a] - columns @ np.append(others, residual)) / diagonal
        return weights

    return solve


def _entries(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle, row by row."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def _images(matrices: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return matrices ``(m, dim, dim)`` times positions, ``(n, dim, m)``."""
    m, dim, _ = matrices.shape
    return (matrices.reshape(-1, dim) @ where.T).reshape(m, dim, len(where)).transpose(2, 1, 0)


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False))


@dataclass(frozen=True, eq=False)
class QuadraticBasis(SumBasis):
    """A trend, then hidden nodes, if any."""

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
        """Draw hidden nodes whose kinks pass through training points ``(n, dim)``.

        Their directions are normal with covariance `spread`, of trace dim, times the squared gain over dim.
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
    def nodes(self) -> SoftplusBasis:
        """The second part, which may be empty."""
        if len(self.bases) == 1:
            return SoftplusBasis(np.zeros((0, self.trend.dim)), np.zeros(0))
        nodes = self.bases[1]
        assert isinstance(nodes, SoftplusBasis)
        return nodes

    def rotated(self, rotation: np.ndarray) -> QuadraticBasis:
        """Return the features of positions that have been multiplied by an orthogonal matrix, ``white @ rotation``."""
        nodes = self.nodes
        return type(self)((self.trend, SoftplusBasis(nodes.input_weights @ rotation, nodes.input_biases)))

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        gram, cross = np.empty((self.size, self.size)), self.gradient_cross(white)
        a = np.zeros(self.size, dtype=bool)
        a[self.trend.quadratic_part] = True
        gram[np.ix_(a, a)] = _quadratic_gram(white)
        gram[np.ix_(a, ~a)], gram[np.ix_(~a, a)] = cross, cross.T
        gram[np.ix_(~a, ~a)] = self.gradient_others(white)
        return gram

    def gradient_cross(self, white: np.ndarray) -> np.ndarray:
        """Return the block of the Gram matrix with quadratic features as rows and all others as columns."""
        trend, nodes = self.trend, self.nodes
        i, j, share = _pairs(trend.dim)
        # A feature's gradients g_n pair with A by the symmetric part of sum_n z_n g_n^T: here of rank one,
        left = np.hstack([np.tile(white.sum(axis=0)[:, None], trend.dim), white.T @ nodes.slopes(white)])
        right = np.hstack([np.eye(trend.dim), nodes.input_weights.T])
        pairs = share[:, None] * (left[i] * right[j] + left[j] * right[i])
        # and here of any.
        squares = np.einsum("nr,na,nb->rab", trend.radial_slopes(white), white, white, optimize=True)
        return np.hstack([pairs[:, : trend.dim], trend.coordinates(squares).T, pairs[:, trend.dim :]])

    def gradient_others(self, white: np.ndarray) -> np.ndarray:
        """Return the block of the Gram matrix without quadratic features."""
        trend, nodes = self.trend, self.nodes
        slopes, radial = nodes.slopes(white), trend.radial_slopes(white)
        squares = np.einsum("nd,nd->n", white, white)[:, None]
        linear_radial, linear_nodes = white.T @ radial, nodes.input_weights.T * slopes.sum(axis=0)
        radial_nodes = radial.T @ (slopes * (white @ nodes.input_weights.T))
        return np.block(
            [
                [len(white) * np.eye(trend.dim), linear_radial, linear_nodes],
                [linear_radial.T, radial.T @ (squares * radial), radial_nodes],
                [linear_nodes.T, radial_nodes.T, nodes.gradient_gram(white)],
            ]
        )

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        parts = self.trend.gradient_moment(white, target), self.nodes.gradient_moment(white, target)
        return np.concatenate(parts)


def _pairs(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the upper triangle, and by what to multiply ``e_i e_j^T + e_j e_i^T`` for norm 1."""
    i, j = np.triu_indices(dim)
    return i, j, np.where(i == j, 0.5, np.sqrt(0.5))


def _quadratic_gram(white: np.ndarray) -> np.ndarray:
    """Return the block of quadratic features: traces of B S B' for all unit matrices B and the second moment S."""
    i, j, share = _pairs(white.shape[1])
    moment, unit = white.T @ white, np.eye(white.shape[1])
    ways = ((i, i, j, j), (i, j, j, i), (j, i, i, j), (j, j, i, i))
    total = sum(moment[np.ix_(p, q)] * unit[np.ix_(r, s)] for p, q, r, s in ways)
    return np.asarray(np.outer(share, share) * total)
