"""Descents from bad starts, the curvature at their ends, and posteriors without an end."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, State, Streams, Target
from leapwise.adaptation.initialise import find
from leapwise.adaptation.minimise import (
    DifferenceGradient,
    ExactGradient,
    LocalMinimum,
    lower_factor,
    measure_curvature,
    minimise,
)
from leapwise.adaptation.record import EvaluationRecord
from leapwise.errors import BudgetError, ImproperError
from leapwise.surrogates import Whitening
from leapwise.warmup.start import find_start


def valley(x):
    """A regression's potential along its log-noise: exponentially steep on one side, linear on the other."""
    return -(np.exp(-2.0 * x[0]) * (1.0 + x[1] ** 2) * 1e4 + 50.0 * x[0])


def valley_gradient(x):
    steep = np.exp(-2.0 * x[0]) * 1e4
    return np.array([2.0 * steep * (1.0 + x[1] ** 2) - 50.0, -2.0 * steep * x[1]])


def half(x):
    """No mass left of zero, and a mode next to it."""
    return 2.0 * np.log(x[0]) - 3.0 * x[0] - 0.5 * x[1] ** 2 if x[0] > 0 else -np.inf


def half_gradient(x):
    return np.array([2.0 / x[0] - 3.0, -x[1]]) if x[0] > 0 else np.zeros(2)


CASES = {
    "exponential": (valley, valley_gradient, [-15.0, 3.0], [0.5 * np.log(400.0), 0.0]),
    "edge": (half, half_gradient, [40.0, -30.0], [2.0 / 3.0, 0.0]),
    "round": (lambda x: -0.5 * x @ x, lambda x: -x, [1e6, -1e6], [0.0, 0.0]),
}


def descend(name, gradient, calls=200, **settings):
    log_density, slope, start, _ = CASES[name]
    target = Target(log_density, slope if gradient else None, dim=2)
    record = EvaluationRecord(Evaluator(target), gradient)
    first = State.from_evaluation(record.evaluate(np.array([start])))
    frame = Whitening(np.zeros(2), np.eye(2))
    way = (
        ExactGradient(record) if gradient else DifferenceGradient(record, frame, 1e-4 * (1.0 + np.abs(start)))
    )
    return record, minimise(way, first, frame, calls, **settings)


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
def test_down_an_exponential_it_falls_by_fifteen_orders_of_magnitude(gradient):
    """It may end too soon in the bent valley below; measuring the curvature there shows it, and `find` goes on."""
    record, found = descend("exponential", gradient)
    assert record.evaluations[0].potential[0] > 1e17 and found.potential < 1e3
    assert len(record) < (100 if gradient else 300)


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
@pytest.mark.parametrize("name", ["edge", "round"])
def test_it_ends_at_the_mode(name, gradient):
    record, found = descend(name, gradient)
    assert found.converged and np.allclose(found.position, CASES[name][3], atol=0.3)
    assert len(record) < (100 if gradient else 300)


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_evaluated_twice(name, gradient):
    record, _ = descend(name, gradient)
    position = np.concatenate([each.position for each in record.evaluations])
    assert len(np.unique(position, axis=0)) == len(position)


def test_it_stops_where_it_is_low_enough_and_when_calls_are_spent():
    record, found = descend("exponential", True, enough=1e6)
    assert found.potential <= 1e6 and not found.converged
    assert len(record) < 60
    record, _ = descend("exponential", True, calls=5)
    assert len(record) <= 6  # and where it began


def test_the_first_step_in_a_frame_of_the_right_scale_is_newtons():
    scales = np.array([1e-6, 1.0, 1e6])
    target = Target(lambda x: -0.5 * np.sum((x / scales) ** 2), lambda x: -x / scales**2, dim=3)
    record = EvaluationRecord(Evaluator(target), True)
    first = State.from_evaluation(record.evaluate(np.array([[3.0, -40.0, 5e7]])))
    found = minimise(ExactGradient(record), first, Whitening(np.zeros(3), np.diag(scales)), 50, scaled=True)
    assert len(record) == 2 and found.converged and found.potential < 1e-6


