"""The banana and the skewed target: gradients, and moments against brute-force quadrature."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from leapwise.problems.shapes import banana, gumbel


def grid_moments(log_density, lower, upper, n=1201):
    """Mean and covariance on a fine two-dimensional grid."""
    axes = [np.linspace(a, b, n) for a, b in zip(lower, upper, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    weight = log_density(points)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    mean = weight @ points
    return mean, (points - mean).T @ ((points - mean) * weight[:, None])


@pytest.mark.parametrize("problem", [banana(), gumbel(), gumbel(5)], ids=["banana", "gumbel", "gumbel5"])
def test_the_gradient_is_that_of_the_value(problem, rng, central_differences):
    target = problem.target
    x = problem.mean + rng.normal(size=(6, target.dim))
    raw = target.evaluate(x, gradient=True)

    def value(points):
        return target.evaluate(points, gradient=False).log_density

    np.testing.assert_array_equal(value(x), raw.log_density)
    np.testing.assert_allclose(raw.gradient, central_differences(value, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("problem", "lower", "upper"),
    [(banana(), (-9, -5), (4, 5)), (gumbel(), (-3, -5), (28, 40))],
    ids=["banana", "gumbel"],
)
def test_the_moments_are_exact(problem, lower, upper):
    mean, covariance = grid_moments(
        lambda x: problem.target.evaluate(x, gradient=False).log_density, lower, upper
    )
    np.testing.assert_allclose(problem.mean, mean, atol=1e-8)
    np.testing.assert_allclose(problem.covariance, covariance, atol=1e-8)


def test_gumbel_draws_have_its_moments(rng):
    """A check that shares nothing with the density: 10^5 draws, within 5 standard errors (false alarm 1e-5)."""
    problem = gumbel(3)
    z = rng.gumbel(size=(100_000, 3))
    x = z + 0.8 * np.pad(z[:, :-1], ((0, 0), (1, 0)))
    standard_error = np.sqrt(np.diag(problem.covariance) / len(x))
    assert (np.abs(x.mean(axis=0) - problem.mean) < 5 * standard_error).all()
    np.testing.assert_allclose(np.cov(x.T), problem.covariance, atol=0.12)


def test_the_banana_data_are_fixed_and_curved():
    one, two = banana(), banana()
    np.testing.assert_array_equal(one.mean, two.mean)
    ridge = np.array([[1.0 - s**2, s] for s in (-1.2, 0.0, 1.2)])
    straight = np.array([[1.0 - 1.2**2, 0.0]])
    value = one.target.evaluate(ridge, gradient=False).log_density
    assert (value > one.target.evaluate(straight, gradient=False).log_density + 5).all()


@pytest.mark.parametrize("problem", [banana(), gumbel()], ids=["banana", "gumbel"])
def test_far_away_there_is_no_mass_and_no_warning(problem):
    far = np.array([[-1e200, 1e200], [-1e5, -1e5], [3.0, -1e300]])
    value = problem.target.evaluate(far, gradient=True).log_density
    assert not np.isnan(value).any()
    assert (value < -1e5).all()


@pytest.mark.parametrize("problem", [banana(), gumbel()], ids=["banana", "gumbel"])
def test_they_can_be_sent_to_another_process(problem):
    x = np.ones((1, 2))
    copy = pickle.loads(pickle.dumps(problem.target))
    assert (
        copy.evaluate(x, gradient=False).log_density == problem.target.evaluate(x, gradient=False).log_density
    )
