"""Metrics from the Hessian of a potential, in all forms, against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.dynamics import HessianMetric, ProductMetric, check_metric
from leapwise.errors import InputError

DIM, N = 3, 7
MIX = np.random.default_rng(5).normal(size=(6, DIM))
TILT = np.array([1.0, -0.7, 0.5, 1.2, -0.4, 0.8])


class Waves:
    """The sum of t_i sin(w_i q) + |q|^2 / 4: neither convex nor diagonal."""

    def hessian(self, q):
        return np.einsum("ns,si,sj->nij", -TILT * np.sin(q @ MIX.T), MIX, MIX) + 0.5 * np.eye(DIM)

    def quadratic_contraction(self, q, v):
        return (-TILT * np.cos(q @ MIX.T) * (v @ MIX.T) ** 2) @ MIX

    def trace_contraction(self, q, a):
        return (-TILT * np.cos(q @ MIX.T) * np.einsum("si,nij,sj->ns", MIX, a, MIX)) @ MIX


class Bowl(Waves):
    """The same with a much steeper bowl: convex."""

    def hessian(self, q):
        return super().hessian(q) + 40.0 * np.eye(DIM)


CASES = {
    "full": HessianMetric(Bowl()),
    "diagonal": HessianMetric(Waves(), "diagonal", 0.7),
    "diagonal, hardly floored": HessianMetric(Waves(), "diagonal", 0.05),
    "softabs": HessianMetric(Waves(), "softabs", 0.7),
    "softabs, hardly floored": HessianMetric(Waves(), "softabs", 0.05),
}


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def metric(request):
    return request.param


@pytest.fixture
def position():
    return np.random.default_rng(1).normal(size=(N, DIM))


def slopes(function, position, step=1e-6):
    """Return derivatives of ``function(q) -> (n,)`` by each coordinate, ``(n, dim)``."""
    moves = step * np.eye(DIM)
    return np.stack([(function(position + m) - function(position - m)) / (2 * step) for m in moves], axis=1)


def test_is_positive_definite_with_its_factor(metric, position):
    local = metric.at(position)
    assert (np.linalg.eigvalsh(local.matrix) > 0).all()
    np.testing.assert_allclose(local.cholesky @ np.swapaxes(local.cholesky, 1, 2), local.matrix, rtol=1e-10)


def test_quadratic_contraction_is_the_derivative(metric, position):
    v = np.random.default_rng(2).normal(size=(N, DIM))
    expected = slopes(lambda q: np.einsum("ni,nij,nj->n", v, metric.at(q).matrix, v), position)
    np.testing.assert_allclose(metric.at(position).quadratic_contraction(v), expected, rtol=1e-5, atol=1e-5)


def test_trace_contraction_is_the_derivative_of_the_log_determinant(metric, position):
    expected = slopes(lambda q: np.linalg.slogdet(metric.at(q).matrix)[1], position)
    np.testing.assert_allclose(metric.at(position).trace_contraction(), expected, rtol=1e-5, atol=1e-5)


def test_product_is_that_of_the_matrix(metric, position):
    v = np.random.default_rng(2).normal(size=(N, DIM))
    assert isinstance(metric, ProductMetric)
    expected = np.einsum("nij,nj->ni", metric.at(position).matrix, v)
    np.testing.assert_allclose(metric.product(position, v), expected, rtol=1e-12)


def test_passes_the_check_of_metrics(metric, position):
    assert check_metric(metric, position[:1], np.random.default_rng(3).normal(size=(2, DIM))) > 0


def test_where_eigenvalues_agree(position):
    """The quotient of differences has no value there; its limit does."""

    class Round(Waves):
        def hessian(self, q):
            return np.broadcast_to(np.eye(DIM) * 1.3, (len(q), DIM, DIM))

    local = HessianMetric(Round(), "softabs", 0.5).at(position)
    v = np.ones((N, DIM))
    x = 1.3 / 0.5
    slope = 1 / np.tanh(x) - x / np.sinh(x) ** 2
    expected = slope * Waves().quadratic_contraction(position, v)
    np.testing.assert_allclose(local.quadratic_contraction(v), expected, rtol=1e-10)


@pytest.mark.parametrize("form", ["diagonal", "softabs"])
@pytest.mark.parametrize("size", [1e-300, 1e-8, 1.0, 1e8, 1e150])
def test_any_curvature_of_either_sign_gives_a_metric(form, size):
    class Constant(Waves):
        def hessian(self, q):
            return np.broadcast_to(size * np.diag([-1.0, 0.0, 1.0]), (len(q), DIM, DIM))

    local = HessianMetric(Constant(), form, 0.1).at(np.zeros((1, DIM)))
    diagonal = np.diagonal(local.matrix[0])
    assert np.isfinite(local.cholesky).all() and (diagonal > 0).all()
    assert diagonal[2] >= 0.1 - 1e-12 and np.isclose(diagonal[2], max(size, 0.1), rtol=0.5)
    if form == "softabs":
        np.testing.assert_allclose(diagonal[0], diagonal[2])


def test_full_has_no_factor_where_it_is_not_positive_definite(position):
    local = HessianMetric(Waves()).at(position)
    bad = (np.linalg.eigvalsh(local.matrix) <= 0).any(axis=1)
    assert bad.any()
    np.testing.assert_array_equal(np.isnan(local.cholesky).any(axis=(1, 2)), bad)


@pytest.mark.parametrize("form", ["full", "diagonal", "softabs"])
def test_a_hessian_that_is_not_finite_is_no_metric_there_only(form):
    class Holed(Bowl):
        def hessian(self, q):
            return np.where(q[:, :1, None] > 0, np.nan, super().hessian(q))

    local = HessianMetric(Holed(), form).at(np.array([[-1.0, 0, 0], [1.0, 0, 0]]))
    assert np.isfinite(local.cholesky[0]).all() and np.isnan(local.cholesky[1]).any()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((object(),), "hessian"),
        ((Waves,), "trained surrogate"),
        ((Waves(), "round"), "form"),
        ((Waves(), "softabs", 0.0), "floor"),
        ((Waves(), "softabs", np.nan), "floor"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(arguments, word):
    with pytest.raises(InputError, match=word):
        HessianMetric(*arguments)
