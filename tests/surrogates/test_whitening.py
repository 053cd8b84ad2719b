"""Whitening: both directions, derivatives, and few or degenerate positions."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import differences

from leapwise.errors import InputError
from leapwise.surrogates.whitening import Whitening

FACTOR = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.3, 0.2]])


@pytest.fixture
def whitening():
    return Whitening.from_factor([1.0, 2.0, 3.0], FACTOR)


def test_both_directions(whitening, rng):
    position = rng.standard_normal((6, 3))
    np.testing.assert_allclose(whitening.from_white(whitening.to_white(position)), position, atol=1e-12)
    gradient = rng.standard_normal((6, 3))
    back = whitening.gradient_from_white(whitening.gradient_to_white(gradient))
    np.testing.assert_allclose(back, gradient, atol=1e-12)


def test_derivatives_follow_the_chain_rule(whitening, rng):
    """Derivatives of a skewed function of whitened coordinates, mapped back, agree with differences."""
    position, velocity = whitening.from_white(rng.standard_normal((4, 3))), rng.standard_normal((4, 3))
    matrix = np.einsum("na,nb->nab", velocity, velocity)

    def potential(q):
        z = whitening.to_white(q)
        return np.exp(z).sum(axis=1) + z[:, 0] * z[:, 1] ** 2

    def hessian(q):
        z = whitening.to_white(q)
        white = np.exp(z)[:, :, None] * np.eye(3)
        white[:, 0, 1] += 2 * z[:, 1]
        white[:, 1, 0] += 2 * z[:, 1]
        white[:, 1, 1] += 2 * z[:, 0]
        return whitening.hessian_from_white(white)

    def gradient(q):
        z = whitening.to_white(q)
        return whitening.gradient_from_white(
            np.exp(z) + np.stack([z[:, 1] ** 2, 2 * z[:, 0] * z[:, 1], 0 * z[:, 0]], axis=1)
        )

    scale = np.abs(hessian(position)).max()
    np.testing.assert_allclose(gradient(position), differences(potential, position), atol=1e-6 * scale)
    np.testing.assert_allclose(hessian(position), differences(gradient, position), atol=1e-6 * scale)
    moved = whitening.vector_to_white(velocity)
    squares = whitening.matrix_to_white(matrix)
    np.testing.assert_allclose(squares, moved[:, :, None] * moved[:, None, :], atol=1e-9)


def test_many_positions_become_standard(rng):
    position = 5.0 + rng.standard_normal((5000, 3)) @ FACTOR.T
    white = Whitening.from_positions(position).to_white(position)
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=1e-10)
    np.testing.assert_allclose(np.cov(white.T), np.eye(3), atol=0.05)  # shrunk by 3 / 5003


@pytest.mark.parametrize("n", [2, 3, 10])
def test_fewer_positions_than_dimensions(n, rng):
    position = rng.standard_normal((n, 20)) * np.logspace(-3, 3, 20)
    whitening = Whitening.from_positions(position)
    white = whitening.to_white(position)
    assert np.isfinite(white).all() and np.abs(white).max() < 10.0 * np.sqrt(20)
    np.testing.assert_allclose(whitening.from_white(white), position, rtol=1e-8, atol=1e-12)


def test_a_coordinate_that_does_not_vary_keeps_unit_scale(rng):
    position = rng.standard_normal((50, 3))
    position[:, 1] = 7.0
    whitening = Whitening.from_positions(position)
    assert whitening.factor[1, 1] == pytest.approx(1.0) and whitening.mean[1] == pytest.approx(7.0)


def test_positions_too_large_to_square_are_refused():
    with pytest.raises(InputError, match="small enough to be squared, got one of 1e\\+200"):
        Whitening.from_positions(np.array([[1e200], [0.0], [1.0]]))


@pytest.mark.parametrize(
    "factor",
    [np.eye(2), np.ones((3, 3)), np.diag([1.0, 0.0, 1.0]), np.diag([1.0, -1.0, 1.0]), np.ones(3)],
    ids=["size", "upper", "zero", "negative", "vector"],
)
def test_bad_factors_are_refused(factor):
    with pytest.raises(InputError, match="lower triangular with a positive diagonal"):
        Whitening.from_factor(np.zeros(3), factor)
