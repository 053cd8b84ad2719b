"""Logistic regression: density and Fisher metric against the textbook formulas, and the three experiments."""

from __future__ import annotations

import importlib
import os
import pickle

import numpy as np
import pytest
from scipy.special import expit, log_expit

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.errors import InputError
from leapwise.problems.logistic import (
    LogisticRegression,
    logistic,
    logistic_a9a,
    logistic_bank,
    logistic_simulated,
)

module = importlib.import_module("leapwise.problems.logistic")  # the package has a function of this name
METRIC_PRIOR_SD = 2.0

needs_data = pytest.mark.skipif(
    not os.environ.get("LEAPWISE_DATA"), reason="LEAPWISE_DATA does not name a folder with the data files"
)


@pytest.fixture
def data(rng):
    X = np.column_stack([np.ones(777), rng.normal(size=(777, 4))])
    return X, rng.integers(0, 2, size=777)


def textbook(X, y, prior_sd, beta):
    """Log-density and gradient, written out plainly."""
    eta = beta @ X.T
    sign = 2 * y - 1
    value = log_expit(sign * eta).sum(axis=1) - 0.5 * (beta**2).sum(axis=1) / prior_sd**2
    return value, (y - expit(eta)) @ X - beta / prior_sd**2


@pytest.mark.parametrize("n_chains", [1, 4, 16])
@pytest.mark.parametrize("block_size", [2**19, 1000])
def test_value_and_gradient_are_the_textbook_ones(data, rng, monkeypatch, n_chains, block_size):
    monkeypatch.setattr(module, "_BLOCK_SIZE", block_size)
    X, y = data
    model = LogisticRegression(X, y, prior_sd=3.0)
    beta = 2.0 * rng.normal(size=(n_chains, 5))
    value, gradient = model.value_and_gradient(beta)
    expected, slope = textbook(X, y, 3.0, beta)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(model.log_density(beta), value)


def test_a_few_chains_round_as_one_does(rng):
    model = LogisticRegression(rng.normal(size=(5000, 30)), rng.integers(0, 2, size=5000))
    beta = rng.normal(size=(4, 30))
    value, gradient = model.value_and_gradient(beta)
    for i in range(4):
        alone, slope = model.value_and_gradient(beta[i : i + 1])
        np.testing.assert_array_equal(alone[0], value[i])
        np.testing.assert_array_equal(slope[0], gradient[i])


@pytest.mark.parametrize("scale", [1e-8, 1.0, 40.0, 1e3, 1e5])
def test_large_linear_predictors_do_not_overflow(scale, rng):
    X = np.column_stack([np.ones(200), rng.choice([-1.0, 1.0], size=200)])
    y = rng.integers(0, 2, size=200)
    beta = scale * np.array([[1.0, 0.3], [-1.0, 0.3], [0.0, 1.0]])
    value, gradient = LogisticRegression(X, y).value_and_gradient(beta)
    expected, slope = textbook(X, y, 10.0, beta)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-9)


def test_a_perfect_fit_leaves_the_prior_alone():
    """The terms of 10^5 rows cancel to within their rounding."""
    X = np.ones((100_000, 1))
    model = LogisticRegression(X, np.ones(100_000))
    value, gradient = model.value_and_gradient(np.array([[60.0]]))
    np.testing.assert_allclose(value, -0.5 * 36.0, atol=1e-9)
    np.testing.assert_allclose(gradient, -0.6, atol=1e-9)


def test_coefficients_that_overflow_have_no_mass_and_no_warning(rng):
    model = LogisticRegression(rng.normal(size=(50, 3)), rng.integers(0, 2, size=50))
    far = np.array([[1e308, -1e308, 1e308], [1e200, 0.0, 0.0]])
    assert (model.log_density(far) == -np.inf).all()
    assert np.isnan(model.log_density(np.full((1, 3), np.nan))).all()


def test_labels_may_be_booleans_and_the_data_are_copied(data):
    X, y = data
    problem = logistic(X, y == 1, name="mine")
    beta = np.full((1, 5), 0.1)
    before = problem.target.evaluate(beta, gradient=False).log_density
    X *= 2.0
    assert problem.name == "mine"
    assert problem.description == "logistic regression, 777 rows, 5 coefficients"
    assert problem.target.evaluate(beta, gradient=False).log_density == before


def test_it_can_be_pickled(data):
    target = logistic(*data).target
    beta = np.ones((1, 5))
    copy = pickle.loads(pickle.dumps(target))
    assert (
        copy.evaluate(beta, gradient=False).log_density == target.evaluate(beta, gradient=False).log_density
    )


