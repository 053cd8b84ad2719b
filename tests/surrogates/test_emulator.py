"""Cubic features and forms of emulators, compared with explicit tensors and with finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import assert_close, differences

from leapwise.surrogates.emulator import CubicBasis, CubicForms


@pytest.fixture
def basis():
    return CubicBasis(4)


@pytest.fixture
def weights(basis, rng):
    return rng.standard_normal((basis.size, 3))


def test_features_are_a_symmetric_tensor_with_the_same_norm(basis, weights, rng):
    points, tensors = rng.standard_normal((6, 4)), basis.tensors(weights)
    form = np.einsum("kijl,ni,nj,nl->nk", tensors, points, points, points) / 6.0
    assert_close(basis.features(points) @ weights, form, 1e-12)
    np.testing.assert_allclose(np.square(tensors).sum(axis=(1, 2, 3)), np.square(weights).sum(axis=0))
    for axes in ((0, 2, 1, 3), (0, 3, 2, 1)):
        np.testing.assert_array_equal(tensors, tensors.transpose(axes))


def test_gradient_features(basis, rng):
    points = rng.standard_normal((5, 4))
    assert_close(basis.gradient_features(points), differences(basis.features, points), 1e-8)


def test_products_belong_to_the_features(basis):
    numbers = np.array([2.0, 3.0, 5.0, 7.0])
    roots = basis.features(numbers[None])[0] / basis.features(np.ones((1, 4)))[0]
    np.testing.assert_allclose(basis.products(numbers), roots)


@pytest.mark.parametrize(("dim", "most", "expected"), [(5, 2000, 5), (50, 2000, 21), (3, 9, 2), (3, 0, 0)])
def test_largest(dim, most, expected):
    assert CubicBasis.largest(dim, most).dim == expected


class TestForms:
    """Forms of four of six coordinates."""

    @pytest.fixture
    def forms(self, basis, weights, rng):
        return CubicForms(np.linalg.qr(rng.standard_normal((6, 4)))[0], basis.tensors(weights))

    @pytest.fixture
    def white(self, rng):
        return rng.standard_normal((5, 6))

    @pytest.fixture
    def hessians(self, forms, white):
        """Hessians of all three forms, ``(n, p, dim, dim)``."""
        return np.moveaxis(differences(lambda z: forms.values_and_slopes(z)[1], white), 1, 3)

    def test_values_and_slopes(self, forms, white, basis, weights):
        values, slopes = forms.values_and_slopes(white)
        assert_close(values, basis.features(white @ forms.axes) @ weights, 1e-12)
        expected = differences(lambda z: forms.values_and_slopes(z)[0], white)
        assert_close(slopes, np.swapaxes(expected, 1, 2), 1e-8)

    def test_second_derivatives(self, forms, white, hessians, rng):
        cotangent, matrix = rng.standard_normal((5, 3)), rng.standard_normal((5, 6, 6))
        matrix = matrix + np.swapaxes(matrix, 1, 2)
        pushed = rng.standard_normal((5, 3, 6))
        assert_close(forms.hessian(white, cotangent), np.einsum("nk,nkij->nij", cotangent, hessians), 1e-8)
        assert_close(forms.mixed(white, pushed), np.einsum("nkij,nkj->ni", hessians, pushed), 1e-8)
        assert_close(forms.laplacian(white, matrix), np.einsum("nkij,nij->nk", hessians, matrix), 1e-8)

    def test_third_derivatives(self, forms, white, rng):
        cotangent, matrix = rng.standard_normal((5, 3)), rng.standard_normal((5, 6, 6))
        matrix = matrix + np.swapaxes(matrix, 1, 2)
        moving = differences(lambda z: forms.hessian(z, np.repeat(cotangent, 6, axis=0)), white)
        assert_close(forms.trace(cotangent, matrix), np.einsum("nijl,njl->ni", moving, matrix), 1e-8)
