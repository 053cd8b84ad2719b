"""The finite-element solver: its pieces against each other, the whole against scikit-fem and theory."""

from itertools import pairwise

import numpy as np
import pytest

from leapwise.problems.elliptic import solver
from leapwise.problems.elliptic import solver as grid
from leapwise.problems.elliptic.model import EllipticModel, karhunen_loeve
from leapwise.problems.elliptic.solver import EllipticSolver, SolveError, Stencil

MODES = karhunen_loeve(20)
THETA = 0.5 * np.random.default_rng(3).standard_normal(20)


def diffusivity(n: int) -> np.ndarray:
    points = grid.gauss_coordinates(n)
    return np.exp(MODES.on_grid(points, points)(THETA))


def scikit_fem_pressure(n: int) -> np.ndarray:
    skfem = pytest.importorskip("skfem", reason="scikit-fem is not installed")
    from skfem.helpers import dot, grad

    mesh = skfem.MeshQuad.init_tensor(np.linspace(0, 1, n + 1), np.linspace(0, 1, n + 1))
    basis = skfem.Basis(mesh, skfem.ElementQuad1(), intorder=3)
    x = np.asarray(basis.global_coordinates())
    c = np.exp(MODES.at(x.reshape(2, -1).T) @ THETA).reshape(x.shape[1:])
    matrix = skfem.asm(skfem.BilinearForm(lambda u, v, w: w.c * dot(grad(u), grad(v))), basis, c=c)
    x1, x2 = basis.doflocs
    sides = basis.get_dofs(lambda x: (x[1] == 0) | (x[1] == 1))
    u = skfem.solve(*skfem.condense(matrix, x=np.where(x2 < 0.5, x1, 1 - x1), D=sides))
    pressure = np.empty((n + 1, n + 1))
    pressure[np.rint(n * x1).astype(int), np.rint(n * x2).astype(int)] = u
    return pressure


@pytest.mark.parametrize("n", [10, 13, 30, 70])
def test_agrees_with_scikit_fem(n):
    np.testing.assert_allclose(
        EllipticSolver(n).solve(diffusivity(n)).pressure, scikit_fem_pressure(n), atol=1e-10
    )


def test_second_order_in_the_mesh_width():
    outputs = [EllipticModel(n, MODES).forward(THETA[None])[0] for n in (20, 40, 80, 160)]
    changes = [np.linalg.norm(a - b) for a, b in pairwise(outputs)]
    order = np.log2(np.divide(changes[:-1], changes[1:]))
    np.testing.assert_allclose(order, 2.0, atol=0.15)


def test_banded_and_sparse_factorisations_agree(monkeypatch):
    loads = np.random.default_rng(4).normal(size=(3, 21, 21))
    banded = EllipticSolver(20).solve(diffusivity(20))
    monkeypatch.setattr(solver, "MAX_BANDED", 5)
    sparse = EllipticSolver(20).solve(diffusivity(20))
    np.testing.assert_allclose(banded.pressure, sparse.pressure, atol=1e-13)
    np.testing.assert_allclose(banded.respond(loads), sparse.respond(loads), atol=1e-11)
    np.testing.assert_allclose(banded.respond(loads)[0], banded.respond(loads[0]), atol=1e-12)


def test_pressure_is_harmonic_and_meets_its_boundary_values():
    n = 12
    solution = EllipticSolver(n).solve(diffusivity(n))
    nodes = np.linspace(0, 1, n + 1)
    np.testing.assert_array_equal(solution.pressure[:, 0], nodes)
    np.testing.assert_array_equal(solution.pressure[:, -1], 1 - nodes)
    residual = grid.times_stiffness(solution.diffusivity, grid.slopes(solution.pressure))
    np.testing.assert_allclose(residual[:, 1:-1], 0.0, atol=1e-13)
    # What flows in through the bottom leaves through the top.
    np.testing.assert_allclose(residual.sum(), 0.0, atol=1e-13)


def test_scaling_the_diffusivity_changes_nothing():
    s, c = EllipticSolver(15), diffusivity(15)
    np.testing.assert_allclose(s.solve(1e6 * c).pressure, s.solve(c).pressure, atol=1e-12)


def test_stencil_is_the_operator():
    rng = np.random.default_rng(5)
    weights, nodal = rng.uniform(1, 2, size=(14, 14)), np.zeros((8, 8))
    nodal[:, 1:-1] = rng.normal(size=(8, 6))
    expected = grid.times_stiffness(weights, grid.slopes(nodal))[:, 1:-1].ravel()
    np.testing.assert_allclose(
        Stencil.assemble(weights).sparse() @ nodal[:, 1:-1].ravel(), expected, atol=1e-12
    )


def test_transposes():
    rng = np.random.default_rng(6)
    u, fluxes = rng.normal(size=(3, 8, 8)), (rng.normal(size=(3, 7, 14)), rng.normal(size=(3, 14, 7)))
    first, second = grid.slopes(u)
    np.testing.assert_allclose(
        (grid.slopes_transposed(fluxes) * u).sum(), (first * fluxes[0]).sum() + (second * fluxes[1]).sum()
    )
    weights, ones = rng.normal(size=(14, 14)), (np.ones((7, 14)), np.ones((14, 7)))
    pairs, single = grid.pair_sums(weights), (fluxes[0][0], fluxes[1][0])
    np.testing.assert_allclose(
        (grid.dot(single, ones) * weights).sum(), (single[0] * pairs[0]).sum() + (single[1] * pairs[1]).sum()
    )


def test_slopes_are_exact_for_bilinear_functions():
    n = 6
    x, g = np.linspace(0, 1, n + 1), grid.gauss_coordinates(n)
    first, second = grid.slopes(2 * x[:, None] + 3 * x[:, None] * x)
    np.testing.assert_allclose(2 * n * first, np.broadcast_to(2 + 3 * g, (n, 2 * n)), atol=1e-12)
    np.testing.assert_allclose(2 * n * second, np.broadcast_to(3 * g[:, None], (2 * n, n)), atol=1e-12)


@pytest.mark.parametrize("n", [10, 17, 30])
def test_interpolation_is_exact_for_linear_functions_and_at_nodes(n):
    at = np.linspace(0, 1, 11)
    matrix = grid.interpolation(n, at)
    np.testing.assert_allclose(matrix @ np.linspace(-1, 3, n + 1), 4 * at - 1, atol=1e-12)
    if n % 10 == 0:
        np.testing.assert_array_equal(matrix, np.eye(n + 1)[:: n // 10])


@pytest.mark.parametrize("limit", [64, 5])
def test_a_singular_matrix_is_a_named_error(monkeypatch, limit):
    monkeypatch.setattr(solver, "MAX_BANDED", limit)
    with pytest.raises(SolveError):
        EllipticSolver(10).solve(np.zeros((20, 20)))
