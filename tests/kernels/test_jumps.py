"""Jumps between components: reversible maps, and draws of a posterior with two modes."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from leapwise import DenseMetric, Evaluator, State, Streams, SurrogateTransition, Target
from leapwise.errors import InputError
from leapwise.kernels import Jumps

CENTRES = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 9.0]])
FACTORS = np.array([[[1.0, 0.0], [0.3, 0.5]], [[0.5, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]]])
JUMPS = Jumps(CENTRES, FACTORS)


class TwoModes:
    """Normals of unit width at -5 and 5, of which the right one has three times the mass; potential and log-density."""

    def potential(self, position):
        left, right = position - [-5.0, 0.0], position - [5.0, 0.0]
        return -np.logaddexp(-0.5 * (left**2).sum(axis=1), np.log(3.0) - 0.5 * (right**2).sum(axis=1))

    def potential_and_gradient(self, position):
        left = 1.0 / (1.0 + 3.0 * np.exp(10.0 * position[:, 0]))
        gradient = position - [5.0, 0.0]
        gradient[:, 0] += 10.0 * left
        return self.potential(position), gradient


BOTH = Jumps(np.array([[-5.0, 0.0], [5.0, 0.0]]), np.array([np.eye(2)] * 2))
EXACT = Target(lambda x: -TwoModes().potential(x), dim=2, vectorized=True)
STRAIGHT = SurrogateTransition(0.7, 3, surrogate=TwoModes(), inner_steps=2, jumps=BOTH)
SWINGING = replace(STRAIGHT, metric=DenseMetric(np.diag([25.0, 1.0])), step_size=0.2, centre=np.zeros(2))


def test_a_jump_is_undone_by_the_jump_back():
    rng = np.random.default_rng(1)
    start = CENTRES[rng.integers(3, size=500)] + rng.standard_normal((500, 2))
    mode_before = JUMPS.modes(start)
    end, stretch, counts = JUMPS.propose(start, rng.random(500))
    assert counts.any() and not counts.all()
    for mode in range(3):
        rows = counts & (mode_before == mode)
        chosen = (mode - (mode > JUMPS.modes(end[rows])) + 0.5) / 2
        back, shrink, again = JUMPS.propose(end[rows], chosen)
        np.testing.assert_allclose(back, start[rows], atol=1e-12)
        np.testing.assert_allclose(shrink, -stretch[rows], atol=1e-12)
        assert again.all()


def test_volume_is_stretched_by_the_ratio_of_determinants():
    start, step = np.array([[-3.8, 0.1]]), 1e-6
    moved = np.concatenate([start, start + step * np.eye(2)])
    end, stretch, _ = JUMPS.propose(moved, np.full(3, 0.2))
    jacobian = (end[1:] - end[0]) / step
    assert np.log(abs(np.linalg.det(jacobian))) == pytest.approx(stretch[0], abs=1e-6)


def test_each_other_mode_is_chosen_as_often():
    uniforms = (np.arange(300) + 0.5) / 300
    for here, wanted in ((0, [0, 150, 150]), (1, [150, 0, 150]), (2, [150, 150, 0])):
        end, _, counts = JUMPS.propose(np.tile(CENTRES[here], (300, 1)), uniforms)
        assert np.bincount(JUMPS.modes(end), minlength=3).tolist() == wanted
        assert counts.all()
    last = np.nextafter(1.0, 0.0)
    np.testing.assert_array_equal(JUMPS.propose(CENTRES, np.full(3, last))[0], CENTRES[[2, 2, 1]])


def test_sides_are_changed_as_often_as_jumps_say():
    """Of modes with a quarter and three quarters of the mass, jumps from the one are accepted, of the other a third.

    So with one jump in 3/4 of draws the first is left in 3/4 of cases and the second in 1/4, and sides change in 3/8 of
    all. Of 8000 draws 6 standard errors are 0.033.
    """
    evaluator, streams, n = Evaluator(EXACT), Streams(2, 400), 400
    left = np.arange(n) % 4 == 0
    state = State.from_evaluation(evaluator.value(np.where(left[:, None], [[-5.0, 0.0]], [[5.0, 0.0]])))
    changes = 0
    for _ in range(20):
        before = state.position[:, 0] > 0
        state, _ = STRAIGHT.step(streams, state, evaluator)
        changes += ((state.position[:, 0] > 0) != before).sum()
    assert abs(changes / 8000 - 3 / 8) < 0.033


def test_jumps_that_arrive_in_another_mode_do_not_count():
    start = np.array(
        [[-4.0, 2.4]]
    )  # belongs to the first, eight of the second's widths up, where the third is
    assert JUMPS.modes(start)[0] == 0
    end, _, counts = JUMPS.propose(start, np.array([0.2]))
    assert JUMPS.modes(end)[0] == 2 and not counts[0]


@pytest.mark.parametrize("kernel", [STRAIGHT, SWINGING], ids=["straight", "swinging"])
def test_modes_far_apart_have_their_share(kernel):
    """2400 chains of 8 steps from the left mode: the share has a standard error of 0.009, and 6 of them are allowed."""
    evaluator, n = Evaluator(EXACT), 2400
    state = State.from_evaluation(evaluator.value(np.tile([[-5.0, 0.0]], (n, 1))))
    streams, known = Streams(1, n), evaluator.counts.n_values
    for _ in range(8):
        state, info = kernel.step(streams, state, evaluator)
        assert (info.n_exact <= 1).all()
    assert evaluator.counts.n_values - known <= 8 * n
    assert abs((state.position[:, 0] > 0).mean() - 0.75) < 6 * np.sqrt(0.75 * 0.25 / n)
    without = replace(kernel, jumps=None)
    again = State.from_evaluation(evaluator.value(np.tile([[-5.0, 0.0]], (50, 1))))
    again, _ = without.step(Streams(1, 50), again, evaluator)
    assert (again.position[:, 0] < 0).all()


def test_the_gradient_is_known_after_a_jump():
    """A straight trajectory begins with the force at its start, which a jump has changed."""
    evaluator, kernel, streams = Evaluator(EXACT), STRAIGHT, Streams(3, 20)
    state = State.from_evaluation(evaluator.value(np.tile([[-5.0, 0.3]], (20, 1))))
    state, _ = kernel.step(streams, state, evaluator)
    assert state.known_force is not None and state.known_force.gradient is not None
    np.testing.assert_allclose(
        state.known_force.gradient, TwoModes().potential_and_gradient(state.position)[1], atol=1e-12
    )


def test_a_chain_where_the_surrogate_is_not_finite_stays():
    class Hollow(TwoModes):
        def potential(self, position):
            return np.where(position[:, 0] < 0, np.nan, super().potential(position))

    evaluator = Evaluator(EXACT)
    state = State.from_evaluation(evaluator.value(np.array([[-5.0, 0.0], [5.0, 0.0]])))
    for seed in range(20):
        after, _ = replace(STRAIGHT, surrogate=Hollow()).step(Streams(seed, 2), state, evaluator)
        np.testing.assert_array_equal(after.position[0], state.position[0])
        assert after.position[1, 0] > 0


@pytest.mark.parametrize(
    ("centres", "factors", "said"),
    [
        (CENTRES[:1], FACTORS[:1], "k of at least 2"),
        (CENTRES, FACTORS[:2], "got (3, 2) and (2, 2, 2)"),
        (CENTRES, np.swapaxes(FACTORS, 1, 2), "lower triangular"),
        (CENTRES, -FACTORS, "positive diagonals"),
        ([["a", "b"]] * 3, FACTORS, "centres"),
    ],
)
def test_bad_input(centres, factors, said):
    with pytest.raises(InputError) as error:
        Jumps(centres, factors)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "component_modes",
    [[0, 1], [0.0, 1.0, 1.0], [-1, 0, 1], [0, 2, 2], [1, 1, 1], [[0], [1, 2], 3], ["a", "b", "c"], 0],
)
def test_bad_component_modes_are_refused(component_modes):
    with pytest.raises(
        InputError, match="the mode of each of 3 components, numbered from 0 without gaps, got"
    ):
        Jumps(CENTRES, FACTORS, component_modes)


def test_places_may_be_parts_of_a_mode():
    jumps = Jumps(CENTRES, FACTORS, [0, 1, 0])
    assert jumps.n_modes == 2 and JUMPS.n_modes == 3
    np.testing.assert_array_equal(jumps.modes(CENTRES), [0, 1, 0])
    np.testing.assert_array_equal(jumps.components(CENTRES), [0, 1, 2])
    for one, other in zip(
        jumps.propose(CENTRES, np.full(3, 0.7)), JUMPS.propose(CENTRES, np.full(3, 0.7)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_draws_are_told_of_modes_and_not_of_parts():
    evaluator = Evaluator(EXACT)
    state = State.from_evaluation(evaluator.value(np.array([[-5.0, 0.0], [5.0, 0.0]])))
    _, info = STRAIGHT.step(Streams(1, 2), state, evaluator)
    assert info.mode is not None and set(info.mode) <= {1, 2}
    parts = replace(STRAIGHT, jumps=Jumps(BOTH.centres, BOTH.factors, [0, 0]))
    assert parts.step(Streams(1, 2), state, evaluator)[1].mode is None


def test_something_else_than_jumps_is_refused():
    with pytest.raises(InputError, match="jumps must be Jumps"):
        replace(STRAIGHT, jumps=CENTRES)


@pytest.mark.parametrize("shape", [(1, 3), (2,), (4, 10, 2), ()])
def test_positions_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match=r"positions of shape \(n, 2\), got"):
        JUMPS.modes(np.zeros(shape))


def test_they_do_not_change():
    centres = CENTRES.copy()
    jumps = Jumps(centres, FACTORS)
    centres[:] = 0.0
    np.testing.assert_array_equal(jumps.centres, CENTRES)
    with pytest.raises(ValueError):
        jumps.centres[0] = 1.0


def test_they_can_be_pickled():
    again = pickle.loads(pickle.dumps(JUMPS))
    np.testing.assert_array_equal(again.modes(CENTRES), [0, 1, 2])
