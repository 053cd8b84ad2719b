from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import SkewedSurrogate, skewed_target

from understudy import Evaluator, State, Streams, SurrogateTransition
from understudy.errors import InputError


class Wall(SkewedSurrogate):
    """Has no answer above zero."""

    def potential(self, position):
        return np.where(position[:, 0] > 0, np.nan, super().potential(position))


def begin(n=4, visited=None, where=0.5):
    evaluator = Evaluator(skewed_target(visited))
    return evaluator, State.from_evaluation(evaluator.value(np.full((n, 2), where)))


def test_one_value_for_each_draw_and_no_gradient():
    evaluator, state = begin()
    kernel, streams = SurrogateTransition(0.4, 3, surrogate=SkewedSurrogate(), inner_steps=4), Streams(1, 4)
    for _ in range(25):
        state, info = kernel.step(streams, state, evaluator)
        assert (info.n_exact == (info.proposal != state.position).any(axis=1) | info.accepted).all()
    assert evaluator.counts.n_gradients == 0 and evaluator.counts.n_values <= 4 + 100


def test_a_chain_that_does_not_move_costs_nothing():
    evaluator, state = begin()
    kernel = SurrogateTransition(50.0, (1, 1), surrogate=SkewedSurrogate(), inner_steps=2)
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    assert evaluator.counts.n_values == 4 and not info.accepted.any() and not info.n_exact.any()
    np.testing.assert_array_equal(after.position, state.position)
    assert not info.diverging.any() and np.isnan(info.discrepancy).all()


def test_no_position_is_evaluated_twice():
    visited = []
    evaluator, state = begin(visited=visited)
    kernel, streams = SurrogateTransition(0.9, 3, surrogate=SkewedSurrogate(), inner_steps=2), Streams(1, 4)
    visited.clear()
    for _ in range(50):
        state, _ = kernel.step(streams, state, evaluator)
    assert len(np.unique(visited, axis=0)) == len(visited)


def test_the_stand_in_is_asked_only_where_it_is_not_known():
    """Its potential and gradient at the start of a step are those of the end of the last one."""

    class Counted(SkewedSurrogate):
        n_potentials = 0

        def potential(self, position):
            self.n_potentials += 1
            return super().potential(position)

    surrogate = Counted()
    evaluator, state = begin()
    kernel, streams = SurrogateTransition(0.2, (2, 2), surrogate=surrogate, inner_steps=3), Streams(1, 4)
    state, _ = kernel.step(streams, state, evaluator)
    before = surrogate.n_potentials
    kernel.step(streams, state, evaluator)
    # Two leapfrog steps, which ask this surrogate for both, and one potential, for each inner step.
    assert surrogate.n_potentials - before == 3 * 3


def test_nothing_crosses_to_where_the_stand_in_has_no_answer():
    evaluator, state = begin(where=-0.5)
    kernel, streams = SurrogateTransition(0.5, 3, surrogate=Wall(), inner_steps=2), Streams(1, 4)
    for _ in range(30):
        state, _ = kernel.step(streams, state, evaluator)
        assert (state.position[:, 0] <= 0).all()
    inside, there = begin(where=0.5)
    after, info = kernel.step(streams, there, inside)
    np.testing.assert_array_equal(after.position, there.position)
    assert info.diverging.all() and inside.counts.n_values == 4


def test_the_discrepancy_is_exact_less_stand_in_at_the_proposal():
    evaluator, state = begin()
    surrogate = SkewedSurrogate()
    _, info = SurrogateTransition(0.4, 3, surrogate=surrogate).step(Streams(3, 4), state, evaluator)
    found = info.proposal_potential - surrogate.potential(info.proposal)
    np.testing.assert_allclose(info.discrepancy, found)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "three"])
def test_inner_steps_are_a_whole_number(steps):
    with pytest.raises(InputError, match="inner_steps"):
        SurrogateTransition(0.4, 3, surrogate=SkewedSurrogate(), inner_steps=steps)
