"""FitzHugh-Nagumo: the solution against SciPy's, exact derivatives, batches, the posterior, diverged solutions."""

from __future__ import annotations

import importlib
import pickle

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

from leapwise.execution import Evaluator
from leapwise.problems import fitzhugh_nagumo
from leapwise.targets import ForwardTarget

module = importlib.import_module("leapwise.problems.fitzhugh_nagumo")


@pytest.fixture(scope="module")
def problem():
    return fitzhugh_nagumo()


@pytest.fixture
def positions(problem, rng):
    """Draws of the prior, far wider than the posterior."""
    return np.stack([problem.target.sample_start(rng) for _ in range(5)])


def accurate(theta):
    """Solve by SciPy, with tolerances far below the error of a step."""
    a, b, c = np.exp(theta[:3])

    def slope(t, y):
        V, R = y
        return [c * (V - V**3 / 3 + R + theta[3]), -(V - a + b * R) / c]

    return solve_ivp(slope, (0, 10), theta[4:], "DOP853", module.TIMES, rtol=1e-11, atol=1e-12).y.ravel()


def test_the_solution_is_scipys_and_converges_with_order_four(problem, monkeypatch):
    theta = problem.true_parameters
    exact = accurate(theta)
    errors = []
    for steps in (5, 10, 20):
        monkeypatch.setattr(module, "_STEPS_BETWEEN", steps)
        monkeypatch.setattr(module, "_STEP", 0.25 / steps)
        errors.append(np.abs(module.solve(theta[None])[0] - exact).max())
    assert errors[0] < 1e-3
    slopes = np.diff(np.log2(errors))
    np.testing.assert_allclose(slopes, -4.0, atol=0.3)


def test_the_jacobian_is_that_of_the_numerical_solution(positions):
    outputs, jacobian = module.solve_with_jacobian(positions)
    np.testing.assert_array_equal(outputs, module.solve(positions))
    step = 1e-6
    for i, each in enumerate(np.eye(6)):
        difference = (module.solve(positions + step * each) - module.solve(positions - step * each)) / (
            2 * step
        )
        scale = np.abs(difference).max()
        np.testing.assert_allclose(jacobian[:, :, i], difference, atol=1e-7 * scale)


def test_the_gradient_is_that_of_the_value(problem, positions, central_differences):
    target = problem.target
    slope = central_differences(lambda x: target.evaluate(x, gradient=False).log_density, positions, 1e-6)
    found = target.evaluate(positions, gradient=True).gradient
    np.testing.assert_allclose(found, slope, atol=1e-7 * np.abs(slope).max())


def test_a_batch_is_its_rows(positions):
    outputs, jacobian = module.solve_with_jacobian(positions)
    for i in range(len(positions)):
        alone = module.solve_with_jacobian(positions[[i]])
        np.testing.assert_array_equal(alone[0][0], outputs[i])
        np.testing.assert_array_equal(alone[1][0], jacobian[i])
    assert module.solve(positions[:0]).shape == (0, 80)
    assert module.solve_with_jacobian(positions[:0])[1].shape == (0, 80, 6)


def test_the_data_fit_the_truth_and_are_fixed(problem):
    assert isinstance(problem.target, ForwardTarget)
    data = problem.target.likelihood.data
    np.testing.assert_array_equal(data, fitzhugh_nagumo().target.likelihood.data)
    residual = (module.solve(problem.true_parameters[None])[0] - data) / module.NOISE_SD
    # 80 standard normals: a sum of squares outside (37, 143) has a chance of 3e-5 (and the seed is fixed).
    assert 37 < np.sum(residual**2) < 143
    # It spikes: the potential goes up and comes back.
    assert data[:40].max() > 1.5 and data[:40].min() < -1.5


def test_descents_from_the_prior_all_find_one_mode(problem, rng):
    target = problem.target

    def residuals(theta):
        misfit = (target.forward(theta[None])[0] - target.likelihood.data) / module.NOISE_SD
        return np.concatenate([misfit, (theta - target.prior.mean) / target.prior.sd])

    def jacobian(theta):
        slope = module.solve_with_jacobian(theta[None])[1][0] / module.NOISE_SD
        return np.concatenate([slope, np.diag(1 / target.prior.sd)])

    ends = [least_squares(residuals, target.sample_start(rng), jacobian).x for _ in range(12)]
    np.testing.assert_allclose(ends, np.broadcast_to(ends[0], (12, 6)), atol=1e-3)


@pytest.mark.parametrize("scale", [1e1, 1e3, 1e150, 1e300])
def test_diverged_solutions_are_far_from_all_mass(problem, scale, rng):
    far = scale * rng.standard_normal((10, 6))
    far[0] = 0.0
    outputs, jacobian = module.solve_with_jacobian(far)
    assert np.isfinite(outputs).all() and np.isfinite(jacobian).all()
    diverged = (outputs == module.LARGEST).any(axis=1)
    assert diverged.any() and not diverged[0]
    result = Evaluator(problem.target).value_and_gradient(far)
    assert (result.potential[diverged] > 1e12).all()


def test_it_can_be_pickled(problem, positions):
    copy = pickle.loads(pickle.dumps(problem))
    np.testing.assert_array_equal(
        copy.target.evaluate(positions, gradient=True).gradient,
        problem.target.evaluate(positions, gradient=True).gradient,
    )
