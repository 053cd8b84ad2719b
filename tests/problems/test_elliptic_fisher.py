"""The Fisher metric and its contractions against central differences."""

import pickle

import numpy as np
import pytest

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.elliptic import model as model_module
from leapwise.problems.elliptic.solver import SolveError

RNG = np.random.default_rng(9)
POSITIONS = 0.5 * RNG.standard_normal((2, 20))
VELOCITIES = RNG.standard_normal((2, 20))


def metric_derivative(metric, x: np.ndarray, step: float) -> np.ndarray:
    """Return d_i G as ``(i, n, dim, dim)``."""
    shifts = step * np.eye(x.shape[1])
    return np.stack([(metric.at(x + s).matrix - metric.at(x - s).matrix) / (2 * step) for s in shifts])


def assert_contractions(metric, x, velocity, step, tolerance):
    local = metric.at(x)
    derivative = metric_derivative(metric, x, step)
    nu = np.einsum("nj,injk,nk->ni", velocity, derivative, velocity)
    tau = np.einsum("njk,inkj->ni", np.linalg.inv(local.matrix), derivative)
    assert np.abs(local.quadratic_contraction(velocity) - nu).max() < tolerance * np.abs(nu).max()
    assert np.abs(local.trace_contraction() - tau).max() < tolerance * np.abs(tau).max()


@pytest.fixture(scope="module")
def problem():
    return elliptic_pde(n=30)


def test_it_is_a_metric(problem):
    assert isinstance(problem.metric, RiemannianMetric)


def test_matrix_is_the_fisher_information(problem):
    step, forward = 1e-5, problem.model.forward
    jacobian = np.stack(
        [(forward(POSITIONS + s) - forward(POSITIONS - s)) / (2 * step) for s in step * np.eye(20)], axis=2
    )
    expected = np.swapaxes(jacobian, 1, 2) @ jacobian / 0.1**2 + np.eye(20) / 0.5**2
    local = problem.metric.at(POSITIONS)
    np.testing.assert_allclose(local.matrix, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(local.cholesky @ np.swapaxes(local.cholesky, 1, 2), local.matrix, atol=1e-10)


@pytest.mark.parametrize("n", [30, 65])
def test_contractions_are_those_of_the_derivative(n):
    assert_contractions(elliptic_pde(n).metric, POSITIONS[:1], VELOCITIES[:1], 1e-4, 1e-5)


def test_contractions_where_the_field_is_held_at_its_limits(monkeypatch):
    monkeypatch.setattr(model_module, "MAX_LOG_DIFFUSIVITY", 0.4)
    assert_contractions(elliptic_pde(10).metric, POSITIONS[:1], VELOCITIES[:1], 1e-6, 1e-5)


def test_a_batch_is_its_rows(problem):
    batch = problem.metric.at(POSITIONS)
    for i in range(len(POSITIONS)):
        row = problem.metric.at(POSITIONS[[i]])
        np.testing.assert_array_equal(row.matrix[0], batch.matrix[i])
        np.testing.assert_array_equal(
            row.quadratic_contraction(VELOCITIES[[i]])[0], batch.quadratic_contraction(VELOCITIES)[i]
        )
        np.testing.assert_array_equal(row.trace_contraction()[0], batch.trace_contraction()[i])


def test_quadratic_contraction_costs_one_solve_and_the_trace_is_found_once(problem, monkeypatch):
    local = problem.metric.at(POSITIONS[:1])
    sizes = []
    kind = type(local._tangents[0].state.solution)
    respond = kind.respond

    def counting(self, loads):
        sizes.append(loads[..., 0, 0].size)
        return respond(self, loads)

    monkeypatch.setattr(kind, "respond", counting)
    local.quadratic_contraction(VELOCITIES[:1])
    assert sizes == [1]
    local.trace_contraction()
    local.trace_contraction()
    assert sizes == [1, 20]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_position_that_is_not_finite_is_nan_in_its_row_only(problem, bad):
    rows = POSITIONS.copy()
    rows[0, 3] = bad
    assert_only_first_row_is_nan(problem.metric.at(rows))


def test_a_failing_solve_is_nan_in_its_row_only(problem, monkeypatch):
    solve, calls = problem.model.solver.solve, []

    def failing_first(diffusivity):
        calls.append(1)
        if len(calls) == 1:
            raise SolveError("no")
        return solve(diffusivity)

    monkeypatch.setattr(problem.model.solver, "solve", failing_first)
    assert_only_first_row_is_nan(problem.metric.at(POSITIONS))


def assert_only_first_row_is_nan(local):
    pivots = np.diagonal(local.cholesky, axis1=1, axis2=2)
    for values in (pivots, local.quadratic_contraction(VELOCITIES), local.trace_contraction()):
        assert np.isnan(values[0]).all()
        assert np.isfinite(values[1]).all()


def test_far_out_positions_and_velocities_do_not_crash(problem):
    local = problem.metric.at(1e4 * RNG.standard_normal((3, 20)))
    assert np.isfinite(local.cholesky).all()
    assert np.isfinite(local.trace_contraction()).all()
    local.quadratic_contraction(np.full((3, 20), 1e200))


def test_it_travels_to_other_processes(problem):
    problem.metric.at(POSITIONS).trace_contraction()
    copy = pickle.loads(pickle.dumps(problem.metric))
    np.testing.assert_array_equal(copy.at(POSITIONS).matrix, problem.metric.at(POSITIONS).matrix)
