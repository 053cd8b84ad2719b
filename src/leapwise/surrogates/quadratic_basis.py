"""Features of a `QuadraticNetwork`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.surrogates.base import Basis
from leapwise.surrogates.bases import SoftplusBasis, SumBasis
from leapwise.surrogates.trend import TrendBasis


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
