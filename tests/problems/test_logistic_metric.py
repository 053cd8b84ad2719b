"""The Fisher metric of logistic regression against explicit matrices and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.problems import logistic_metric as row_blocks
from leapwise.problems.logistic import LogisticRegression

PRIOR_SD = 2.0


@pytest.fixture(params=[2**19, 500], ids=["one block", "many blocks"])
def setting(request, rng, monkeypatch):
    """Features, a metric and three positions; with blocks that do and do not divide the rows."""
    monkeypatch.setattr(row_blocks, "_BLOCK_SIZE", request.param)
    X = np.column_stack([np.ones(303), rng.normal(size=(303, 3))])
    model = LogisticRegression(X, rng.integers(0, 2, size=303), PRIOR_SD)
    return X, model, rng.normal(size=(3, 4))


def explicit(X, beta):
    """The metric ``(d, d)`` and its d derivatives ``(d, d, d)`` at one position, as the paper writes them."""
    s = expit(X @ beta)
    w = s * (1 - s)
    matrix = (X.T * w) @ X + np.eye(X.shape[1]) / PRIOR_SD**2
    return matrix, np.einsum("n,ni,nj,nk->ijk", w * (1 - 2 * s), X, X, X)


def test_it_is_a_riemannian_metric(setting):
    assert isinstance(setting[1].metric, RiemannianMetric)


def test_the_matrix_is_minus_the_hessian(setting, central_differences):
    """For this model the Fisher information and the observed information agree."""
    _, model, beta = setting
    local = model.metric.at(beta)
    for i in range(model.dim):
        column = central_differences(lambda b, i=i: model.value_and_gradient(b)[1][:, i], beta)
        np.testing.assert_allclose(local.matrix[:, i], -column, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(local.matrix, local.matrix.transpose(0, 2, 1))


def test_everything_agrees_with_explicit_matrices(setting, rng):
    X, model, beta = setting
    velocity = rng.normal(size=beta.shape)
    local = model.metric.at(beta)
    quadratic, trace = local.quadratic_contraction(velocity), local.trace_contraction()
    product = model.metric.product(beta, velocity)
    for i in range(len(beta)):
        matrix, derivative = explicit(X, beta[i])
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


def test_contractions_are_derivatives_of_the_metric(setting, rng, central_differences):
    _, model, beta = setting
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


def test_the_trace_is_computed_once(setting):
    _, model, beta = setting
    local = model.metric.at(beta)
    assert local.trace_contraction() is local.trace_contraction()


def test_many_chains_agree_with_one(setting, rng):
    """Large batches go through other products than small ones."""
    _, model, _ = setting
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


def test_far_out_only_the_prior_is_left(setting):
    _, model, _ = setting
    local = model.metric.at(np.array([[1e6, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(local.matrix[0], np.eye(4) / PRIOR_SD**2, atol=1e-12)
    np.testing.assert_allclose(local.trace_contraction(), 0.0, atol=1e-12)


def test_where_there_is_no_metric_the_factor_is_nan_and_the_others_are_not(setting):
    _, model, beta = setting
    beta[1] = np.inf
    local = model.metric.at(beta)
    trace = local.trace_contraction()
    assert np.isnan(local.cholesky[1]).all()
    assert np.isnan(trace[1]).all()
    assert np.isfinite(local.cholesky[[0, 2]]).all()
    assert np.isfinite(trace[[0, 2]]).all()
