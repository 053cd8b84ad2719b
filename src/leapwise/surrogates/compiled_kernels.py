r"""Sums of kernel nodes, of networks and Gaussian processes, as bare functions.

A sum over centres :math:`c_j` as in `leapwise.surrogates.gp`,

.. math:: f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - \varphi'(\rho_j)\, a_j, \qquad a_j = g_j (z - c_j) \cdot \gamma_j,

has, with :math:`p = -\varphi'`, :math:`q = \varphi''/p` and :math:`s_j = g_j p_j (\alpha_j + q_j a_j)`,

.. math:: \nabla f = \sum_j s_j c_j + g_j p_j \gamma_j - \Big(\sum_j s_j\Big) z.

The profiles are :math:`(1 + \rho/\alpha)^{-\alpha}`, with :math:`p = h^{\alpha + 1}` and
:math:`q = h (\alpha + 1)/\alpha` for :math:`h = 1/(1 + \rho/\alpha)`, and :math:`e^{-\rho}`, with
:math:`p = e^{-\rho}` and :math:`q = 1`. Either is a power or an exponential of an argument that is linear in z and
:math:`|z|^2`, so all that is constant goes into the matrices, and the rest is done in place.

A quadratic, radial terms and rational kernel nodes, as two bare functions with as few calls as can be.

It is what self-tuned runs mostly draw from, a few rows at a time, so that the number of calls is what it costs. With
:math:`u_j = 1 + g_j |z - c_j|^2 / 2` and :math:`h_j = 1/u_j` the nodes are, for
the profile :math:`1/(1 + \rho)`,

.. math:: f(z) = \sum_j v_j h_j^2, \qquad \nabla f = \sum_j h_j^2\, g_j \gamma_j - g_j s_j\, (z - c_j), \qquad
    v_j = a_j + \alpha_j u_j, \quad s_j = h_j^3\, (2 a_j + \alpha_j u_j) .

Both u and v are linear in :math:`(z, 1, |z|^2)`, and so are the gradient of the quadratic and the denominators of the
slopes of radial terms: one product gives them all, and a second one sums up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.bases import (
    Profile,
    RadialBasis,
    RationalQuadratic,
    SquaredExponential,
)
from leapwise.surrogates.gp import LeaningBasis
from leapwise.surrogates.trend import RADIAL_SCALES, Guard


class KernelSum(NamedTuple):
    """Functions of whitened positions ``(n, dim)`` and their squares ``(n,)``.

    `gradient` returns what is to be multiplied with the positions, ``(n,)``, and the rest, ``(n, dim)``.
    """

    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Shape(NamedTuple):
    r"""A profile as a function of the argument :math:`u = o + k \rho`, which its functions overwrite.

    `heights` returns :math:`\varphi` and p; `slopes` returns p and q / `stretch`, None if that is one.
    """

    origin: float
    factor: float
    stretch: float
    heights: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]


def kernel_sum(basis: RadialBasis | LeaningBasis, weights: np.ndarray) -> KernelSum | None:
    """Return the weighted sum of the nodes; None if their profile is not one of those known here."""
    shape = _shape(basis.profile)
    if shape is None:
        return None
    if isinstance(basis, RadialBasis):
        return _radial(basis, weights, shape)
    return _leaning(basis, weights, shape)


def _radial(basis: RadialBasis, weights: np.ndarray, shape: Shape) -> KernelSum:
    argument = _argument(basis.centres, basis.precision, shape)
    steep = weights * basis.precision
    pull = steep[:, None] * basis.centres

    def value(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        return shape.heights(argument(white, square))[0].dot(weights)

    def gradient(white: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, _ = shape.slopes(argument(white, square))
        return -p.dot(steep), p.dot(pull)

    return KernelSum(value, gradient)


def _leaning(basis: LeaningBasis, weights: np.ndarray, shape: Shape) -> KernelSum:
    n, g = len(basis.centres), basis.length**-2.0
    argument = _argument(basis.centres, np.full(1, g), shape)
    alpha, lean = weights[:n], g * weights[n:].reshape(basis.centres.shape)
    columns = np.ascontiguousarray(lean.T)
    shift = np.einsum("sd,sd->s", basis.centres, lean)
    steep_columns, steep_shift = shape.stretch * columns, shape.stretch * shift
    pull, all_of_them = g * basis.centres, np.full(n, -g)

    def value(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        height, p = shape.heights(argument(white, square))
        return height.dot(alpha) + np.vecdot(p, white.dot(columns) - shift)

    def gradient(white: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, q = shape.slopes(argument(white, square))
        s = white.dot(steep_columns)
        s -= steep_shift
        if q is not None:
            s *= q
        s += alpha
        s *= p
        rest = s.dot(pull)
        rest += p.dot(lean)
        return s.dot(all_of_them), rest

    return KernelSum(value, gradient)


def _argument(
    centres: np.ndarray, precision: np.ndarray, shape: Shape
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return u ``(n, s)`` as a function of positions and squares; precisions are ``(s,)``, or ``(1,)`` if all alike."""
    scale = shape.factor * precision
    columns = np.ascontiguousarray(-scale * centres.T)
    constant = shape.origin + 0.5 * scale * np.einsum("sd,sd->s", centres, centres)
    half = 0.5 * scale

    def argument(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        u = white.dot(columns)
        u += square[:, None] * half
        u += constant
        return u

    return argument


def _shape(profile: Profile) -> Shape | None:
    if type(profile) is SquaredExponential:
        return Shape(0.0, -1.0, 1.0, _bell_heights, _bell_slopes)
    if type(profile) is RationalQuadratic:
        return _rational(float(profile.alpha))
    return None


def _bell_heights(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    np.minimum(u, 0.0, out=u)  # rounding may leave it just above
    np.exp(u, out=u)
    return u, u


def _bell_slopes(u: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _bell_heights(u)[0], None


def _rational(alpha: float) -> Shape:
    def heights(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, h = slopes(u)
        return (h if alpha == 1.0 else h**alpha), p

    def slopes(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        np.maximum(u, 1.0, out=u)
        h = 1.0 / u
        return (np.multiply(h, h, out=u) if alpha == 1.0 else h ** (alpha + 1.0)), h

    return Shape(1.0, 1.0 / alpha, (alpha + 1.0) / alpha, heights, slopes)


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


class Centred(NamedTuple):
    """Functions of squares ``(n,)``: values, and what to multiply positions with; None where all are zero."""

    value: Callable[[np.ndarray], np.ndarray | None]
    slope: Callable[[np.ndarray], np.ndarray | None]


def radial_terms(weights: np.ndarray, dim: int) -> Centred:
    """Return the sum of the radial terms of a trend, with these weights ``(3,)``."""
    scales, heights, slopes = RADIAL_SCALES * dim, dim * weights, 2.0 * dim * weights

    def value(square: np.ndarray) -> np.ndarray:
        return np.log1p(square[:, None] / scales).dot(heights)

    def slope(square: np.ndarray) -> np.ndarray:
        return np.divide(1.0, square[:, None] + scales).dot(slopes)

    return Centred(value, slope)


def guard_term(guard: Guard, weight: float) -> Centred:
    """Return a weight times the guard."""
    radius = float(guard.radius)
    least = radius * radius

    def value(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:  # False for NaN
            return None
        t = np.maximum(np.sqrt(square), radius) - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (0.5 * t * t * t * t * u)

    def slope(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:
            return None
        r = np.maximum(np.sqrt(square), radius)
        t = r - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (t * (1.0 - u) * (1.0 + u) / r)

    return Centred(value, slope)


def total(parts: list[Callable[[np.ndarray], np.ndarray | None]], square: np.ndarray) -> np.ndarray | None:
    """Return the sum of parts, None if none has anything to say."""
    found = None
    for part in parts:
        more = part(square)
        if more is not None:
            found = more if found is None else found + more
    return found
