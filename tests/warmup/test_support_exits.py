"""Near a hard edge smaller steps do not help, so warm-up does not spend gradients on them."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise import HMC, Evaluator, Streams, Target
from leapwise.warmup.hmc import HMCWarmup
from leapwise.warmup.start import find_start
from leapwise.warmup.tuners import EDGE_STEPS, MOST_STEPS

EDGED = {
    "disc": Target(lambda x: 0.0 if x @ x < 1 else -np.inf, np.zeros_like, dim=2),
    "cut normal": Target(lambda x: -0.5 * x @ x if x @ x < 1 else -np.inf, lambda x: -x, dim=2),
    "exponential": Target(lambda x: -x.sum() if (x > 0).all() else -np.inf, lambda x: -np.ones(3), dim=3),
}


def tuned(target, n_steps=200, seed=1):
    """Warm HMC up; return the evaluator, and the frozen kernel."""
    evaluator, streams = Evaluator(target), Streams(seed, 4)
    state = find_start(evaluator, streams, None)
    warmup = HMCWarmup(HMC(), n_steps, evaluator, streams, state)
    for _ in range(n_steps):
        before = state
        state, info = warmup.kernel.step(streams, before, evaluator)
        warmup.learn(before, state, info)
    return evaluator, warmup.freeze()


@pytest.mark.parametrize("name", EDGED)
def test_a_trajectory_at_an_edge_has_few_steps(name):
    evaluator, kernel = tuned(EDGED[name])
    assert kernel.trajectory_length <= EDGE_STEPS * kernel.step_size * (1 + 1e-9)
    assert evaluator.counts.n_exact < 4 * 200 * EDGE_STEPS


@pytest.mark.parametrize("name", EDGED)
def test_neither_kind_of_trajectory_shrinks_at_an_edge(name):
    """Whichever `HMC()` becomes: it would be paid for in gradients."""
    run = lw.sample(EDGED[name], draws=200, tune=200, method=HMC(), random_seed=1, progressbar=False)
    assert run.cost.n_gradients < 4 * 400 * 2 * EDGE_STEPS
    assert run.kernel.step_size > 0.1


def test_draws_of_a_cut_normal_are_right():
    """The mean square of a standard normal within the unit disc is 2 - 1 / (e^(1/2) - 1), of both parameters."""
    run = lw.sample(EDGED["cut normal"], draws=1500, method=HMC(), random_seed=2)
    exact = 2.0 - 1.0 / (np.exp(0.5) - 1.0)
    assert np.square(run.draws).sum(axis=2).mean() == pytest.approx(exact, abs=0.03)


def test_small_steps_for_their_own_sake_are_left_alone():
    """A stiff target without an edge keeps as many steps as it needs."""
    stiff = Target(lambda x: -0.5 * x[0] ** 2 - 0.5 * (x[1] / 0.01) ** 2, lambda x: -x / [1.0, 1e-4], dim=2)
    evaluator, streams = Evaluator(stiff), Streams(1, 4)
    state = find_start(evaluator, streams, np.array([1.0, 0.01]))
    warmup = HMCWarmup(HMC(metric="unit"), 200, evaluator, streams, state)
    for _ in range(200):
        before = state
        state, info = warmup.kernel.step(streams, before, evaluator)
        warmup.learn(before, state, info)
    kernel = warmup.freeze()
    assert EDGE_STEPS < kernel.trajectory_length / kernel.step_size <= MOST_STEPS
