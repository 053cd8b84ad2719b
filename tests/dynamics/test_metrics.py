"""Euclidean metrics: momenta, velocities and kinetic energies that belong to one mass matrix."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.dynamics import (
    DenseMetric,
    DiagonalMetric,
    EuclideanMetric,
    UnitMetric,
    batched_cholesky,
    kinetic_energy,
)
from leapwise.errors import InputError

COVARIANCE = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
VARIANCE = np.array([0.01, 1.0, 400.0])
METRICS = {
    "unit": (UnitMetric(), np.eye(3)),
    "diagonal": (DiagonalMetric(VARIANCE), np.diag(VARIANCE)),
    "dense": (DenseMetric(COVARIANCE), COVARIANCE),
    "dense, badly scaled": (
        DenseMetric(np.sqrt(np.outer(VARIANCE, VARIANCE)) * (np.eye(3) * 0.5 + 0.5)),
        np.sqrt(np.outer(VARIANCE, VARIANCE)) * (np.eye(3) * 0.5 + 0.5),
    ),
}


@pytest.fixture(params=METRICS, ids=list(METRICS))
def case(request):
    return METRICS[request.param]


def test_velocity_is_covariance_times_momentum(case, rng):
    metric, covariance = case
    momentum = rng.normal(size=(7, 3))
    np.testing.assert_allclose(metric.velocity(momentum), momentum @ covariance, rtol=1e-12)


def test_momenta_have_the_mass_matrix_as_covariance(case):
    """Momenta are linear in the normals, p = A z, so A A' must be the mass matrix: no sampling needed."""
    metric, covariance = case
    factor = metric.momentum(np.eye(3)).T
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(covariance), rtol=1e-9, atol=1e-12)


def test_kinetic_energy_is_half_the_squared_normals(case, rng):
    metric, _ = case
    normals = rng.normal(size=(50, 3))
    expected = 0.5 * (normals**2).sum(axis=1)
    np.testing.assert_allclose(kinetic_energy(metric, metric.momentum(normals)), expected, rtol=1e-10)


def test_velocity_is_the_gradient_of_the_kinetic_energy(case, rng, central_differences):
    metric, _ = case
    momentum = metric.momentum(rng.normal(size=(5, 3)))
    numerical = central_differences(lambda p: kinetic_energy(metric, p), momentum)
    np.testing.assert_allclose(metric.velocity(momentum), numerical, rtol=1e-5, atol=1e-6)


def test_mass_times_undoes_velocity(case, rng):
    metric, _ = case
    momentum = metric.momentum(rng.normal(size=(5, 3)))
    np.testing.assert_allclose(metric.mass_times(metric.velocity(momentum)), momentum, rtol=1e-8, atol=1e-10)


def test_a_row_is_rounded_alike_in_any_batch(case, rng):
    """Or a chain would depend on how many chains run beside it."""
    metric, _ = case
    rows = rng.normal(size=(33, 3))
    for function in (metric.momentum, metric.velocity, metric.mass_times):
        np.testing.assert_array_equal(function(rows)[4:5], function(rows[4:5]))


def test_a_large_dense_row_is_rounded_alike_in_any_batch(rng):
    factor = rng.normal(size=(64, 64))
    metric = DenseMetric(factor @ factor.T / 64 + np.eye(64))
    rows = rng.normal(size=(17, 64))
    for function in (metric.momentum, metric.velocity):
        for i in (0, 9, 16):
            np.testing.assert_array_equal(function(rows)[i], function(rows[i : i + 1])[0])


def test_what_is_given_is_left_alone(case, rng):
    metric, _ = case
    rows = rng.normal(size=(4, 3))
    kept = rows.copy()
    metric.momentum(rows), metric.velocity(rows), kinetic_energy(metric, rows)
    np.testing.assert_array_equal(rows, kept)
    assert isinstance(metric, EuclideanMetric)


def test_metrics_do_not_follow_the_arrays_they_were_made_from():
    variance, covariance = VARIANCE.copy(), COVARIANCE.copy()
    metrics = [DiagonalMetric(variance), DenseMetric(covariance)]
    before = [metric.velocity(np.ones((1, 3))) for metric in metrics]
    variance[:], covariance[:] = 9.0, 9.0
    np.testing.assert_array_equal([metric.velocity(np.ones((1, 3))) for metric in metrics], before)


@pytest.mark.parametrize("size", [1e200, np.inf, np.nan])
def test_wild_momenta_are_quiet(case, size):
    metric, _ = case
    energy = kinetic_energy(metric, np.array([[size, size, size], [0.0, 0.0, 0.0]]))
    assert not np.isfinite(energy[0])
    assert energy[1] == 0.0


@pytest.mark.parametrize(
    "variance", [[1.0, -1.0], [1.0, 0.0], [1.0, np.nan], [1.0, np.inf], 1.0, [[1.0, 2.0], [3.0, 4.0]]]
)
def test_bad_variances(variance):
    with pytest.raises(InputError, match="variance must be"):
        DiagonalMetric(variance)


@pytest.mark.parametrize("covariance", [1.0, [1.0, 2.0], np.ones((2, 3)), -np.eye(2), np.ones((2, 2))])
def test_bad_covariances(covariance):
    with pytest.raises(InputError, match="covariance must be"):
        DenseMetric(covariance)


def test_batched_cholesky_of_good_matrices(rng):
    factors = rng.normal(size=(6, 4, 4))
    matrices = factors @ factors.transpose(0, 2, 1) + np.eye(4)
    found = batched_cholesky(matrices)
    np.testing.assert_allclose(found @ found.transpose(0, 2, 1), matrices, rtol=1e-12)
    assert (np.triu(found, 1) == 0).all()


@pytest.mark.parametrize(
    "bad", [-np.eye(4), np.ones((4, 4)) - np.eye(4), np.full((4, 4), np.nan), np.zeros((4, 4))]
)
def test_batched_cholesky_marks_only_the_bad_matrices(bad, rng):
    factors = rng.normal(size=(5, 4, 4))
    matrices = factors @ factors.transpose(0, 2, 1) + np.eye(4)
    matrices[[1, 3]] = bad
    found = batched_cholesky(matrices)
    for i in (0, 2, 4):
        np.testing.assert_array_equal(found[i], np.linalg.cholesky(matrices[i]))
    for i in (1, 3):
        assert np.isnan(np.diag(found[i])).any()


def test_batched_cholesky_is_not_fooled_by_infinities():
    matrices = np.stack([np.eye(3), np.diag([1.0, np.inf, 1.0])])
    found = batched_cholesky(matrices)
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).all()


def test_batched_cholesky_of_nothing():
    assert batched_cholesky(np.empty((0, 3, 3))).shape == (0, 3, 3)
