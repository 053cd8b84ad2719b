"""The record of a phase."""

from __future__ import annotations

import numpy as np
import pytest

from understudy import Evaluator, State, Target
from understudy.kernels import Info
from understudy.run.recorder import Recorder

CHAINS, DIM = 3, 2


@pytest.fixture
def evaluator():
    bounds = [(0, None), (-1, 1)]
    return Evaluator(Target(lambda x: 0.0, lambda x: np.zeros(DIM), dim=DIM, bounds=bounds))


def step(rng, **extra):
    state = State(rng.normal(size=(CHAINS, DIM)), rng.normal(size=CHAINS), rng.normal(size=(CHAINS, DIM)))
    info = Info(
        accepted=rng.random(CHAINS) < 0.5,
        acceptance_rate=rng.random(CHAINS),
        step_size=rng.random(CHAINS),
        n_steps=rng.integers(1, 9, CHAINS),
        energy=rng.normal(size=CHAINS),
        energy_error=rng.normal(size=CHAINS),
        diverging=rng.random(CHAINS) < 0.5,
        n_exact=rng.integers(1, 9, CHAINS),
        proposal=state.position,
        proposal_momentum=state.position,
        **extra,
    )
    return state, info


def test_it_keeps_what_it_was_given_in_the_users_coordinates(evaluator, rng):
    recorder = Recorder(CHAINS, 5, evaluator)
    recorder.open()
    steps = [step(rng) for _ in range(5)]
    for each in steps:
        assert not recorder.is_full
        recorder.add(*each)
    assert recorder.is_full
    record = recorder.close()
    for i, (state, info) in enumerate(steps):
        np.testing.assert_allclose(
            record.draws[:, i], evaluator.target.transform.to_parameters(state.position)
        )
        np.testing.assert_array_equal(record.stats["lp"][:, i], -state.potential)
        for name in set(record.stats) - {"lp"}:
            np.testing.assert_array_equal(record.stats[name][:, i], getattr(info, name))
    assert record.stats["diverging"].dtype == bool
    assert record.stats["n_steps"].dtype.kind == "i"
    assert "n_metrics" not in record.stats


def test_a_record_that_is_not_full_has_what_there_is(evaluator, rng):
    recorder = Recorder(CHAINS, 100, evaluator)
    recorder.open()
    for _ in range(2):
        recorder.add(*step(rng))
    record = recorder.close()
    assert record.draws.shape == (CHAINS, 2, DIM)
    assert {values.shape for values in record.stats.values()} == {(CHAINS, 2)}
    assert record.draws.base is None, "the room for the other draws is given back"


def test_an_empty_record_is_one_too(evaluator):
    record = Recorder(CHAINS, 10, evaluator).close()
    assert record.draws.shape == (CHAINS, 0, DIM)
    assert record.cost.n_exact == 0
    assert record.cost.seconds == 0.0


def test_cost_is_what_was_spent_between_open_and_the_first_close(evaluator, rng):
    position = rng.normal(size=(CHAINS, DIM))
    evaluator.value(position)
    recorder = Recorder(CHAINS, 10, evaluator)
    recorder.open()
    evaluator.value_and_gradient(position)
    evaluator.value(position[:1])
    record = recorder.close()
    evaluator.value(position)
    assert recorder.close() is record
    assert (record.cost.n_values, record.cost.n_gradients) == (1, CHAINS)
    assert record.cost.seconds >= record.cost.value_seconds + record.cost.gradient_seconds


def test_statistics_of_riemannian_kernels_are_kept(evaluator, rng):
    recorder = Recorder(CHAINS, 3, evaluator)
    recorder.open()
    n_metrics = rng.integers(1, 100, (3, CHAINS))
    for i in range(3):
        recorder.add(*step(rng, n_metrics=n_metrics[i], unsolved=n_metrics[i] > 50))
    record = recorder.close()
    np.testing.assert_array_equal(record.stats["n_metrics"], n_metrics.T)
    np.testing.assert_array_equal(record.stats["unsolved"], n_metrics.T > 50)
    assert record.cost.n_metrics == n_metrics.sum()
