r"""Solve the elliptic equation with bilinear finite elements on a uniform grid of the unit square.

.. math::
    \nabla \cdot (c \nabla u) = 0, \qquad u|_{x_2=0} = x_1, \quad u|_{x_2=1} = 1 - x_1, \quad
    \partial_1 u|_{x_1=0} = \partial_1 u|_{x_1=1} = 0.

**Elements as array operations.** A nodal function is an array ``(n+1, n+1)``, first axis x1, second x2. Each of the
n x n square elements has 2 x 2 Gauss points, so a function on Gauss points is an array ``(2n, 2n)``. On one element
the slope along x1 of a bilinear function does not depend on x1, so its two Gauss points along x1 share it: slopes
along x1 are ``(n, 2n)``, slopes along x2 ``(2n, n)``. Here slopes are the gradient times h/2, half the mesh width,
because each Gauss point has the quadrature weight :math:`h^2/4`:

.. math::
    \int c\, \nabla u \cdot \nabla v \approx \sum_g \tfrac{h^2}{4}\, c_g\, \nabla u_g \cdot \nabla v_g
    = \sum_g c_g\, (\tfrac h2 \nabla u_g) \cdot (\tfrac h2 \nabla v_g).

With D the map from nodes to slopes (not the discrepancy) and P the sum over the Gauss points that share a slope, the
stiffness matrix is :math:`K(c) = D^T \mathrm{diag}(P c)\, D`. The functions accept leading batch axes.

**One factorisation for many solves.** The unknowns are the nodes with 0 < x2 < 1, numbered along x2 first, which makes
the half-bandwidth n. On a uniform grid the stiffness matrix is a stencil of five numbers per node. `Stencil.assemble`
computes the entries of all element matrices with one product and adds them as whole arrays, without an index table. Up
to n = 64 the matrix is factorised by LAPACK's banded Cholesky. Above, SuperLU needs less work and memory, and its
kernels are too small to be spread over threads (LAPACK's blocked band code is spread, and slows down on a busy
machine).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from scipy.linalg.lapack import dpbtrf, dpbtrs
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu

# A Gauss point lies at this fraction of an element, or at one minus it. These are also the values of the linear
# shape functions there.
NEAR = 0.5 * (1.0 - 1.0 / np.sqrt(3.0))
FAR = 1.0 - NEAR
# Measured: on larger meshes SuperLU is faster than the banded Cholesky.
MAX_BANDED = 64

Slopes = tuple[np.ndarray, np.ndarray]
BackSolve = Callable[[np.ndarray], np.ndarray]  # right-hand sides (k, unknowns) -> solutions


class SolveError(ArithmeticError):
    """The stiffness matrix is not positive definite to rounding, or not finite."""


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


def _element_table() -> np.ndarray:
    """Return the ``(9, 4)`` entries of an element's stiffness matrix, by its Gauss points (x2 fastest).

    The entries are the four nodes with themselves (x2 fastest), the pairs along x1 at the lower and upper
    side, the pairs along x2 at the left and right side, and the diagonal pairs, which are equal.
    """
    # A node's slope along x1 is plus or minus half its shape function along x2, and vice versa.
    shapes = 0.5 * np.array([[FAR, NEAR], [NEAR, FAR]])  # left or right shape function, at either Gauss point
    low_1, high_1, mixed_1 = ((shapes[a] * shapes[b])[:, None] for a, b in ((0, 0), (1, 1), (0, 1)))
    low_2, high_2, mixed_2 = ((shapes[a] * shapes[b])[None, :] for a, b in ((0, 0), (1, 1), (0, 1)))
    entries = (
        *(low_2 + low_1, high_2 + low_1, low_2 + high_1, high_2 + high_1),
        *(mixed_1 - low_2, mixed_1 - high_2),
        *(mixed_2 - low_1, mixed_2 - high_1),
        -(mixed_1 + mixed_2),
    )
    return np.stack(entries).reshape(9, 4)


_ELEMENT = _element_table()


@dataclass(frozen=True, eq=False)
class Stencil:
    """The symmetric stiffness matrix of all nodes, by neighbour."""

    centre: np.ndarray  # (n+1, n+1): node with itself
    along_1: np.ndarray  # (n, n+1): node (i, j) with (i+1, j)
    along_2: np.ndarray  # (n+1, n): (i, j) with (i, j+1)
    diagonal: np.ndarray  # (n, n): (i, j) with (i+1, j+1), which equals (i+1, j) with (i, j+1)

    @classmethod
    def assemble(cls, diffusivity: np.ndarray) -> Stencil:
        """Sum the element matrices of a diffusivity ``(2n, 2n)``."""
        n = len(diffusivity) // 2
        by_point = diffusivity.reshape(n, 2, n, 2).transpose(1, 3, 0, 2).reshape(4, n * n)
        entries = (_ELEMENT @ by_point).reshape(9, n, n)
        centre, along_1, along_2 = np.zeros((n + 1, n + 1)), np.zeros((n, n + 1)), np.zeros((n + 1, n))
        centre[:-1, :-1] += entries[0]
        centre[:-1, 1:] += entries[1]
        centre[1:, :-1] += entries[2]
        centre[1:, 1:] += entries[3]
        along_1[:, :-1] += entries[4]
        along_1[:, 1:] += entries[5]
        along_2[:-1, :] += entries[6]
        along_2[1:, :] += entries[7]
        return cls(centre, along_1, along_2, entries[8])

    def boundary_loads(self, bottom: np.ndarray, top: np.ndarray) -> np.ndarray:
        """Return minus the product with given values at x2 = 0 and 1, at the unknowns ``(n+1, n-1)``."""
        loads = np.zeros((len(self.centre), self.centre.shape[1] - 2))
        for values, side, column in ((bottom, 0, 0), (top, -1, -1)):
            loads[:, column] -= self.along_2[:, side] * values
            loads[:-1, column] -= self.diagonal[:, side] * values[1:]
            loads[1:, column] -= self.diagonal[:, side] * values[:-1]
        return loads

    def lower_band(self) -> np.ndarray:
        """Return the matrix of the unknowns in LAPACK's lower band storage, ``(n+1, unknowns)``."""
        n = len(self.diagonal)
        band = np.zeros((n + 1, n - 1, n + 1))  # node along x1, along x2, distance below the diagonal
        band[:, :, 0] = self.centre[:, 1:-1]
        band[:, :-1, 1] = self.along_2[:, 1:-1]
        band[:-1, 1:, n - 2] = self.diagonal[:, 1:-1]
        band[:-1, :, n - 1] = self.along_1[:, 1:-1]
        band[:-1, :-1, n] = self.diagonal[:, 1:-1]
        return band.reshape(-1, n + 1).T

    def sparse(self) -> csc_array:
        """Return the matrix of the unknowns, both triangles."""
        number = np.arange(self.centre[:, 1:-1].size).reshape(len(self.centre), -1)
        diagonal = self.diagonal[:, 1:-1].ravel()
        neighbours = (
            (number[:-1], number[1:], self.along_1[:, 1:-1].ravel()),
            (number[:, :-1], number[:, 1:], self.along_2[:, 1:-1].ravel()),
            (number[:-1, :-1], number[1:, 1:], diagonal),
            (number[1:, :-1], number[:-1, 1:], diagonal),
        )
        a = np.concatenate([one.ravel() for one, _, _ in neighbours])
        b = np.concatenate([other.ravel() for _, other, _ in neighbours])
        values = np.concatenate([value for _, _, value in neighbours])
        all_nodes = number.ravel()
        return csc_array(
            (
                np.concatenate([self.centre[:, 1:-1].ravel(), values, values]),
                (np.concatenate([all_nodes, a, b]), np.concatenate([all_nodes, b, a])),
            )
        )


