"""What a target's functions may not return, refused with one sentence at the first call."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, Target
from leapwise.errors import OutputError

DIM = 3


def value(x):
    return -0.5 * (x**2).sum(axis=-1)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.function(x)


def slope(x):
    return -x


class Unreadable:
    """Like a tensor that NumPy cannot convert."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("call detach first")


WRONG_VALUES = {
    "None": (None, "return statement missing"),
    "bool": (True, "got bool; convert"),
    "complex": (1.0 + 1j, "dtype complex128"),
    "string": ("-1.0", "real numbers, got str"),
    "object": (np.array([1.0], dtype=object), "dtype object"),
    "ragged": ([[1.0], [1.0, 2.0]], "NumPy cannot read"),
    "unreadable": (Unreadable(), "call detach first"),
    "masked": (np.ma.masked, "missing entries"),
    "one number a datum": (np.zeros(7), "sum over the data inside the function"),
    "nothing": (np.zeros(0), "return one number for each point"),
}


@pytest.mark.parametrize(("returned", "words"), WRONG_VALUES.values(), ids=list(WRONG_VALUES))
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_wrong_value_is_refused_at_the_first_call(returned, words, vectorized):
    function, gradient = Counted(lambda x: returned), Counted(slope)
    evaluator = Evaluator(Target(function, gradient, dim=DIM, vectorized=vectorized))
    with pytest.raises(OutputError, match=words) as caught:
        evaluator.value_and_gradient(np.zeros((2, DIM)))
    assert str(caught.value).startswith("log_density must return")
    assert (function.calls, gradient.calls) == (1, 0)


WRONG_GRADIENTS = {
    "None": (None, "return statement missing"),
    "bool": (np.ones(DIM, dtype=bool), "dtype bool"),
    "complex": (np.ones(DIM) * 1j, "dtype complex128"),
    "strings": (["a", "b", "c"], "real numbers, got list"),
    "number": (1.0, r"got \(\)"),
    "too wide": (np.ones(DIM + 1), r"shape \(3,\), got \(4,\)"),
    "a row": (np.ones((1, DIM)), r"shape \(3,\), got \(1, 3\); reshape"),
    "a column": (np.ones((DIM, 1)), r"shape \(3,\), got \(3, 1\); reshape"),
}


@pytest.mark.parametrize(("returned", "words"), WRONG_GRADIENTS.values(), ids=list(WRONG_GRADIENTS))
def test_a_wrong_gradient_is_refused_at_the_first_call(returned, words):
    function = Counted(lambda x: returned)
    for target in (
        Target(value, function, dim=DIM),
        Target(value, value_and_gradient=lambda x: (value(x), function(x)), dim=DIM),
        Target(lambda x: (value(x), function(x)), returns_gradient=True, dim=DIM),
    ):
        function.calls = 0
        with pytest.raises(OutputError, match=words) as caught:
            Evaluator(target).value_and_gradient(np.zeros((2, DIM)))
        assert str(caught.value).startswith("gradient must return")
        assert function.calls == 1


@pytest.mark.parametrize("n", [1, 2, DIM, 5])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: value(x).sum(),
        lambda x: value(x)[:, None],
        lambda x: value(x)[None],
        lambda x: np.append(value(x), 0.0),
        lambda x: -(x**2).sum(axis=0),
        lambda x: -(x**2),
    ],
    ids=["a scalar", "a column", "a row", "one too many", "the wrong axis", "no sum"],
)
def test_a_vectorized_value_must_be_one_number_a_row(function, n):
    evaluator = Evaluator(Target(function, dim=DIM, vectorized=True))
    with pytest.raises(OutputError, match="log_density must return shape"):
        evaluator.value(np.ones((n, DIM)))


@pytest.mark.parametrize("n", [1, 2, DIM, 5])
@pytest.mark.parametrize(
    "function",
    [lambda x: slope(x).T, lambda x: slope(x)[0], lambda x: slope(x)[:, :2], lambda x: slope(x)[:, None]],
    ids=["transposed", "one row", "too narrow", "too deep"],
)
def test_a_vectorized_gradient_must_be_one_row_a_row(function, n):
    evaluator = Evaluator(Target(value, function, dim=DIM, vectorized=True))
    with pytest.raises(OutputError, match="gradient must return shape"):
        evaluator.value_and_gradient(np.ones((n, DIM)))


@pytest.mark.parametrize("returned", [1.0, (1.0,), (1.0, np.ones(DIM), 2.0), np.ones(2), None])
def test_a_pair_must_be_a_pair(returned):
    for target, name in (
        (
            Target(lambda x: returned, returns_gradient=True, dim=DIM),
            "log_density, with returns_gradient=True,",
        ),
        (Target(value, value_and_gradient=lambda x: returned, dim=DIM), "value_and_gradient"),
    ):
        with pytest.raises(OutputError, match=name + r" must return \(log_density, gradient\)"):
            Evaluator(target).value_and_gradient(np.zeros((1, DIM)))
