"""Step sizes and numbers of steps: their distributions, and settings that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import every_kernel_of_one_proposal, skewed_target, start
from scipy.stats import chisquare, kstest

from leapwise import Evaluator, SharedStream, Streams
from leapwise.errors import InputError
from leapwise.kernels.trajectory import TrajectorySettings

N = 50_000


def drawn(lengths, n=N, seed=1):
    return lengths.draw(SharedStream(np.random.default_rng(seed), n))


@pytest.mark.parametrize(
    ("n_steps", "low", "high"),
    [(1, 1, 1), (2, 1, 2), (7, 1, 7), ((3, 9), 3, 9), ((5, 5), 5, 5), (np.int64(4), 1, 4), (100, 1, 100)],
)
def test_numbers_of_steps_are_uniform_on_their_range(n_steps, low, high):
    """Chi-square; a false alarm has chance 1e-5."""
    step_size, found = drawn(TrajectorySettings(0.1, n_steps))
    assert found.dtype == int
    assert (step_size == 0.1).all()
    counts = np.bincount(found - low)
    assert len(counts) == high - low + 1
    if high > low:
        assert chisquare(counts).pvalue > 1e-5


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.4, 0.99])
def test_trajectory_times_are_uniform_within_the_jitter(jitter):
    """Kolmogorov-Smirnov; a false alarm has chance 1e-5."""
    step_size, n_steps = drawn(TrajectorySettings(0.3, trajectory_length=1.5, jitter=jitter))
    time = step_size * n_steps
    if jitter:
        assert kstest((time / 1.5 - 1.0 + jitter) / (2 * jitter), "uniform").pvalue > 1e-5
    else:
        np.testing.assert_allclose(time, 1.5, rtol=1e-14)


@pytest.mark.parametrize("largest", [0.07, 0.3, 0.5, 1.5, 10.0])
def test_steps_are_the_fewest_that_are_short_enough(largest):
    step_size, n_steps = drawn(TrajectorySettings(largest, trajectory_length=1.5))
    assert (n_steps >= 1).all()
    assert (step_size <= largest * (1 + 1e-14)).all()
    fewer = n_steps > 1
    time = step_size[fewer] * n_steps[fewer]
    assert (time / (n_steps[fewer] - 1) >= largest * (1 - 1e-14)).all()


def test_each_chain_may_have_its_own_step_size():
    largest = np.array([0.1, 0.2, 0.4, 0.8])
    step_size, _ = TrajectorySettings(largest, 5).draw(Streams(1, 4))
    np.testing.assert_array_equal(step_size, largest)
    step_size, n_steps = TrajectorySettings(largest, trajectory_length=2.0).draw(Streams(1, 4))
    assert (step_size <= largest).all() and (np.diff(n_steps) <= 0).all()


def test_draws_take_one_number_a_chain_and_nothing_else():
    """So a chain's lengths depend on its stream alone."""
    for lengths in (TrajectorySettings(0.1, 9), TrajectorySettings(0.1, trajectory_length=1.0)):
        streams, plain = Streams(3, 5), Streams(3, 5)
        lengths.draw(streams), plain.uniforms()
        np.testing.assert_array_equal(streams.uniforms(), plain.uniforms())


@every_kernel_of_one_proposal
def test_lengths_do_not_depend_on_the_state(make):
    found = []
    for seed in (1, 2):
        evaluator = Evaluator(skewed_target())
        _, info = make(n_steps=50, step_size=0.01).step(Streams(7, 6), start(evaluator, 6, seed), evaluator)
        found.append(info)
    np.testing.assert_array_equal(found[0].n_steps, found[1].n_steps)
    np.testing.assert_array_equal(found[0].step_size, found[1].step_size)
    assert not np.array_equal(found[0].proposal, found[1].proposal)


def test_they_do_not_follow_the_array_they_were_made_from():
    largest = np.array([0.1, 0.2])
    lengths = TrajectorySettings(largest, 3)
    largest[:] = 9.0
    np.testing.assert_array_equal(lengths.draw(Streams(1, 2))[0], [0.1, 0.2])
    with pytest.raises(ValueError):
        lengths.step_size[0] = 9.0


def test_replace_checks_again():
    lengths = TrajectorySettings(0.1, 3).replace(step_size=0.2)
    assert (lengths.step_size, lengths.n_steps) == (0.2, 3)
    with pytest.raises(InputError, match="step_size"):
        lengths.replace(step_size=-0.2)


@pytest.mark.parametrize("settings", [{}, {"step_size": 0.1}, {"n_steps": 3}, {"trajectory_length": 1.0}])
def test_drawing_without_settings_is_refused(settings):
    lengths = TrajectorySettings(**settings)
    assert not lengths.is_set
    with pytest.raises(InputError, match="give step_size and n_steps"):
        lengths.draw(Streams(1, 2))


def test_a_step_size_for_other_chains_is_refused():
    with pytest.raises(InputError, match=r"one for each of the 4 chains, got 3"):
        TrajectorySettings([0.1, 0.2, 0.3], 3).draw(Streams(1, 4))
