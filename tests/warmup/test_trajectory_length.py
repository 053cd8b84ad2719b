"""The trajectory length, learned from exact trajectories of Gaussians.

A coordinate of standard deviation s, in the identity metric, turns by ``q' = q cos(t / s) + s p sin(t / s)``.
"""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import DiagonalMetric, State, UnitMetric
from leapwise.kernels import Info
from leapwise.warmup.tuners import SPREAD, TrajectoryLength

STEP = 0.1


def trajectories(rng, length, sd, n):
    """One step of n chains at draws of a Gaussian, each for a time around `length`."""
    sd = np.asarray(sd, dtype=float)
    time = length * (1 + SPREAD * rng.uniform(-1, 1, n))
    start = sd * rng.normal(size=(n, len(sd)))
    angle = time[:, None] / sd
    end = start * np.cos(angle) + sd * rng.normal(size=start.shape) * np.sin(angle)
    return State(start, np.zeros(n)), make_info(end, time, np.ones(n))


def make_info(end, time, rate):
    n_steps = np.maximum(1, np.ceil(time / STEP)).astype(int)
    nothing = np.zeros(len(end))
    return Info(
        accepted=rate > 0,
        acceptance_rate=rate,
        step_size=time / n_steps,
        n_steps=n_steps,
        energy=nothing,
        energy_error=nothing,
        diverging=rate == 0,
        n_exact=n_steps,
        proposal=end,
        proposal_momentum=end,
    )


def learn(rng, initial, sd, metric=None, windows=10, n=2000):
    """Mean of the last five lengths."""
    length, found = TrajectoryLength(initial), []
    for _ in range(windows):
        length.add(*trajectories(rng, length.current, sd, n))
        length.renew(UnitMetric() if metric is None else metric)
        found.append(length.current)
    return float(np.mean(found[-5:]))


@pytest.mark.parametrize("initial", [0.2, 1.5, 8.0])
@pytest.mark.parametrize("dim", [1, 4, 32])
def test_a_quarter_turn_is_best_for_a_standard_normal(dim, initial, rng):
    assert 1.2 < learn(rng, initial, np.ones(dim), windows=14) < 1.9


@pytest.mark.parametrize("dim", [2, 8])
def test_it_grows_if_the_metric_is_too_small_in_one_direction(dim, rng):
    short = learn(rng, 1.5, np.ones(dim))
    long = learn(rng, 1.5, [3.0, *np.ones(dim - 1)])
    assert 1.3 * short < long < 3.5 * short


def test_means_variances_and_the_price_all_count(rng):
    """Means alone, variances alone, or draws at no price would give 1.66, 1.27 and 1.59, each within 0.03."""
    assert 1.35 < learn(rng, 1.5, [1.0, 1.0], n=10_000) < 1.46


def test_one_wide_direction_among_many_is_not_worth_its_price(rng):
    """Minimising ``t (1 / e_1 + 1 / e_2)`` in theory gives 1.94, and 4.7 without the price."""
    assert 1.6 < learn(rng, 1.5, [3.0, *np.ones(20)], n=10_000) < 2.3


def test_it_grows_with_a_metric_too_small_everywhere(rng):
    assert 3 * 1.2 < learn(rng, 1.5, [3.0, 3.0]) < 3 * 1.9


def test_directions_are_weighed_in_the_metric(rng):
    """A wide coordinate that the metric knows of is no reason to go further, so units do not matter."""
    unit, units = TrajectoryLength(1.5), TrajectoryLength(1.5)
    state, info = trajectories(rng, 1.5, [1.0, 1.0], 1000)
    scale = np.array([1e-3, 1e3])
    unit.add(state, info)
    units.add(
        State(state.position * scale, state.potential),
        make_info(info.proposal * scale, info.step_size * info.n_steps, info.acceptance_rate),
    )
    unit.renew(UnitMetric())
    units.renew(DiagonalMetric(scale**2))
    assert units.current == pytest.approx(unit.current, rel=1e-9)


@pytest.mark.parametrize("sd", [1e-3, 1.0, 1e3])
def test_it_stays_among_the_times_tried(sd, rng):
    length = TrajectoryLength(1.0)
    state, info = trajectories(rng, 1.0, [sd, sd], 200)
    length.add(state, info)
    length.renew(UnitMetric())
    time = info.step_size * info.n_steps
    assert time.min() <= length.current <= time.max()


@pytest.mark.parametrize("lost", [np.nan, np.inf, 1e200])
def test_trajectories_that_were_given_up_tell_nothing_of_where_they_ended(lost, rng):
    state, info = trajectories(rng, 1.0, np.ones(3), 400)
    given_up = rng.random(400) < 0.3
    rate = np.where(given_up, 0.0, 1.0)
    time = info.step_size * info.n_steps
    found = []
    for end in (state.position, np.full_like(state.position, lost)):
        length = TrajectoryLength(1.0)
        proposal = np.where(given_up[:, None], end, info.proposal)
        length.add(state, make_info(proposal, time, rate))
        length.renew(UnitMetric())
        found.append(length.current)
    assert found[0] == found[1]
    assert np.isfinite(found[0])


def test_long_trajectories_that_fail_make_it_shorter(rng):
    lengths = []
    for survives in (lambda time: np.ones_like(time), lambda time: np.where(time > 2.0, 0.0, 1.0)):
        length = TrajectoryLength(2.0)
        state, info = trajectories(np.random.default_rng(5), 2.0, [4.0], 2000)
        time = info.step_size * info.n_steps
        length.add(state, make_info(info.proposal, time, survives(time)))
        length.renew(UnitMetric())
        lengths.append(length.current)
    assert lengths[1] < lengths[0]


@pytest.mark.parametrize("rate", [0.0, 1e-300])
def test_nothing_accepted_leaves_a_number(rate, rng):
    state, info = trajectories(rng, 1.0, np.ones(2), 100)
    length = TrajectoryLength(1.0)
    length.add(state, make_info(info.proposal, info.step_size * info.n_steps, np.full(100, rate)))
    length.renew(UnitMetric())
    assert 0.3 < length.current < 1.7


def test_chains_that_never_moved_leave_it_as_it_was(rng):
    _, info = trajectories(rng, 1.0, np.ones(2), 100)
    length = TrajectoryLength(1.0)
    length.add(State(np.ones((100, 2)), np.zeros(100)), info)
    length.renew(UnitMetric())
    assert length.current == 1.0


def test_too_few_trajectories_are_kept_for_the_next_window(rng):
    length = TrajectoryLength(1.0)
    for _ in range(13):
        length.add(*trajectories(rng, 1.0, [1.0], 3))
    length.renew(UnitMetric())
    assert length.current == 1.0, "39 trajectories are too few for four ranges of ten"
    length.add(*trajectories(rng, 1.0, [1.0], 3))
    length.renew(UnitMetric())
    assert length.current != 1.0
