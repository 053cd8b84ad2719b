r"""Coordinates in which every posterior looks alike.

A surrogate learns in whitened coordinates :math:`z = F^{-1}(q - m)`, where :math:`F F^T` is about the covariance of the
posterior. Ridge strengths, length scales and tolerances then mean the same for every problem. What it hands back is
in the caller's coordinates:

.. math::
    \nabla_q = F^{-T} \nabla_z, \qquad H_q = F^{-T} H_z F^{-1},

and a contraction of the third derivative with vectors :math:`v` is one in whitened coordinates with
:math:`F^{-1} v`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from leapwise.errors import InputError


@dataclass(frozen=True, eq=False)
class Whitening:
    """An affine change of coordinates.

    Parameters
    ----------
    mean : ndarray of shape (dim,)
        Becomes the origin.
    factor : ndarray of shape (dim, dim)
        Lower triangular, with the posterior covariance about ``factor @ factor.T``.

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

        With few positions the covariance is shrunk towards its diagonal, by ``dim / (n + dim)``; a coordinate that does
        not vary keeps unit scale.
        """
        n, dim = position.shape
        mean = position.mean(axis=0)
        centred = position - mean
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.einsum("ij,ij->j", centred, centred) / n
        if not np.isfinite(variance).all():
            raise InputError(
                f"positions must be of moderate size, got one of {np.abs(position).max():.3g}; drop such evaluations"
            )
        scale = np.sqrt(np.where(variance > 0, variance, 1.0))
        correlation = (centred / scale).T @ (centred / scale) / n
        share = dim / (n + dim)
        shrunk = (1.0 - share) * correlation + share * np.eye(dim)
        np.fill_diagonal(shrunk, 1.0 + 1e-10)
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
        """Map whitened coordinates back."""
        return self.mean + white @ self.factor.T

    def vector_to_white(self, vector: np.ndarray) -> np.ndarray:
        """Map displacements or velocities ``(n, dim)``."""
        return vector @ self.inverse.T

    def gradient_to_white(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients ``(n, dim)`` with respect to the position to those with respect to whitened coordinates."""
        return gradient @ self.factor

    def gradient_from_white(self, gradient: np.ndarray) -> np.ndarray:
        """Map gradients back."""
        return gradient @ self.inverse

    def hessian_from_white(self, hessian: np.ndarray) -> np.ndarray:
        """Map Hessians ``(n, dim, dim)`` back."""
        return np.asarray(self.inverse.T @ hessian @ self.inverse)

    def matrix_to_white(self, matrix: np.ndarray) -> np.ndarray:
        """Map inverse metrics ``(n, dim, dim)``, which transform like products of two vectors."""
        return np.asarray(self.inverse @ matrix @ self.inverse.T)
