r"""The algebra of a Gaussian process with a linear trend.

Observed rows are :math:`y = H \beta + f + \text{noise}` with :math:`f \sim N(0, K)`, and trend weights
:math:`\beta \sim N(0, T)`, T diagonal. Kept is the Cholesky factor L of :math:`K_\sigma = K + \text{noise}`; everything
else follows from :math:`\tilde H = L^{-1} H`, :math:`\tilde y = L^{-1} y`:

.. math::
    A = \tilde H^T \tilde H + T^{-1}, \qquad \hat\beta = A^{-1} \tilde H^T \tilde y, \qquad
    \alpha = L^{-T} (\tilde y - \tilde H \hat\beta),

which is generalised least squares when T is large and stays sound with fewer rows than trend terms. The predictive
variance at a point with covariances k and trend features h is

.. math:: k_{**} - \|L^{-1} k\|^2 + e^T A^{-1} e, \qquad e = h - \tilde H^T L^{-1} k.

Further rows extend L by a block, so what came before is never factorised again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from leapwise.surrogates.gp_covariance import Kernel, Rows


@dataclass(frozen=True, eq=False)
class Observations:
    """What a process is to explain.

    Parameters
    ----------
    rows : Rows
    target : ndarray of shape (rows.size,)
        Values, then gradients, less the prior mean.
    design : ndarray of shape (rows.size, p)
        Trend features of the same rows; p may be 0.
    precision : ndarray of shape (p,)
        Of the trend weights, a priori; NaN where it is to be learnt.
    """

    rows: Rows
    target: np.ndarray
    design: np.ndarray
    precision: np.ndarray

    def choose(self, points: np.ndarray) -> Observations:
        """Return what is observed at some of the points."""
        rows = self.rows
        places = np.full(rows.n_values, -1)
        places[points] = np.arange(len(points))
        owners = places[rows.has_gradient]
        slopes = np.repeat(owners >= 0, rows.dim)
        index = np.concatenate([points, rows.n_values + np.flatnonzero(slopes)])
        chosen = Rows(rows.points[points], owners[owners >= 0])
        return Observations(chosen, self.target[index], self.design[index], self.precision)


@dataclass(frozen=True, eq=False)
class Posterior:
    """A process that has seen its observations.

    Attributes
    ----------
    kernel : Kernel
    rows : Rows
    precision : ndarray of shape (p,)
        Of the trend weights, a priori.
    place : ndarray of int, shape (rows.size,)
        Row of the factor that belongs to each row: rows that came later are at its end.
    factor : ndarray of shape (rows.size, rows.size)
        Lower triangular.
    white_target, white_design : ndarray of shape (rows.size,) and (rows.size, p)
        Target and design, multiplied by the inverse of the factor.
    """

    kernel: Kernel
    rows: Rows
    precision: np.ndarray
    place: np.ndarray
    factor: np.ndarray
    white_target: np.ndarray
    white_design: np.ndarray

    @classmethod
    def from_observations(cls, kernel: Kernel, data: Observations, trend_sd: float) -> Posterior:
        """Learn from observations; `trend_sd` is the standard deviation of the trend weights that have none."""
        precision = np.where(np.isnan(data.precision), trend_sd**-2.0, data.precision)
        covariance = kernel.covariance(data.rows, data.rows)
        np.einsum("ii->i", covariance)[...] += kernel.noise_variance(data.rows)
        factor = safe_cholesky(covariance)
        place = np.arange(data.rows.size)
        both = solve_lower(factor, np.column_stack([data.target, data.design]))
        return cls(kernel, data.rows, precision, place, factor, both[:, 0], both[:, 1:])

    def append(self, data: Observations) -> Posterior:
        """Return a posterior that has seen further observations too, with the same kernel."""
        old, new = self.rows.size, data.rows.size
        cross = np.empty((old, new))
        cross[self.place] = self.kernel.covariance(self.rows, data.rows)
        cross = solve_lower(self.factor, cross)
        corner = self.kernel.covariance(data.rows, data.rows) - cross.T @ cross
        np.einsum("ii->i", corner)[...] += self.kernel.noise_variance(data.rows)
        corner = safe_cholesky(corner)
        factor = np.zeros((old + new, old + new))
        factor[:old, :old], factor[old:, :old], factor[old:, old:] = self.factor, cross.T, corner
        n, m = self.rows.n_values, data.rows.n_values
        later = old + np.arange(new)
        place = np.concatenate([self.place[:n], later[:m], self.place[n:], later[m:]])
        target = solve_lower(corner, data.target - cross.T @ self.white_target)
        design = solve_lower(corner, data.design - cross.T @ self.white_design)
        return Posterior(
            self.kernel,
            self.rows.join(data.rows),
            self.precision,
            place,
            factor,
            np.concatenate([self.white_target, target]),
            np.concatenate([self.white_design, design]),
        )

    def hold(self, columns: np.ndarray, weights: np.ndarray) -> Posterior:
        """Return the posterior given the weights of some trend features, a mask: the others remain."""
        target = self.white_target - self.white_design[:, columns] @ weights
        return replace(
            self,
            precision=self.precision[~columns],
            white_target=target,
            white_design=self.white_design[:, ~columns],
        )

    @cached_property
    def trend_factor(self) -> np.ndarray:
        """The Cholesky factor of A, ``(p, p)``."""
        return safe_cholesky(self.white_design.T @ self.white_design + np.diag(self.precision))

    @cached_property
    def trend_weights(self) -> np.ndarray:
        """The trend weights, ``(p,)``."""
        moment = solve_lower(self.trend_factor, self.white_design.T @ self.white_target)
        return solve_lower(self.trend_factor, moment, transposed=True)

    @cached_property
    def white_residual(self) -> np.ndarray:
        """What the trend leaves, multiplied by the inverse of the factor."""
        return np.asarray(self.white_target - self.white_design @ self.trend_weights)

    @cached_property
    def row_weights(self) -> np.ndarray:
        """The weights of all rows in the predictive mean, ``(rows.size,)``."""
        return np.asarray(solve_lower(self.factor, self.white_residual, transposed=True)[self.place])

    def variance(self, white: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the variance ``(n,)`` of the function, noise left out, at points with these trend features."""
        here = Rows.values(white)
        cross = np.empty((self.rows.size, len(white)))
        cross[self.place] = self.kernel.covariance(self.rows, here)
        cross = solve_lower(self.factor, cross)
        unknown = solve_lower(self.trend_factor, features.T - self.white_design.T @ cross)
        known = np.einsum("rn,rn->n", cross, cross) - np.einsum("pn,pn->n", unknown, unknown)
        return np.maximum(self.kernel.amplitude**2 - known, 0.0)


def safe_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a symmetric matrix that is positive definite but for rounding.

    Where it is not, the diagonal is raised, relative to itself, by as little as helps.
    """
    if not len(matrix):
        return matrix
    diagonal = np.maximum(np.diag(matrix), np.finfo(float).tiny)
    for jitter in (0.0, *10.0 ** np.arange(-14, 1)):
        raised = matrix + np.diag(jitter * diagonal) if jitter else matrix
        # The transpose is laid out as LAPACK wants it: a plain copy, where `scipy.linalg.cholesky` turns it first.
        factor, failed = dpotrf(raised.T, lower=1)
        if not failed:
            return np.asarray(factor)
    return np.diag(np.sqrt(diagonal * len(matrix)))  # dominates any covariance with this diagonal


def solve_lower(factor: np.ndarray, right: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Solve with a lower triangular factor, or its transpose."""
    if not right.size:
        return np.zeros(right.shape)
    return np.asarray(
        solve_triangular(factor, right, lower=True, trans="T" if transposed else "N", check_finite=False)
    )
