r"""Compiled forms of the terms that depend on distances: kernel nodes, radial terms and the guard.

All functions here work in whitened coordinates :math:`z` and take :math:`|z|^2`, which the terms share, as a second
argument. See `leapwise.surrogates.compiled` for what compiling means.

**Kernel nodes.** A sum over centres :math:`c_j` with squared inverse lengths :math:`g_j`, as in
`leapwise.surrogates.gp`,

.. math::
    f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - \varphi'(\rho_j)\, a_j, \qquad
    \rho_j = \tfrac{g_j}{2} |z - c_j|^2, \quad a_j = g_j (z - c_j) \cdot \gamma_j,

has, with :math:`p = -\varphi'`, :math:`q = \varphi''/p` and :math:`s_j = g_j p_j (\alpha_j + q_j a_j)`, the gradient

.. math:: \nabla f = \sum_j s_j c_j + g_j p_j \gamma_j - \Big(\sum_j s_j\Big) z.

The profiles are :math:`1/(1 + \rho)`, with :math:`p = h^2` and :math:`q = 2 h` for :math:`h = 1/(1 + \rho)`, and
:math:`e^{-\rho}`, with :math:`p = e^{-\rho}` and :math:`q = 1`. Both are functions of an argument u that is linear in z
and :math:`|z|^2`. Everything constant therefore goes into matrices, and the rest is done in place.

**Radial terms and the guard** are functions of :math:`|z|^2` alone. The gradient of :math:`\varphi(|z|^2/2)` is
:math:`\varphi'\, z`, so a value and a factor describe them.

**Fused process.** Self-tuned runs mostly draw from a quadratic trend with radial terms, nodes of the profile
:math:`1/(1 + \rho)`, and a guard. `FusedProcess` evaluates this sum with as few NumPy calls as possible. With
:math:`u_j = 1 + \rho_j` and :math:`h_j = 1/u_j` the nodes are

.. math::
    f(z) = \sum_j v_j h_j^2, \qquad \nabla f = \sum_j h_j^2\, g_j \gamma_j - g_j s_j\, (z - c_j), \qquad
    v_j = a_j + \alpha_j u_j, \quad s_j = h_j^3\, (2 a_j + \alpha_j u_j) .

Both u and v are linear in :math:`(z, 1, |z|^2)`, and so are the gradient of the quadratic and the denominators of the
radial terms' slopes. One matrix product gives all of them, and a second one adds them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.features import RadialBasis, RadialProfile, RationalQuadratic, SquaredExponential
from leapwise.surrogates.gp import GradientKernelBasis
from leapwise.surrogates.trend import RADIAL_SCALES, Guard

#: A function of a batch of rows.
BatchFunction = Callable[[np.ndarray], np.ndarray]
KernelBasis = RadialBasis | GradientKernelBasis


class RadialTerm(NamedTuple):
    """A function of the distance from the origin, by squared distances ``(n,)``.

    `value` returns values ``(n,)``; `factor` returns what positions are multiplied with to give gradients, ``(n,)``.
    Either is None where all entries are zero.
    """

    value: Callable[[np.ndarray], np.ndarray | None]
    factor: Callable[[np.ndarray], np.ndarray | None]


def radial_terms(weights: np.ndarray, dim: int) -> RadialTerm:
    """Compile the radial terms of a `TrendBasis`, with weights ``(3,)``."""
    scales, heights, slopes = RADIAL_SCALES * dim, dim * weights, 2.0 * dim * weights

    def value(square: np.ndarray) -> np.ndarray:
        return np.log1p(square[:, None] / scales).dot(heights)

    def factor(square: np.ndarray) -> np.ndarray:
        return np.divide(1.0, square[:, None] + scales).dot(slopes)

    return RadialTerm(value, factor)


def guard_term(guard: Guard, weight: float) -> RadialTerm:
    """Compile a `Guard`. Inside its radius, where trajectories nearly always are, it costs one comparison."""
    radius = float(guard.radius)
    least = radius * radius

    def value(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:  # False for NaN
            return None
        t = np.maximum(np.sqrt(square), radius) - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (0.5 * t * t * t * t * u)

    def factor(square: np.ndarray) -> np.ndarray | None:
        if square.max(initial=0.0) <= least:
            return None
        r = np.maximum(np.sqrt(square), radius)
        t = r - radius
        u = 1.0 / (1.0 + t * t)
        return weight * (t * (1.0 - u) * (1.0 + u) / r)

    return RadialTerm(value, factor)


class KernelTerm(NamedTuple):
    """A weighted sum of kernel nodes, by whitened positions ``(n, dim)`` and their squared distances ``(n,)``.

    `gradient` returns a factor of the positions, ``(n,)``, and a vector that is added to the product, ``(n, dim)``.
    """

    value: Callable[[np.ndarray, np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def kernel_term(basis: KernelBasis, weights: np.ndarray) -> KernelTerm | None:
    """Compile kernel nodes; None if their profile has no compiled form."""
    form = _profile_form(basis.profile)
    if form is None:
        return None
    if isinstance(basis, RadialBasis):
        return _radial_nodes(basis, weights, form)
    return _gradient_nodes(basis, weights, form)


class ProfileForm(NamedTuple):
    r"""A profile :math:`\varphi(\rho)` as a function of :math:`u = \mathrm{origin} + \mathrm{factor} \cdot \rho`.

    `heights` returns :math:`\varphi` and p; `slopes` returns p and q / `stretch`, or None if that is 1 everywhere. Both
    overwrite u.
    """

    origin: float
    factor: float
    stretch: float
    heights: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]


def _exponential_heights(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    np.minimum(u, 0.0, out=u)  # rounding may leave it just above 0
    np.exp(u, out=u)
    return u, u


def _exponential_slopes(u: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    return _exponential_heights(u)[0], None


def _rational_heights(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, h = _rational_slopes(u)
    return h, p


def _rational_slopes(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    np.maximum(u, 1.0, out=u)
    h = 1.0 / u
    return np.multiply(h, h, out=u), h


def _profile_form(profile: RadialProfile) -> ProfileForm | None:
    if type(profile) is SquaredExponential:
        return ProfileForm(0.0, -1.0, 1.0, _exponential_heights, _exponential_slopes)
    if _is_rational(profile):
        return ProfileForm(1.0, 1.0, 2.0, _rational_heights, _rational_slopes)
    return None


def _is_rational(profile: RadialProfile) -> bool:
    """Whether a profile is 1 / (1 + rho)."""
    return type(profile) is RationalQuadratic and profile.alpha == 1.0


def _radial_nodes(basis: RadialBasis, weights: np.ndarray, form: ProfileForm) -> KernelTerm:
    argument = _argument(basis.centres, basis.precision, form)
    steep = weights * basis.precision
    pull = steep[:, None] * basis.centres

    def value(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        return form.heights(argument(white, square))[0].dot(weights)

    def gradient(white: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, _ = form.slopes(argument(white, square))
        return -p.dot(steep), p.dot(pull)

    return KernelTerm(value, gradient)


def _gradient_nodes(basis: GradientKernelBasis, weights: np.ndarray, form: ProfileForm) -> KernelTerm:
    n, g = len(basis.centres), basis.length**-2.0
    argument = _argument(basis.centres, np.full(1, g), form)
    alpha, gamma = weights[:n], g * weights[n:].reshape(basis.centres.shape)  # gamma with its factor g
    columns = np.ascontiguousarray(gamma.T)
    shift = np.einsum("sd,sd->s", basis.centres, gamma)
    steep_columns, steep_shift = form.stretch * columns, form.stretch * shift
    pull, minus_g = g * basis.centres, np.full(n, -g)

    def value(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        height, p = form.heights(argument(white, square))
        return height.dot(alpha) + np.vecdot(p, white.dot(columns) - shift)

    def gradient(white: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p, q = form.slopes(argument(white, square))
        s = white.dot(steep_columns)
        s -= steep_shift
        if q is not None:
            s *= q
        s += alpha
        s *= p
        vector = s.dot(pull)
        vector += p.dot(gamma)
        return s.dot(minus_g), vector

    return KernelTerm(value, gradient)


def _argument(
    centres: np.ndarray, precision: np.ndarray, form: ProfileForm
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return u ``(n, s)`` as a function of positions and squared distances.

    Precisions, the squared inverse lengths, are ``(s,)``, or ``(1,)`` if all are equal.
    """
    scale = form.factor * precision
    columns = np.ascontiguousarray(-scale * centres.T)
    constant = form.origin + 0.5 * scale * np.einsum("sd,sd->s", centres, centres)
    half = 0.5 * scale

    def argument(white: np.ndarray, square: np.ndarray) -> np.ndarray:
        u = white.dot(columns)
        u += square[:, None] * half
        u += constant
        return u

    return argument


