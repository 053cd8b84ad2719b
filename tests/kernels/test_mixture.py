from __future__ import annotations

import numpy as np
import pytest

from leapwise import HMC, Evaluator, Mixture, State, Streams, SurrogateTransition, Target, UnitMetric
from leapwise.errors import InputError
from leapwise.kernels import SharedStream

TARGET = Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
SHORT, LONG = HMC(0.5, 1, metric=UnitMetric()), HMC(0.5, (8, 8), metric=UnitMetric())


class Round:
    def potential(self, position):
        return 0.5 * (position**2).sum(axis=1)

    def potential_and_gradient(self, position):
        return self.potential(position), position


def test_kernels_are_taken_as_often_as_their_weights_say():
    evaluator = Evaluator(TARGET)
    state = State.from_evaluation(evaluator.value_and_gradient(np.zeros((1, 2))))
    mixture, streams, parts = Mixture((SHORT, LONG), [1.0, 3.0]), Streams(1, 1), []
    for _ in range(2000):
        state, info = mixture.step(streams, state, evaluator)
        parts.append(info.part[0])
        assert (info.n_steps == 8).all() == (info.part[0] == 1)
    # Five standard errors of a share of 2000: false alarms below 1e-6.
    assert abs(np.mean(parts) - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 2000)


def test_exact_and_surrogate_steps_share_a_state():
    """The exact kernel pays for the gradient that the other has not left, once."""
    evaluator = Evaluator(TARGET)
    state = State.from_evaluation(evaluator.value(np.ones((3, 2))))
    mixture = Mixture((SurrogateTransition(0.5, 3, surrogate=Round()), SHORT), [0.5, 0.5])
    streams = SharedStream(np.random.default_rng(0), 3)
    for _ in range(20):
        state, _ = mixture.step(streams, state, evaluator)
    np.testing.assert_allclose(state.potential, 0.5 * (state.position**2).sum(axis=1))
    assert evaluator.counts.n_values > 0 and evaluator.counts.n_gradients > 0


def test_it_is_exact_if_all_of_it_is():
    class Loose(HMC):
        is_exact = False

    loose = Loose(0.5, 1, metric=UnitMetric())
    assert Mixture((SHORT, LONG), [1, 1]).is_exact and not Mixture((SHORT, loose), [1, 1]).is_exact


@pytest.mark.parametrize(
    ("kernels", "weights"),
    [
        ((), ()),
        ((SHORT,), (1, 2)),
        ((SHORT, LONG), (-1, 2)),
        ((SHORT, LONG), (0, 0)),
        ((HMC,), (1,)),
        ((3,), (1,)),
    ],
)
def test_what_is_no_mixture_is_refused(kernels, weights):
    with pytest.raises(InputError, match=r"mixture|weights"):
        Mixture(kernels, weights)
