r"""A quadratic, radial terms and rational kernel nodes, as two bare functions with as few calls as can be.

It is what self-tuned runs mostly draw from, a few rows at a time, so that the number of calls is what it costs. With
:math:`u_j = 1 + g_j |z - c_j|^2 / 2` and :math:`h_j = 1/u_j` the nodes of `leapwise.surrogates.fast_kernel` are, for
the profile :math:`1/(1 + \rho)`,

.. math:: f(z) = \sum_j v_j h_j^2, \qquad \nabla f = \sum_j h_j^2\, g_j \gamma_j - g_j s_j\, (z - c_j), \qquad
    v_j = a_j + \alpha_j u_j, \quad s_j = h_j^3\, (2 a_j + \alpha_j u_j) .

Both u and v are linear in :math:`(z, 1, |z|^2)`, and so are the gradient of the quadratic and the denominators of the
slopes of radial terms: one product gives them all, and a second one sums up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leapwise.surrogates.fast_centred import Centred
from leapwise.surrogates.gp_basis import LeaningBasis
from leapwise.surrogates.profiles import RationalQuadratic
from leapwise.surrogates.radial import RadialBasis
from leapwise.surrogates.trend import RADIAL_SCALES

Function = Callable[[np.ndarray], np.ndarray]


def is_rational(basis: RadialBasis | LeaningBasis) -> bool:
    """Whether nodes have the profile that is known here."""
    return type(basis.profile) is RationalQuadratic and basis.profile.alpha == 1.0


class Process:
    """The sum of a quadratic, radial terms, nodes and a guard, in whitened coordinates.

    Parameters
    ----------
    linear, matrix : ndarray of shape (dim,) and (dim, dim)
        Of the quadratic.
    radial : ndarray of shape (3,) or (0,)
        Weights of radial terms.
    basis : RadialBasis or LeaningBasis
        Rational nodes.
    weights : ndarray of shape (basis.size,)
    guard : Centred
    """

    def __init__(
        self,
        linear: np.ndarray,
        matrix: np.ndarray,
        radial: np.ndarray,
        basis: RadialBasis | LeaningBasis,
        weights: np.ndarray,
        guard: Centred,
    ) -> None:
        self.dim, self.guard = len(linear), guard
        self._linear, self._matrix = linear, matrix
        centres, n = basis.centres, len(basis.centres)
        self._scales = RADIAL_SCALES[: len(radial)] * self.dim
        self._heights = self.dim * radial
        self._alpha = weights[:n]
        self._lean = None
        if isinstance(basis, RadialBasis):
            precision = np.broadcast_to(basis.precision, n)
        else:
            precision = np.full(n, basis.length**-2.0)
            self._lean = precision[:, None] * weights[n:].reshape(centres.shape)
        self._precision, self._centres = precision, centres
        squares = np.einsum("sd,sd->s", centres, centres)
        # Rows: z, 1, |z|^2.
        self._u = np.vstack([-precision * centres.T, 1.0 + 0.5 * precision * squares, 0.5 * precision])
        self._a = None
        if self._lean is not None:
            shift = np.einsum("sd,sd->s", centres, self._lean)
            self._a = np.vstack([self._lean.T, -shift, np.zeros(n)])

    def potential(self, offset: float, enter: Function) -> Function:
        """Return potentials of coordinates from which `enter` makes ``(z, 1, |z|^2)``."""
        dim, n, alpha, scales, heights = self.dim, len(self._alpha), self._alpha, self._scales, self._heights
        trend = np.vstack([0.5 * self._matrix, self._linear, np.zeros(dim)])
        v = [] if self._a is None else [self._a + alpha * self._u]
        product, guard = np.ascontiguousarray(np.hstack([self._u, *v, trend])), self.guard.value

        def potential(position: np.ndarray) -> np.ndarray:
            point = enter(position)
            image, square = point.dot(product), point[:, -1]
            value = np.vecdot(image[:, -dim:], point[:, :dim])
            h = 1.0 / image[:, :n]
            if v:
                np.multiply(h, h, out=h)
                value += np.vecdot(h, image[:, n : 2 * n])
            else:
                value += h.dot(alpha)
            if len(scales):
                value += np.log1p(square[:, None] / scales).dot(heights)
            more = guard(square)
            if more is not None:
                value += more
            value += offset
            return value

        return potential

    def gradient(self, enter: Function, back: np.ndarray) -> Function:
        """Return gradients of such coordinates, taken back by a matrix."""
        dim, n, k, precision = self.dim, len(self._alpha), len(self._scales), self._precision
        trend = np.vstack([self._matrix, self._linear, np.zeros(dim)])
        radial = np.vstack([np.zeros((dim, k)), self._scales, np.ones(k)])
        s = [] if self._a is None else [2.0 * self._a + self._alpha * self._u]
        product = np.ascontiguousarray(np.hstack([radial, self._u, *s, trend]))
        pull = precision[:, None] * np.hstack([self._centres, np.full((n, 1), -1.0)])
        sums = np.zeros((k + n * (1 + len(s)), dim + 1))
        sums[:k, dim] = 2.0 * self._heights
        if self._lean is None:
            sums[k:] = self._alpha[:, None] * pull
        else:
            sums[k : k + n, :dim], sums[k + n :] = self._lean, pull
        m, guard = len(sums), self.guard.slope

        def gradient(position: np.ndarray) -> np.ndarray:
            point = enter(position)
            image = point.dot(product)
            h = 1.0 / image[:, : k + n]
            image[:, :k] = h[:, :k]
            h = h[:, k:]
            squared = np.multiply(h, h, out=image[:, k : k + n])
            if s:
                last = image[:, k + n : m]
                last *= squared
                last *= h
            found = image[:, :m].dot(sums)
            z, factor = point[:, :dim], found[:, dim]
            more = guard(point[:, -1])
            if more is not None:
                factor += more
            z *= factor[:, None]
            z += found[:, :dim]
            z += image[:, m:]
            return z.dot(back)

        return gradient