class FusedProcess:
    """A quadratic trend, radial terms, rational kernel nodes and a guard in two matrix products.

    Parameters
    ----------
    linear, matrix : ndarray of shape (dim,) and (dim, dim)
        Of the quadratic trend.
    radial : ndarray of shape (3,) or (0,)
        Weights of the radial terms, if there are any.
    basis : RadialBasis or GradientKernelBasis
        Nodes with the profile 1 / (1 + rho).
    weights : ndarray of shape (basis.size,)
    guard : RadialTerm
    """

    def __init__(
        self,
        linear: np.ndarray,
        matrix: np.ndarray,
        radial: np.ndarray,
        basis: KernelBasis,
        weights: np.ndarray,
        guard: RadialTerm,
    ) -> None:
        self.dim, self.guard = len(linear), guard
        self._linear, self._matrix = linear, matrix
        centres, n = basis.centres, len(basis.centres)
        self._scales = RADIAL_SCALES[: len(radial)] * self.dim
        self._heights = self.dim * radial
        self._alpha = weights[:n]
        self._gamma = None
        if isinstance(basis, RadialBasis):
            precision = np.broadcast_to(basis.precision, n)
        else:
            precision = np.full(n, basis.length**-2.0)
            self._gamma = precision[:, None] * weights[n:].reshape(centres.shape)
        self._precision, self._centres = precision, centres
        squares = np.einsum("sd,sd->s", centres, centres)
        # Matrices whose rows belong to z, 1 and |z|^2.
        self._u = np.vstack([-precision * centres.T, 1.0 + 0.5 * precision * squares, 0.5 * precision])
        self._a = None
        if self._gamma is not None:
            shift = np.einsum("sd,sd->s", centres, self._gamma)
            self._a = np.vstack([self._gamma.T, -shift, np.zeros(n)])

    @staticmethod
    def applies_to(basis: KernelBasis) -> bool:
        """Whether nodes have the profile 1 / (1 + rho)."""
        return _is_rational(basis.profile)

    def potential(self, offset: float, enter: BatchFunction) -> BatchFunction:
        """Return potentials as a function of coordinates that `enter` maps to rows ``(z, 1, |z|^2)``."""
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

    def gradient(self, enter: BatchFunction, back: np.ndarray) -> BatchFunction:
        """Return gradients by the same coordinates; the matrix `back` maps gradients by z to these."""
        dim, n, k, precision = self.dim, len(self._alpha), len(self._scales), self._precision
        trend = np.vstack([self._matrix, self._linear, np.zeros(dim)])
        radial = np.vstack([np.zeros((dim, k)), self._scales, np.ones(k)])
        s = [] if self._a is None else [2.0 * self._a + self._alpha * self._u]
        product = np.ascontiguousarray(np.hstack([radial, self._u, *s, trend]))
        pull = precision[:, None] * np.hstack([self._centres, np.full((n, 1), -1.0)])
        # Columns of the sums: the vector that is added, then the factor of z.
        sums = np.zeros((k + n * (1 + len(s)), dim + 1))
        sums[:k, dim] = 2.0 * self._heights
        if self._gamma is None:
            sums[k:] = self._alpha[:, None] * pull
        else:
            sums[k : k + n, :dim], sums[k + n :] = self._gamma, pull
        m, guard = len(sums), self.guard.factor

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
