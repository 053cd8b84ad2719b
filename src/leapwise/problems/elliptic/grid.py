r"""Bilinear finite elements on a uniform grid of the unit square, written as operations on arrays.

A nodal function is an array ``(n+1, n+1)``, first axis x1, second x2. Each of the n x n square elements has
2 x 2 Gauss points, so a function on Gauss points is an array ``(2n, 2n)``. On one element the slope along
x1 of a bilinear function does not depend on x1, so its two Gauss points along x1 share it: slopes along x1
are ``(n, 2n)``, slopes along x2 ``(2n, n)``. By slopes we mean the gradient times h/2, half the mesh width,
because each Gauss point has the quadrature weight :math:`h^2/4`:

.. math::
    \int c\, \nabla u \cdot \nabla v \approx \sum_g \tfrac{h^2}{4}\, c_g\, \nabla u_g \cdot \nabla v_g
    = \sum_g c_g\, (\tfrac h2 \nabla u_g) \cdot (\tfrac h2 \nabla v_g).

With D the map from nodes to slopes and P the one that sums over the Gauss points that share a slope, the
stiffness matrix is :math:`K(c) = D^T \mathrm{diag}(P c)\, D`. The functions take leading batch axes.
"""

from __future__ import annotations

import numpy as np

# A Gauss point lies at this fraction of an element, or at one minus it; linear shape functions take these
# values.
NEAR = 0.5 * (1.0 - 1.0 / np.sqrt(3.0))
FAR = 1.0 - NEAR

Slopes = tuple[np.ndarray, np.ndarray]


def gauss_coordinates(n: int) -> np.ndarray:
    """Return the coordinates ``(2n,)`` of the Gauss points along one side.

    Examples
    --------
    >>> gauss_coordinates(1).round(4)
    array([0.2113, 0.7887])
    """
    return np.asarray((np.arange(n)[:, None] + np.array([NEAR, FAR])).ravel() / n)


def slopes(nodal: np.ndarray) -> Slopes:
    """Return D u: h/2 times the gradient at the Gauss points, as arrays ``(n, 2n)`` and ``(2n, n)``."""
    along_1 = nodal[..., 1:, :] - nodal[..., :-1, :]
    along_2 = nodal[..., :, 1:] - nodal[..., :, :-1]
    return _to_gauss(along_1), _to_gauss(along_2.swapaxes(-1, -2)).swapaxes(-1, -2)


def slopes_transposed(fluxes: Slopes) -> np.ndarray:
    """Return the transpose of D applied to arrays ``(n, 2n)`` and ``(2n, n)``: nodal loads ``(n+1, n+1)``."""
    along_1 = _from_gauss(fluxes[0])
    along_2 = _from_gauss(fluxes[1].swapaxes(-1, -2)).swapaxes(-1, -2)
    n = along_1.shape[-2]
    loads = np.zeros((*along_1.shape[:-2], n + 1, n + 1))
    loads[..., 1:, :] += along_1
    loads[..., :-1, :] -= along_1
    loads[..., :, 1:] += along_2
    loads[..., :, :-1] -= along_2
    return loads


def pair_sums(values: np.ndarray) -> Slopes:
    """Return P c: values ``(2n, 2n)`` summed over the Gauss points that share a slope."""
    return values[..., 0::2, :] + values[..., 1::2, :], values[..., :, 0::2] + values[..., :, 1::2]


def dot(a: Slopes, b: Slopes) -> np.ndarray:
    """Return the product of two gradients, times h^2/4, at every Gauss point, ``(2n, 2n)``."""
    return _spread(a[0] * b[0], a[1] * b[1])


def dot_sum(a: Slopes, b: Slopes) -> np.ndarray:
    """Return the sum of ``dot(a, b)`` over a leading axis."""
    return _spread(np.einsum("kij,kij->ij", a[0], b[0]), np.einsum("kij,kij->ij", a[1], b[1]))


def modulate_sum(functions: np.ndarray, gradients: Slopes) -> Slopes:
    """Multiply gradients by functions on the Gauss points and sum over the leading axis of both.

    The results differ between Gauss points that share a slope, so they are two arrays ``(2n, 2n)``.
    """
    first, second = np.empty(functions.shape[1:]), np.empty(functions.shape[1:])
    for a in (0, 1):
        np.einsum("kij,kij->ij", functions[:, a::2, :], gradients[0], out=first[a::2, :])
        np.einsum("kij,kij->ij", functions[:, :, a::2], gradients[1], out=second[:, a::2])
    return first, second


def times_stiffness(diffusivity: np.ndarray, gradient: Slopes) -> np.ndarray:
    """Return K(c) u as nodal loads, from the diffusivity and the slopes of u."""
    first, second = pair_sums(diffusivity)
    return slopes_transposed((first * gradient[0], second * gradient[1]))


def interpolation(n: int, coordinates: np.ndarray) -> np.ndarray:
    """Return the matrix ``(len(coordinates), n+1)`` that interpolates linearly between the nodes of one side.

    Examples
    --------
    >>> interpolation(2, np.array([0.0, 0.25]))
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ]])
    """
    element = np.minimum((coordinates * n).astype(int), n - 1)
    share = coordinates * n - element
    share = np.where(np.isclose(share, np.round(share), rtol=0.0, atol=1e-9), np.round(share), share)
    matrix = np.zeros((len(coordinates), n + 1))
    rows = np.arange(len(coordinates))
    matrix[rows, element] = 1.0 - share
    matrix[rows, element + 1] = share
    return matrix


def _to_gauss(values: np.ndarray) -> np.ndarray:
    """Interpolate the last axis from n+1 nodes to 2n Gauss points, and halve."""
    left, right = values[..., :-1], values[..., 1:]
    points = np.empty((*left.shape[:-1], 2 * left.shape[-1]))
    points[..., 0::2] = (0.5 * FAR) * left + (0.5 * NEAR) * right
    points[..., 1::2] = (0.5 * NEAR) * left + (0.5 * FAR) * right
    return points


def _from_gauss(points: np.ndarray) -> np.ndarray:
    """Apply the transpose of `_to_gauss` to the last axis."""
    near, far = points[..., 0::2], points[..., 1::2]
    values = np.zeros((*near.shape[:-1], near.shape[-1] + 1))
    values[..., :-1] += (0.5 * FAR) * near + (0.5 * NEAR) * far
    values[..., 1:] += (0.5 * NEAR) * near + (0.5 * FAR) * far
    return values


def _spread(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Add arrays ``(n, 2n)`` and ``(2n, n)`` at every Gauss point: the transpose of `pair_sums`."""
    total = np.empty((*first.shape[:-2], second.shape[-2], first.shape[-1]))
    # Four strided sums are several times faster than broadcasting over axes of length two.
    for i in (0, 1):
        for j in (0, 1):
            np.add(first[..., :, j::2], second[..., i::2, :], out=total[..., i::2, j::2])
    return total
