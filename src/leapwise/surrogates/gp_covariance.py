r"""Covariances of values and gradients under a stationary kernel, in blocks.

With :math:`k(z, c) = a^2 \varphi(\rho)`, :math:`\rho = \|z - c\|^2 / 2\ell^2` and :math:`r = z - c`, write
:math:`k_0 = a^2\varphi`, :math:`k_1 = a^2\varphi'/\ell^2`, :math:`k_2 = a^2\varphi''/\ell^4`. Then

.. math::
    \mathrm{cov}(f(z), f(c)) = k_0, \qquad
    \mathrm{cov}(f(z), \nabla f(c)) = -k_1 r, \qquad
    \mathrm{cov}(\nabla f(z), \nabla f(c)) = -k_1 I - k_2\, r r^T.

Derivatives by :math:`\log \ell` have the same shape with other radial parts, because
:math:`\partial\rho/\partial\log\ell = -2\rho`.

The noise has variance :math:`a^2 s^2` on values and :math:`a^2 s^2/\ell^2` on gradients. These are the shares of
noise of equal size in what the kernel itself expects of the two, so neither kind of row drowns the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.surrogates.profiles import Profile
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
    >>> from leapwise.surrogates.profiles import SquaredExponential
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
