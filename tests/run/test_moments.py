"""Draws have the moments that are known.

Errors are measured in Monte-Carlo standard errors (arviz-stats) and must stay below 4. The draws are a function of
their seed, so these tests do not raise false alarms as they stand; with a fresh seed, or a linear algebra library that
rounds differently, each number compared would exceed 4 with probability 6.3e-5.
"""

from __future__ import annotations

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.special import zeta

import leapwise as lw
from leapwise.problems.shapes import banana, gaussian, gumbel

LIMIT = 4.0


def z_scores(values, expected):
    """Errors of the means of `values` (chains, draws, k) in Monte-Carlo standard errors."""
    error = array_stats.mcse(values, method="mean", chain_axis=0, draw_axis=1)
    return (values.mean(axis=(0, 1)) - expected) / error


def assert_moments(draws, mean, variance):
    assert np.abs(z_scores(draws, mean)).max() < LIMIT
    assert np.abs(z_scores((draws - mean) ** 2, variance)).max() < LIMIT


def largest_rhat(draws):
    return array_stats.rhat(draws, method="rank", chain_axis=0, draw_axis=1).max()


def test_a_wrong_mean_or_variance_would_be_found():
    """The test of the tests: a tenth of a standard deviation is seen in 4000 independent draws."""
    draws = np.random.default_rng(1).normal(size=(4, 1000, 1))
    assert_moments(draws, np.zeros(1), np.ones(1))
    with pytest.raises(AssertionError):
        assert_moments(draws + 0.1, np.zeros(1), np.ones(1))
    with pytest.raises(AssertionError):
        assert_moments(draws * 1.1, np.zeros(1), np.ones(1))


@pytest.fixture(scope="module", params=[None, lw.HMC()], ids=["default", "hmc"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def gaussian_draws(method):
    return lw.sample(gaussian().target, method=method, random_seed=3).draws


@pytest.fixture(scope="module")
def gumbel_draws(method):
    return lw.sample(gumbel().target, method=method, random_seed=1).draws


def test_without_settings_the_chains_agree(gaussian_draws, gumbel_draws):
    assert largest_rhat(gaussian_draws) < 1.01
    assert largest_rhat(gumbel_draws) < 1.01


def test_gaussian(gaussian_draws):
    problem = gaussian()
    assert_moments(gaussian_draws, problem.mean, np.diag(problem.covariance))


def test_gaussian_along_its_wide_direction_and_across(gaussian_draws):
    mean = gaussian_draws.mean(axis=2, keepdims=True)
    assert_moments(mean * np.sqrt(32), np.zeros(1), np.ones(1))
    across = ((gaussian_draws - mean) ** 2).sum(axis=2, keepdims=True)
    assert abs(z_scores(across, 0.31)[0]) < LIMIT


def test_gumbel(gumbel_draws):
    problem = gumbel()
    assert_moments(gumbel_draws, problem.mean, np.diag(problem.covariance))
    both = np.prod(gumbel_draws - problem.mean, axis=2, keepdims=True)
    assert abs(z_scores(both, problem.covariance[0, 1])[0]) < LIMIT


def test_gumbel_is_as_skewed_as_it_should_be(gumbel_draws):
    """The first coordinate is a Gumbel variable, of skewness 12 sqrt(6) zeta(3) / pi^3."""
    cubes = ((gumbel_draws[:, :, :1] - np.euler_gamma) / np.sqrt(np.pi**2 / 6)) ** 3
    assert abs(z_scores(cubes, 12 * np.sqrt(6) * zeta(3) / np.pi**3)[0]) < LIMIT


def test_banana():
    """Its tails are stiff, and ask for smaller steps than the default; many chains cost little in one batch."""
    problem, method = banana(), lw.HMC(target_acceptance=0.95)
    draws = lw.sample(problem.target, 400, tune=300, chains=16, method=method, random_seed=1).draws
    assert_moments(draws, problem.mean, np.diag(problem.covariance))


def test_riemannian_hmc_on_the_skewed_target():
    problem = gumbel()
    inverse = np.linalg.cholesky(np.linalg.inv(problem.covariance)).T

    class Local:
        """A metric between 1 and 2 times the precision: G = (1 + s) P with s = 1 / (1 + exp(-a.q))."""

        def __init__(self, position):
            self.share = 1.0 / (1.0 + np.exp(-position @ [1.0, -0.5]))
            self.precision = inverse.T @ inverse
            self.matrix = (1.0 + self.share)[:, None, None] * self.precision
            self.cholesky = np.linalg.cholesky(self.matrix)
            self.slope = (self.share * (1.0 - self.share))[:, None] * np.array([1.0, -0.5])

        def quadratic_contraction(self, velocity):
            return self.slope * np.einsum("ni,ij,nj->n", velocity, self.precision, velocity)[:, None]

        def trace_contraction(self):
            return 2.0 * self.slope / (1.0 + self.share)[:, None]

    class Metric:
        def at(self, position):
            return Local(position)

    run = lw.sample(problem.target, 150, tune=40, chains=16, method=lw.RMHMC(metric=Metric()), random_seed=2)
    assert_moments(run.draws, problem.mean, np.diag(problem.covariance))


class TestBounds:
    """Chains move in unconstrained space; draws come back inside the bounds, with the density that was asked for."""

    def test_exponential(self, method):
        rate = np.array([0.1, 1.0, 10.0])
        target = lw.Target(
            lambda x: -(x @ rate),
            lambda x: np.broadcast_to(-rate, x.shape),
            dim=3,
            bounds=(0, None),
            vectorized=True,
        )
        draws = lw.sample(target, 250, tune=150, chains=16, method=method, random_seed=1).draws
        assert (draws > 0).all()
        assert_moments(draws, 1 / rate, 1 / rate**2)

    def test_beta(self, method):
        a, b = np.array([2.0, 0.7]), np.array([5.0, 0.7])
        target = lw.Target(
            lambda x: ((a - 1) * np.log(x) + (b - 1) * np.log1p(-x)).sum(axis=1),
            lambda x: (a - 1) / x - (b - 1) / (1 - x),
            dim=2,
            bounds=(0, 1),
            vectorized=True,
        )
        draws = lw.sample(target, 250, tune=150, chains=16, method=method, random_seed=1).draws
        assert ((draws > 0) & (draws < 1)).all()
        assert_moments(draws, a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1)))

    def test_each_parameter_with_bounds_of_its_own(self, method):
        """With x below 3 and 3 - x exponential, y normal, z uniform between 10 and 14."""
        target = lw.Target(
            lambda x: x[:, 0] - 0.5 * x[:, 1] ** 2,
            lambda x: np.stack([np.ones(len(x)), -x[:, 1], np.zeros(len(x))], axis=1),
            dim=3,
            bounds=[(None, 3), None, (10, 14)],
            names=["x", "y", "z"],
            vectorized=True,
        )
        run = lw.sample(target, 250, tune=150, chains=16, method=method, random_seed=1)
        assert run.parameter_names == ("x", "y", "z")
        assert (run.draws[:, :, 0] < 3).all()
        assert ((run.draws[:, :, 2] > 10) & (run.draws[:, :, 2] < 14)).all()
        assert_moments(run.draws, [2.0, 0.0, 12.0], [1.0, 1.0, 16 / 12])
