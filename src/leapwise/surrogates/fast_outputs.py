r"""A surrogate of outputs as two bare functions of positions.

Of all components together, as in `leapwise.surrogates.emulator`, the polynomial part has slopes and values

.. math::
    S = l + B z + \tfrac12 T[y, y], \qquad
    l \cdot z + \tfrac12 z^T B z + \tfrac16 T[y, y, y]
    = \big(\tfrac13 S + \tfrac16 B z + \tfrac23 l\big) \cdot z,

so two products and one contraction give both: the cubic tensors have the axes of :math:`z` put into them. Values alone
go through the features if they are fewer than the slopes. Where the likelihood is Gaussian, its gradient is a matrix
times what the components differ from its origin by, which goes into their constants; a Gaussian prior is treated alike.
Likelihoods and priors of another kind are asked as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType

import numpy as np

from leapwise.surrogates.bases import SoftplusBasis
from leapwise.surrogates.cubic import CubicForms
from leapwise.surrogates.emulator import Emulator
from leapwise.surrogates.fast_expansion import entry
from leapwise.surrogates.output_space import Potential, QuadraticPotential
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.softplus import softplus_and_slope
from leapwise.surrogates.whitening import Whitening

Function = Callable[[np.ndarray], np.ndarray]
#: Components ``(n, p)`` of whitened positions, and their Jacobian ``(n, p, dim)``.
Map = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def fast_outputs(
    surrogate: FittedOutputs, frame: Whitening | None = None
) -> tuple[Function, Function] | None:
    """Return potential and gradient, of coordinates in a frame if one is given; None if a part is not known here."""
    emulator, misfit = surrogate.acting
    known = (
        type(surrogate.whitening) is Whitening
        and type(emulator) is Emulator
        and type(emulator.cubic) in (CubicForms, NoneType)
        and type(emulator.nodes) in (SoftplusBasis, NoneType)
    )
    if not known:
        return None
    into, back = entry(surrogate.whitening, frame)
    height, prior_height = misfit.value_and_gradient, surrogate.prior.value_and_gradient
    (origin, cotangent), (middle, prior_slope) = _slope(misfit), _slope(surrogate.prior)
    constant, polynomials = emulator.constant, _polynomials(emulator)
    shifted = constant - origin
    additive = None if emulator.nodes is None else _additive(emulator)

    few = emulator.cubic is not None and not emulator.cubic.is_wide
    values = (lambda z: polynomials(z)[0]) if few else _values(emulator)

    def potential(position: np.ndarray) -> np.ndarray:
        z = into(position)
        components = values(z)
        components += constant
        if additive is not None:
            components += additive[0](z)[0]
        return height(components)[0] + prior_height(z)[0]

    def gradient(position: np.ndarray) -> np.ndarray:
        z = into(position)
        components, slopes = polynomials(z)
        components += shifted
        if additive is not None:
            more, steep = additive[0](z)
            components += more
        pull = cotangent(components)
        found = np.matmul(pull[:, None, :], slopes)[:, 0, :]
        found += prior_slope(z - middle)
        if additive is not None:
            found += additive[1](steep, pull)
        return found.dot(back)

    return potential, gradient


def _values(emulator: Emulator) -> Function:
    """Return the polynomial part of components, without the constant: through their features, which are fewer."""
    _, dim, _ = emulator.matrices.shape
    i, j = np.triu_indices(dim)
    linear = np.ascontiguousarray(emulator.linear.T)
    quadratic = np.ascontiguousarray((emulator.matrices[:, i, j] * np.where(i == j, 0.5, 1.0)).T)
    cubic = None if emulator.cubic is None else _cubic_values(emulator.cubic)

    def values(z: np.ndarray) -> np.ndarray:
        products = z.take(i, axis=1)
        products *= z.take(j, axis=1)
        found = products.dot(quadratic)
        found += z.dot(linear)
        if cubic is not None:
            found += cubic(z)
        return found

    return values


def _cubic_values(cubic: CubicForms) -> Function:
    """Return T[y, y, y] / 6 for all components, ``(n, p)``."""
    axes, ((i, j, k), weights) = np.ascontiguousarray(cubic.axes), cubic.weights

    def values(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        products *= y.take(k, axis=1)
        return products.dot(weights)

    return values


def _polynomials(emulator: Emulator) -> Map:
    """Return the polynomial part of components, without the constant, and its slopes."""
    p, dim, _ = emulator.matrices.shape
    flat = np.ascontiguousarray(np.moveaxis(emulator.matrices, 0, 1).reshape(dim, p * dim))
    linear = emulator.linear.ravel()
    gentle = np.ascontiguousarray(emulator.linear.T) * (2.0 / 3.0)
    bend = None if emulator.cubic is None else _bend(emulator.cubic)

    def polynomials(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        image = z.dot(flat)
        slopes = image + linear
        if bend is not None:
            slopes += bend(z)
        image *= 1.0 / 6.0
        image += slopes * (1.0 / 3.0)
        shape = (len(z), p, dim)
        values = z.dot(gentle)
        values += np.matmul(image.reshape(shape), z[:, :, None])[:, :, 0]
        return values, slopes.reshape(shape)

    return polynomials


def _bend(cubic: CubicForms) -> Function:
    """Return half of T[y, y] for all components, in the coordinates of z, ``(n, p dim)``."""
    axes = np.ascontiguousarray(cubic.axes)
    dim, r = axes.shape
    p = len(cubic.tensors)
    i, j = np.triu_indices(r)
    pairs = cubic.tensors[:, :, i, j] * np.where(i == j, 0.5, 1.0)  # (p, r, pairs)
    flat = np.ascontiguousarray(np.moveaxis(axes @ pairs, 2, 0).reshape(len(i), p * dim))

    def bend(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        return products.dot(flat)

    return bend


def _slope(potential: Potential) -> tuple[np.ndarray | float, Function]:
    """Return the origin of a quadratic form, 0 of another potential, and its gradient by points less it."""
    if type(potential) is not QuadraticPotential:
        value_and_gradient = potential.value_and_gradient
        return 0.0, lambda points: value_and_gradient(points)[1]
    matrix, slope = potential.matrix, potential.slope

    def affine(shift: np.ndarray) -> np.ndarray:
        found = shift.dot(matrix)
        found += slope
        return found

    return potential.origin, affine


def _additive(emulator: Emulator) -> tuple[Map, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Return softplus nodes as two functions.

    Of points they are values ``(n, p)`` and slopes of nodes ``(n, s)``; of these slopes, which are overwritten, and
    vectors ``(n, p)`` the transposed Jacobian times the vectors.
    """
    assert emulator.nodes is not None and emulator.node_weights is not None
    rows, biases, weights = emulator.nodes.input_weights, emulator.nodes.input_biases, emulator.node_weights
    columns, back = np.ascontiguousarray(rows.T), np.ascontiguousarray(weights.T)

    def value(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = z.dot(columns)
        t += biases
        heights = softplus_and_slope(t)
        return heights.dot(weights), t

    def pull(slopes: np.ndarray, vector: np.ndarray) -> np.ndarray:
        slopes *= vector.dot(back)
        return slopes.dot(rows)

    return value, pull
