"""Dual averaging, and its first guess."""

from __future__ import annotations

import numpy as np
import pytest
from gaussians import start_gaussian

from leapwise import DiagonalMetric, Evaluator, State, Streams, Target, UnitMetric
from leapwise.dynamics import PhasePoint, kinetic_energy, leapfrog
from leapwise.kernels.trajectory import ExactForce
from leapwise.warmup.tuners import DualAveraging, first_step_size

CURVES = {
    "exponential": lambda step: np.exp(-step),
    "Gaussian": lambda step: np.exp(-(step**2)),
    "a cliff": lambda step: 1.0 / (1.0 + step**12),
    "slow": lambda step: 1.0 / (1.0 + np.sqrt(step)),
}


class TestDualAveraging:
    @pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
    @pytest.mark.parametrize("initial", [1e-4, 1.0, 1e4])
    @pytest.mark.parametrize("curve", CURVES)
    def test_it_reaches_its_target(self, curve, initial, target):
        tuner = DualAveraging(np.array(initial), target)
        for _ in range(3000):
            tuner.update(CURVES[curve](tuner.current))
        assert abs(CURVES[curve](tuner.average) - target) < 0.02

    def test_each_chain_reaches_it_by_itself(self, rng):
        scale = 10.0 ** np.linspace(-6, 6, 7)
        tuner = DualAveraging(scale * rng.uniform(0.1, 10.0, 7), 0.8)
        for _ in range(2000):
            tuner.update(np.exp(-tuner.current / scale))
        np.testing.assert_allclose(np.exp(-tuner.average / scale), 0.8, atol=0.01)

    def test_chains_do_not_influence_each_other(self):
        alone, beside = DualAveraging(np.array([0.3]), 0.8), DualAveraging(np.array([0.3, 7.0]), 0.8)
        for _ in range(50):
            alone.update(np.exp(-alone.current))
            beside.update(np.array([np.exp(-beside.current[0]), 0.0]))
        assert alone.average[0] == beside.average[0]

    def test_noise_averages_out(self, rng):
        # The rate is 0.8 + noise / sqrt(500) at least: sd 0.4 / 22 = 0.02, so 0.1 is five sigma.
        tuner = DualAveraging(np.array(3.0), 0.8)
        for _ in range(500):
            tuner.update(np.asarray(rng.random() < np.exp(-tuner.current), dtype=float))
        assert abs(np.exp(-tuner.average) - 0.8) < 0.1

    def test_nothing_goes_beyond_the_largest(self):
        tuner = DualAveraging(np.array(0.5), 0.8)
        for _ in range(200):
            tuner.update(np.array(1.0), largest=2.0)
            assert tuner.current <= 2.0 * (1 + 1e-12)
            assert tuner.average <= 2.0 * (1 + 1e-12)
        assert tuner.average > 1.9

    @pytest.mark.parametrize("rate", [0.0, 1.0])
    def test_a_rate_that_never_changes_leaves_a_usable_step_size(self, rate):
        tuner = DualAveraging(np.array(1.0), 0.8)
        for _ in range(20_000):
            tuner.update(np.array(rate), largest=1e3)
        assert 0 < tuner.current < np.inf
        assert 0 < tuner.average < np.inf


def trial(evaluator, state, metric, step_size, seed):
    """Energy lost in the one step that `first_step_size` tries with this seed; NaN if it was abandoned."""
    n, dim = state.position.shape
    momentum = metric.momentum(Streams(seed, n).normals(dim))
    start = PhasePoint(state.position, momentum, state.potential, state.gradient, np.ones(n, dtype=bool))
    end, _ = leapfrog(ExactForce(evaluator).evaluate, metric, start, step_size, np.ones(n, dtype=int))
    gained = end.potential + kinetic_energy(metric, end.momentum)
    lost = state.potential + kinetic_energy(metric, momentum) - gained
    return np.where(end.complete, lost, np.nan)


