"""NUTS against its recursive definition; chains do not depend on each other."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import skewed_target, start

from leapwise import (
    NUTS,
    DenseMetric,
    DiagonalMetric,
    Evaluator,
    SharedStream,
    State,
    Streams,
    Target,
    UnitMetric,
    sample,
)
from leapwise.errors import InputError
from leapwise.kernels.streams import CounterStream

COVARIANCE = np.array([[1.6, 0.9], [0.9, 2.7]])
METRICS = {
    "unit": UnitMetric(),
    "diagonal": DiagonalMetric([0.5, 2.0]),
    "dense": DenseMetric(COVARIANCE),
}


class Recursive:
    """One chain's step, as in Betancourt (2017) and Stan: sub-trees call themselves; nothing is batched."""

    def __init__(self, kernel, streams, state, evaluator):
        self.kernel, self.metric, self.evaluator = kernel, kernel.metric, evaluator
        p = self.metric.momentum(streams.normals(state.position.shape[1]))
        self.numbers = CounterStream(streams.uniforms())
        x = (state.position[0], p[0], state.gradient[0], state.potential[0])
        self.energy = self.lowest = self.highest = self.total_energy(x)
        self.n_leaves, self.rates, self.diverging = 0, 0.0, False
        left = right = selected = x
        weight, rho, depth = 0.0, p[0], 0
        while depth < kernel.max_depth:
            forward = bool(self.numbers.coins(np.array([depth]))[0])
            tree = self.build(right if forward else left, depth, forward)
            if tree is None:
                break
            if self.uniform(2 * self.n_leaves + 1) < np.exp(tree["weight"] - weight):
                selected = tree["selected"]
            weight = np.logaddexp(weight, tree["weight"])
            old = {"left": left, "right": right, "rho": rho}
            a, b = (old, tree) if forward else (tree, old)
            left, right, rho, depth = a["left"], b["right"], rho + tree["rho"], depth + 1
            if self.joined_turn(a, b):
                break
        self.selected = selected

    def total_energy(self, x):
        return x[3] + 0.5 * x[1] @ self.velocity(x[1])

    def velocity(self, p):
        return self.metric.velocity(p[None])[0]

    def uniform(self, which):
        return self.numbers.uniforms(np.array([which]))[0]

    def turn(self, x, y, rho):
        return not (self.velocity(x[1]) @ rho > 0 and self.velocity(y[1]) @ rho > 0)

    def joined_turn(self, a, b):
        return (
            self.turn(a["left"], b["right"], a["rho"] + b["rho"])
            or self.turn(a["left"], b["left"], a["rho"] + b["left"][1])
            or self.turn(a["right"], b["right"], b["rho"] + a["right"][1])
        )

    def build(self, x, depth, forward):
        """Return a sub-tree beyond x, or None if it is refused."""
        if depth == 0:
            return self.leaf(x, forward)
        first = self.build(x, depth - 1, forward)
        if first is None:
            return None
        second = self.build(first["right" if forward else "left"], depth - 1, forward)
        if second is None:
            return None
        a, b = (first, second) if forward else (second, first)
        if self.joined_turn(a, b):
            return None
        weight = np.logaddexp(first["weight"], second["weight"])
        leaves = first["leaves"] + second["leaves"]
        return {
            "left": a["left"],
            "right": b["right"],
            "rho": a["rho"] + b["rho"],
            "weight": weight,
            "leaves": leaves,
            "selected": self.drawn(leaves),
        }

    def leaf(self, x, forward):
        epsilon = self.kernel.step_size if forward else -self.kernel.step_size
        half = x[1] - 0.5 * epsilon * x[2]
        q = x[0] + epsilon * self.velocity(half)
        found = self.evaluator.value_and_gradient(q[None])
        y = (q, half - 0.5 * epsilon * found.gradient[0], found.gradient[0], found.potential[0])
        energy = self.total_energy(y)
        self.n_leaves += 1
        self.lowest, self.highest = min(self.lowest, energy), max(self.highest, energy)
        if not self.highest - self.lowest <= 1000.0:
            self.diverging = True
            return None
        self.rates += min(1.0, np.exp(self.energy - energy))
        leaves = [(y, self.energy - energy, self.uniform(2 * self.n_leaves))]
        return {
            "left": y,
            "right": y,
            "rho": y[1],
            "weight": self.energy - energy,
            "leaves": leaves,
            "selected": y,
        }

    @staticmethod
    def drawn(leaves):
        """Draw one of the leaves by their weights, with the numbers that belong to them."""
        total, chosen = -np.inf, None
        for y, log_weight, uniform in leaves:
            total = np.logaddexp(total, log_weight)
            if uniform < np.exp(log_weight - total):
                chosen = y
        return chosen


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("step_size", [0.05, 0.4, 1.1, 2.5])
def test_is_its_recursive_definition(metric, step_size):
    kernel = NUTS(step_size, metric=METRICS[metric], max_depth=7)
    evaluator, n = Evaluator(skewed_target()), 12
    state, streams, again = start(evaluator, n), Streams(3, n), Streams(3, n)
    depths = set()
    for _ in range(4):
        after, info = kernel.step(streams, state, evaluator)
        for chain in range(n):
            own = State(*(each[[chain]] for each in (state.position, state.potential, state.gradient)))
            alone = again.for_chain(chain)
            expected = Recursive(kernel, alone, own, evaluator)
            again.generators[chain] = alone.generators[0]
            assert info.n_steps[chain] == expected.n_leaves and info.diverging[chain] == expected.diverging
            np.testing.assert_allclose(after.position[chain], expected.selected[0], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(after.gradient[chain], expected.selected[2], rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(info.acceptance_rate[chain], expected.rates / expected.n_leaves)
            np.testing.assert_allclose(info.energy[chain], expected.total_energy(expected.selected))
            depths.add(expected.n_leaves)
        state = after
    assert len(depths) > 2


def test_a_chain_does_not_depend_on_those_beside_it():
    """Bit for bit: alone, beside two, beside others of very different lengths."""
    kernel = NUTS(0.3, metric=DenseMetric(COVARIANCE))

    def end(n, spread):
        evaluator, streams = Evaluator(skewed_target()), Streams(5, n)
        position = np.array([[0.3, -0.2]]) * np.where(np.arange(n) > 0, spread, 1.0)[:, None]
        state = State.from_evaluation(evaluator.value_and_gradient(position))
        for _ in range(8):
            state, _ = kernel.step(streams, state, evaluator)
        return state.position[0]

    np.testing.assert_array_equal(end(1, 1.0), end(3, 1.0))
    np.testing.assert_array_equal(end(1, 1.0), end(40, 9.0))


def test_trees_are_as_long_as_the_posterior_is_wide():
    """Of a standard normal the U-turn comes after about half a period, whatever the step size."""
    target = Target(lambda x: -0.5 * (x**2).sum(axis=1), lambda x: -x, dim=5, vectorized=True)
    evaluator = Evaluator(target)
    state = State.from_evaluation(
        evaluator.value_and_gradient(np.random.default_rng(0).normal(size=(500, 5)))
    )
    for step_size in (0.2, 0.1, 0.05):
        _, info = NUTS(step_size, metric=UnitMetric()).step(
            SharedStream(np.random.default_rng(1), 500), state, evaluator
        )
        times = info.n_steps * step_size
        assert 2.0 < np.median(times) < 7.0
        assert not info.diverging.any() and info.accepted.all() and (info.acceptance_rate > 0.9).all()
    _, short = NUTS(0.05, metric=UnitMetric(), max_depth=2).step(
        SharedStream(np.random.default_rng(1), 500), state, evaluator
    )
    assert (short.n_steps == 3).all()


def test_a_wall_ends_trees_and_says_so():
    def log_density(x):
        return -np.inf if x[0] > 0.5 else -0.5 * (x @ x)

    evaluator = Evaluator(Target(log_density, lambda x: -x, dim=2))
    position = np.random.default_rng(0).uniform(-0.5, 0.4, (50, 2))
    state = State.from_evaluation(evaluator.value_and_gradient(position))
    after, info = NUTS(0.3, metric=UnitMetric()).step(Streams(1, 50), state, evaluator)
    assert 10 < info.left.sum() < 50
    np.testing.assert_array_equal(info.left, info.diverging)
    assert (after.position[:, 0] <= 0.5).all() and (info.accepted & info.left).any()
    np.testing.assert_array_equal(after.potential, evaluator.value(after.position).potential)


@pytest.mark.parametrize(
    "bad",
    [
        *({"step_size": bad} for bad in (0.0, -0.1, np.nan, "small", [0.1, -0.1], [[0.1]])),
        *({"max_depth": bad} for bad in (0, 21, 2.0, True, "deep", None)),
        *({"metric": bad} for bad in ("round", np.eye(2), 3.0)),
        *({"target_acceptance": bad} for bad in (0.0, 1.0, None)),
    ],
    ids=str,
)
def test_bad_settings_are_refused_with_a_sentence(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        NUTS(**bad)


def test_stepping_without_settings_is_refused():
    evaluator = Evaluator(skewed_target())
    state = start(evaluator, 2)
    for kernel, words in (
        (NUTS(metric=UnitMetric()), "no settings to step with"),
        (NUTS(0.1), "no metric to step with"),
        (NUTS([0.1, 0.2, 0.3], metric=UnitMetric()), "one for each of the 2 chains"),
    ):
        with pytest.raises(InputError, match=words):
            kernel.step(Streams(1, 2), state, evaluator)
    assert evaluator.counts.n_exact == 2


class TestNumbers:
    def test_are_those_of_splitmix64(self):
        """Of a generator that begins at 0, as published with it; ours begins at the mixed seed, here 0."""
        numbers = CounterStream(np.zeros(1))
        bits = [int(numbers._bits(np.array([k]))[0]) for k in (1, 2, 3)]
        assert bits == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    def test_are_uniform_and_independent(self):
        """Means and products of 10^5 numbers, coins too; chance of a false alarm 6e-6."""
        numbers, n = CounterStream(np.random.default_rng(4).random(100_000)), 100_000
        columns = [numbers.uniforms(np.full(n, k)) - 0.5 for k in (2, 3, 4)]
        columns += [numbers.coins(np.full(n, k)) - 0.5 for k in (0, 1, 9)]
        products = [a * b for i, a in enumerate(columns) for b in columns[:i]]
        for each in (*columns, *products):
            assert abs(each.mean()) < 5.0 * each.std() / np.sqrt(n)
        assert all((column + 0.5).min() >= 0.0 and (column + 0.5).max() < 1.0 for column in columns[:3])


def test_sample_tunes_it():
    """To the acceptance asked for, in a metric that makes the posterior round; and freezes it."""
    target = Target(lambda x: -0.5 * (x**2 * [1.0, 1e4]).sum(), lambda x: -x * [1.0, 1e4], dim=2)
    run = sample(target, 200, tune=200, chains=4, method=NUTS(), random_seed=1, progressbar=False)
    assert isinstance(run.kernel, NUTS) and run.settings["method"] == "NUTS"
    assert 0.7 < run.posterior.stats["acceptance_rate"].mean() < 0.95
    np.testing.assert_allclose(run.draws.std(axis=(0, 1)), [1.0, 0.01], rtol=0.2)
    assert np.ptp(run.posterior.stats["step_size"]) == 0.0
