"""The posterior of the inverse problem: values, adjoint gradient, data, bad input; its Fisher metric."""

import os
import pickle

import numpy as np
import pytest

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.elliptic import model as model_module
from leapwise.problems.elliptic import problem as problem_module
from leapwise.problems.elliptic.model import EllipticModel
from leapwise.problems.elliptic.solver import SolveError
from leapwise.targets import ForwardTarget

POSITIONS = 0.5 * np.random.default_rng(7).standard_normal((3, 20))
VELOCITIES = np.random.default_rng(9).standard_normal((3, 20))


@pytest.fixture(scope="module")
def problem():
    return elliptic_pde()


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("n", [13, 30, 66])
def test_gradient_is_that_of_the_value(n, central_differences):
    target, x = elliptic_pde(n).target, POSITIONS[:1]
    slope = central_differences(lambda q: target.evaluate(q, gradient=False).log_density, x)
    assert relative_error(target.evaluate(x, gradient=True).gradient, slope) < 1e-6


def test_gradient_where_the_field_is_held_at_its_limits(monkeypatch, central_differences):
    monkeypatch.setattr(model_module, "MAX_LOG_DIFFUSIVITY", 0.4)
    target, x = elliptic_pde(10).target, POSITIONS[:1]
    slope = central_differences(lambda q: target.evaluate(q, gradient=False).log_density, x, 1e-6)
    assert relative_error(target.evaluate(x, gradient=True).gradient, slope) < 1e-6
    free = elliptic_pde(10)
    monkeypatch.undo()
    assert relative_error(free.target.evaluate(x, gradient=True).gradient, slope) > 1e-3


def test_value_and_gradient_share_their_outputs(problem):
    alone, both = (problem.target.evaluate(POSITIONS, gradient=g) for g in (False, True))
    np.testing.assert_array_equal(alone.outputs, both.outputs)
    np.testing.assert_array_equal(alone.log_density, both.log_density)


def test_a_batch_is_its_rows(problem):
    batch = problem.target.evaluate(POSITIONS, gradient=True)
    for i in range(len(POSITIONS)):
        row = problem.target.evaluate(POSITIONS[[i]], gradient=True)
        np.testing.assert_array_equal(row.outputs[0], batch.outputs[i])
        np.testing.assert_array_equal(row.gradient[0], batch.gradient[i])


def test_rows_whose_factorisation_was_not_kept_are_solved_again(problem, monkeypatch):
    expected = problem.target.evaluate(POSITIONS, gradient=True).gradient
    monkeypatch.setattr(problem.model, "_n_kept", 1)
    np.testing.assert_array_equal(problem.target.evaluate(POSITIONS, gradient=True).gradient, expected)


def test_outputs_are_pressures_with_x2_fastest(problem):
    outputs = problem.model.forward(POSITIONS[:1])[0].reshape(11, 11)
    np.testing.assert_allclose(outputs[:, 0], np.linspace(0, 1, 11), atol=1e-15)
    np.testing.assert_allclose(outputs[:, -1], np.linspace(1, 0, 11), atol=1e-15)
    # With a constant diffusivity, turning the square by 180 degrees changes nothing.
    flat = problem.model.forward(np.zeros((1, 20)))[0]
    np.testing.assert_allclose(flat, flat[::-1], atol=1e-13)


def test_no_rows_no_outputs(problem):
    outputs, pull_back = problem.model.vjp(np.empty((0, 20)))
    assert problem.model.forward(np.empty((0, 20))).shape == outputs.shape == (0, 121)
    assert pull_back(outputs).shape == (0, 20)


@pytest.mark.parametrize("scale", [1e2, 1e3, 1e6, 1e150, 1e300])
def test_far_out_positions_are_finite(problem, scale):
    far = scale * np.random.default_rng(8).standard_normal((10, 20))
    outputs, pull_back = problem.model.vjp(far)
    assert np.isfinite(outputs).all()
    assert np.isfinite(pull_back(np.ones_like(outputs))).all()
    if scale < 1e150:
        result = Evaluator(problem.target).value_and_gradient(far)
        assert np.isfinite(result.potential).all()


