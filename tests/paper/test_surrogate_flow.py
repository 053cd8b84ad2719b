"""The acceptance of the flow of a surrogate, which figures 2 to 5 measure."""

import numpy as np
import pytest

from leapwise.dynamics import UnitMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import HMC
from leapwise.paper.surrogate_flow import acceptance, explore, step_size_for
from leapwise.problems import gaussian, gumbel

DIM, RUNS, SIZE = 4, 3, 60


class Perfect:
    """The exact potential as its own surrogate."""

    def __init__(self, target):
        self._evaluator = Evaluator(target)

    def potential(self, position):
        return self._evaluator.value(position).potential

    def potential_and_gradient(self, position):
        found = self._evaluator.value_and_gradient(position)
        return found.potential, found.gradient


class Flat:
    """A surrogate that is zero everywhere."""

    def potential(self, position):
        return np.zeros(len(position))

    def potential_and_gradient(self, position):
        return np.zeros(len(position)), np.zeros_like(position)


@pytest.fixture(scope="module")
def target():
    return gaussian(DIM).target


@pytest.fixture(scope="module")
def explored(target):
    return explore(target, n_steps=6, size=SIZE, runs=RUNS, seed=1)


def test_states_are_accepted_ones_with_their_exact_potentials(target, explored):
    assert explored.position.shape == (RUNS, SIZE, DIM)
    for position, potential in zip(explored.position, explored.potential, strict=True):
        assert len(np.unique(position, axis=0)) == SIZE  # a rejected step would repeat a state
        np.testing.assert_allclose(Evaluator(target).value(position).potential, potential, rtol=1e-12)


def test_smaller_training_sets_are_part_of_larger_ones(explored):
    small, large = explored.training(1, 20), explored.training(1, 50)
    np.testing.assert_array_equal(small.position, large.position[:20])


@pytest.mark.parametrize("run", range(RUNS))
def test_trajectories_start_at_states_of_other_runs(explored, run):
    starts = explored.starts(run, SIZE, seed=5)
    own = {tuple(row) for row in explored.position[run]}
    others = {tuple(row) for row in np.delete(explored.position, run, axis=0).reshape(-1, DIM)}
    assert {tuple(row) for row in starts} <= others - own


def test_a_perfect_surrogate_is_accepted_exactly_like_hmc(target, explored):
    mean = np.mean(
        [
            explored.flow_acceptance(target, Perfect(target), run, n_starts=50, repeats=2, seed=7 + run)
            for run in range(RUNS)
        ]
    )
    exact = explored.exact_acceptance(target, 50, 2, seed=7)
    assert mean == pytest.approx(exact, rel=1e-12)


def test_a_flat_surrogate_is_accepted_less(target, explored):
    flat = explored.flow_acceptance(target, Flat(), 0, n_starts=100, repeats=2, seed=7)
    assert flat < 0.5 * explored.exact_acceptance(target, 100, 2, seed=7)


@pytest.fixture(scope="module")
def skewed():
    target = gumbel().target
    return target, explore(target, n_steps=5, size=200, runs=2, seed=2).position.reshape(-1, target.dim)


@pytest.mark.parametrize("wanted", [0.5, 0.7, 0.95])
def test_the_step_size_gives_the_wanted_acceptance_on_a_skewed_target(skewed, wanted):
    target, starts = skewed
    step_size = step_size_for(wanted, target, starts, 5, seed=3)
    fresh = acceptance(target, HMC(step_size, 5, metric=UnitMetric()), starts, 4, seed=4)
    assert fresh == pytest.approx(
        wanted, abs=0.06
    )  # the standard error of two means of 400 and 1600 is below 0.02


def test_the_same_seed_explores_the_same_states(target, explored):
    again = explore(target, n_steps=6, size=SIZE, runs=RUNS, seed=1)
    np.testing.assert_array_equal(again.position, explored.position)
    assert again.step_size == explored.step_size


def test_explored_states_can_be_kept_as_numbers(explored):
    again = type(explored).from_numbers(explored.numbers())
    np.testing.assert_array_equal(again.potential, explored.potential)


def test_one_run_is_not_enough(target):
    with pytest.raises(InputError, match="at least 2"):
        explore(target, n_steps=3, size=5, runs=1, seed=1)
