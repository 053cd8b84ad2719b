r"""Many components whose sum of squares is the misfit, as few: most of them hardly bend, and act together as one.

A Gaussian likelihood is a sum of squares of its components, :math:`\tfrac12 \sum_k u_k(z)^2`, once they are turned into
coordinates in which its matrix is the identity, the principal ones among them. The first p, which vary most, stay as
they are. The rest,

.. math:: R(z) = \tfrac12 \sum_{k > p} u_k(z)^2, \qquad u_k = \alpha_k + l_k \cdot z + q_k(z) + c_k(z),

with linear, quadratic and cubic parts, is up to the third order about z = 0

.. math::
    R = R_0 + s_1 + s_2 + s_3, \qquad s_1 = \sum \alpha_k\, l_k \cdot z, \quad
    s_2 = \sum \tfrac12 (l_k \cdot z)^2 + \alpha_k q_k, \quad s_3 = \sum (l_k \cdot z)\, q_k + \alpha_k c_k .

A cubic alone would fall without end far out, so one component b is made of it whose square has the same expansion,
:math:`\tfrac12 b^2 = R + C`, with :math:`b_0^2 = 2 (R_0 + C)`:

.. math::
    b = b_0 + \frac{s_1 + s_2 + s_3}{b_0} - \frac{s_1^2 + 2 s_1 s_2}{2 b_0^3} + \frac{s_1^3}{2 b_0^5} .

The constant C is 0 unless :math:`R_0` is below 10, and then what is missing: the surrogate is bounded below as it was,
but for C. What is lost are fourth orders of components that hardly bend. They are measured at the training positions,
and p is the smallest at which they come to no more than about 0.01 of the potential among draws; if that saves less
than half of the components, nothing is condensed.
"""

from __future__ import annotations

import numpy as np

from leapwise.surrogates.cubic import CubicForms
from leapwise.surrogates.emulator import Emulator
from leapwise.surrogates.output_space import QuadraticPotential

#: Root mean square of what may be lost of the potential at training positions, each counting as at most 1. They reach
#: further out than draws, which lose about half of it.
TOLERANCE = 0.02
_KEPT = (0, 1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64)
_LEAST = 10.0


def condense(
    emulator: Emulator, misfit: QuadraticPotential, white: np.ndarray
) -> tuple[Emulator, QuadraticPotential]:
    """Return an emulator of fewer components and its misfit, with nearly the same potential; the same if none would do.

    Parameters
    ----------
    emulator : Emulator
    misfit : QuadraticPotential
        Of its components.
    white : ndarray of shape (n, dim)
        Whitened positions at which both must agree.

    Examples
    --------
    Twenty components, all alike but for what they are multiplied with, are as good as one:

    >>> from leapwise.surrogates.trend import TrendBasis
    >>> linear, size = np.array([0.3, -0.2]), np.arange(1.0, 21.0)[:, None]
    >>> trend = TrendBasis(2).weights_of(0.01 * size * linear, np.zeros((20, 2, 2))).T
    >>> many = Emulator(np.ones(20), trend)
    >>> misfit = QuadraticPotential(np.zeros(20), 0.0, np.zeros(20), np.eye(20))
    >>> few, its_misfit = condense(many, misfit, np.random.default_rng(0).standard_normal((50, 2)))
    >>> z = np.array([[0.5, 0.4]])
    >>> [m.value_and_gradient(e.components(z))[0].round(4) for e, m in ((many, misfit), (few, its_misfit))]
    [array([10.1477]), array([10.1477])]
    >>> len(few.constant)
    1
    """
    values, vectors = np.linalg.eigh(misfit.matrix)
    if not values[0] > 1e-10 * values[-1]:
        return emulator, misfit
    root = vectors * np.sqrt(values)
    components = emulator.components(white) @ root
    axes = np.linalg.svd(components - components.mean(axis=0), full_matrices=len(white) < len(root))[2].T
    slope = (misfit.slope @ vectors) / np.sqrt(values)
    root, shift = root @ axes, (slope - misfit.origin @ root) @ axes
    lowest = misfit.lowest - 0.5 * slope @ slope
    squares = 0.5 * (components @ axes + shift) ** 2
    turned = _turned(emulator, root, shift)
    for kept in _KEPT:
        if 2 * (kept + 1) > len(shift):
            break
        rest, constant = _rest(turned, kept)
        with np.errstate(all="ignore"):
            lost = squares[:, kept:].sum(axis=1) - 0.5 * rest.components(white)[:, 0] ** 2
            lost = np.clip(lost - np.median(lost), -1.0, 1.0)
        if np.sqrt(np.mean(lost**2)) <= TOLERANCE:
            found = _beside(turned, kept, rest)
            size = kept + 1
            origin = np.zeros(size)
            return found, QuadraticPotential(origin, float(lowest - constant), np.zeros(size), np.eye(size))
    return emulator, misfit


