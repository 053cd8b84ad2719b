"""Covariances and marginal likelihoods against dense formulas and differences, and the hyperparameters they give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from leapwise.surrogates import fitc
from leapwise.surrogates.gp import _observe, require_profile
from leapwise.surrogates.gp_posterior import (
    NOISE_FLOOR,
    TREND_FLOOR,
    Covariance,
    Hyperparameters,
    Observations,
    ObservedRows,
    Posterior,
    Scales,
    best_scales,
    length_prior,
    maximise_likelihood,
    negative_log_likelihood,
    negative_log_likelihood_gradient,
    safe_cholesky,
)
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import TrendBasis
from leapwise.surrogates.whitening import Whitening

KERNELS = ["squared_exponential", "rational_quadratic"]
LOGS = np.log([1.7, 1.4, 0.05, 0.6])
TRENDS = [None, TrendBasis(3), TrendBasis(3, True)]
Gradient = Callable[..., np.ndarray]


def observations(rng: np.random.Generator, trend: TrendBasis | None = None) -> Observations:
    """Return values at 12 points and gradients at 9 of them."""
    x = rng.standard_normal((12, 3))
    gradient = np.tanh(x) + 0.3 * x
    gradient[[2, 5, 7]] = np.nan
    training = TrainingSet(x, np.log(np.cosh(x)).sum(axis=1) + 0.15 * (x**2).sum(axis=1), gradient)
    return _observe(training.whiten(Whitening(np.zeros(3), np.eye(3))), trend, True)


def posterior_at(logs: np.ndarray, kernel: str, data: Observations) -> Posterior:
    """Return the posterior with hyperparameters given by their logarithms."""
    parameters = Hyperparameters(*map(float, np.exp(logs)))
    return Posterior.from_observations(parameters.covariance(require_profile(kernel)), data, parameters.trend)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("trend", TRENDS)
class TestLikelihood:
    def test_it_is_a_gaussian_density(
        self, kernel: str, trend: TrendBasis | None, rng: np.random.Generator
    ) -> None:
        data, parameters = observations(rng, trend), Hyperparameters(*np.exp(LOGS))
        own = parameters.covariance(require_profile(kernel))
        matrix = own.between(data.rows, data.rows) + np.diag(own.noise_variance(data.rows))
        precision = np.where(np.isnan(data.precision), parameters.trend**-2.0, data.precision)
        matrix += (data.design / precision) @ data.design.T
        expected = 0.5 * (data.target @ np.linalg.solve(matrix, data.target) + np.linalg.slogdet(matrix)[1])
        assert negative_log_likelihood(posterior_at(LOGS, kernel, data)) == pytest.approx(expected, abs=1e-6)

    def test_its_gradient(
        self, kernel: str, trend: TrendBasis | None, rng: np.random.Generator, central_differences: Gradient
    ) -> None:
        data = observations(rng, trend)

        def values(batch: np.ndarray) -> np.ndarray:
            return np.array([negative_log_likelihood(posterior_at(row, kernel, data)) for row in batch])

        slope = negative_log_likelihood_gradient(posterior_at(LOGS, kernel, data), np.isnan(data.precision))
        np.testing.assert_allclose(slope, central_differences(values, LOGS[None])[0], atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_covariances_of_gradients_are_derivatives_of_the_kernel(
    kernel: str, rng: np.random.Generator, central_differences: Gradient
) -> None:
    own = Hyperparameters(1.3, 0.8).covariance(require_profile(kernel))
    x, y = rng.standard_normal((1, 3)), rng.standard_normal((1, 3))
    left, right = ObservedRows(x, np.array([0])), ObservedRows(y, np.array([0]))
    matrix = own.between(left, right)

    def by_left(batch: np.ndarray) -> np.ndarray:
        return own.between(ObservedRows.values(batch), ObservedRows.values(y))[:, 0]

    np.testing.assert_allclose(matrix[1:, 0], central_differences(by_left, x)[0], atol=1e-9)
    for k in range(3):

        def by_right(batch: np.ndarray, k: int = k) -> np.ndarray:
            return own.between(left, ObservedRows.values(batch))[1 + k]

        np.testing.assert_allclose(matrix[1 + k, 1:], central_differences(by_right, y)[0], atol=1e-9)
    np.testing.assert_allclose(own.between(right, left), matrix.T, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_likelihood_of_fitc(kernel: str, rng: np.random.Generator, central_differences: Gradient) -> None:
    profile, x = require_profile(kernel), rng.standard_normal((40, 2))
    values = np.log(np.cosh(x)).sum(axis=1) - 1.0
    logs, few = LOGS[:3], x[:6]
    own = Hyperparameters(*np.exp(logs)).covariance(profile)
    inducing = ObservedRows.values(few)
    cross = own.between(ObservedRows.values(x), inducing)
    matrix = cross @ np.linalg.solve(own.between(inducing, inducing), cross.T)
    np.fill_diagonal(matrix, own.amplitude**2 * (1 + own.noise**2))
    expected = 0.5 * (values @ np.linalg.solve(matrix, values) + np.linalg.slogdet(matrix)[1])
    value, slope = fitc.negative_log_likelihood(logs, profile, few, x, values)
    assert value == pytest.approx(expected, abs=1e-6)

    def batched(batch: np.ndarray) -> np.ndarray:
        return np.array([fitc.negative_log_likelihood(row, profile, few, x, values)[0] for row in batch])

    np.testing.assert_allclose(slope, central_differences(batched, logs[None])[0], atol=1e-6)


def test_the_hyperparameters_of_a_drawn_function_are_found(rng: np.random.Generator) -> None:
    truth = Hyperparameters(length=2.0, amplitude=3.0, noise=0.05)
    profile = require_profile("squared_exponential")
    rows = ObservedRows.values(rng.uniform(-6, 6, size=(200, 2)))
    own = truth.covariance(profile)
    matrix = own.between(rows, rows) + np.diag(own.noise_variance(rows))
    target = np.linalg.cholesky(matrix) @ rng.standard_normal(200)
    data = Observations(rows, target, np.zeros((200, 0)), np.zeros(0))
    found = maximise_likelihood(profile, data, rng, max_rows=1000)
    assert found.length == pytest.approx(truth.length, rel=0.15)
    assert found.amplitude == pytest.approx(truth.amplitude, rel=0.5)
    assert found.noise * found.amplitude == pytest.approx(truth.noise * truth.amplitude, rel=0.2)


@pytest.mark.parametrize("trend", TRENDS)
def test_the_best_scales_are_a_stationary_point_of_the_likelihood(
    trend: TrendBasis | None, rng: np.random.Generator
) -> None:
    data, profile = observations(rng, trend), require_profile("rational_quadratic")
    learned = np.isnan(data.precision)
    unit = Posterior.from_observations(Covariance(profile, 2.0, 1.0, 0.01), data, 1.0)
    scales = best_scales(unit, learned, Scales(5.0, 1.0), (1e-6, 1e6), (1e-6, 1e6))
    expected = posterior_at(np.log([2.0, scales.amplitude, 0.01, scales.trend]), "rational_quadratic", data)
    slope = negative_log_likelihood_gradient(expected, learned)
    np.testing.assert_allclose(slope[[1, 3]], 0.0, atol=0.05)
    posterior = scales.posterior(unit, learned)
    np.testing.assert_allclose(posterior.row_weights, expected.row_weights, rtol=1e-8, atol=1e-10)


def test_scales_stay_within_their_bounds(rng: np.random.Generator) -> None:
    data, profile = observations(rng, TrendBasis(3)), require_profile("squared_exponential")
    unit = Posterior.from_observations(Covariance(profile, 2.0, 1.0, 0.01), data, 1.0)
    scales = best_scales(unit, np.isnan(data.precision), Scales(5.0, 1.0), (40.0, 50.0), (7.0, 8.0))
    assert scales.amplitude == 40.0
    assert scales.trend == 7.0


def test_no_other_hyperparameters_are_much_more_likely(rng: np.random.Generator) -> None:
    """The nested search finds what a search of all four finds, the weak prior of the length scale included."""
    data, kernel = observations(rng, TrendBasis(3)), "rational_quadratic"
    found = maximise_likelihood(require_profile(kernel), data, rng, max_rows=1000)

    def height(logs: np.ndarray) -> float:
        return negative_log_likelihood(posterior_at(logs, kernel, data)) + length_prior(logs, np.sqrt(3.0))[0]

    best = np.log([found.length, found.amplitude, found.noise, found.trend])
    others = best + 0.3 * rng.standard_normal((60, 4))
    others[:, 2:] = np.maximum(others[:, 2:], np.log([NOISE_FLOOR, TREND_FLOOR]))
    assert min(map(height, others)) > height(best) - 0.05


def test_a_subset_of_points_has_their_gradients(rng: np.random.Generator) -> None:
    data = observations(rng, TrendBasis(3))
    some = data.choose(np.array([1, 2, 4]))
    assert some.rows.size == 3 + 2 * 3
    np.testing.assert_array_equal(some.target[:3], data.target[[1, 2, 4]])
    first = data.rows.n_values + 3 * int(np.flatnonzero(data.rows.has_gradient == 1)[0])
    np.testing.assert_array_equal(some.target[3:6], data.target[first : first + 3])
    np.testing.assert_array_equal(some.design[3:6], data.design[first : first + 3])


@pytest.mark.parametrize("matrix", [np.ones((5, 5)), np.zeros((3, 3)), np.array([[1.0, 2.0], [2.0, 1.0]])])
def test_a_matrix_that_is_not_definite_has_a_finite_factor(matrix: np.ndarray) -> None:
    assert np.isfinite(safe_cholesky(matrix)).all()
