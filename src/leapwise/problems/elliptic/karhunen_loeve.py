r"""Karhunen-Loeve modes of a squared-exponential random field on the unit square.

The kernel of the paper's section 5.2 is a product over the two coordinates,

.. math::
    C(x, x') = \sigma^2 \, k(x_1, x_1') \, k(x_2, x_2'), \qquad
    k(s, t) = \exp\left(-\frac{(s - t)^2}{2 l^2}\right),

so its eigenfunctions are products of those of :math:`k` on [0, 1] and its eigenvalues products of theirs. The
one-dimensional problem :math:`\int_0^1 k(s, t)\, v(t)\, dt = \mu\, v(s)` is solved with Nystrom's method: on
Gauss-Legendre nodes :math:`t_j` with weights :math:`w_j` it is a small symmetric eigenproblem, and

.. math::
    v(s) = \frac1\mu \sum_j w_j \, k(s, t_j) \, v(t_j)

extends its solution to any :math:`s`. The modes are therefore the same functions on every mesh. Because
:math:`k` is analytic, 64 nodes give them to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from leapwise.errors import InputError

_N_NODES = 64
# Nystrom's extension divides by the eigenvalue: with so many modes of length 0.2 it keeps 8 digits.
MAX_MODES = 100


@dataclass(frozen=True, eq=False)
class KarhunenLoeve:
    r"""The leading modes :math:`\sqrt{\lambda_k}\, v_k(x)`; make them with `karhunen_loeve`.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n_modes,)
        :math:`\lambda_k`, decreasing.
    pairs : ndarray of int, shape (n_modes, 2)
        Which one-dimensional mode mode k has along x1 and along x2.
    length : float
        Length scale of the kernel.
    """

    eigenvalues: np.ndarray
    pairs: np.ndarray
    length: float
    _nodes: np.ndarray
    _extension: np.ndarray

    @property
    def n_modes(self) -> int:
        """Number of modes."""
        return len(self.eigenvalues)

    def along(self, coordinate: np.ndarray) -> np.ndarray:
        """Return the one-dimensional modes at coordinates ``(n,)``, as ``(n, n_modes_1d)``."""
        return np.asarray(_kernel(coordinate, self._nodes, self.length) @ self._extension)

    def at(self, points: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sqrt{\lambda_k}\, v_k` at points ``(n, 2)``, as ``(n, n_modes)``."""
        first, second = self.along(points[:, 0]), self.along(points[:, 1])
        return np.asarray(
            np.sqrt(self.eigenvalues) * first[:, self.pairs[:, 0]] * second[:, self.pairs[:, 1]]
        )

    def on_grid(self, x1: np.ndarray, x2: np.ndarray) -> GridField:
        """Prepare to evaluate fields on the grid of all ``(x1[i], x2[j])``."""
        return GridField(self.along(x1), self.along(x2), self.pairs, np.sqrt(self.eigenvalues))


@dataclass(frozen=True, eq=False)
class GridField:
    r"""The map from weights :math:`\theta` to :math:`\sum_k \theta_k \sqrt{\lambda_k}\, v_k` on a grid.

    It and its transpose go through the p x p table of one-dimensional modes (p is 5 for 20 modes): two
    small products, rather than one with a tall matrix that has a row for every grid point.
    """

    _first: np.ndarray  # (len(x1), p)
    _second: np.ndarray  # (len(x2), p)
    _pairs: np.ndarray
    _scales: np.ndarray

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Return the field ``(len(x1), len(x2))`` of mode weights ``(n_modes,)``."""
        p = self._first.shape[1]
        table = np.zeros((p, p))
        table[self._pairs[:, 0], self._pairs[:, 1]] = weights * self._scales
        return np.asarray(self._first @ table @ self._second.T)

    def transpose(self, field: np.ndarray) -> np.ndarray:
        """Return the inner product ``(n_modes,)`` of every mode with a field on the grid."""
        table = self._first.T @ field @ self._second
        return np.asarray(table[self._pairs[:, 0], self._pairs[:, 1]] * self._scales)

    def basis(self) -> np.ndarray:
        """Return every mode on the grid, ``(n_modes, len(x1), len(x2))``."""
        first = self._scales[:, None] * self._first.T[self._pairs[:, 0]]
        return np.asarray(first[:, :, None] * self._second.T[self._pairs[:, 1]][:, None, :])


def karhunen_loeve(n_modes: int = 20, *, variance: float = 1.0, length: float = 0.2) -> KarhunenLoeve:
    r"""Find the leading modes of the field with kernel :math:`\sigma^2 \exp(-|x - x'|^2 / 2 l^2)`.

    Modes come by decreasing eigenvalue; of a degenerate pair :math:`v_a(x_1) v_b(x_2)`, :math:`v_b(x_1)
    v_a(x_2)`, the one with the smaller index along x1 is first. Every one-dimensional mode is positive at
    0.

    Parameters
    ----------
    n_modes : int
        How many, at most 100.
    variance, length : float
        :math:`\sigma^2` and :math:`l`.

    Examples
    --------
    >>> modes = karhunen_loeve(3)
    >>> modes.pairs.tolist()
    [[0, 0], [0, 1], [1, 0]]
    >>> float(modes.eigenvalues.sum().round(3))  # of the variance, 1
    0.458
    """
    if (
        isinstance(n_modes, bool)
        or not isinstance(n_modes, (int, np.integer))
        or not 1 <= n_modes <= MAX_MODES
    ):
        raise InputError(f"n_modes must be a whole number from 1 to {MAX_MODES}, got {n_modes!r}")
    nodes, weights = np.polynomial.legendre.leggauss(_N_NODES)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    root = np.sqrt(weights)
    mu, vectors = eigh(root[:, None] * _kernel(nodes, nodes, length) * root)
    mu, vectors = mu[::-1], vectors[:, ::-1]

    # A product (a, b) is beaten by all (a' <= a, b' <= b), so (a+1)(b+1) <= n_modes and a, b < n_modes.
    size = min(n_modes, _N_NODES)
    products = np.outer(mu[:size], mu[:size]).ravel()
    order = np.lexsort((np.arange(size * size), -products))[:n_modes]
    pairs = np.column_stack(np.unravel_index(order, (size, size)))
    used = pairs.max() + 1
    extension = root[:, None] * vectors[:, :used] / mu[:used]
    extension *= np.sign(_kernel(np.zeros(1), nodes, length) @ extension)
    return KarhunenLoeve(variance * products[order], pairs, length, nodes, extension)


def _kernel(s: np.ndarray, t: np.ndarray, length: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * ((s[:, None] - t) / length) ** 2))
