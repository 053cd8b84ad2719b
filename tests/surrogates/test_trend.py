"""Trend features, radial terms, the guard, and trends with hidden units: derivatives, symmetry, smoothness."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import assert_close, differences

from leapwise.errors import InputError
from leapwise.surrogates.trend import Guard, QuadraticBasis, RadialTrend, TrendBasis

DIM = 4
BASES = {
    "quadratic": TrendBasis(DIM),
    "with radial terms": TrendBasis(DIM, radial=True),
    "radial terms": RadialTrend(DIM),
    "guard": Guard(1.2),
}


@pytest.fixture(params=list(BASES))
def basis(request):
    return BASES[request.param]


@pytest.fixture
def white(rng):
    return rng.standard_normal((7, DIM)) + 1.0  # all beyond where the guard begins


@pytest.fixture
def weights(basis, rng):
    return rng.standard_normal(basis.size)


def test_value_is_the_weighted_sum_of_features(basis, white, weights):
    assert_close(basis.value(white, weights), basis.features(white) @ weights, 1e-12)
    assert_close(basis.value_and_gradient(white, weights)[0], basis.features(white) @ weights, 1e-12)


def test_gradient_is_the_weighted_sum_of_gradient_features(basis, white, weights):
    gradient = basis.value_and_gradient(white, weights)[1]
    assert_close(gradient, basis.gradient_features(white) @ weights, 1e-12)
    assert_close(gradient, differences(lambda z: basis.value(z, weights), white), 1e-8)


def test_hessian_is_that_of_the_value(basis, white, weights):
    expected = differences(lambda z: basis.value_and_gradient(z, weights)[1], white)
    assert_close(basis.hessian(white, weights), expected, 1e-7)


def test_third_derivatives_are_those_of_the_hessian(basis, white, weights, rng):
    velocity = rng.standard_normal(white.shape)
    matrix = rng.standard_normal((len(white), DIM, DIM))
    matrix = matrix + np.swapaxes(matrix, 1, 2)
    third = differences(lambda z: basis.hessian(z, weights), white)
    along = np.einsum("nkab,na,nb->nk", third, velocity, velocity)
    np.testing.assert_allclose(basis.quadratic(white, weights, velocity), along, atol=1e-6)
    traced = np.einsum("nkab,nab->nk", third, matrix)
    np.testing.assert_allclose(basis.trace(white, weights, matrix), traced, atol=1e-6)


def test_weights_may_differ_from_row_to_row(rng, white):
    basis = TrendBasis(DIM, radial=True)
    weights = rng.standard_normal((len(white), basis.size))
    matrix = np.broadcast_to(np.eye(DIM), (len(white), DIM, DIM))
    value, gradient = basis.value_and_gradient(white, weights)
    hessian, trace = basis.hessian(white, weights), basis.trace(white, weights, matrix)
    for i, row in enumerate(weights):
        one = white[i : i + 1]
        np.testing.assert_allclose(basis.value(one, row)[0], value[i])
        np.testing.assert_allclose(basis.value_and_gradient(one, row)[1][0], gradient[i])
        np.testing.assert_allclose(basis.hessian(one, row)[0], hessian[i])
        np.testing.assert_allclose(basis.trace(one, row, matrix[:1])[0], trace[i])


def test_quadratic_weights_have_the_norm_of_their_matrix(rng):
    basis = TrendBasis(DIM)
    matrix = rng.standard_normal((DIM, DIM))
    matrix = matrix + matrix.T
    weights = basis.weights_of(np.zeros(DIM), matrix)
    np.testing.assert_allclose(basis.matrix(weights), matrix)
    np.testing.assert_allclose(np.linalg.norm(weights), np.linalg.norm(matrix))


def test_radial_terms_are_the_stated_logarithms(white):
    square = (white**2).sum(axis=1)
    expected = np.stack([DIM * np.log(1 + square / (s * DIM)) for s in (0.25, 1.0, 4.0)], axis=1)
    np.testing.assert_allclose(TrendBasis(DIM, radial=True).features(white)[:, -3:], expected)


class TestGuard:
    guard, radius = Guard(3.0), 3.0

    def along(self, r: np.ndarray) -> np.ndarray:
        direction = np.array([0.6, 0.0, 0.8])
        return r[:, None] * direction

    def test_is_zero_inside(self):
        z = self.along(np.linspace(0.0, self.radius, 20))
        assert not self.guard.features(z).any()
        assert not self.guard.hessian(z, np.ones(1)).any()

    def test_rises_quadratically_beyond(self):
        r = np.linspace(self.radius, 50.0, 2000)
        value = self.guard.features(self.along(r))[:, 0]
        lag = 0.5 * (r - self.radius) ** 2 - value
        assert (lag >= -1e-10).all() and (lag < 0.5).all()
        assert (np.diff(value) >= 0).all()

    def test_third_derivatives_have_no_jump(self):
        """Where the guard begins, its third derivative is zero and grows continuously."""
        along = self.along(self.radius + np.array([-1e-3, 1e-4, 2e-4]))
        velocity = np.broadcast_to([1.0, 0.0, 0.0], along.shape)
        third = np.abs(self.guard.quadratic(along, np.ones(1), velocity)).max(axis=1)
        assert third[0] == 0.0
        assert 0.0 < third[1] < 1e-2
        assert third[2] / third[1] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("n_hidden", [0, 9])
@pytest.mark.parametrize("radial", [False, True])
def test_gram_matrix_of_gradients_of_a_trend_with_hidden_units(n_hidden, radial, white, rng):
    basis = QuadraticBasis.draw(white, n_hidden, 1.0, radial, np.eye(DIM), rng)
    target = rng.standard_normal(white.shape)
    rows = basis.gradient_features(white).reshape(-1, basis.size)
    np.testing.assert_allclose(basis.gradient_gram(white), rows.T @ rows, atol=1e-11)
    np.testing.assert_allclose(basis.gradient_moment(white, target), rows.T @ target.ravel(), atol=1e-11)


@pytest.mark.parametrize("dim", [0, -1, 1.5, "2"])
def test_dim_must_be_a_positive_integer(dim):
    with pytest.raises(InputError, match="dim"):
        TrendBasis(dim)
