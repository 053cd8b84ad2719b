"""The curvature at the end of a descent, whatever the scales and correlations, from gradients or from values."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, State, Target
from leapwise.adaptation.minimise import LocalMinimum, lower_factor, measure_curvature
from leapwise.adaptation.record import EvaluationRecord


def at(covariance, place, gradient, axes):
    """Measure at a place of a normal distribution."""
    precision = np.linalg.inv(covariance)
    target = Target(
        lambda x: -0.5 * x @ precision @ x, (lambda x: -precision @ x) if gradient else None, dim=len(axes)
    )
    record = EvaluationRecord(Evaluator(target), gradient)
    found = State.from_evaluation(record.evaluate(np.array([place], dtype=float)))
    slope = np.zeros(len(axes)) if found.gradient is None else found.gradient[0]
    low = LocalMinimum(found.position[0], float(found.potential[0]), slope, np.eye(len(axes)), True)
    return record, measure_curvature(record, low, axes)


def correlated(rho):
    return np.array([[1.0, rho, 0.0], [rho, 1.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
@pytest.mark.parametrize("rho", [0.0, 0.9, 0.9999, 1.0 - 1e-7])
@pytest.mark.parametrize("scales", [[1.0, 1.0, 1.0], [1e-3, 1e3, 1.0]])
def test_the_frame_is_the_covariance_of_a_normal(rho, scales, gradient):
    covariance = correlated(rho) * np.outer(scales, scales)
    _, found = at(covariance, np.zeros(3), gradient, np.eye(3))
    white = found.frame.inverse @ covariance @ found.frame.inverse.T
    assert np.allclose(np.linalg.eigvalsh(white), 1.0, rtol=0.05)
    assert found.falls < 1e-3


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
def test_it_measures_how_far_there_is_to_fall(gradient):
    """Also where the potential is all but a straight line as far as the first steps go."""
    covariance = correlated(0.999) * 100.0
    place = np.array([1e3, -2e3, 500.0])
    _, found = at(covariance, place, gradient, 1e-3 * np.eye(3))
    assert np.isclose(found.falls, 0.5 * place @ np.linalg.solve(covariance, place), rtol=0.05)


def test_axes_that_are_right_cost_one_gradient_each_or_as_many_values_as_a_quadratic_has_coefficients():
    record, _ = at(np.eye(3), np.zeros(3), True, np.eye(3))
    assert len(record) == 1 + 3
    record, _ = at(np.eye(3), np.zeros(3), False, np.eye(3))
    assert len(record) == 10


def test_axes_that_all_point_the_same_way_are_told_apart():
    """As those of a descent are that has followed one steep direction only."""
    covariance = np.diag([1e4, 1e2, 1e-4])
    axes = np.array([[1e-6, 0.0, 0.0], [0.0, 1e-6, 0.0], [0.01, 0.01, 0.01]])
    for gradient in (True, False):
        _, found = at(covariance, np.zeros(3), gradient, axes)
        white = found.frame.inverse @ covariance @ found.frame.inverse.T
        assert np.allclose(np.linalg.eigvalsh(white), 1.0, rtol=0.1)


def test_the_lower_factor_squares_no_scales(rng):
    axes = np.diag([1e-9, 1.0, 1e9]) @ rng.standard_normal((3, 3))
    factor = lower_factor(axes)
    assert np.allclose(factor, np.tril(factor)) and (np.diag(factor) > 0).all()
    assert np.allclose((factor @ factor.T) / (axes @ axes.T), 1.0)
