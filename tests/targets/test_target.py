"""Target: every way to give the gradient, what may come back, how often the functions are called."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, Target
from leapwise.errors import InputError

DIM = 3
BOUNDS = [(None, None), (0, None), (-2, 5)]


def value(x):
    """A skewed log-density of one point or of rows."""
    return -(np.exp(x) - 1.5 * x).sum(axis=-1) + 0.1 * x[..., 0] * x[..., 2]


def slope(x):
    gradient = 1.5 - np.exp(x)
    gradient[..., 0] += 0.1 * x[..., 2]
    gradient[..., 2] += 0.1 * x[..., 0]
    return gradient


def both(x):
    return value(x), slope(x)


class Counted:
    """A function that counts its calls and the rows it was given."""

    def __init__(self, function):
        self.function, self.calls, self.rows = function, 0, 0

    def __call__(self, x):
        self.calls += 1
        self.rows += len(np.atleast_2d(x))
        return self.function(x)


WAYS = {
    "gradient": lambda **options: Target(value, slope, dim=DIM, **options),
    "value_and_gradient": lambda **options: Target(value, value_and_gradient=both, dim=DIM, **options),
    "returns_gradient": lambda **options: Target(both, returns_gradient=True, dim=DIM, **options),
}


@pytest.mark.parametrize("bounds", [None, BOUNDS], ids=["free", "bounded"])
@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_the_gradient_agrees(way, vectorized, bounds, rng, central_differences):
    position = rng.normal(size=(5, DIM))
    evaluator = Evaluator(WAYS[way](vectorized=vectorized, bounds=bounds))
    reference = Evaluator(Target(value, slope, dim=DIM, bounds=bounds))
    found, expected = evaluator.value_and_gradient(position), reference.value_and_gradient(position)
    np.testing.assert_allclose(found.potential, expected.potential, rtol=1e-13)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-13)
    np.testing.assert_allclose(evaluator.value(position).potential, expected.potential, rtol=1e-13)
    numerical = central_differences(lambda q: reference.value(q).potential, position)
    np.testing.assert_allclose(found.gradient, numerical, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.tolist(),
        lambda x: x.astype(np.float32),
        lambda x: np.round(x).astype(int),
        lambda x: np.round(x).astype(np.uint8),
        np.ma.asarray,
        np.asfortranarray,
    ],
    ids=["list", "float32", "int", "uint8", "unmasked", "fortran"],
)
def test_any_real_numbers_will_do(convert, rng):
    returned = rng.uniform(1, 5, size=(4, DIM))
    target = Target(lambda x: convert(returned[:, 0]), lambda x: convert(returned), dim=DIM, vectorized=True)
    values = target.evaluate(np.zeros((4, DIM)), gradient=True)
    assert values.log_density.dtype == values.gradient.dtype == np.float64
    np.testing.assert_array_equal(values.gradient, np.asarray(convert(returned), dtype=float))
    np.testing.assert_array_equal(values.log_density, np.asarray(convert(returned[:, 0]), dtype=float))


@pytest.mark.parametrize("returned", [-1.5, np.float32(-1.5), np.array(-1.5), [-1.5], np.array([[-1.5]])])
def test_a_single_number_may_come_in_any_box(returned):
    assert Target(lambda x: returned, dim=2).evaluate(
        np.zeros((1, 2)), gradient=False
    ).log_density.tolist() == [-1.5]


def test_a_value_request_never_calls_a_gradient(rng):
    def never(x):
        raise AssertionError("a gradient was computed for a value")

    position = rng.normal(size=(4, DIM))
    for options in ({"gradient": never}, {"value_and_gradient": never}):
        Evaluator(Target(value, dim=DIM, **options)).value(position)
        Evaluator(Target(value, dim=DIM, vectorized=True, **options)).value(position)


@pytest.mark.parametrize("vectorized", [False, True])
def test_one_request_is_one_call_a_function(vectorized, rng):
    position = rng.normal(size=(4, DIM))
    calls = 1 if vectorized else 4
    one, two, pair = Counted(value), Counted(slope), Counted(both)
    Evaluator(Target(one, two, dim=DIM, vectorized=vectorized)).value_and_gradient(position)
    assert (one.calls, two.calls, one.rows, two.rows) == (calls, calls, 4, 4)
    one = Counted(value)
    Evaluator(Target(one, value_and_gradient=pair, dim=DIM, vectorized=vectorized)).value_and_gradient(
        position
    )
    assert (one.calls, pair.calls) == (0, calls)
    pair = Counted(both)
    Evaluator(Target(pair, returns_gradient=True, dim=DIM, vectorized=vectorized)).value_and_gradient(
        position
    )
    assert pair.calls == calls


@pytest.mark.parametrize("vectorized", [False, True])
def test_no_gradient_is_computed_where_there_is_no_density(vectorized):
    """Outside the support a gradient means nothing, and often cannot be computed."""
    gradient = Counted(slope)
    target = Target(lambda x: np.full(x.shape[:-1], -np.inf), gradient, dim=DIM, vectorized=vectorized)
    found = Evaluator(target).value_and_gradient(np.zeros((4, DIM)))
    assert gradient.calls == 0
    assert np.isposinf(found.potential).all()
    assert not found.gradient.any()


def test_no_gradient_need_be_returned_where_there_is_no_density():
    target = Target(lambda x: (-np.inf, None), returns_gradient=True, dim=DIM)
    assert not Evaluator(target).value_and_gradient(np.zeros((2, DIM))).gradient.any()


@pytest.mark.parametrize("bounds", [None, BOUNDS], ids=["free", "bounded"])
@pytest.mark.parametrize("vectorized", [False, True])
def test_functions_may_write_into_what_they_are_given(vectorized, bounds, rng):
    def spoiling(function):
        def spoiler(x):
            returned = function(x)
            x[...] = np.nan
            return returned

        return spoiler

    position = rng.normal(size=(4, DIM))
    kept = position.copy()
    clean = Evaluator(Target(value, slope, dim=DIM, vectorized=vectorized, bounds=bounds))
    dirty = Evaluator(Target(spoiling(value), spoiling(slope), dim=DIM, vectorized=vectorized, bounds=bounds))
    expected, found = clean.value_and_gradient(position), dirty.value_and_gradient(position)
    np.testing.assert_array_equal(position, kept)
    np.testing.assert_array_equal(found.position, kept)
    np.testing.assert_array_equal(found.potential, expected.potential)
    np.testing.assert_array_equal(found.gradient, expected.gradient)


@pytest.mark.parametrize("vectorized", [False, True])
def test_functions_may_return_the_same_array_each_time(vectorized, rng):
    n = 4 if vectorized else 1
    values, slopes = np.empty(n), np.empty((n, DIM)) if vectorized else np.empty(DIM)

    def reusing_value(x):
        values[...] = value(x)
        return values

    def reusing_slope(x):
        slopes[...] = slope(x)
        return slopes

    position = rng.normal(size=(4, DIM))
    clean = Evaluator(Target(value, slope, dim=DIM, vectorized=vectorized))
    reusing = Evaluator(Target(reusing_value, reusing_slope, dim=DIM, vectorized=vectorized))
    expected, first = clean.value_and_gradient(position), reusing.value_and_gradient(position)
    reusing.value_and_gradient(position + 1.0)
    slopes[...], values[...] = np.nan, np.nan
    np.testing.assert_array_equal(first.potential, expected.potential)
    np.testing.assert_array_equal(first.gradient, expected.gradient)


def test_functions_are_given_float64_they_can_write_into():
    def look(x):
        assert x.dtype == np.float64
        assert x.flags.writeable
        assert x.flags.c_contiguous
        return value(x)

    for vectorized in (False, True):
        Evaluator(Target(look, dim=DIM, vectorized=vectorized)).value(np.zeros((2, DIM)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, "x"),
        ("beta", "beta"),
        (["a", "b", "c"], ("a", "b", "c")),
        (np.array(["a", "b", "c"]), ("a", "b", "c")),
    ],
)
def test_names(names, expected):
    assert Target(value, dim=DIM, names=names).names == expected


def test_a_callable_object_that_looks_empty_is_still_a_gradient():
    class Empty:
        def __len__(self):
            return 0

        def __call__(self, x):
            return slope(x)

    assert Target(value, Empty(), dim=DIM).has_gradient


def test_asking_for_a_gradient_that_was_not_given():
    with pytest.raises(InputError, match="no gradient"):
        Target(value, dim=DIM).evaluate(np.zeros((1, DIM)), gradient=True)
    assert not Target(value, dim=DIM).has_gradient
    assert repr(Target(value, dim=DIM)) == "Target(dim=3, gradient=False, vectorized=False)"
