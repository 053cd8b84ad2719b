"""Bounds mapped away: round trips, Jacobians, gradients, extremes, and every way to write bounds."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.targets import Transform

INF = np.inf
KINDS = {
    "none": [(None, None)] * 4,
    "lower": [(-1.5, None)] * 4,
    "upper": [(None, 2.5)] * 4,
    "both": [(-1.0, 3.0)] * 4,
    "narrow and wide": [(0.0, 1e-6), (-1e6, 1e6), (5.0, None), (None, -5.0)],
    "mixture": [(0.0, None), (None, None), (-2.0, 0.0), (None, 7.0)],
}
EXTREMES = np.array([-1e6, -800.0, -300.0, -40.0, 0.0, 40.0, 300.0, 800.0, 1e6])


@pytest.fixture(params=KINDS, ids=list(KINDS))
def transform(request):
    return Transform.from_bounds(KINDS[request.param], 4)


def skewed(x):
    """Some log-density whose gradient is not symmetric about anything."""
    return np.sin(x).sum(axis=1) - 0.1 * (x**2).sum(axis=1) + 0.3 * x[:, 0] * x[:, 3]


def skewed_gradient(x):
    slope = np.cos(x) - 0.2 * x
    slope[:, 0] += 0.3 * x[:, 3]
    slope[:, 3] += 0.3 * x[:, 0]
    return slope


def test_positions_survive_the_round_trip(transform, rng):
    position = rng.uniform(-8, 8, size=(50, 4))
    back = transform.to_position(transform.to_parameters(position))
    # Near a bound of size s the parameter is rounded to s * 1e-16, which is what the position can lose.
    np.testing.assert_allclose(back, position, atol=1e-10)


def test_parameters_survive_the_round_trip(transform, rng):
    parameters = transform.to_parameters(rng.normal(size=(50, 4)))
    assert transform.contains(parameters).all()
    back = transform.to_parameters(transform.to_position(parameters))
    np.testing.assert_allclose(back, parameters, rtol=1e-12, atol=1e-15)


def test_log_jacobian_is_that_of_the_map(transform, rng):
    position, h = rng.uniform(-4, 4, size=(50, 4)), 1e-5
    slope = (transform.to_parameters(position + h) - transform.to_parameters(position - h)) / (2 * h)
    expected = np.log(np.abs(slope)).sum(axis=1)
    np.testing.assert_allclose(transform.log_jacobian(position), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "narrow and wide"])
def test_pull_back_is_the_gradient_in_positions(kind, rng, central_differences):
    transform = Transform.from_bounds(KINDS[kind], 4)

    def in_positions(position):
        return skewed(transform.to_parameters(position)) + transform.log_jacobian(position)

    position = rng.uniform(-2, 2, size=(30, 4))
    pulled = transform.pull_back(position, skewed_gradient(transform.to_parameters(position)))
    np.testing.assert_allclose(pulled, central_differences(in_positions, position), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("gradient", [0.0, 1.0, -1e200])
def test_extreme_positions_are_quiet(transform, gradient):
    position = np.tile(EXTREMES[:, None], 4)
    with np.errstate(all="raise"):
        parameters = transform.to_parameters(position)
        inside = transform.contains(parameters)
        log_jacobian = transform.log_jacobian(position)
        transform.pull_back(position, np.full_like(position, gradient))
    strictly = np.isfinite(parameters) & (parameters > transform.lower) & (parameters < transform.upper)
    np.testing.assert_array_equal(inside, strictly.all(axis=1))
    assert np.isfinite(log_jacobian).all()
    assert inside[EXTREMES == 0].all()


def test_extreme_positions_never_leave_the_bounds(transform):
    parameters = transform.to_parameters(np.tile(EXTREMES[:, None], 4))
    assert (parameters >= transform.lower).all()
    assert (parameters <= transform.upper).all()


def test_both_ends_are_resolved_alike():
    """A bound at zero can be approached down to the smallest numbers, whichever side it is on."""
    far = np.array([[-300.0], [300.0]])
    for bounds, row, expected in (((0, 1), 0, np.exp(-300.0)), ((-1, 0), 1, -np.exp(-300.0))):
        transform = Transform.from_bounds(bounds, 1)
        parameters = transform.to_parameters(far)
        assert parameters[row, 0] == pytest.approx(expected, rel=1e-12)
        assert transform.contains(parameters)[row]
        np.testing.assert_allclose(transform.to_position(parameters[[row]]), far[[row]], rtol=1e-13)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([0.5, 0.5], True),
        ([0.0, 0.5], False),
        ([1.0, 0.5], False),
        ([0.5, -3.0], True),
        ([-0.1, 0.5], False),
        ([0.5, np.nan], False),
        ([np.nan, 0.5], False),
        ([0.5, INF], False),
        ([0.5, -INF], False),
    ],
)
def test_contains_is_strict_and_finite(parameters, expected):
    transform = Transform.from_bounds([(0, 1), (None, None)], 2)
    assert transform.contains(np.array([parameters, [0.5, 0.5]])).tolist() == [expected, True]


def test_what_comes_back_is_never_what_went_in(transform):
    position = np.full((2, 4), 0.1)
    for result in (
        transform.to_parameters(position),
        transform.to_position(transform.to_parameters(position)),
        transform.pull_back(position, position),
    ):
        assert not np.shares_memory(result, position)
    np.testing.assert_array_equal(position, 0.1)


def test_no_rows():
    transform = Transform.from_bounds(KINDS["mixture"], 4)
    nothing = np.empty((0, 4))
    assert transform.to_parameters(nothing).shape == transform.pull_back(nothing, nothing).shape == (0, 4)
    assert transform.contains(nothing).shape == transform.log_jacobian(nothing).shape == (0,)


@pytest.mark.parametrize(
    ("bounds", "lower", "upper"),
    [
        (None, [-INF, -INF], [INF, INF]),
        ((0, 1), [0, 0], [1, 1]),
        ([0, 1], [0, 0], [1, 1]),
        (np.array([0, 1]), [0, 0], [1, 1]),
        ((np.float32(0), np.array(1.0)), [0, 0], [1, 1]),
        ((0, None), [0, 0], [INF, INF]),
        ((None, None), [-INF, -INF], [INF, INF]),
        ((-INF, 3), [-INF, -INF], [3, 3]),
        ([(0, 1), (2, 3)], [0, 2], [1, 3]),
        (((0, 1), (2, 3)), [0, 2], [1, 3]),
        (np.array([[0, 1], [2, 3]]), [0, 2], [1, 3]),
        ([np.array([0, 1]), (2, INF)], [0, 2], [1, INF]),
        ([(None, 1), (2, None)], [-INF, 2], [1, INF]),
        ([None, (2, None)], [-INF, 2], [INF, INF]),
        ([(0, 1), None], [0, -INF], [1, INF]),
    ],
)
def test_ways_to_write_the_bounds_of_two_parameters(bounds, lower, upper):
    transform = Transform.from_bounds(bounds, 2)
    np.testing.assert_array_equal(transform.lower, lower)
    np.testing.assert_array_equal(transform.upper, upper)
    assert transform.is_identity == np.isinf([lower, upper]).all()


@pytest.mark.parametrize("bounds", [(0, 1), [(0, 1)], [[0, 1]], np.array([[0.0, 1.0]])])
def test_ways_to_write_the_bounds_of_one_parameter(bounds):
    transform = Transform.from_bounds(bounds, 1)
    assert (transform.lower.tolist(), transform.upper.tolist()) == ([0.0], [1.0])


def test_bounds_are_copied():
    bounds = np.array([[0.0, 1.0], [2.0, 3.0]])
    transform = Transform.from_bounds(bounds, 2)
    bounds[:] = 9.0
    assert transform.upper.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((1, 0), "lower < upper"),
        ((1, 1), "lower < upper"),
        ((np.nan, 1), "lower < upper"),
        ((0, np.nan), "lower < upper"),
        ((INF, None), "lower < upper"),
        ((None, -INF), "lower < upper"),
        ([(0, 1), (5, 2), (0, 1)], "parameter 1"),
        ([(0, 1), (0, 1)], "got 2"),
        ([], "got 0"),
        ([(0, 1)] * 4, "each of the 3 parameters"),
        ([(0, 1, 2)] * 3, "one such pair per parameter"),
        ([0, 1, 2], "one such pair per parameter"),
        ([(0, 1), (0,), (0, 1)], "one such pair per parameter"),
        (5.0, "one such pair per parameter"),
        ("01", "one such pair per parameter"),
        (("0", "1"), "one such pair per parameter"),
        (["01", "01", "01"], "one such pair per parameter"),
        ((0j, 1j), "one such pair per parameter"),
        ({"a": (0, 1), "b": (0, 1)}, "one such pair per parameter"),
        ((1.0, np.nextafter(1.0, 2.0)), "too close together"),
        ((-1.7e308, 1.7e308), "too far apart"),
    ],
)
def test_bad_bounds(bounds, words):
    with pytest.raises(InputError, match=words):
        Transform.from_bounds(bounds, 3)