def test_every_new_position_is_checked():
    seen = []
    descend("round", True, check=seen.append)
    assert seen and np.allclose(seen[-1], 0.0, atol=0.3)


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


SCALES = 10.0 ** np.linspace(-5, 4, 8)


def search(log_density, gradient, dim, limit=400, init=None, **settings):
    """Find the typical set; return the record and the start."""
    target = Target(log_density, gradient, dim=dim, **settings)
    evaluator, streams = Evaluator(target, limit=limit), Streams(1, 4)
    record = EvaluationRecord(evaluator, target.has_gradient)
    return record, find(record, find_start(evaluator, streams, init, target.has_gradient), streams.shared)


@pytest.mark.parametrize("init", [None, np.zeros(8), SCALES], ids=["random", "mode", "typical"])
def test_values_alone_find_scales_over_nine_decades(init):
    _, found = search(lambda x: -0.5 * np.square(x / SCALES).sum(), None, 8, limit=700, init=init)
    width = np.sqrt(np.diag(found.frame.factor @ found.frame.factor.T)) / SCALES
    assert (width > 0.02).all() and (width < 20.0).all()


@pytest.mark.parametrize("given", [True, False], ids=["gradients", "values"])
class TestImproper:
    def test_a_flat_direction_is_named(self, given):
        with pytest.raises(ImproperError, match=r"does not fall off along \+x\[1\]") as caught:
            search(
                lambda x: -(x[0] ** 2), (lambda x: np.array([-2 * x[0], 0.0])) if given else None, 2, limit=60
            )
        assert "improper; give x[1] a prior or bounds=, or rescale" in str(caught.value)

    @pytest.mark.parametrize("power", [1, 2])
    def test_a_log_density_that_rises_without_end(self, power, given):
        def log_density(x):
            return np.abs(x[0]) ** power - 0.5 * x[1] ** 2

        def gradient(x):
            return np.array([power * np.sign(x[0]) * np.abs(x[0]) ** (power - 1), -x[1]])

        with pytest.raises(ImproperError, match=r"goes on rising along [+-]tilt, as far"):
            search(log_density, gradient if given else None, 2, names=["tilt", "other"])

    def test_few_evaluations_are_no_sign_of_it(self, given):
        with pytest.raises(BudgetError):
            search(
                lambda x: x[0] - x[1] ** 2,
                (lambda x: np.array([1.0, -2 * x[1]])) if given else None,
                2,
                limit=15,
            )

    @pytest.mark.parametrize("far", [1e3, 1e6])
    def test_far_away_or_wide_is_not_improper(self, far, given):
        search(
            lambda x: -0.5 * ((x[0] - far) ** 2 + (x[1] / far) ** 2),
            (lambda x: np.array([far - x[0], -x[1] / far**2])) if given else None,
            2,
        )


def test_a_flat_direction_across_the_axes_is_named():
    with pytest.raises(ImproperError, match=r"along [+-]x\[0\], [+-]x\[1\]"):
        search(lambda x: -((x[0] + x[1]) ** 2), lambda x: np.full(2, -2 * x.sum()), 2)


@pytest.mark.parametrize(
    ("log_density", "gradient"),
    [
        (lambda x: 0.0 if x @ x < 1 else -np.inf, np.zeros_like),
        (lambda x: -x.sum() if (x > 0).all() else -np.inf, lambda x: -np.ones(2)),
        (lambda x: -np.abs(x).sum(), lambda x: -np.sign(x)),
    ],
    ids=["disc", "exponential", "laplace"],
)
def test_where_gradients_tell_no_curvature_the_frame_is_as_wide_as_the_steps(log_density, gradient):
    _, found = search(log_density, gradient, 2)
    assert (np.abs(found.frame.factor) < 1e4).all() and (np.diag(found.frame.factor) > 1e-4).all()
