"""RMHMC: what no other kernel does."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import SkewedMetric, skewed_target, start

from leapwise import HMC, RMHMC, DiagonalMetric, Evaluator, State, Streams
from leapwise.dynamics import ImplicitSolver
from leapwise.errors import InputError

MASS = np.array([1.5, 0.4])


class Constant:
    """A metric that is the same everywhere, through the Riemannian door."""

    def at(self, position):
        self.matrix = np.broadcast_to(np.diag(MASS), (len(position), 2, 2))
        self.cholesky = np.sqrt(self.matrix)
        return self

    def quadratic_contraction(self, velocity):
        return np.zeros_like(velocity)

    def trace_contraction(self):
        return np.zeros((len(self.matrix), 2))


class Holed(SkewedMetric):
    """No metric at all where the first coordinate is above 1."""

    def at(self, position):
        local = super().at(position)
        local.cholesky[position[:, 0] > 1.0] = np.nan
        return local


def test_with_a_constant_metric_it_is_hmc():
    evaluator = Evaluator(skewed_target())
    kernels = RMHMC(0.9, 5, metric=Constant()), HMC(0.9, 5, metric=DiagonalMetric(1.0 / MASS))
    streams = Streams(1, 6), Streams(1, 6)
    states = [start(evaluator, 6)] * 2
    for _ in range(20):
        states, infos = zip(
            *(k.step(s, x, evaluator) for k, s, x in zip(kernels, streams, states, strict=True)), strict=True
        )
        np.testing.assert_allclose(states[0].position, states[1].position, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(infos[0].energy_error, infos[1].energy_error, atol=1e-9)


def test_every_evaluation_of_the_metric_is_counted():
    metric, evaluator = SkewedMetric(), Evaluator(skewed_target())
    state, streams, counted = start(evaluator, 7), Streams(1, 7), 0
    for step_size in (0.2, 0.8, 2.0, 5.0):
        state, info = RMHMC(step_size, 4, metric=metric).step(streams, state, evaluator)
        counted += int(info.n_metrics.sum())
    assert counted == sum(map(len, metric.calls))


@pytest.mark.parametrize("n_chains", [1, 2])
def test_what_is_remembered_of_the_metric_is_not_stale(n_chains):
    """Chains whose states are made anew before each step, without memory, go the same way."""
    evaluator = Evaluator(skewed_target())
    kernel = RMHMC(1.6, 2, metric=SkewedMetric())
    streams, others = Streams(1, n_chains), Streams(1, n_chains)
    state = fresh = start(evaluator, n_chains)
    all_moved = all_refused = 0
    for _ in range(60):
        state, info = kernel.step(streams, state, evaluator)
        fresh, _ = kernel.step(others, State(fresh.position, fresh.potential, fresh.gradient), evaluator)
        np.testing.assert_array_equal(state.position, fresh.position)
        all_moved += info.accepted.all()
        all_refused += (~info.accepted & ~info.unsolved).all()
    assert all_moved and all_refused  # what is remembered differs between the two


def test_another_metric_is_not_mistaken_for_the_one_remembered():
    evaluator = Evaluator(skewed_target())
    state, _ = RMHMC(0.1, 1, metric=SkewedMetric()).step(Streams(1, 1), start(evaluator, 1), evaluator)
    forgotten = State(state.position, state.potential, state.gradient)
    kernel = RMHMC(0.5, 3, metric=Constant())
    found, expected = (kernel.step(Streams(2, 1), each, evaluator)[0] for each in (state, forgotten))
    np.testing.assert_array_equal(found.position, expected.position)


def test_unsolved_steps_are_rejected_counted_and_not_called_divergent():
    evaluator, n = Evaluator(skewed_target()), 200
    with np.errstate(over="ignore"):
        _, info = RMHMC(2.0, 3, metric=SkewedMetric()).step(Streams(1, n), start(evaluator, n), evaluator)
    assert 0.05 < info.unsolved.mean() < 0.95
    assert not (info.unsolved & info.accepted).any() and not (info.unsolved & info.diverging).any()
    assert (info.acceptance_rate[info.unsolved] == 0).all()
    assert np.isnan(info.energy_error[info.unsolved]).all() and np.isfinite(info.energy).all()
    assert (info.n_exact <= info.n_steps).all()


def test_too_few_iterations_reject_everything():
    evaluator = Evaluator(skewed_target())
    before = start(evaluator, 5)
    kernel = RMHMC(0.5, 3, metric=SkewedMetric(), solver=ImplicitSolver(max_iterations=1))
    state, info = kernel.step(Streams(1, 5), before, evaluator)
    assert info.unsolved.all()
    np.testing.assert_array_equal(state.position, before.position)


def test_a_chain_where_there_is_no_metric_stays_and_says_so():
    evaluator = Evaluator(skewed_target())
    position = np.array([[2.0, 0.0], [0.0, 0.5], [-0.5, 0.0]])
    state = State.from_evaluation(evaluator.value_and_gradient(position))
    streams = Streams(1, 3)
    for _ in range(10):
        state, info = RMHMC(0.3, 3, metric=Holed()).step(streams, state, evaluator)
        assert info.unsolved[0] and not info.accepted[0] and info.n_exact[0] == 0
        assert (state.position[1:, 0] <= 1.0).all()
    np.testing.assert_array_equal(state.position[0], position[0])
    assert (state.position[1:] != position[1:]).all()


def test_needs_a_metric_and_a_solver():
    with pytest.raises(InputError, match="needs a metric"):
        RMHMC(0.1, 3)
    with pytest.raises(InputError, match="solver must be an ImplicitSolver"):
        RMHMC(0.1, 3, metric=SkewedMetric(), solver=1e-8)
