"""Marginal likelihoods against dense formulas, their gradients against differences, and what they find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from leapwise.surrogates import fitc
from leapwise.surrogates.gp import _observe, require_profile
from leapwise.surrogates.gp_likelihood import (
    NOISE_FLOOR,
    TREND_FLOOR,
    Hyperparameters,
    Scales,
    best_scales,
    length_prior,
    maximise_likelihood,
    negative_log_likelihood,
    unit_posterior,
)
from leapwise.surrogates.gp_posterior import Observations, Posterior, Rows, safe_cholesky
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import TrendBasis
from leapwise.surrogates.whitening import Whitening

KERNELS = ["squared_exponential", "rational_quadratic"]
LOGS = np.log([1.7, 1.4, 0.05, 0.6])
Gradient = Callable[..., np.ndarray]


def observations(rng: np.random.Generator, trend: TrendBasis | None = None) -> Observations:
    """Return values at 12 points and gradients at 9 of them."""
    x = rng.standard_normal((12, 3))
    gradient = np.tanh(x) + 0.3 * x
    gradient[[2, 5, 7]] = np.nan
    training = TrainingSet(x, np.log(np.cosh(x)).sum(axis=1) + 0.15 * (x**2).sum(axis=1), gradient)
    return _observe(training.whiten(Whitening(np.zeros(3), np.eye(3))), trend, True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("trend", [None, TrendBasis(3), TrendBasis(3, True)])
class TestFull:
    def test_it_is_a_gaussian_density(
        self, kernel: str, trend: TrendBasis | None, rng: np.random.Generator
    ) -> None:
        data, profile, parameters = (
            observations(rng, trend),
            require_profile(kernel),
            Hyperparameters(*np.exp(LOGS)),
        )
        logs = LOGS[: 3 if trend is None else 4]
        own = parameters.kernel(profile)
        covariance = own.covariance(data.rows, data.rows) + np.diag(own.noise_variance(data.rows))
        precision = np.where(np.isnan(data.precision), parameters.trend**-2.0, data.precision)
        covariance += (data.design / precision) @ data.design.T
        expected = 0.5 * (
            data.target @ np.linalg.solve(covariance, data.target) + np.linalg.slogdet(covariance)[1]
        )
        assert negative_log_likelihood(logs, profile, data)[0] == pytest.approx(expected, abs=1e-6)

    def test_its_gradient(
        self, kernel: str, trend: TrendBasis | None, rng: np.random.Generator, central_differences: Gradient
    ) -> None:
        data, profile = observations(rng, trend), require_profile(kernel)
        logs = LOGS[: 3 if trend is None else 4]

        def values(batch: np.ndarray) -> np.ndarray:
            return np.array([negative_log_likelihood(row, profile, data)[0] for row in batch])

        slope = negative_log_likelihood(logs, profile, data)[1]
        np.testing.assert_allclose(slope, central_differences(values, logs[None])[0], atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_covariances_of_gradients_are_derivatives_of_the_kernel(
    kernel: str, rng: np.random.Generator, central_differences: Gradient
) -> None:
    own = Hyperparameters(1.3, 0.8).kernel(require_profile(kernel))
    x, y = rng.standard_normal((1, 3)), rng.standard_normal((1, 3))
    left, right = Rows(x, np.array([0])), Rows(y, np.array([0]))
    matrix = own.covariance(left, right)

    def by_left(batch: np.ndarray) -> np.ndarray:
        return own.covariance(Rows.values(batch), Rows.values(y))[:, 0]

    np.testing.assert_allclose(matrix[1:, 0], central_differences(by_left, x)[0], atol=1e-9)
    for k in range(3):

        def by_right(batch: np.ndarray, k: int = k) -> np.ndarray:
            return own.covariance(left, Rows.values(batch))[1 + k]

        np.testing.assert_allclose(matrix[1 + k, 1:], central_differences(by_right, y)[0], atol=1e-9)
    np.testing.assert_allclose(own.covariance(right, left), matrix.T, atol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_likelihood_of_fitc(kernel: str, rng: np.random.Generator, central_differences: Gradient) -> None:
    profile, x = require_profile(kernel), rng.standard_normal((40, 2))
    values = np.log(np.cosh(x)).sum(axis=1) - 1.0
    logs, few = LOGS[:3], x[:6]
    own = Hyperparameters(*np.exp(logs)).kernel(profile)
    cross = own.covariance(Rows.values(x), Rows.values(few))
    covariance = cross @ np.linalg.solve(own.covariance(Rows.values(few), Rows.values(few)), cross.T)
    np.fill_diagonal(covariance, own.amplitude**2 * (1 + own.noise**2))
    expected = 0.5 * (values @ np.linalg.solve(covariance, values) + np.linalg.slogdet(covariance)[1])
    value, slope = fitc.negative_log_likelihood(logs, profile, few, x, values)
    assert value == pytest.approx(expected, abs=1e-6)

    def batched(batch: np.ndarray) -> np.ndarray:
        return np.array([fitc.negative_log_likelihood(row, profile, few, x, values)[0] for row in batch])

    np.testing.assert_allclose(slope, central_differences(batched, logs[None])[0], atol=1e-6)


def test_the_hyperparameters_of_a_drawn_function_are_found(rng: np.random.Generator) -> None:
    truth = Hyperparameters(length=2.0, amplitude=3.0, noise=0.05)
    profile, rows = require_profile("squared_exponential"), Rows.values(rng.uniform(-6, 6, size=(300, 2)))
    own = truth.kernel(profile)
    covariance = own.covariance(rows, rows) + np.diag(own.noise_variance(rows))
    target = np.linalg.cholesky(covariance) @ rng.standard_normal(300)
    data = Observations(rows, target, np.zeros((300, 0)), np.zeros(0))
    found = maximise_likelihood(profile, data, rng, max_rows=1000)
    assert found.length == pytest.approx(truth.length, rel=0.15)
    assert found.amplitude == pytest.approx(truth.amplitude, rel=0.5)
    assert found.noise * found.amplitude == pytest.approx(truth.noise * truth.amplitude, rel=0.2)


@pytest.mark.parametrize("trend", [None, TrendBasis(3), TrendBasis(3, True)])
def test_the_best_scales_are_where_the_likelihood_is_flat(
    trend: TrendBasis | None, rng: np.random.Generator
) -> None:
    data, profile = observations(rng, trend), require_profile("rational_quadratic")
    learnt = np.isnan(data.precision)
    unit = unit_posterior(profile, 2.0, 0.01, data)
    scales = best_scales(unit, learnt, Scales(5.0, 1.0), (1e-6, 1e6), (1e-6, 1e6))
    logs = np.log([2.0, scales.amplitude, 0.01, scales.trend])[: 3 if trend is None else 4]
    slope = negative_log_likelihood(logs, profile, data)[1]
    np.testing.assert_allclose(slope[[1, *range(3, len(slope))]], 0.0, atol=0.05)
    posterior, direct = scales.posterior(unit, learnt), Hyperparameters(*np.exp(logs)).kernel(profile)
    expected = Posterior.from_observations(direct, data, scales.trend)
    np.testing.assert_allclose(posterior.row_weights, expected.row_weights, rtol=1e-8, atol=1e-10)


def test_scales_keep_to_their_bounds(rng: np.random.Generator) -> None:
    data, profile = observations(rng, TrendBasis(3)), require_profile("squared_exponential")
    unit = unit_posterior(profile, 2.0, 0.01, data)
    scales = best_scales(unit, np.isnan(data.precision), Scales(5.0, 1.0), (40.0, 50.0), (7.0, 8.0))
    assert scales.amplitude == 40.0
    assert scales.trend == 7.0


def test_no_other_hyperparameters_are_much_more_likely(rng: np.random.Generator) -> None:
    """Nested search finds what a search of all four finds, the weak prior of the length scale included."""
    data, profile = observations(rng, TrendBasis(3)), require_profile("rational_quadratic")
    found = maximise_likelihood(profile, data, rng, max_rows=1000)

    def height(logs: np.ndarray) -> float:
        return negative_log_likelihood(logs, profile, data)[0] + length_prior(logs, np.sqrt(3.0))[0]

    best = np.log([found.length, found.amplitude, found.noise, found.trend])
    others = best + 0.3 * rng.standard_normal((60, 4))
    others[:, 2:] = np.maximum(others[:, 2:], np.log([NOISE_FLOOR, TREND_FLOOR]))
    assert min(map(height, others)) > height(best) - 0.05


def test_a_subset_of_points_keeps_rows_together(rng: np.random.Generator) -> None:
    data = observations(rng, TrendBasis(3))
    some = data.choose(np.array([1, 2, 4]))
    assert some.rows.size == 3 + 2 * 3
    np.testing.assert_array_equal(some.target[:3], data.target[[1, 2, 4]])
    first = data.rows.n_values + 3 * int(np.flatnonzero(data.rows.has_gradient == 1)[0])
    np.testing.assert_array_equal(some.target[3:6], data.target[first : first + 3])
    np.testing.assert_array_equal(some.design[3:6], data.design[first : first + 3])


def test_a_factor_always_comes_back() -> None:
    assert np.isfinite(safe_cholesky(np.ones((5, 5)))).all()
    assert np.isfinite(safe_cholesky(np.zeros((3, 3)))).all()
    assert np.isfinite(safe_cholesky(np.array([[1.0, 2.0], [2.0, 1.0]]))).all()
