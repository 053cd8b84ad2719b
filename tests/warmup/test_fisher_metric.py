"""The metric from draws and gradients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ortho_group

from leapwise import DenseMetric, DiagonalMetric, UnitMetric
from leapwise.warmup.tuners import fisher_metric

SHAPES = ("diagonal", "dense")


@pytest.fixture
def covariance(rng):
    """A covariance of condition 10^4 in no particular direction."""
    turn = ortho_group.rvs(6, random_state=rng)
    return turn @ np.diag(np.logspace(-2, 2, 6)) @ turn.T


def gaussian(rng, covariance, n, spread=None):
    """Draws with covariance `spread`, by default that of the Gaussian, and the gradients of its potential."""
    factor = np.linalg.cholesky(covariance if spread is None else spread)
    draws = rng.normal(size=(n, len(covariance))) @ factor.T
    return draws, np.linalg.solve(covariance, draws.T).T


def matrix(metric):
    return np.diag(metric.variance) if isinstance(metric, DiagonalMetric) else metric.covariance


def condition(covariance, metric):
    """Condition number of the covariance where the metric is the identity: 1 if the metric is perfect."""
    factor = np.linalg.cholesky(matrix(metric))
    whitened = np.linalg.solve(factor, np.linalg.solve(factor, covariance).T)
    return np.linalg.cond(whitened)


def assert_same(a, b, tolerance=1e-8):
    """Compare covariances, measured in their own standard deviations."""
    scale = np.sqrt(np.diag(b))
    np.testing.assert_allclose(a / np.outer(scale, scale), b / np.outer(scale, scale), atol=tolerance)


@pytest.mark.parametrize("centre", [0.0, 1e3])
@pytest.mark.parametrize("spread", [None, 1e-4, 1e4])
def test_dense_is_exact_for_gaussians_however_the_draws_are_spread(spread, centre, rng, covariance):
    draws, gradient = gaussian(rng, covariance, 2000, None if spread is None else spread * np.eye(6))
    metric = fisher_metric(draws + centre, gradient + centre, "dense")
    # Shrinkage is 1e-2 (6 / 2006)^3 = 3e-10 of the mean variance, and variances of gradients differ by up to 10^8.
    assert condition(covariance, metric) < (1.001 if spread is None else 1.02)
    assert_same(metric.covariance, covariance, 1e-4 if spread is None else 2e-3)


def test_diagonal_is_exact_for_independent_gaussians(rng):
    variance = np.logspace(-6, 6, 7)
    draws, gradient = gaussian(rng, np.diag(variance), 30, 1e-2 * np.eye(7))
    metric = fisher_metric(draws, gradient, "diagonal")
    assert isinstance(metric, DiagonalMetric)
    np.testing.assert_allclose(metric.variance, variance, rtol=1e-9)


def test_a_flat_direction_of_a_student_is_between_draws_and_gradients(rng):
    draws = rng.standard_t(5, size=(20_000, 1))
    gradient = 6 * draws / (5 + draws**2)
    variance = float(fisher_metric(draws, gradient, "diagonal").variance[0])
    assert 1 / gradient.var() < variance < draws.var()


@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("current", [False, True])
def test_units_do_not_matter(current, n, rng, covariance):
    draws, gradient = gaussian(rng, covariance, n)
    units = 10.0 ** rng.uniform(-5, 5, 6)
    guess = np.cov(rng.normal(size=(6, 50))) if current else None
    for shape in SHAPES:
        first = fisher_metric(draws, gradient, shape, DenseMetric(guess) if current else None)
        second = fisher_metric(
            draws * units,
            gradient / units,
            shape,
            DenseMetric(guess * np.outer(units, units)) if current else None,
        )
        assert_same(matrix(second), matrix(first) * np.outer(units, units))


@pytest.mark.parametrize("n", [4, 40])
def test_directions_do_not_matter_once_there_is_a_metric(n, rng, covariance):
    draws, gradient = gaussian(rng, covariance, n)
    guess = np.cov(rng.normal(size=(6, 50)))
    turn = ortho_group.rvs(6, random_state=rng)
    first = fisher_metric(draws, gradient, "dense", DenseMetric(guess))
    second = fisher_metric(draws @ turn.T, gradient @ turn.T, "dense", DenseMetric(turn @ guess @ turn.T))
    assert_same(second.covariance, turn @ first.covariance @ turn.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "current", [None, UnitMetric(), DenseMetric(np.eye(3))], ids=["none", "unit", "dense"]
)
class TestNothingToLearn:
    def test_from_one_value_over_and_over(self, shape, current):
        # A third is not representable: its mean over 44 draws is rounded, and its standard deviation is not 0.
        draws = np.full((44, 3), 1 / 3)
        assert draws.std() > 0
        assert fisher_metric(draws, draws, shape, current) is None

    def test_from_one_parameter_that_never_moved(self, shape, current, rng):
        draws = rng.normal(size=(44, 3))
        draws[:, 1] = 1 / 3
        assert fisher_metric(draws, rng.normal(size=(44, 3)), shape, current) is None

    def test_from_a_constant_gradient(self, shape, current, rng):
        assert fisher_metric(rng.normal(size=(44, 3)), np.full((44, 3), 1 / 3), shape, current) is None

    def test_from_gradients_that_overflow(self, shape, current, rng):
        draws = rng.normal(size=(44, 3))
        assert fisher_metric(draws, 1e200 * draws, shape, current) is None


@pytest.mark.parametrize("n", [2, 5, 19])
@pytest.mark.parametrize("current", [False, True])
def test_fewer_draws_than_dimensions_give_a_positive_definite_metric(current, n, rng):
    covariance = np.diag(np.logspace(-3, 3, 20))
    draws, gradient = gaussian(rng, covariance, n)
    metric = fisher_metric(draws, gradient, "dense", DenseMetric(covariance) if current else None)
    values = np.linalg.eigvalsh(
        metric.covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    )
    assert (values > 1e-3).all()
    assert (values < 1e3).all()


def test_unseen_directions_keep_the_metric_they_had(rng):
    covariance = np.diag(np.logspace(-3, 3, 20))
    draws, gradient = gaussian(rng, covariance, 10)
    metric = fisher_metric(draws, gradient, "dense", DenseMetric(covariance))
    assert condition(covariance, metric) < 1 + 1e-6, "a metric that is right already stays as it is"


@pytest.mark.parametrize("narrow", [1e-6, 1e-9, 1e-12])
def test_what_floating_point_cannot_hold_is_not_learned(narrow, rng):
    """Of two directions at 45 degrees, one is so narrow that the covariance is singular when rounded."""
    along, across = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
    metric, refused = None, 0
    for _ in range(5):
        wide, thin = rng.normal(size=(2, 100, 1))
        found = fisher_metric(
            wide * along + narrow * thin * across, wide * along + thin / narrow * across, "dense", metric
        )
        refused += found is None
        metric = metric if found is None else found
        assert np.isfinite(metric.momentum(np.ones((1, 2)))).all()
    assert (refused > 0) == (narrow < 1e-8)


@pytest.mark.parametrize("n", [8, 15, 30])
def test_a_badly_conditioned_gaussian_improves_window_by_window(n, rng):
    turn = ortho_group.rvs(20, random_state=rng)
    covariance = turn @ np.diag(np.logspace(-4, 4, 20)) @ turn.T
    metric, conditions = None, [np.linalg.cond(covariance)]
    for _ in range(6):
        metric = fisher_metric(*gaussian(rng, covariance, n), "dense", metric)
        conditions.append(condition(covariance, metric))
    assert conditions[1] < conditions[0]
    assert conditions[3] < conditions[1]
    assert conditions[6] < conditions[3] or conditions[3] < 1.1
    assert conditions[6] < 100
