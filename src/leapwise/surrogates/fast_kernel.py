r"""Sums of kernel nodes, of networks and Gaussian processes, as bare functions.

A sum over centres :math:`c_j` as in `leapwise.surrogates.gp_basis`,

.. math:: f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - \varphi'(\rho_j)\, a_j, \qquad a_j = g_j (z - c_j) \cdot \gamma_j,

has, with :math:`p = -\varphi'`, :math:`q = \varphi''/p` and :math:`s_j = g_j p_j (\alpha_j + q_j a_j)`,

.. math:: \nabla f = \sum_j s_j c_j + g_j p_j \gamma_j - \Big(\sum_j s_j\Big) z.

The profiles are :math:`(1 + \rho/\alpha)^{-\alpha}`, with :math:`p = h^{\alpha + 1}` and
:math:`q = h (\alpha + 1)/\alpha` for :math:`h = 1/(1 + \rho/\alpha)`, and :math:`e^{-\rho}`, with
:math:`p = e^{-\rho}` and :math:`q = 1`. Either is a power or an exponential of an argument that is linear in z and
:math:`|z|^2`, so all that is constant goes into the matrices, and the rest is done in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.gp_basis import LeaningBasis
from leapwise.surrogates.profiles import Profile, RationalQuadratic, SquaredExponential
from leapwise.surrogates.radial import RadialBasis


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
