"""Warm-up of HMC() and NUTS(): descent from far away, and the choice between a single length and trees."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise import HMC, NUTS, Evaluator, State, Streams, Target
from leapwise.kernels import Info
from leapwise.warmup import warmup_for
from leapwise.warmup.hmc import rate_inside
from leapwise.warmup.start import ChainDescent, descend, find_start
from leapwise.warmup.tuners import Efficiency


def regression(columns, noise=1.0, n=120):
    """A regression on raw numbers, given by mean and spread of each column, with unknown noise."""
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(n), *(m + s * rng.normal(size=n) for m, s in columns)])
    data = design @ np.array([1.0, *(1.0 / s for _, s in columns)]) + noise * rng.normal(size=n)

    def both(x):
        rest, weight = data - x[:, :-1] @ design.T, np.exp(-2.0 * x[:, -1])
        squares = (rest**2).sum(axis=1)
        return -0.5 * squares * weight - n * x[:, -1], np.column_stack(
            [rest @ design * weight[:, None], squares * weight - n]
        )

    least, squares, *_ = np.linalg.lstsq(design, data, rcond=None)
    covariance = squares[0] / n * np.linalg.inv(design.T @ design)
    return _target(both, len(least) + 1), least, np.sqrt(np.diag(covariance))


def _target(both, dim):
    return Target(lambda x: both(x)[0], value_and_gradient=both, dim=dim, vectorized=True)


def funnel(dim=6):
    """Neal's funnel: its potential falls without end as the first parameter does."""

    def both(x):
        with np.errstate(over="ignore"):
            v, rest, k = x[:, 0], x[:, 1:], dim - 1
            squares = (rest**2).sum(axis=1) * np.exp(-v)
            gradient = np.column_stack([-v / 9 + 0.5 * squares - 0.5 * k, -rest * np.exp(-v)[:, None]])
            return -(v**2) / 18 - 0.5 * squares - 0.5 * k * v, gradient

    return _target(both, dim)


RAW = {
    "years": [(2000.0, 10.0)],
    "incomes": [(5e4, 2e4), (2000.0, 10.0)],
    "mixed scales": [(0.0, 1e-3), (1e3, 1e3)],
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("method", [HMC(), pytest.param(NUTS(), marks=pytest.mark.slow)], ids=["HMC", "NUTS"])
def test_regressions_on_unscaled_data_start(name, method):
    """From 10^5 to 10^12 above the lowest potential; means within a third of a posterior deviation, R-hat small."""
    target, least, sds = regression(RAW[name], noise=100.0 if name == "incomes" else 1.0)
    run = lw.sample(target, 500, tune=400, chains=4, method=method, random_seed=3, progressbar=False)
    found = run.draws.reshape(-1, target.dim)[:, :-1]
    assert (np.abs(found.mean(axis=0) - least) < 0.33 * sds).all()
    np.testing.assert_allclose(found.std(axis=0), sds, rtol=0.2)
    chains = run.draws.mean(axis=1)
    assert (chains.std(axis=0) < 0.3 * run.draws.std(axis=(0, 1))).all()
    assert run.cost.n_gradients < 4 * 900 * 20


class TestDescent:
    def start(self, target, seed=1):
        evaluator = Evaluator(target)
        return evaluator, find_start(evaluator, Streams(seed, 4), None)

    def test_it_falls_most_of_the_way_for_few_gradients(self):
        target, least, _ = regression(RAW["incomes"], noise=100.0)
        evaluator, state = self.start(target)
        before = evaluator.counts.n_gradients
        end, metric = descend(evaluator, state, "dense")
        assert isinstance(metric, lw.DenseMetric)
        bottom = evaluator.value(np.append(least, np.log(100.0))[None]).potential
        assert (state.potential - bottom > 1e5).all() and (end.potential - bottom < 3e3).all()
        assert evaluator.counts.n_gradients - before < 4 * 100
        exact = evaluator.value_and_gradient(end.position)
        np.testing.assert_allclose(
            end.potential, exact.potential, rtol=1e-9
        )  # in other batches, other rounding
        np.testing.assert_allclose(end.gradient, exact.gradient, rtol=1e-6, atol=1e-6)

    def test_a_chain_that_is_near_stays(self):
        evaluator, state = self.start(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=5))
        spent = evaluator.counts.n_gradients
        end, metric = descend(evaluator, state, "dense")
        assert end is state and isinstance(metric, lw.UnitMetric) and evaluator.counts.n_gradients == spent

    def test_it_does_not_follow_a_funnel_down(self):
        evaluator, state = self.start(funnel())
        end, _ = descend(evaluator, state, "dense")
        assert (end.position[:, 0] > state.position[:, 0] - 2.0).all()

    def test_it_learns_the_inverse_hessian_of_a_quadratic(self):
        covariance = np.array([[4.0, 1.9], [1.9, 1.0]]) * 1e-4
        precision = np.linalg.inv(covariance)
        evaluator, state = self.start(
            Target(lambda x: -0.5 * x @ precision @ x, lambda x: -precision @ x, dim=2)
        )
        descent = ChainDescent(state)
        descent.follow(evaluator)
        for found in descent.inverse:
            assert np.abs(np.log(np.linalg.eigvals(found @ precision).real)).max() < np.log(30.0)

    def test_it_stays_inside_the_support(self):
        """A wall across the way down is not crossed."""

        def log_density(x):
            return -np.inf if x[0] < 0.5 else -1e4 * x @ x

        evaluator = Evaluator(Target(log_density, lambda x: -2e4 * x, dim=2))
        position = np.array([[1.5, 1.0], [0.6, -1.0]])
        end, _ = descend(evaluator, State.from_evaluation(evaluator.value_and_gradient(position)), "diagonal")
        assert np.isfinite(end.potential).all() and (end.position[:, 0] >= 0.5).all()

    @pytest.mark.parametrize("shape", ["diagonal", "dense"])
    def test_the_metric_has_the_shape_that_was_asked_for(self, shape):
        target, *_ = regression(RAW["years"])
        evaluator, state = self.start(target)
        kind = {"diagonal": lw.DiagonalMetric, "dense": lw.DenseMetric}[shape]
        assert isinstance(descend(evaluator, state, shape)[1], kind)