@pytest.mark.parametrize(
    ("X", "y", "prior_sd", "message"),
    [
        (np.ones(3), [0, 1, 0], 1.0, r"X must have shape \(n_rows, dim\)"),
        (np.ones((0, 2)), [], 1.0, r"X must have shape"),
        (np.array([["a"], ["b"]]), [0, 1], 1.0, "X must be real numbers"),
        (np.array([[1j], [1.0]]), [0, 1], 1.0, "X must be real numbers"),
        ([[1.0], [np.nan]], [0, 1], 1.0, "X must be finite"),
        (np.ones((2, 1)), [0, 1, 1], 1.0, r"y must have shape \(2,\)"),
        (np.ones((2, 1)), [[0], [1]], 1.0, r"y must have shape \(2,\), .* got \(2, 1\)"),
        (np.ones((2, 1)), [-1, 1], 1.0, "got -1, 1; for labels -1 and .1 give y > 0"),
        (np.ones((2, 1)), [0.5, 1], 1.0, "y must hold 0 and 1 only, got 0.5"),
        (np.ones((2, 1)), ["no", "yes"], 1.0, "y must be real numbers"),
        (np.ones((2, 1)), [0, 1], -1.0, "prior_sd must be positive"),
        (np.ones((2, 1)), [0, 1], [1.0, 2.0], "prior_sd must be one number"),
    ],
)
def test_bad_input_is_named(X, y, prior_sd, message):
    with pytest.raises(InputError, match=message):
        logistic(X, y, prior_sd)


def test_the_simulation_is_the_papers():
    problem, again = logistic_simulated(20_000, 6), logistic_simulated(20_000, 6)
    assert problem.settings == {"hmc": (0.045, 6), "rmhmc": (0.54, 2)}
    np.testing.assert_array_equal(problem.true_parameters, again.true_parameters)
    assert ((problem.true_parameters >= 0) & (problem.true_parameters <= 1)).all()
    # Where the posterior is nearly Gaussian, the truth is within a few standard deviations of the mode.
    beta = mode(problem)
    whitened = (problem.true_parameters - beta[0]) @ problem.metric.at(beta).cholesky[0]
    assert (
        whitened @ whitened < 36.0
    )  # chi-square with 6 degrees of freedom: beyond this with probability 3e-6


@pytest.mark.parametrize(("n_rows", "dim"), [(0, 5), (10, 0), (10.0, 5)])
def test_the_simulation_needs_whole_numbers(n_rows, dim):
    with pytest.raises(InputError, match=r"^(n_rows|dim) must be"):
        logistic_simulated(n_rows, dim)


@needs_data
def test_bank_marketing_has_its_intercept_first():
    problem = logistic_bank()
    assert problem.target.dim == 25
    assert problem.settings == {"hmc": (0.012, 45), "rmhmc": (0.4, 6)}
    # The gradient at 0 along the intercept is sum(y - 1/2); 11.3 % of the labels are 1.
    gradient = problem.target.evaluate(np.zeros((1, 25)), gradient=True).gradient[0]
    assert gradient[0] / 40197 + 0.5 == pytest.approx(0.113, abs=5e-4)
    assert np.abs(gradient).max() == np.abs(gradient[0])


@needs_data
def test_a9a_is_standardised_and_projected():
    problem = logistic_a9a()
    assert problem.target.dim == 60
    assert problem.settings == {"hmc": (0.012, 10), "rmhmc": (0.5, 4)}
    # At beta = 0 the metric is X'X / 4 + I / 100, so it shows what the columns are.
    gram = 4.0 * (problem.metric.at(np.zeros((1, 60))).matrix[0] - np.eye(60) / 100.0) / 32561
    np.testing.assert_allclose(np.diag(gram), 1.0, rtol=1e-10)
    np.testing.assert_allclose(gram[0, 1:], 0.0, atol=1e-10)
    gradient = problem.target.evaluate(np.zeros((1, 60)), gradient=True).gradient[0]
    assert gradient[0] == pytest.approx(7841 - 32561 / 2)


def mode(problem):
    """Find the mode by Newton's method; the Fisher information is the Hessian here."""
    beta = np.zeros((1, problem.target.dim))
    for _ in range(10):
        gradient = problem.target.evaluate(beta, gradient=True).gradient
        beta = beta + np.linalg.solve(problem.metric.at(beta).matrix[0], gradient[0])
    assert np.abs(problem.target.evaluate(beta, gradient=True).gradient).max() < 1e-8
    return beta


@pytest.fixture(params=[2**19, 500], ids=["one block", "many blocks"])
def metric_case(request, rng, monkeypatch):
    """Features, a metric and three positions; with blocks that do and do not divide the rows."""
    monkeypatch.setattr(module, "_BLOCK_SIZE", request.param)
    X = np.column_stack([np.ones(303), rng.normal(size=(303, 3))])
    model = LogisticRegression(X, rng.integers(0, 2, size=303), METRIC_PRIOR_SD)
    return X, model, rng.normal(size=(3, 4))


