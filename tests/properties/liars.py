"""Stand-ins of the linked Gumbel potential: a fair one, and many that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from understudy.problems.gumbel import LINK


class Fair:
    """The potential of two Gumbel variables, the second leaning on the first, wrong by about a tenth.

    In z = (x1, x2 - c x1) it is the sum of 0.9 z + 1.1 exp(-z); derivatives by x come through the same map.
    """

    map = np.array([[1.0, 0.0], [-LINK, 1.0]])

    def _tails(self, position):
        z = position @ self.map.T
        with np.errstate(over="ignore"):
            return z, np.exp(-z)

    def potential(self, position):
        z, tail = self._tails(position)
        return (0.9 * z + 1.1 * tail).sum(axis=1)

    def potential_and_gradient(self, position):
        z, tail = self._tails(position)
        return (0.9 * z + 1.1 * tail).sum(axis=1), (0.9 - 1.1 * tail) @ self.map

    def hessian(self, position):
        _, tail = self._tails(position)
        return np.einsum("ni,ij,ik->njk", 1.1 * tail, self.map, self.map)

    def quadratic_contraction(self, position, velocity):
        _, tail = self._tails(position)
        return (-1.1 * tail * (velocity @ self.map.T) ** 2) @ self.map

    def trace_contraction(self, position, matrix):
        _, tail = self._tails(position)
        return (-1.1 * tail * np.einsum("ij,njk,ik->ni", self.map, matrix, self.map)) @ self.map


@dataclass(frozen=True, eq=False)
class Liar(Fair):
    """Answers like the fair one, changed by a function of position, potential and gradient."""

    change: Callable

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        return self.change(position, *super().potential_and_gradient(position))


def _where(condition, value, otherwise):
    shaped = condition if np.ndim(otherwise) == 1 else condition[:, None]
    return np.where(shaped, value, otherwise)


def _half(value):
    """Lie on one side only."""
    return lambda q, u, g: (_where(q[:, 0] > 0.5, value, u), _where(q[:, 0] > 0.5, value, g))


LIES = {
    "zero": lambda q, u, g: (0 * u, 0 * g),
    "wrong sign": lambda q, u, g: (-u, -g),
    "a million times too steep": lambda q, u, g: (1e6 * u, 1e6 * g),
    "constant force": lambda q, u, g: (0 * u + 3.0, 0 * g + 0.7),
    "steps": lambda q, u, g: (np.floor(u), np.floor(2.0 * g)),
    "rough": lambda q, u, g: (u + np.sin(50 * q).sum(axis=1), g + 5.0 * np.sin(50 * q)),
    "float32": lambda q, u, g: (u.astype(np.float32), g.astype(np.float32)),
    "NaN": lambda q, u, g: (u * np.nan, g * np.nan),
    "NaN on one side": _half(np.nan),
    "inf on one side": _half(np.inf),
    "-inf on one side": _half(-np.inf),
    "NaN in the gradient only": lambda q, u, g: (u, _where(q[:, 1] > 0.5, np.nan, g)),
    "NaN in the potential only": lambda q, u, g: (u * np.nan, g),
}


def _raise(q, u, g):
    raise ZeroDivisionError("no answer")


BROKEN = {
    "an exception": _raise,
    "potentials of a wrong shape": lambda q, u, g: (u[:, None], g),
    "gradients of a wrong shape": lambda q, u, g: (u, g[:, :1]),
    "too few rows": lambda q, u, g: (u[:-1], g[:-1]),
    "words": lambda q, u, g: ("high", "steep"),
    "nothing": lambda q, u, g: (None, None),
}