def _turned(emulator: Emulator, root: np.ndarray, shift: np.ndarray) -> Emulator:
    """Return the components in coordinates in which the misfit is half the sum of their squares."""
    cubic, weights = emulator.cubic, emulator.node_weights
    return Emulator(
        emulator.constant @ root + shift,
        emulator.trend_weights @ root,
        None if cubic is None else CubicForms(cubic.axes, np.tensordot(root.T, cubic.tensors, axes=1)),
        emulator.nodes,
        None if weights is None else weights @ root,
    )


def _rest(turned: Emulator, kept: int) -> tuple[Emulator, float]:
    """Return the one component that stands for all but the first, and the constant C."""
    dim = turned.trend.dim
    centre = turned.components(np.zeros((1, dim)))[0, kept:]
    linear, matrices = turned.linear[kept:], turned.matrices[kept:]
    height = 0.5 * float(centre @ centre)
    constant = max(_LEAST - height, 0.0)
    b = np.sqrt(2.0 * (height + constant))
    slope = centre @ linear
    bent = linear.T @ linear + np.tensordot(centre, matrices, axes=1)
    trend = turned.trend.weights_of(slope / b, bent / b - np.outer(slope, slope) / b**3)[:, None]
    weights = None if turned.node_weights is None else turned.node_weights[:, kept:] @ centre[:, None] / b
    start = b
    if turned.nodes is not None:
        start = b - float((turned.nodes.features(np.zeros((1, dim))) @ weights)[0, 0])
    cubic = None
    if turned.cubic is not None:
        axes = turned.cubic.axes
        slope, bent, linear = slope @ axes, axes.T @ bent @ axes, linear @ axes
        tensor = np.tensordot(centre, turned.cubic.tensors[kept:], axes=1) / b
        tensor = tensor + _symmetric(np.tensordot(linear, axes.T @ matrices @ axes, axes=([0], [0]))) / b
        tensor = tensor - _symmetric(slope[:, None, None] * bent) / b**3
        tensor = tensor + 3.0 * slope[:, None, None] * slope[:, None] * slope / b**5
        cubic = CubicForms(axes, tensor[None])
    return Emulator(np.array([start]), trend, cubic, turned.nodes, weights), constant


def _symmetric(tensor: np.ndarray) -> np.ndarray:
    """Return the sum over which index is the first, of a tensor that is symmetric in the other two."""
    return tensor + np.moveaxis(tensor, 0, 1) + np.moveaxis(tensor, 0, 2)


def _beside(turned: Emulator, kept: int, rest: Emulator) -> Emulator:
    """Return the first components, and the one for the others after them."""
    cubic, weights = turned.cubic, turned.node_weights
    if cubic is not None:
        assert rest.cubic is not None
        cubic = CubicForms(cubic.axes, np.concatenate([cubic.tensors[:kept], rest.cubic.tensors]))
    if weights is not None:
        assert rest.node_weights is not None
        weights = np.concatenate([weights[:, :kept], rest.node_weights], axis=1)
    return Emulator(
        np.concatenate([turned.constant[:kept], rest.constant]),
        np.concatenate([turned.trend_weights[:, :kept], rest.trend_weights], axis=1),
        cubic,
        turned.nodes,
        weights,
    )