def explicit_metric(X, beta):
    """The metric ``(d, d)`` and its d derivatives ``(d, d, d)`` at one position, as the paper writes them."""
    s = expit(X @ beta)
    w = s * (1 - s)
    matrix = (X.T * w) @ X + np.eye(X.shape[1]) / METRIC_PRIOR_SD**2
    return matrix, np.einsum("n,ni,nj,nk->ijk", w * (1 - 2 * s), X, X, X)


def test_the_metric_is_riemannian(metric_case):
    assert isinstance(metric_case[1].metric, RiemannianMetric)


def test_the_metric_is_minus_the_hessian(metric_case, central_differences):
    """For this model the Fisher information and the observed information agree."""
    _, model, beta = metric_case
    local = model.metric.at(beta)
    for i in range(model.dim):
        column = central_differences(lambda b, i=i: model.value_and_gradient(b)[1][:, i], beta)
        np.testing.assert_allclose(local.matrix[:, i], -column, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(local.matrix, local.matrix.transpose(0, 2, 1))


def test_metric_and_contractions_agree_with_explicit_matrices(metric_case, rng):
    X, model, beta = metric_case
    velocity = rng.normal(size=beta.shape)
    local = model.metric.at(beta)
    quadratic, trace = local.quadratic_contraction(velocity), local.trace_contraction()
    product = model.metric.product(beta, velocity)
    for i in range(len(beta)):
        matrix, derivative = explicit_metric(X, beta[i])
        np.testing.assert_allclose(local.matrix[i], matrix, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(local.cholesky[i] @ local.cholesky[i].T, matrix, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            quadratic[i],
            np.einsum("ijk,j,k->i", derivative, velocity[i], velocity[i]),
            rtol=1e-10,
            atol=1e-10,
        )
        np.testing.assert_allclose(
            trace[i], np.einsum("ijk,kj->i", derivative, np.linalg.inv(matrix)), rtol=1e-10, atol=1e-10
        )
        np.testing.assert_allclose(product[i], matrix @ velocity[i], rtol=1e-11, atol=1e-11)


def test_contractions_are_derivatives_of_the_metric(metric_case, rng, central_differences):
    _, model, beta = metric_case
    velocity = rng.normal(size=beta.shape)
    local = model.metric.at(beta)
    for i in range(len(beta)):
        point, v = beta[i : i + 1], velocity[i]
        slope = central_differences(
            lambda b, v=v: np.einsum("nij,i,j->n", model.metric.at(b).matrix, v, v), point
        )
        np.testing.assert_allclose(local.quadratic_contraction(velocity)[i], slope[0], rtol=1e-6, atol=1e-6)
        log_det = central_differences(lambda b: np.linalg.slogdet(model.metric.at(b).matrix)[1], point)
        np.testing.assert_allclose(local.trace_contraction()[i], log_det[0], rtol=1e-6, atol=1e-6)


def test_the_trace_is_computed_once(metric_case):
    _, model, beta = metric_case
    local = model.metric.at(beta)
    assert local.trace_contraction() is local.trace_contraction()


def test_the_metric_of_many_chains_agrees_with_that_of_one(metric_case, rng):
    """Large batches take another matrix product than small ones."""
    _, model, _ = metric_case
    beta, velocity = rng.normal(size=(2, 12, 4))
    together = model.metric.at(beta)
    alone = model.metric.at(beta[5:6])
    np.testing.assert_allclose(together.matrix[5], alone.matrix[0], rtol=1e-12)
    np.testing.assert_allclose(
        together.quadratic_contraction(velocity)[5],
        alone.quadratic_contraction(velocity[5:6])[0],
        rtol=1e-10,
        atol=1e-10,
    )
    np.testing.assert_allclose(
        together.trace_contraction()[5], alone.trace_contraction()[0], rtol=1e-10, atol=1e-10
    )


def test_far_out_the_metric_is_that_of_the_prior(metric_case):
    _, model, _ = metric_case
    local = model.metric.at(np.array([[1e6, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(local.matrix[0], np.eye(4) / METRIC_PRIOR_SD**2, atol=1e-12)
    np.testing.assert_allclose(local.trace_contraction(), 0.0, atol=1e-12)


def test_a_metric_that_does_not_exist_is_nan_in_its_row_only(metric_case):
    _, model, beta = metric_case
    beta[1] = np.inf
    local = model.metric.at(beta)
    trace = local.trace_contraction()
    assert np.isnan(local.cholesky[1]).all()
    assert np.isnan(trace[1]).all()
    assert np.isfinite(local.cholesky[[0, 2]]).all()
    assert np.isfinite(trace[[0, 2]]).all()
