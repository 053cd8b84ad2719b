"""Training sets: checks, selection, joining and whitening."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening


@pytest.fixture
def training(rng):
    position = rng.standard_normal((12, 2))
    gradient = position.copy()
    gradient[3] = np.nan
    return TrainingSet(
        position, 0.5 * (position**2).sum(axis=1) + 7.0, gradient, rng.standard_normal((12, 5))
    )


BAD = {
    "nan potential": ({"potential": [0.0, np.nan]}, "potential must be finite, got nan at index 1"),
    "infinite potential": ({"potential": [np.inf, 0.0]}, "potential must be finite"),
    "nan position": ({"position": [[0.0, np.nan], [0.0, 0.0]]}, "position must be finite"),
    "one-dimensional position": (
        {"position": [0.0, 1.0]},
        r"position must have shape \(n, dim\), got \(2,\)",
    ),
    "no coordinates": ({"position": np.empty((2, 0))}, "position must have shape"),
    "too many potentials": ({"potential": [0.0, 1.0, 2.0]}, r"potential must have shape \(2,\)"),
    "column of potentials": ({"potential": [[0.0], [1.0]]}, r"potential must have shape \(2,\)"),
    "wrong gradient": ({"gradient": [[0.0], [1.0]]}, r"gradient must have shape \(2, 2\).*got \(2, 1\)"),
    "half a gradient": (
        {"gradient": [[0.0, np.nan], [1.0, 1.0]]},
        "gradient must be finite, or NaN in a whole",
    ),
    "infinite gradient": ({"gradient": [[0.0, np.inf], [1.0, 1.0]]}, "gradient must be finite"),
    "too few outputs": ({"outputs": [[1.0]]}, r"outputs must have shape \(2, m\)"),
    "text": ({"potential": ["a", "b"]}, "potential must be real numbers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_data_are_refused(kind):
    changed, message = BAD[kind]
    arguments = {"position": [[0.0, 1.0], [2.0, 3.0]], "potential": [0.0, 1.0], **changed}
    with pytest.raises(InputError, match=message):
        TrainingSet(**arguments)


def test_copies_what_it_is_given():
    position = np.zeros((2, 1))
    training = TrainingSet(position, [0.0, 1.0])
    position[:] = 5.0
    assert (training.position == 0.0).all()


def test_rows_keep_everything_together(training):
    some = training.rows(np.array([3, 5]))
    np.testing.assert_array_equal(some.position, training.position[[3, 5]])
    np.testing.assert_array_equal(some.potential, training.potential[[3, 5]])
    np.testing.assert_array_equal(some.outputs, training.outputs[[3, 5]])
    assert np.isnan(some.gradient[0]).all() and len(some) == 2 and some.dim == 2


def test_join_is_one_after_the_other(training):
    one, two = training.rows(np.arange(4)), training.rows(np.arange(4, 12))
    both = one.join(two)
    for name in ("position", "potential", "gradient", "outputs"):
        np.testing.assert_array_equal(getattr(both, name), getattr(training, name))


def test_join_marks_missing_gradients(training):
    without = TrainingSet(training.position, training.potential, outputs=training.outputs)
    both = without.join(training)
    assert np.isnan(both.gradient[:12]).all()
    np.testing.assert_array_equal(both.gradient[12:], training.gradient)
    assert without.join(without).gradient is None


def test_join_refuses_other_shapes(training):
    with pytest.raises(InputError, match="got 5 and None"):
        training.join(TrainingSet(training.position, training.potential))
    with pytest.raises(InputError, match="got 5 and 4"):
        training.join(TrainingSet(training.position, training.potential, outputs=training.outputs[:, :4]))
    with pytest.raises(InputError, match="coordinates, got 2 and 1"):
        training.join(TrainingSet([[0.0]], [0.0]))


def test_select_keeps_the_lowest():
    training = TrainingSet(np.arange(5.0)[:, None], [0.0, 1e3, 5e2, 1.0, 1e4])
    assert sorted(training.select(at_least=3).potential) == [0.0, 1.0, 5e2]
    assert len(training.select(at_least=1)) == 2


def test_no_gradient_known_is_no_gradient():
    assert TrainingSet([[0.0], [1.0]], [0.0, 1.0], [[np.nan], [np.nan]]).gradient is None


def test_select_drops_high_potentials():
    position = np.linspace(0.0, 10.0, 41)[:, None]
    training = TrainingSet(position, 0.5 * position[:, 0] ** 2 - 100.0)
    kept = training.select()
    assert kept.potential.max() <= -100.0 + 13.5 < np.delete(training.potential, range(len(kept))).min()
    assert len(training.select(height=2.0)) == (training.potential + 100.0 <= 2.0).sum()


def test_select_keeps_nearly_all_draws_of_a_gaussian(rng):
    """The default limit is more than five standard deviations above the mean height in any dimension."""
    for dim in (1, 10, 100):
        x = rng.standard_normal((2000, dim))
        training = TrainingSet(x, 0.5 * (x**2).sum(axis=1))
        assert len(training.select()) >= 1999


@pytest.mark.parametrize("position", [[[1.0, 2.0]], [[1.0, 2.0]] * 4], ids=["one", "equal"])
def test_different_positions_are_needed(position):
    with pytest.raises(InputError, match="at least two different positions"):
        TrainingSet(position, np.zeros(len(position))).require_variety()
    TrainingSet([*position, [1.0, 3.0]], np.zeros(len(position) + 1)).require_variety()


def test_whitened_values_are_centred_and_gradients_mapped(training):
    whitening = Whitening.from_factor([0.5, 0.0], [[2.0, 0.0], [1.0, 3.0]])
    white = training.whiten(whitening)
    assert white.value.mean() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(white.value + white.offset, training.potential)
    np.testing.assert_array_equal(white.has_gradient, np.delete(np.arange(12), 3))
    np.testing.assert_allclose(white.gradient, training.gradient[white.has_gradient] @ whitening.factor)
    np.testing.assert_allclose(whitening.from_white(white.position), training.position)


def test_whitened_without_gradients(rng):
    white = TrainingSet(rng.standard_normal((4, 2)), np.arange(4.0)).whiten(Whitening(np.zeros(2), np.eye(2)))
    assert white.gradient is None and white.has_gradient.size == 0
