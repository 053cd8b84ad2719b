"""Collecting training data."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.execution import Evaluation
from leapwise.warmup.learning import TrainingCollector, take_accepted


def evaluation(numbers, *, gradient=True, outputs=False):
    x = np.asarray(numbers, dtype=float)[:, None]
    return Evaluation(x, x[:, 0] ** 2, 2 * x if gradient else None, 3 * x if outputs else None)


def test_everything_is_kept_while_there_is_room():
    collector = TrainingCollector(10)
    collector.add(evaluation([1, 2]))
    collector.add(evaluation([3], gradient=False))
    training = collector.training()
    np.testing.assert_array_equal(training.position[:, 0], [1, 2, 3])
    np.testing.assert_array_equal(training.potential, [1, 4, 9])
    np.testing.assert_array_equal(training.gradient[:, 0], [2, 4, np.nan])


def test_without_gradients_there_are_none():
    collector = TrainingCollector(10)
    collector.add(evaluation([1, 2], gradient=False, outputs=True))
    assert collector.training().gradient is None
    np.testing.assert_array_equal(collector.training().outputs[:, 0], [3, 6])


@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("most", [2, 10, 37])
def test_what_is_held_is_spread_evenly_over_all_that_came(batch, most):
    collector = TrainingCollector(most)
    for start in range(0, 960, batch):
        collector.add(evaluation(np.arange(start, start + batch)))
    kept = collector.training().position[:, 0]
    assert most / 2 <= len(kept) <= most
    gaps = np.diff(kept)
    assert (gaps == gaps[0]).all() and gaps[0] == 2 ** round(np.log2(gaps[0])) and kept[0] == 0


def test_positions_without_mass_and_models_that_did_not_run_are_left_out():
    collector = TrainingCollector(10)
    x = np.arange(3.0)[:, None]
    collector.add(Evaluation(x, np.array([0.0, np.inf, 1.0]), None, np.array([[1.0], [np.nan], [np.nan]])))
    np.testing.assert_array_equal(collector.training().position, [[0.0]])


def test_nothing_to_train_on_is_an_error_that_says_what_to_do():
    with pytest.raises(InputError, match="tune="):
        TrainingCollector(10).training()


def test_accepted_positions_are_found_among_a_steps_evaluations():
    heard = [evaluation([1, 2], outputs=True), evaluation([5, 6], outputs=True)]
    found = take_accepted(heard, np.array([[6.0], [2.0]]))
    np.testing.assert_array_equal(np.sort(found.position[:, 0]), [2, 6])
    assert found.gradient is None
    np.testing.assert_array_equal(found.outputs, 3 * found.position)
    assert take_accepted(heard, np.empty((0, 1))) is None
    assert take_accepted([], np.ones((1, 1))) is None