@dataclass(frozen=True, eq=False)
class Solution:
    """The pressure for one diffusivity, and the factorised stiffness matrix for further solves.

    Attributes
    ----------
    diffusivity : ndarray of shape (2n, 2n)
        c at the Gauss points.
    pressure : ndarray of shape (n+1, n+1)
        u at the nodes.
    """

    diffusivity: np.ndarray
    pressure: np.ndarray
    _back_solve: BackSolve

    def respond(self, loads: np.ndarray) -> np.ndarray:
        """Solve for nodal loads ``(..., n+1, n+1)`` with zero on the two Dirichlet sides."""
        unknowns = loads[..., 1:-1].reshape(-1, loads.shape[-2] * (loads.shape[-1] - 2))
        response = np.zeros_like(loads)
        response[..., 1:-1] = self._back_solve(unknowns).reshape(*loads.shape[:-1], -1)
        return response


class EllipticSolver:
    """Solver of the equation on an n x n mesh.

    Parameters
    ----------
    n : int
        Elements along each side.

    Examples
    --------
    >>> solver = EllipticSolver(10)
    >>> solution = solver.solve(np.ones((20, 20)))
    >>> float(solution.pressure[5, 5].round(12))  # by symmetry
    0.5
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.nodes = np.linspace(0.0, 1.0, n + 1)
        self.gauss = gauss_coordinates(n)

    @property
    def factor_bytes(self) -> int:
        """Roughly the memory that one factorisation takes."""
        # Entries of a column, of both triangles if sparse.
        entries = self.n if self.n <= MAX_BANDED else 12 * np.log2(self.n)
        return int(8 * self.n**2 * entries)

    def solve(self, diffusivity: np.ndarray) -> Solution:
        """Return the pressure for a diffusivity given at the Gauss points, ``(2n, 2n)``."""
        stencil = Stencil.assemble(diffusivity)
        back_solve = _banded(stencil) if self.n <= MAX_BANDED else _sparse(stencil)
        pressure = np.empty((self.n + 1, self.n + 1))
        pressure[:, 0], pressure[:, -1] = self.nodes, 1.0 - self.nodes
        loads = stencil.boundary_loads(pressure[:, 0], pressure[:, -1])
        pressure[:, 1:-1] = back_solve(loads.reshape(1, -1)).reshape(loads.shape)
        return Solution(diffusivity, pressure, back_solve)


def _banded(stencil: Stencil) -> BackSolve:
    factor, info = dpbtrf(stencil.lower_band(), lower=1, overwrite_ab=1)
    if info:
        raise SolveError("the stiffness matrix is not positive definite to rounding")

    def back_solve(loads: np.ndarray) -> np.ndarray:
        if len(loads) == 1:
            return np.asarray(dpbtrs(factor, loads.T, lower=1)[0].T)
        return np.asarray(dpbtrs(_upper_band(factor), loads.T, lower=0)[0].T)

    return back_solve


def _upper_band(lower: np.ndarray) -> np.ndarray:
    """Return the transpose of a lower band, in upper band storage.

    At n = 30 OpenBLAS takes twice as long for triangular solves with the lower band, so the transpose pays for
    more than one right-hand side. The factorisation itself is faster with the lower band.
    """
    width, size = lower.shape
    # Entry (k, j), k below the diagonal of column j, becomes entry (width-1-k, j+k); the last ones are cut off.
    upper = np.zeros((size + width, width))
    as_strided(
        upper.ravel()[width - 1 :], (size, width), (width * upper.itemsize, (width - 1) * upper.itemsize)
    )[:] = lower.T
    return upper[:size].T


def _sparse(stencil: Stencil) -> BackSolve:
    # The matrix is symmetric and positive definite: pivots can stay on the diagonal, only fill-in is minimised.
    try:
        factor = splu(
            stencil.sparse(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError as error:
        raise SolveError(str(error)) from error

    def back_solve(loads: np.ndarray) -> np.ndarray:
        # One by one: SuperLU gives a block to threaded BLAS in pieces that are too small for threads to help.
        return np.stack([factor.solve(load) for load in loads])

    return back_solve
