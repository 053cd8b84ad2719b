"""Bases: softplus without overflow, derivatives of features and sums, profiles, and sums of bases."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import assert_close, differences

from leapwise.errors import InputError
from leapwise.surrogates import features as features_module
from leapwise.surrogates.features import (
    RadialBasis,
    RationalQuadratic,
    SoftplusBasis,
    SquaredExponential,
    SumBasis,
    sigmoid,
    softplus,
    softplus_sums,
)

DIM, SIZE = 4, 7


def make(kind):
    rng = np.random.default_rng(11)
    softplus_basis = SoftplusBasis(rng.standard_normal((SIZE, DIM)), rng.standard_normal(SIZE))
    centres, lengths = rng.standard_normal((SIZE, DIM)), rng.uniform(0.7, 3.0, SIZE)
    bases = {
        "softplus": softplus_basis,
        "squared exponential": RadialBasis(centres, lengths, SquaredExponential()),
        "rational quadratic": RadialBasis(centres, lengths, RationalQuadratic(1.5)),
    }
    bases["sum"] = SumBasis(tuple(bases.values()))
    return bases[kind]


KINDS = ["softplus", "squared exponential", "rational quadratic", "sum"]
UNITS = KINDS[:3]


@pytest.fixture
def white(rng):
    return rng.standard_normal((6, DIM))


@pytest.fixture(params=KINDS)
def basis(request):
    return make(request.param)


@pytest.fixture
def weights(basis, rng):
    return rng.standard_normal(basis.size)


class TestDerivatives:
    def test_gradients_of_features(self, basis, white):
        assert_close(basis.gradient_features(white), differences(basis.features, white), 1e-9)

    def test_value_is_the_weighted_sum(self, basis, white, weights):
        assert_close(basis.value(white, weights), basis.features(white) @ weights, 1e-12)
        value, gradient = basis.value_and_gradient(white, weights)
        assert_close(value, basis.value(white, weights), 1e-12)
        assert_close(gradient, basis.gradient_features(white) @ weights, 1e-12)

    def test_hessian(self, basis, white, weights):
        expected = differences(lambda z: basis.value_and_gradient(z, weights)[1], white)
        assert_close(basis.hessian(white, weights), expected, 1e-8)

    def test_contractions(self, basis, white, weights, rng):
        velocity, third = (
            rng.standard_normal(white.shape),
            differences(lambda z: basis.hessian(z, weights), white),
        )
        expected = np.einsum("nkab,na,nb->nk", third, velocity, velocity)
        assert_close(basis.quadratic(white, weights, velocity), expected, 1e-8)
        matrix = rng.standard_normal((len(white), DIM, DIM))
        matrix = matrix + np.swapaxes(matrix, 1, 2)
        assert_close(basis.trace(white, weights, matrix), np.einsum("nkab,nab->nk", third, matrix), 1e-8)

    def test_trace_of_a_square_is_the_quadratic(self, basis, white, weights, rng):
        velocity = rng.standard_normal(white.shape)
        square = velocity[:, :, None] * velocity[:, None, :]
        assert_close(basis.trace(white, weights, square), basis.quadratic(white, weights, velocity), 1e-11)

    def test_blocks_of_rows_change_nothing(self, basis, white, weights, monkeypatch):
        matrix = white[:, :, None] * white[:, None, :]
        whole = basis.hessian(white, weights), basis.trace(white, weights, matrix)
        monkeypatch.setattr(features_module, "MAX_ENTRIES", 2 * SIZE * DIM)
        np.testing.assert_allclose(basis.hessian(white, weights), whole[0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(basis.trace(white, weights, matrix), whole[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", UNITS)
def test_gram_matrix_of_gradient_rows(kind, white, rng):
    basis, target = make(kind), rng.standard_normal(white.shape)
    rows = basis.gradient_features(white).reshape(-1, basis.size)
    assert_close(basis.gradient_gram(white), rows.T @ rows, 1e-12)
    assert_close(basis.gradient_moment(white, target), rows.T @ target.ravel(), 1e-12)


@pytest.mark.parametrize("kind", UNITS)
def test_arguments_are_not_changed(kind, white, rng):
    basis, kept = make(kind), white.copy()
    weights = rng.standard_normal(basis.size)
    given = weights.copy()
    basis.value_and_gradient(white, weights)
    basis.hessian(white, weights)
    np.testing.assert_array_equal(white, kept)
    np.testing.assert_array_equal(weights, given)


def both(t):
    """Return softplus and its slope of each number, through the code that sums."""
    column = np.array(t, dtype=float)[:, None]
    value = softplus_sums(column, np.ones(1))
    return value, column[:, 0]


class TestSoftplus:
    def test_against_logaddexp(self):
        t = np.linspace(-60.0, 60.0, 1001)
        np.testing.assert_allclose(softplus(t.copy()), np.logaddexp(0.0, t), rtol=1e-14, atol=3e-16)
        value, slope = both(t)
        np.testing.assert_allclose(value, np.logaddexp(0.0, t), rtol=1e-14, atol=3e-16)
        np.testing.assert_allclose(slope, np.exp(-np.logaddexp(0.0, -t)), rtol=1e-13)
        np.testing.assert_array_equal(slope, sigmoid(t.copy()))

    def test_large_arguments_of_both_signs(self):
        t = np.array([-1e300, -800.0, 699.0, 701.0, 1e5, 1e300])
        value, slope = both(t)
        np.testing.assert_allclose(value, np.maximum(t, 0.0), rtol=1e-15)
        np.testing.assert_array_equal(slope, t > 0)
        np.testing.assert_array_equal(softplus(t.copy()), value)
        np.testing.assert_array_equal(sigmoid(t.copy()), slope)

    def test_nan_stays_nan_and_infinity_is_fine(self):
        value, slope = both([np.nan, np.inf, -np.inf, 0.0])
        np.testing.assert_allclose(value, [np.nan, np.inf, 0.0, np.log(2.0)])
        np.testing.assert_allclose(slope, [np.nan, 1.0, 0.0, 0.5])

    def test_nan_does_not_hide_a_large_number(self):
        value, _ = both([np.nan, 1e5])
        assert value[1] == 1e5

    def test_sums_of_many_rows(self, rng):
        t, weights = 30.0 * rng.standard_normal((50, 700)), rng.standard_normal(700)
        slopes = t.copy()
        np.testing.assert_allclose(softplus_sums(slopes, weights), np.logaddexp(0.0, t) @ weights, rtol=1e-12)
        np.testing.assert_allclose(slopes, weights * sigmoid(t.copy()), rtol=1e-14)


class TestProfiles:
    @pytest.mark.parametrize(
        "profile", [SquaredExponential(), RationalQuadratic(0.7), RationalQuadratic(3.0)]
    )
    def test_four_derivatives(self, profile):
        rho = np.linspace(0.1, 3.0, 12)[:, None]
        values = profile.derivatives(rho[:, 0], 4)
        assert len(values) == 5
        for order in range(4):
            slope = differences(lambda r, k=order: profile.derivatives(r[:, 0], 4)[k], rho)[:, 0]
            assert_close(values[order + 1], slope, 1e-8)

    def test_a_large_alpha_is_the_squared_exponential(self):
        rho = np.linspace(0.0, 3.0, 5)
        np.testing.assert_allclose(
            RationalQuadratic(1e8).derivatives(rho, 0)[0],
            SquaredExponential().derivatives(rho, 0)[0],
            rtol=1e-6,
        )

    @pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
    def test_alpha_must_be_positive(self, alpha):
        with pytest.raises(InputError, match="alpha must be a positive number"):
            RationalQuadratic(alpha)


def test_distance_is_never_negative(rng):
    centres = 1e3 + rng.standard_normal((20, 3))
    basis = RadialBasis(centres, np.ones(20), SquaredExponential())
    assert (basis.distance(centres) >= 0).all()
    np.testing.assert_allclose(np.diag(basis.distance(centres)), 0.0, atol=1e-8)