class TestFirstStepSize:
    @pytest.mark.parametrize("dim", [1, 10])
    @pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
    def test_it_is_the_largest_power_of_two_that_is_accepted(self, scale, dim, rng):
        evaluator, state = start_gaussian(scale**2 * np.eye(dim), scale * rng.normal(size=(6, dim)))
        step_size = first_step_size(evaluator, Streams(3, 6), state, UnitMetric(), 0.8)
        assert (np.log2(step_size) % 1 == 0).all()
        assert (trial(evaluator, state, UnitMetric(), step_size, 3) > np.log(0.8)).all()
        assert not (trial(evaluator, state, UnitMetric(), 2 * step_size, 3) > np.log(0.8)).any()
        np.testing.assert_array_less(np.abs(np.log2(step_size / scale)), 4.0)

    @pytest.mark.parametrize("distance", [1e2, 1e4])
    def test_in_the_far_tails_too(self, distance, rng):
        """There a long step gains so much energy that the kernel would give it up."""
        evaluator, state = start_gaussian(np.eye(2), distance * rng.normal(size=(6, 2)))
        step_size = first_step_size(evaluator, Streams(3, 6), state, UnitMetric(), 0.8)
        assert (trial(evaluator, state, UnitMetric(), step_size, 3) > np.log(0.8)).all()
        assert not (trial(evaluator, state, UnitMetric(), 2 * step_size, 3) > np.log(0.8)).any()

    @pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
    def test_it_costs_few_gradients(self, scale, rng):
        evaluator, state = start_gaussian(scale**2 * np.eye(3), scale * rng.normal(size=(5, 3)))
        first_step_size(evaluator, Streams(1, 5), state, UnitMetric(), 0.8)
        # One for each doubling; small scales are guessed from the gradient, large ones are climbed to from 1.
        assert evaluator.counts.n_gradients <= 5 * (6 + max(0.0, np.log2(scale)))

    def test_it_is_measured_in_the_metric(self, rng):
        scale = np.array([1e-3, 1.0, 1e3])
        evaluator, state = start_gaussian(np.diag(scale**2), scale * rng.normal(size=(6, 3)))
        step_size = first_step_size(evaluator, Streams(1, 6), state, DiagonalMetric(scale**2), 0.8)
        assert ((step_size > 0.2) & (step_size < 5)).all()

    def test_a_chain_does_not_depend_on_those_beside_it(self, rng):
        positions = rng.normal(size=(4, 2)) * np.array([[1.0], [100.0], [1.0], [1e-3]])
        evaluator, state = start_gaussian(np.eye(2), positions)
        together = first_step_size(evaluator, Streams(1, 4), state, UnitMetric(), 0.8)
        evaluator, state = start_gaussian(np.eye(2), positions[:2])
        np.testing.assert_array_equal(
            first_step_size(evaluator, Streams(1, 2), state, UnitMetric(), 0.8), together[:2]
        )

    @pytest.mark.parametrize("distance", [1e-9, 1e-3, 0.0])
    def test_a_wall_stops_it_but_not_for_long(self, distance):
        target = Target(
            lambda x: np.where(x[:, 0] <= 1.0, -0.5 * x[:, 0] ** 2, -np.inf),
            lambda x: -x,
            dim=1,
            vectorized=True,
        )
        evaluator = Evaluator(target)
        state = State.from_evaluation(evaluator.value_and_gradient(np.full((8, 1), 1.0 - distance)))
        step_size = first_step_size(evaluator, Streams(1, 8), state, UnitMetric(), 0.8)
        assert ((step_size > 0) & (step_size < 16)).all()
        assert evaluator.counts.n_gradients <= 8 * 51

    def test_a_single_point_of_mass_ends_in_a_tiny_step(self):
        target = Target(lambda x: 0.0 if x[0] == 1.0 else -np.inf, lambda x: np.zeros(1), dim=1)
        evaluator = Evaluator(target)
        state = State.from_evaluation(evaluator.value_and_gradient(np.ones((1, 1))))
        step_size = first_step_size(evaluator, Streams(1, 1), state, UnitMetric(), 0.8)
        assert 0 < step_size[0] < 1e-10
        assert evaluator.counts.n_gradients <= 51

    def test_an_enormous_gradient_gives_a_number(self):
        evaluator = Evaluator(Target(lambda x: -1e200 * x[0] ** 2, lambda x: -2e200 * x, dim=1))
        state = State.from_evaluation(evaluator.value_and_gradient(np.ones((2, 1))))
        step_size = first_step_size(evaluator, Streams(1, 2), state, UnitMetric(), 0.8)
        assert (np.isfinite(step_size) & (step_size > 0)).all()
