"""The algebra of a Gaussian process with a linear trend, and covariances of values and gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf

from leapwise.surrogates.bases import (
    Profile,
)
from leapwise.surrogates.training import WhiteSet


@dataclass(frozen=True, eq=False)
class Rows:
    """What is observed: the values at all points, then the gradients at some.

    Parameters
    ----------
    points : ndarray of shape (n, dim)
        In whitened coordinates.
    has_gradient : ndarray of int, shape (k,)
        Points whose gradient is observed too.
    """

    points: np.ndarray
    has_gradient: np.ndarray

    @classmethod
    def values(cls, points: np.ndarray) -> Rows:
        """Return rows of values alone."""
        return cls(points, np.zeros(0, dtype=int))

    @classmethod
    def of(cls, white: WhiteSet, use_gradients: bool) -> Rows:
        """Return the rows that a training set gives."""
        return cls(white.position, white.has_gradient) if use_gradients else cls.values(white.position)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.points.shape[1])

    @property
    def n_values(self) -> int:
        """Number of value rows."""
        return len(self.points)

    @property
    def size(self) -> int:
        """Number of rows in all."""
        return self.n_values + len(self.has_gradient) * self.dim

    @property
    def gradient_points(self) -> np.ndarray:
        """Points with gradients, ``(k, dim)``."""
        return np.asarray(self.points[self.has_gradient])

    def join(self, other: Rows) -> Rows:
        """Return these rows and more."""
        return Rows(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.has_gradient, other.has_gradient + self.n_values]),
        )


@dataclass(frozen=True)
class Kernel:
    r"""A stationary kernel with noise.

    Parameters
    ----------
    profile : Profile
    length, amplitude : float
        The length scale and the standard deviation of the function.
    noise : float
        Standard deviation of the noise, relative to the amplitude.

    Examples
    --------
    >>> from leapwise.surrogates.bases import SquaredExponential
    >>> kernel = Kernel(SquaredExponential(), 1.0, 2.0, 0.1)
    >>> here = Rows(np.zeros((1, 2)), np.array([0]))
    >>> np.abs(kernel.covariance(here, here)).tolist()
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """

    profile: Profile
    length: float
    amplitude: float
    noise: float

    def covariance(self, left: Rows, right: Rows) -> np.ndarray:
        """Return the covariance ``(left.size, right.size)``, without noise."""
        order = 2 if len(left.has_gradient) and len(right.has_gradient) else 1
        return _assemble(left, right, self._scaled(self.profile.derivatives(self._rho(left, right), order)))

    def length_derivative(self, left: Rows, right: Rows) -> np.ndarray:
        """Return the derivative of `covariance` by the logarithm of the length scale."""
        rho = self._rho(left, right)
        order = 2 if len(left.has_gradient) and len(right.has_gradient) else 1
        phi = self.profile.derivatives(rho, order + 1)
        parts = tuple(-2.0 * (rho * phi[k + 1] + k * phi[k]) for k in range(order + 1))
        return _assemble(left, right, self._scaled(parts))

    def noise_variance(self, rows: Rows) -> np.ndarray:
        """Return the variance of the noise on all rows, ``(rows.size,)``."""
        variance = np.full(rows.size, (self.amplitude * self.noise) ** 2)
        variance[rows.n_values :] /= self.length**2
        return variance

    def _scaled(self, parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(part * (self.amplitude**2 / self.length ** (2 * k)) for k, part in enumerate(parts))

    def _rho(self, left: Rows, right: Rows) -> np.ndarray:
        # Centred on the mean of the points, so that far-off points lose no digits in the differences.
        centre = right.points.mean(axis=0)
        x, y = left.points - centre, right.points - centre
        squares = np.einsum("nd,nd->n", x, x)[:, None] + np.einsum("nd,nd->n", y, y) - 2.0 * x @ y.T
        rho = np.maximum(squares, 0.0) / (2.0 * self.length**2)
        if left is right:
            np.fill_diagonal(rho, 0.0)
        return rho


def _assemble(left: Rows, right: Rows, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Put the blocks together from the radial parts ``(n_values, n_values)`` of orders 0, 1 and 2."""
    n, m, dim = left.n_values, right.n_values, left.dim
    i, j = left.has_gradient, right.has_gradient
    matrix = np.empty((left.size, right.size))
    matrix[:n, :m] = parts[0]
    if j.size:
        apart = left.points[:, None] - right.points[j]
        apart *= -parts[1][:, j, None]
        matrix[:n, m:] = apart.reshape(n, -1)
    if i.size:
        apart = left.points[i].T[:, :, None] - right.points.T[:, None, :]  # (dim, k, m)
        apart *= parts[1][i]
        matrix[n:, :m] = apart.transpose(1, 0, 2).reshape(-1, m)
    if i.size and j.size:
        block = matrix[n:, m:].reshape(i.size, dim, j.size, dim)  # a view
        _fill(block, left.points[i], right.points[j], parts[1][np.ix_(i, j)], parts[2][np.ix_(i, j)])
    return matrix


def _fill(
    block: np.ndarray, left: np.ndarray, right: np.ndarray, first: np.ndarray, second: np.ndarray
) -> None:
    """Write covariances of gradients into ``(k, dim, l, dim)``: in place, for it may be most of the memory."""
    apart = left[:, None] - right
    np.multiply(np.swapaxes(apart, 1, 2)[:, :, :, None], (apart * -second[:, :, None])[:, None], out=block)
    np.einsum("kiji->kij", block)[...] -= first[:, None, :]


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
