"""Basins that descents have found are kept."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord
from leapwise.adaptation.explore import Explorer, Walkers
from leapwise.adaptation.initialise import Start
from leapwise.adaptation.minimise import Descent
from leapwise.adaptation.modes import Homes, abandoned, spread_out, with_more_starts
from leapwise.adaptation.selection import Candidates
from leapwise.execution import Evaluator
from leapwise.kernels import State
from leapwise.surrogates import Whitening


def two_modes(x):
    return np.logaddexp(-0.5 * (x[:, 0] - 5.0) ** 2, -0.5 * (x[:, 0] + 5.0) ** 2) - 0.5 * (x[:, 1:] ** 2).sum(
        1
    )


def slope(x):
    found = -np.array(x)
    found[:, 0] += 5.0 * np.tanh(5.0 * x[:, 0])
    return found


TARGET = lw.Target(two_modes, slope, dim=2, vectorized=True)


def explorer_at(position):
    """An explorer that knows both modes well, and what is between them, with cold walkers at positions."""
    rng = np.random.default_rng(1)
    record = EvaluationRecord.of(Evaluator(TARGET))
    side = np.where(np.arange(120) % 2, 5.0, -5.0)[:, None] * [1.0, 0.0]
    record.evaluate(side + 1.2 * rng.standard_normal((120, 2)))
    record.evaluate(rng.uniform((-4.0, -3.0), (4.0, 3.0), (80, 2)))
    candidates = Candidates(TARGET, record, rng, lw.GaussianProcess(trend="radial"))
    frame = Whitening(np.zeros(2), np.eye(2))
    candidates.train(frame)
    walkers = Walkers(position, -two_modes(position), np.ones(len(position)))
    return Explorer(record, candidates, frame, walkers, rng)


HOMES = np.array([[5.0, 0.0], [-5.0, 0.0]])


def test_a_basin_that_was_left_gets_its_walker_back():
    explorer = explorer_at(np.array([[5.2, 0.1], [4.6, -0.3]]))
    assert abandoned(explorer, HOMES, -two_modes(HOMES)).tolist() == [False, True]
    assert Homes(HOMES, -two_modes(HOMES)).call_back(explorer)
    np.testing.assert_array_equal(explorer.walkers.position, [[5.2, 0.1], HOMES[1]])
    np.testing.assert_allclose(explorer.walkers.potential, -two_modes(explorer.walkers.position))


def test_nobody_is_called_back_to_where_others_are():
    explorer = explorer_at(np.array([[5.2, 0.1], [-5.6, -0.3]]))
    assert not Homes(HOMES[::-1], -two_modes(HOMES)).call_back(explorer)
    np.testing.assert_array_equal(explorer.walkers.position[0], [5.2, 0.1])


def test_nor_to_where_there_is_no_mass():
    explorer = explorer_at(np.array([[5.2, 0.1], [4.6, -0.3]]))
    far = np.array([[5.0, 0.0], [0.0, 40.0]])
    assert not abandoned(explorer, far, -two_modes(far)).any()


def descents_to(position):
    return [Descent(each, float(-two_modes(each[None])[0]), 1.0) for each in np.array(position)]


def test_the_most_crowded_walkers_are_sent_to_new_homes():
    explorer = explorer_at(np.array([[5.2, 0.1], [4.0, -1.3], [5.1, 0.1], [5.0, 2.0]]))
    homes = Homes.of(explorer)
    assert homes.send(explorer, descents_to([[-5.0, 0.0], [-5.1, 0.0]]))  # these two are one place
    sent = (explorer.walkers.position == [-5.0, 0.0]).all(axis=1)
    assert sent.sum() == 1 and sent[[0, 2]].any()
    np.testing.assert_array_equal(homes.position, explorer.walkers.position)
    np.testing.assert_allclose(homes.potential, -two_modes(homes.position))
    assert not Homes.of(explorer).send(explorer, [])


def test_one_walker_stays_however_many_homes_there_are():
    explorer = explorer_at(np.array([[5.2, 0.1], [4.6, -0.3]]))
    Homes.of(explorer).send(explorer, descents_to([[-5.0, 0.0], [5.0, 9.0], [-5.0, 9.0]]))
    assert (np.abs(explorer.walkers.position - [5.0, 0.0]) < 1.0).all(axis=1).sum() == 1


def test_a_walker_that_is_alone_stays_and_a_warm_one_goes():
    explorer = explorer_at(np.array([[5.2, 0.1], [4.6, -0.3]]))
    explorer.walkers.exponent[1] = 0.5
    assert Homes.of(explorer).send(explorer, descents_to([[-5.0, 0.0], [5.0, 9.0]]))
    np.testing.assert_array_equal(explorer.walkers.position, [[5.2, 0.1], [-5.0, 0.0]])


def test_more_starts_are_opposite_to_the_lowest_and_further_out():
    record = EvaluationRecord.of(Evaluator(TARGET))
    position = np.array([[1.0, 0.0], [2.0, 0.5], [0.5, 0.0]])
    found = with_more_starts(record, State.from_evaluation(record.evaluate(position)))
    np.testing.assert_array_equal(found.position[3:], [[-4.0, -1.0], [-6.0, 0.0]])
    np.testing.assert_allclose(found.potential, -two_modes(found.position))
    np.testing.assert_allclose(found.gradient, -slope(found.position))


def test_a_crowd_gives_one_of_its_places_to_a_far_start():
    frame = Whitening(np.zeros(2), np.eye(2))
    near = np.array([[5.0, 0.0], [5.1, 0.0], [5.0, 3.0]])
    chosen = spread_out(Start(np.concatenate([near, [[-5.0, 0.0]]]), frame), 3)
    assert len(chosen.position) == 3
    assert (chosen.position == [-5.0, 0.0]).all(axis=1).sum() == 1
    same = spread_out(Start(np.concatenate([near, [[4.0, 0.0]]]), frame), 3)
    np.testing.assert_array_equal(same.position, near)
    alone = spread_out(Start(np.array([[5.0, 0.0], [-5.0, 0.0]]), frame), 1)
    np.testing.assert_array_equal(alone.position, [[5.0, 0.0]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 6])
def test_two_far_modes_are_not_missed_in_silence(seed):
    """Each of these seeds kept one mode only, with R-hat below 1.005, before basins were kept."""
    run = lw.sample(TARGET, random_seed=seed, progressbar=False)
    # Half of the mass is on each side; of some thousand effective draws 6 standard errors are 0.1.
    assert abs((run.draws[..., 0] > 0).mean() - 0.5) < 0.1
    assert not run.summary().warnings
