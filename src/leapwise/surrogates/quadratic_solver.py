r"""Solves the normal equations of a quadratic with hidden nodes, and chooses the ridge.

**Solving.** In the notation of `leapwise.surrogates.quadratic_normal`, with the residuals y of value rows as further
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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.linalg.lapack import dpotrs

from leapwise.surrogates.quadratic_normal import NormalEquations
from leapwise.surrogates.ridge_solvers import DECADES, factorise, feature_scale, score, search

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
