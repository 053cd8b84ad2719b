"""Linked Gumbel variables with a wall, and analytic surrogates of their potential."""

from __future__ import annotations

import numpy as np

from leapwise import Target
from leapwise.kernels import Jumps
from leapwise.problems.shapes import LINK
from leapwise.testing import ExactTarget, gumbel

#: Two components that overlap, one of them far wider: jumps must be exact for any components.
JUMPS = Jumps(np.array([[0.2, -0.5], [0.2, 2.5]]), np.array([np.diag([0.8, 0.4]), np.diag([0.8, 1.2])]))


class Fair:
    """The potential of one Gumbel variable, or of two, the second depending on the first; wrong by about a tenth.

    In z = (x1, x2 - c x1) it is the sum of 0.9 z + 1.1 exp(-z); derivatives by x come through the same map.
    """

    def _tails(self, position):
        dim = position.shape[1]
        to_z = np.array([[1.0, 0.0], [-LINK, 1.0]])[:dim, :dim]
        z = position @ to_z.T
        with np.errstate(over="ignore"):
            return to_z, z, np.exp(-z)

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        to_z, z, tail = self._tails(position)
        return (0.9 * z + 1.1 * tail).sum(axis=1), (0.9 - 1.1 * tail) @ to_z

    def hessian(self, position):
        to_z, _, tail = self._tails(position)
        return np.einsum("ni,ij,ik->njk", 1.1 * tail, to_z, to_z)

    def quadratic_contraction(self, position, velocity):
        to_z, _, tail = self._tails(position)
        return (-1.1 * tail * (velocity @ to_z.T) ** 2) @ to_z

    def trace_contraction(self, position, matrix):
        to_z, _, tail = self._tails(position)
        return (-1.1 * tail * np.einsum("ij,njk,ik->ni", to_z, matrix, to_z)) @ to_z


class Flattened(Fair):
    """The same, flattened: a poor surrogate, finite everywhere."""

    def potential_and_gradient(self, position):
        potential, gradient = super().potential_and_gradient(position)
        return 0.4 * potential, 0.4 * gradient


def walled_gumbel(wall: float = 1.0) -> ExactTarget:
    """Return the linked Gumbel variables with no mass where the first is above `wall`."""
    inner = gumbel()

    def value_and_gradient(x):
        raw = inner.target.evaluate(x, gradient=True)
        return np.where(x[:, 0] > wall, -np.inf, raw.log_density), raw.gradient

    def draw(rng, n):
        draws = inner.draw(rng, 2 * n)  # draws beyond the wall are discarded
        inside = draws[draws[:, 0] <= wall][:n]
        assert len(inside) == n
        return inside

    return ExactTarget(
        Target(value_and_gradient, dim=2, vectorized=True, returns_gradient=True), draw, "walled"
    )
