"""Karhunen-Loeve modes: what defines them, and the authors' own."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.io import loadmat

from leapwise.errors import InputError
from leapwise.problems.elliptic.model import karhunen_loeve


@pytest.fixture(scope="module")
def modes():
    return karhunen_loeve(20)


def test_one_dimensional_modes_solve_the_integral_equation(modes):
    # Simpson's rule shares nothing with the Gauss-Legendre nodes the modes were found on.
    t = np.linspace(0.0, 1.0, 2001)
    s = np.linspace(0.0, 1.0, 17)
    kernel = np.exp(-((s[:, None] - t) ** 2) / (2 * 0.2**2))
    v = modes.along(t)
    image = simpson(kernel[:, :, None] * v, x=t, axis=1)
    eigenvalues = np.sqrt(modes.eigenvalues[(modes.pairs[:, 0] == modes.pairs[:, 1])])
    n = len(eigenvalues)  # the products (a, a) give the one-dimensional eigenvalues
    np.testing.assert_allclose(image[:, :n], eigenvalues * modes.along(s)[:, :n], atol=1e-10)
    gram = simpson(v[:, :, None] * v[:, None, :], x=t, axis=0)
    np.testing.assert_allclose(gram, np.eye(v.shape[1]), atol=1e-9)


def test_many_modes_rebuild_the_kernel():
    points = np.random.default_rng(0).uniform(size=(40, 2))
    many = karhunen_loeve(100, variance=2.0, length=0.3).at(points)
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    np.testing.assert_allclose(many @ many.T, 2.0 * np.exp(-(distance**2) / (2 * 0.3**2)), atol=1e-5)


def test_order_and_signs_are_fixed(modes):
    assert (np.diff(modes.eigenvalues) <= 0).all()
    pairs = [tuple(pair) for pair in modes.pairs]
    for a, b in pairs:
        if a > b:  # its twin, first along x1, comes just before
            assert pairs.index((b, a)) == pairs.index((a, b)) - 1
    assert (modes.along(np.zeros(1)) > 0).all()


def test_fewer_modes_are_the_first_of_more(modes):
    points = np.random.default_rng(1).uniform(size=(5, 2))
    np.testing.assert_allclose(karhunen_loeve(7).at(points), modes.at(points)[:, :7], rtol=0, atol=1e-12)


def test_grid_field_is_the_modes_and_its_transpose_is_one(modes):
    rng = np.random.default_rng(2)
    x1, x2 = rng.uniform(size=6), rng.uniform(size=4)
    points = np.column_stack([np.repeat(x1, 4), np.tile(x2, 6)])
    matrix, field = modes.at(points), modes.on_grid(x1, x2)
    weights, values = rng.normal(size=20), rng.normal(size=(6, 4))
    np.testing.assert_allclose(field(weights).ravel(), matrix @ weights, atol=1e-13)
    np.testing.assert_allclose(field.transpose(values), matrix.T @ values.ravel(), atol=1e-13)
    np.testing.assert_allclose(field.basis().reshape(20, -1), matrix.T, atol=1e-13)


@pytest.mark.parametrize("n_modes", [0, -1, 101, 2.0, True, "20", None])
def test_bad_number_of_modes(n_modes):
    with pytest.raises(InputError, match="n_modes must be a whole number from 1 to 100"):
        karhunen_loeve(n_modes)


def test_agrees_with_the_authors_modes(modes):
    """Theirs are eigenvectors of the kernel matrix at 1800 triangle centres, of unit length."""
    path = Path(os.environ.get("LEAPWISE_DATA", ""), "elliptic_pde.mat")
    if not path.is_file():
        pytest.skip("LEAPWISE_DATA names no folder with elliptic_pde.mat")
    theirs = loadmat(path, squeeze_me=True, struct_as_record=False)["PDE"]
    scaled = theirs.evc_KL * theirs.rtev_KL
    np.testing.assert_allclose(theirs.rtev_KL**2 / 1800, modes.eigenvalues, rtol=5e-3)
    # Degenerate pairs may be turned into each other, so compare the covariance of the fields they span.
    ours = modes.at(theirs.center)
    np.testing.assert_allclose(ours @ ours.T, scaled @ scaled.T, atol=3e-3)
