r"""Whitened coordinates, in which every posterior has about zero mean and unit covariance.

A surrogate is trained in whitened coordinates :math:`z = F^{-1}(q - m)`, where :math:`F F^T` is about the covariance of
the posterior. Ridge strengths, length scales and tolerances then mean the same for every problem. Derivatives by
positions are

.. math::
    \nabla_q = F^{-T} \nabla_z, \qquad H_q = F^{-T} H_z F^{-1},

and a contraction of the third derivative with vectors u becomes the contraction in whitened coordinates with
:math:`F^{-1} u`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from leapwise.errors import InputError


@dataclass(frozen=True, eq=False)
class Whitening:
    """An affine change of coordinates to whitened ones.

    Parameters
    ----------
    mean : ndarray of shape (dim,)
        The position that becomes the origin.
    factor : ndarray of shape (dim, dim)
        Lower triangular; ``factor @ factor.T`` is about the posterior covariance.

    Examples
    --------
    >>> whitening = Whitening(np.zeros(2), np.diag([1.0, 2.0]))
    >>> whitening.to_white(np.array([[1.0, 1.0]]))
    array([[1. , 0.5]])
    """

    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def from_positions(cls, position: np.ndarray) -> Whitening:
        """Whiten by the mean and covariance of positions ``(n, dim)``.

        The covariance is shrunk towards its diagonal by the share ``dim / (n + dim)``, which matters when there are few
        positions. A coordinate that does not vary gets unit scale.
        """
        n, dim = position.shape
        mean = position.mean(axis=0)
        centred = position - mean
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.einsum("ij,ij->j", centred, centred) / n
        if not np.isfinite(variance).all():
            raise InputError(
                f"positions must be small enough to be squared, got one of {np.abs(position).max():.3g}; "
                "leave out such evaluations"
            )
        scale = np.sqrt(np.where(variance > 0, variance, 1.0))
        correlation = (centred / scale).T @ (centred / scale) / n
        share = dim / (n + dim)
        shrunk = (1.0 - share) * correlation + share * np.eye(dim)
        np.fill_diagonal(shrunk, 1.0 + 1e-10)  # so that rounding cannot make it singular
        return cls(mean, scale[:, None] * np.linalg.cholesky(shrunk))

    @classmethod
    def from_factor(cls, mean: np.ndarray, factor: np.ndarray) -> Whitening:
        """Whiten by a given mean and lower triangular factor."""
        mean, factor = np.asarray(mean, dtype=float), np.asarray(factor, dtype=float)
        square = factor.shape == (mean.size, mean.size)
        if not square or np.triu(factor, 1).any() or not (np.diag(factor) > 0).all():
            raise InputError(
                f"factor must be lower triangular with a positive diagonal and match the mean of {mean.size} entries, "
                f"got shape {factor.shape}; use numpy.linalg.cholesky(covariance)"
            )
        return cls(mean, factor)

    @cached_property
    def inverse(self) -> np.ndarray:
        """The inverse of the factor."""
        return np.asarray(solve_triangular(self.factor, np.eye(len(self.factor)), lower=True))

    def to_white(self, position: np.ndarray) -> np.ndarray:
        """Map positions ``(n, dim)`` to whitened coordinates."""
        shape = np.shape(position)
        if len(shape) != 2 or shape[1] != len(self.mean):
            raise InputError(
                f"positions must have shape (n, {len(self.mean)}), one row each, got {shape}; one position x is x[None]"
            )
        return (position - self.mean) @ self.inverse.T

    def from_white(self, white: np.ndarray) -> np.ndarray:
        """Map whitened coordinates back to positions."""
        return self.mean + white @ self.factor.T

    def vector_to_white(self, vector: np.ndarray) -> np.ndarray:
        """Map displacements or velocities ``(n, dim)``."""
        return vector @ self.inverse.T

    def gradient_to_white(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients ``(n, dim)`` by position to gradients by whitened coordinates."""
        return gradient @ self.factor

    def gradient_from_white(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients by whitened coordinates to gradients by position."""
        return gradient @ self.inverse

    def hessian_from_white(self, hessian: np.ndarray) -> np.ndarray:
        """Map Hessians ``(n, dim, dim)`` by whitened coordinates to Hessians by position."""
        return np.asarray(self.inverse.T @ hessian @ self.inverse)

    def matrix_to_white(self, matrix: np.ndarray) -> np.ndarray:
        """Map matrices ``(n, dim, dim)`` that transform like products of two vectors, such as inverse metrics."""
        return np.asarray(self.inverse @ matrix @ self.inverse.T)
