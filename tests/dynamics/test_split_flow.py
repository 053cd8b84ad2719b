"""The split flow: reversible, volume preserving, of second order, and exact for a standard normal."""

from __future__ import annotations

import numpy as np
import pytest
from integrators import Flow, ReversibleVolumePreserving, Symplectic, skewed_force, twisted_force

from leapwise.dynamics import split_flow


def flow_of(force, rng):
    def run(position, momentum, step_size, n_steps):
        q, p, complete = split_flow(lambda q: force(q)[1], position, momentum, step_size, n_steps)
        assert complete.all()
        return q, p

    return Flow(
        run,
        lambda q, p: force(q)[0] + 0.5 * (p**2).sum(axis=1),
        rng.normal(size=(6, 3)) + 0.5,
        rng.normal(size=(6, 3)),
    )


class TestSwing(Symplectic):
    @pytest.fixture
    def flow(self, rng):
        return flow_of(skewed_force, rng)


class TestSwingWithAnyForce(ReversibleVolumePreserving):
    @pytest.fixture
    def flow(self, rng):
        return flow_of(twisted_force, rng)


@pytest.mark.parametrize("step_size", [0.1, 1.0, 3.0, 10.0])
def test_is_exact_for_a_standard_normal(step_size, rng):
    q, p = rng.normal(size=(2, 5, 3))
    end, momentum, _ = split_flow(lambda q: q, q, p, np.full(5, step_size), np.full(5, 3))
    time = 3 * step_size
    np.testing.assert_allclose(end, np.cos(time) * q + np.sin(time) * p, atol=1e-12)
    np.testing.assert_allclose(momentum, np.cos(time) * p - np.sin(time) * q, atol=1e-12)


def test_chains_have_their_own_lengths_and_do_not_disturb_each_other(rng):
    q, p = rng.normal(size=(2, 8, 3))
    step_size, n_steps = np.linspace(0.01, 0.4, 8), np.array([3, 0, 1, 7, 7, 2, 1, 5])
    slope = lambda q: skewed_force(q)[1]  # noqa: E731
    together = split_flow(slope, q, p, step_size, n_steps)
    for i in range(8):
        rows = slice(i, i + 1)
        alone = split_flow(slope, q[rows], p[rows], step_size[rows], n_steps[rows])
        for one, all_ in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, all_[rows], rtol=1e-13, atol=1e-13)
    np.testing.assert_array_equal(together[0][1], q[1])


def test_a_step_costs_one_call_and_the_ends_none(rng):
    asked = []

    def slope(q):
        asked.append(q.copy())
        return skewed_force(q)[1]

    n_steps = np.repeat([5, 5, 2, 0], 20)
    q, p = rng.normal(size=(2, 80, 3))
    end, _, _ = split_flow(slope, q, p, np.full(80, 0.3), n_steps)
    assert [len(each) for each in asked] == [60, 60, 40, 40, 40]
    visited = np.concatenate(asked)
    assert not any((visited == each).all(axis=1).any() for each in (*q, *end))


def test_few_rows_that_have_ended_go_on_unheard(rng):
    asked = []

    def slope(q):
        asked.append(len(q))
        return np.where(len(asked) > 2, np.nan, skewed_force(q)[1])

    q, p = rng.normal(size=(2, 4, 3))
    end, momentum, complete = split_flow(slope, q, p, np.full(4, 0.3), np.array([4, 2, 2, 0]))
    assert asked == [4, 4, 4, 4] and complete.tolist() == [False, True, True, True]
    alone = split_flow(lambda q: skewed_force(q)[1], q[1:3], p[1:3], np.full(2, 0.3), np.array([2, 2]))
    np.testing.assert_allclose((end[1:3], momentum[1:3]), alone[:2], rtol=1e-13)


def test_what_it_is_given_is_not_written_to(rng):
    q, p = rng.normal(size=(2, 4, 3))
    before = q.copy(), p.copy()
    for n_steps in ([2, 2, 2, 2], [0, 1, 2, 3], [0, 0, 0, 0]):
        end, momentum, _ = split_flow(lambda q: 2.0 * q, q, p, np.full(4, 0.3), np.array(n_steps))
        end += 1.0
        momentum += 1.0
    np.testing.assert_array_equal((q, p), before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gives_a_trajectory_up_both_ways(bad, rng):
    def slope(q):
        return np.where(q[:, :1] > 1.0, bad, skewed_force(q)[1])

    q, p = rng.normal(size=(2, 400, 3))
    size, number = np.full(400, 0.3), rng.integers(1, 6, 400)
    end, momentum, complete = split_flow(slope, q, p, size, number)
    assert 0.1 < complete.mean() < 0.9
    back, _, returned = split_flow(
        slope, end[complete], -momentum[complete], size[complete], number[complete]
    )
    assert returned.all()
    np.testing.assert_allclose(back, q[complete], atol=1e-10)


def test_positions_that_overflow_never_reach_the_force():
    asked = []

    def slope(q):
        asked.append(q.copy())
        return q * 1e200

    _, _, complete = split_flow(
        slope, np.ones((2, 1)), np.zeros((2, 1)), np.array([1.0, 0.0]), np.full(2, 10)
    )
    assert not complete[0]
    assert all(np.isfinite(each).all() for each in asked)
