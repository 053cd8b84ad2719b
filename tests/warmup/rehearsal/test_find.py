"""From anywhere to the typical set, and its shape."""

from __future__ import annotations

import numpy as np
import pytest

from understudy import Evaluator, Streams, Target
from understudy.problems.lobes import lobes
from understudy.warmup.rehearsal.diary import Diary
from understudy.warmup.rehearsal.find import find, typical_height
from understudy.warmup.start import find_start


def normal(scales, gradient=True, mean=0.0):
    precision = 1.0 / np.asarray(scales) ** 2
    return Target(
        lambda x: -0.5 * ((x - mean) ** 2 @ precision),
        (lambda x: -(x - mean) * precision) if gradient else None,
        dim=len(precision),
        vectorized=True,
    )


def start(target, chains=4, seed=1, init=None):
    evaluator = Evaluator(target)
    diary = Diary(evaluator, target.has_gradient)
    streams = Streams(seed, chains)
    return diary, find(diary, find_start(evaluator, streams, init, target.has_gradient), streams.shared)


@pytest.mark.parametrize("scales", [[1.0] * 6, [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0], [1e-4, 1.0, 1e4]])
def test_the_frame_is_the_covariance_of_a_normal(scales):
    """Whatever the scales; the last is as far from the start as from the target's width to its start's."""
    diary, found = start(normal(scales))
    ratio = np.diag(found.frame.factor @ found.frame.factor.T) / np.square(scales)
    assert (ratio > 0.5).all() and (ratio < 2.0).all()
    assert len(diary) < 60 + 20 * len(scales)


@pytest.mark.parametrize("gradient", [True, False])
def test_all_chains_arrive(gradient):
    diary, found = start(normal([0.1, 1.0, 0.5, 2.0], gradient, mean=3.0))
    potential = Evaluator(diary.evaluator.target).value(found.position).potential
    assert (potential < typical_height(4)).all()
    assert (diary.evaluator.counts.n_gradients > 0) == gradient


def test_chains_that_start_in_another_basin_stay_there():
    """Nothing drags them to the first; over a few seeds both lobes are seen."""
    sides = set()
    for seed in range(4):
        _, found = start(lobes().target, seed=seed)
        sides |= set(np.sign(found.position[:, 0]).tolist())
    assert sides == {-1.0, 1.0}


def test_nothing_is_evaluated_twice():
    diary, _ = start(normal([0.1, 1.0, 3.0]))
    position = np.concatenate([each.position for each in diary.heard])
    assert len(np.unique(position, axis=0)) == len(position)


def test_one_start_for_all_chains_is_paid_once_and_spread_about_its_end():
    diary, found = start(normal([0.1, 1.0, 3.0]), init=[1.0, 2.0, 3.0])
    position = np.concatenate([each.position for each in diary.heard])
    assert len(np.unique(position, axis=0)) == len(position)
    assert len(np.unique(found.position, axis=0)) == 4


def test_no_step_of_the_descent_goes_to_the_end_of_the_world():
    """A potential that is almost flat at first invites steps of any length."""
    target = Target(
        lambda x: -np.log1p(x**2).sum(axis=1), lambda x: -2 * x / (1 + x**2), dim=2, vectorized=True
    )
    diary, _ = start(target, init=[30.0, -40.0])
    position = np.concatenate([each.position for each in diary.heard])
    assert np.abs(position).max() < 1000.0