#: One seed in the quick tier; 1 is the quickest on the funnel.
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2))]


class TestChoice:
    def kernel(self, target, seed):
        return lw.sample(
            target, 1, tune=500, chains=4, method=HMC(), random_seed=seed, progressbar=False
        ).kernel

    @pytest.mark.parametrize("seed", SEEDS)
    def test_one_length_for_a_normal(self, seed):
        precision = np.logspace(0, 4, 10)
        target = _target(lambda x: (-0.5 * (x**2 * precision).sum(axis=1), -x * precision), 10)
        kernel = self.kernel(target, seed)
        assert isinstance(kernel, HMC) and 0.8 < kernel.trajectory_length < 3.0

    @pytest.mark.parametrize("seed", SEEDS)
    def test_trees_for_a_funnel(self, seed):
        assert isinstance(self.kernel(funnel(), seed), NUTS)

    def test_the_run_says_which(self):
        run = lw.sample(funnel(), 1, tune=200, chains=4, method=HMC(), random_seed=1, progressbar=False)
        assert run.settings["method"] == "HMC" and run.settings["kernel"] == "NUTS"
        run = lw.sample(funnel(), 1, tune=200, chains=4, method=NUTS(), random_seed=1, progressbar=False)
        assert run.settings["method"] == run.settings["kernel"] == "NUTS"

    @pytest.mark.parametrize("n_steps", [20, 21, 25, 40, 60, 100])
    def test_few_steps_still_give_a_usable_kernel(self, n_steps):
        evaluator, streams = Evaluator(funnel()), Streams(1, 2)
        state = find_start(evaluator, streams, None)
        warmup = warmup_for(HMC(), n_steps, evaluator, streams, state)
        for _ in range(n_steps):
            before = state
            state, info = warmup.kernel.step(streams, before, evaluator)
            warmup.learn(before, state, info)
        kernel = warmup.freeze()
        assert kernel.is_set and np.ndim(kernel.step_size) == 0
        kernel.step(streams, state, evaluator)


@pytest.mark.parametrize("method", [HMC(), NUTS()], ids=["HMC", "NUTS"])
def test_a_chain_that_cannot_move_does_not_stop_the_others(method):
    """One chain sits on a spike of no width; its rejections say nothing about the step size."""

    def both(x):
        spike = (x == [9.0, 0.0]).all(axis=1)
        return np.where(spike, 1e3, -0.5 * (x**2).sum(axis=1)), -x

    init = np.array([[9.0, 0.0], [0.3, 0.5], [-1.0, 0.2], [0.4, -1.2]])
    run = lw.sample(_target(both, 2), 1, tune=300, method=method, init=init, random_seed=1, progressbar=False)
    assert (run.draws[0] == init[0]).all() and run.kernel.step_size > 0.02


class TestEfficiency:
    """Autoregressive chains of known correlation, one step each from draws of a standard normal."""

    def seen(self, correlation, n_steps, n=4000, dim=3, seed=0):
        rng = np.random.default_rng(seed)
        old = rng.normal(size=(n, dim))
        new = correlation * old + np.sqrt(1 - correlation**2) * rng.normal(size=(n, dim))
        states = [State(each, 0.5 * (each**2).sum(axis=1)) for each in (old, new)]
        empty = np.zeros(n)
        info = Info(*[empty] * 3, np.full(n, n_steps), *[empty] * 2, empty > 1, *[empty] * 3, left=empty > 1)
        return *states, info

    def test_the_same_decorrelation_at_half_the_cost_is_half_the_price(self):
        efficiency = Efficiency()
        efficiency.add("long", *self.seen(0.5, 8))
        efficiency.add("short", *self.seen(0.5, 4, seed=1))
        prices = efficiency.prices()
        assert prices["long"] / prices["short"] == pytest.approx(2.0, rel=0.15)
        # Means have (1 - 0.5) / (1 + 0.5) effective draws a step, squares (1 - 0.25) / (1 + 0.25).
        assert prices["short"] == pytest.approx(4 * (3.0 + 1.25 / 0.75), rel=0.15)

    def test_the_slowest_parameter_sets_the_price(self):
        fast, slow = self.seen(0.1, 4), self.seen(0.1, 4, seed=1)
        slow[1].position[:, 2] = 0.99 * slow[0].position[:, 2] + np.sqrt(1 - 0.99**2) * fast[0].position[:, 0]
        efficiency = Efficiency()
        efficiency.add("fast", *fast)
        efficiency.add("slow in one", *slow)
        prices = efficiency.prices()
        assert prices["slow in one"] > 20 * prices["fast"]


def test_leaves_beyond_an_edge_do_not_count():
    some = np.zeros(3)
    info = Info(some, np.array([0.75, 0.75, 0.0]), some, np.array([4, 4, 1]), *[some] * 6)
    info = Info(**{**vars(info), "left": np.array([False, True, True])})
    np.testing.assert_allclose(rate_inside(info), [0.75, 1.0, 0.0])