def test_outputs_that_cannot_be_solved_are_nan_in_their_row_only(problem):
    rows = POSITIONS.copy()
    rows[1, 0] = np.nan
    outputs, pull_back = problem.model.vjp(rows)
    gradient = pull_back(np.ones_like(outputs))
    np.testing.assert_array_equal(np.isnan(outputs).all(axis=1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(gradient).all(axis=1), [False, True, False])
    assert np.isfinite(outputs[[0, 2]]).all()


def test_simulated_data_are_the_same_on_every_mesh_and_fit_the_truth(problem):
    coarse = elliptic_pde(n=12)
    np.testing.assert_array_equal(problem.target.likelihood.data, coarse.target.likelihood.data)
    np.testing.assert_array_equal(problem.true_parameters, coarse.true_parameters)
    residual = problem.model.forward(problem.true_parameters[None])[0] - problem.target.likelihood.data
    # 121 standard normals: a sum of squares outside (65, 195) has a chance of 3e-5 (and the seed is fixed).
    assert 65 < np.sum((residual / 0.1) ** 2) < 195


def test_it_is_the_problem_of_the_paper(problem):
    assert isinstance(problem.target, ForwardTarget)
    assert problem.target.names == "theta"
    assert problem.target.dim == 20
    assert problem.settings == {"hmc": (0.16, 10), "rmhmc": (0.8, 3)}
    np.testing.assert_array_equal(problem.target.prior.sd, 0.5)
    np.testing.assert_array_equal(problem.target.likelihood.sd, 0.1)


def test_it_can_be_pickled(problem):
    copy = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(
        copy.target.evaluate(POSITIONS, gradient=True).gradient,
        problem.target.evaluate(POSITIONS, gradient=True).gradient,
    )


def test_observations_of_the_paper_come_from_its_file(monkeypatch):
    asked, y = [], np.linspace(0, 1, 121)
    monkeypatch.setattr(problem_module, "load_mat", lambda name: asked.append(name) or {"y": y[:, None]})
    problem = elliptic_pde(10, observations="paper")
    assert asked == ["elliptic_pde.mat"]
    np.testing.assert_array_equal(problem.target.likelihood.data, y)
    assert problem.true_parameters is None


@pytest.mark.skipif("LEAPWISE_DATA" not in os.environ, reason="LEAPWISE_DATA names no folder of data")
def test_the_authors_observations_are_in_our_order():
    problem = elliptic_pde(observations="paper")
    # A flat field already explains them to about the noise, and less well with x1 and x2 swapped.
    flat = problem.model.forward(np.zeros((1, 20)))[0].reshape(11, 11)
    data = problem.target.likelihood.data.reshape(11, 11)
    assert np.std(data - flat) < 0.95 * np.std(data - flat.T) < 0.1


def test_other_numbers_of_modes():
    problem = elliptic_pde(n=10, n_modes=5)
    assert problem.target.evaluate(np.zeros((2, 5)), gradient=True).gradient.shape == (2, 5)
    np.testing.assert_array_equal(problem.true_parameters, elliptic_pde(n=10).true_parameters[:5])


@pytest.mark.parametrize("n", [9, 501, -30, 30.0, True, "30", None])
def test_bad_mesh(n):
    with pytest.raises(InputError, match="n must be a whole number from 10 to 500"):
        elliptic_pde(n)


def test_bad_observations():
    with pytest.raises(InputError, match="observations must be 'simulated' or 'paper', got 'real'"):
        elliptic_pde(observations="real")


def test_model_reports_its_sizes(problem):
    assert (problem.model.dim, problem.model.n_outputs) == (20, 121)
    assert EllipticModel(10, problem.model.modes, n_observed=6).forward(POSITIONS).shape == (3, 36)


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


def test_the_metric_is_riemannian(problem):
    assert isinstance(problem.metric, RiemannianMetric)


def test_the_metric_is_the_fisher_information(problem):
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


def test_the_metric_of_a_batch_is_that_of_its_rows(problem):
    batch = problem.metric.at(POSITIONS)
    for i in range(len(POSITIONS)):
        row = problem.metric.at(POSITIONS[[i]])
        np.testing.assert_array_equal(row.matrix[0], batch.matrix[i])
        np.testing.assert_array_equal(
            row.quadratic_contraction(VELOCITIES[[i]])[0], batch.quadratic_contraction(VELOCITIES)[i]
        )
        np.testing.assert_array_equal(row.trace_contraction()[0], batch.trace_contraction()[i])


def test_quadratic_contraction_costs_one_solve_and_the_trace_is_computed_once(problem, monkeypatch):
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
        assert np.isfinite(values[1:]).all()


def test_far_out_metrics_are_finite(problem):
    local = problem.metric.at(1e4 * np.random.default_rng(10).standard_normal((3, 20)))
    assert np.isfinite(local.cholesky).all()
    assert np.isfinite(local.trace_contraction()).all()
    local.quadratic_contraction(np.full((3, 20), 1e200))


def test_the_metric_can_be_pickled(problem):
    problem.metric.at(POSITIONS).trace_contraction()
    copy = pickle.loads(pickle.dumps(problem.metric))
    np.testing.assert_array_equal(copy.at(POSITIONS).matrix, problem.metric.at(POSITIONS).matrix)
