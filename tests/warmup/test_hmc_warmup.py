"""The warm-up of HMC: what it learns when, which settings it keeps, and its cost."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from gaussians import start_gaussian

from leapwise import (
    HMC,
    NUTS,
    RMHMC,
    DenseMetric,
    DiagonalMetric,
    Evaluator,
    State,
    Streams,
    Target,
    UnitMetric,
)
from leapwise.errors import InputError
from leapwise.warmup import require_tuning_steps, warmup_for
from leapwise.warmup.hmc import FIRST_DEPTH, MOST_STEPS, NoWarmup, window_edges

CHAINS = 4


def warm_up(method, n_steps, evaluator, state, seed=1):
    """Run a warm-up as `sample` does; return it, the last state and what every step told."""
    streams = Streams(seed, len(state.position))
    warmup, infos = warmup_for(method, n_steps, evaluator, streams, state), []
    state = state if warmup.start is None else warmup.start
    for _ in range(n_steps):
        before = state
        state, info = warmup.kernel.step(streams, before, evaluator)
        warmup.learn(before, state, info)
        infos.append(info)
    return warmup, state, infos


@pytest.fixture
def begin(rng):
    """A Gaussian of condition 100, with chains at draws of it."""

    def make(scale=1.0, chains=CHAINS):
        covariance = scale**2 * np.array([[1.0, 0.9], [0.9, 1.0]])
        return start_gaussian(covariance, rng.multivariate_normal(np.zeros(2), covariance, chains))

    return make


class TestWindowEdges:
    @pytest.mark.parametrize("n", [*range(20, 120), 200, 333, 500, 1000, 2000, 5000])
    def test_they_increase_and_leave_room_for_the_finish(self, n):
        edges = window_edges(n)
        assert edges[0] == 10
        assert all(a < b for a, b in pairwise(edges))
        finish = n - edges[-1]
        assert finish == (min(50, max(10, n // 10)) if n > 20 else 9)

    @pytest.mark.parametrize("n", [100, 500, 5000])
    def test_windows_grow(self, n):
        widths = np.diff(window_edges(n))
        assert (np.diff(widths) > 0).all()


LENGTHS = ({}, {"n_steps": 4}, {"n_steps": (2, 3)}, {"trajectory_length": 1.2})
STEP_SIZES = ({}, {"step_size": 0.3})
METRICS = (
    {},
    {"metric": "unit"},
    {"metric": "diagonal"},
    {"metric": "dense"},
    {"metric": UnitMetric()},
    {"metric": DiagonalMetric([1.0, 2.0])},
    {"metric": DenseMetric([[1.0, 0.2], [0.2, 2.0]])},
)


@pytest.mark.parametrize(
    "given", [a | b | c | {"jitter": 0.1} for a, b, c in product(STEP_SIZES, LENGTHS, METRICS)], ids=str
)
def test_what_the_user_set_is_kept_and_the_rest_is_learned(given, begin):
    warmup, _, _ = warm_up(HMC(**given), 24, *begin())
    kernel = warmup.freeze()
    assert kernel.is_set
    if isinstance(kernel, NUTS):  # HMC without step size and length may become this
        assert not {"step_size", "n_steps", "trajectory_length"} & given.keys()
    else:
        assert kernel.jitter == 0.1
    for name in ("step_size", "n_steps", "trajectory_length"):
        if name in given:
            np.testing.assert_array_equal(getattr(kernel, name), given[name])
    if "step_size" not in given:
        assert np.ndim(kernel.step_size) == 0, "one step size for all chains"
    if isinstance(kernel, HMC) and "n_steps" not in given and "trajectory_length" not in given:
        assert kernel.n_steps is None and kernel.trajectory_length > 0
    metric = given.get("metric", "unit" if "step_size" in given else "dense")
    kinds = {"unit": UnitMetric, "diagonal": DiagonalMetric, "dense": DenseMetric}
    if isinstance(metric, str):
        assert type(kernel.metric) is kinds[metric]
    else:
        assert kernel.metric is metric


@pytest.mark.parametrize("step_size", [0.3, [0.2, 0.3, 0.4, 0.5]])
@pytest.mark.parametrize("length", [{"n_steps": 7}, {"trajectory_length": 1e3 * 0.5}], ids=str)
@pytest.mark.parametrize("metric", [None, "unit", DiagonalMetric([1.0, 2.0])], ids=["none", "unit", "object"])
def test_a_method_that_is_set_learns_nothing_and_spends_its_steps_only(metric, length, step_size, begin):
    evaluator, state = begin()
    method = HMC(step_size, metric=metric, **length)
    n = 30 if "n_steps" in length else 1
    warmup, _, infos = warm_up(method, n, evaluator, state)
    assert evaluator.counts.n_gradients == sum(info.n_exact.sum() for info in infos)
    for kernel in (warmup.kernel, warmup.freeze()):
        np.testing.assert_array_equal(kernel.step_size, step_size)
        assert (kernel.n_steps, kernel.trajectory_length) == (method.n_steps, method.trajectory_length)
        assert type(kernel.metric) is (UnitMetric if metric in (None, "unit") else DiagonalMetric)


class TestLearning:
    def test_it_finds_the_covariance_and_about_a_quarter_turn(self, begin):
        evaluator, state = begin(scale=1e-3)
        warmup, _, infos = warm_up(HMC(), 200, evaluator, state)
        kernel = warmup.freeze()
        np.testing.assert_allclose(kernel.metric.covariance, 1e-6 * np.array([[1, 0.9], [0.9, 1]]), rtol=1e-2)
        assert 0.8 < kernel.trajectory_length < 3.0
        assert np.mean([info.acceptance_rate.mean() for info in infos[-20:]]) > 0.6

    @pytest.mark.parametrize("target", [0.8, 0.95])
    def test_the_step_size_meets_its_target(self, target, rng):
        evaluator, state = start_gaussian(np.eye(20), rng.normal(size=(32, 20)))
        method = HMC(n_steps=(5, 10), metric="unit", target_acceptance=target)
        warmup, state, _ = warm_up(method, 200, evaluator, state)
        streams, kernel, rates = Streams(2, 32), warmup.freeze(), []
        for _ in range(100):
            state, info = kernel.step(streams, state, evaluator)
            rates.append(info.acceptance_rate)
        # Over twenty seeds the rate is -0.015 +- 0.016 off 0.8, and 0.008 +- 0.004 off 0.95: five sigma.
        assert abs(np.mean(rates) - target) < 0.1

    def test_while_learning_trajectories_vary_and_afterwards_as_the_method_says(self, begin):
        warmup, _, infos = warm_up(HMC(), 100, *begin())
        assert warmup.kernel.jitter > warmup.freeze().jitter == HMC().jitter
        times = np.concatenate([info.step_size * info.n_steps for info in infos[-10:]])
        assert times.std() / times.mean() > 0.2

    def test_the_first_trajectories_are_short_whatever_their_step_size(self, begin):
        _, _, infos = warm_up(HMC(), 20, *begin(scale=1e-5))
        assert max(info.n_steps.max() for info in infos[:10]) < 2**FIRST_DEPTH

    def test_each_chain_has_its_own_step_size_at_first(self):
        evaluator, state = start_gaussian(np.eye(2), np.array([[0.1, 0.1], [0.1, -0.1], [3e4, 3e4]]))
        _, _, infos = warm_up(HMC(metric="unit"), 20, evaluator, state)
        first = infos[0].step_size
        assert first[2] < first[:2].min() / 10, "the chain in the far tail does not slow down the others"

    def test_one_chain_is_enough(self, begin):
        warmup, _, _ = warm_up(HMC(), 150, *begin(chains=1))
        kernel = warmup.freeze()
        assert np.linalg.cond(kernel.metric.covariance) == pytest.approx(19.0, rel=0.2)
        assert 0 < kernel.step_size < np.inf
        assert 0 < kernel.trajectory_length < np.inf

    def test_the_same_seed_learns_the_same(self, begin, rng):
        evaluator, state = begin()
        found = [warm_up(HMC(), 60, evaluator, state)[0].freeze() for _ in range(2)]
        assert found[0].step_size == found[1].step_size
        assert found[0].trajectory_length == found[1].trajectory_length
        np.testing.assert_array_equal(found[0].metric.covariance, found[1].metric.covariance)

    def test_many_dimensions_learn_a_diagonal(self, rng):
        evaluator, state = start_gaussian(np.eye(201), rng.normal(size=(2, 201)))
        assert isinstance(warm_up(HMC(), 20, evaluator, state)[0].freeze().metric, DiagonalMetric)


class TestGivenLength:
    """A trajectory length belongs to the metric that is being learned, and to a step size that can afford it."""

    @pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0])
    def test_it_is_not_run_in_a_metric_that_it_is_not_meant_for(self, scale, begin):
        evaluator, state = begin(scale=scale)
        warmup, _, infos = warm_up(HMC(trajectory_length=1.5), 60, evaluator, state)
        assert warmup.freeze().trajectory_length == 1.5
        assert max(info.n_steps.max() for info in infos[:10]) <= 10
        assert evaluator.counts.n_gradients < 60 * CHAINS * 12

    def test_it_is_shortened_while_step_sizes_are_far_too_small(self, begin):
        evaluator, state = begin(scale=1e-6)
        warmup, _, infos = warm_up(HMC(trajectory_length=1.5, metric="unit"), 20, evaluator, state)
        assert warmup.freeze().trajectory_length == 1.5
        assert max(info.n_steps.max() for info in infos) <= 1.4 * MOST_STEPS + 1

    @pytest.mark.parametrize("length", [0.01, 0.5])
    def test_the_step_size_does_not_outgrow_it(self, length, begin):
        evaluator, state = begin()
        kernel = warm_up(HMC(trajectory_length=length), 200, evaluator, state)[0].freeze()
        assert kernel.step_size <= length * 1.4 * (1 + 1e-9)


def test_a_metric_that_can_be_learned_only_later_starts_step_size_and_length_anew():
    """The second gradient is constant at first, and tells nothing of its scale."""
    scale = 1e-3

    def log_density(x):
        return -0.5 * (x[:, 0] / scale) ** 2 - np.abs(x[:, 1])

    def gradient(x):
        return np.stack([-x[:, 0] / scale**2, -np.sign(x[:, 1])], axis=1)

    evaluator = Evaluator(Target(log_density, gradient, dim=2, vectorized=True))
    start = np.column_stack([scale * np.linspace(-1, 1, CHAINS), np.full(CHAINS, 0.1)])
    state = State.from_evaluation(evaluator.value_and_gradient(start))
    warmup, _, infos = warm_up(HMC(), 300, evaluator, state)
    signs = np.sign([info.proposal[:, 1] for info in infos[:10]])
    assert (signs > 0).all(), "the test is about a first window that sees one sign only"
    kernel = warmup.freeze()
    assert isinstance(kernel.metric, DenseMetric)
    assert kernel.trajectory_length > 0.5
    assert kernel.step_size > 0.05


class Flat:
    """The identity as a Riemannian metric."""

    def at(self, position):
        self.matrix = self.cholesky = np.broadcast_to(np.eye(2), (len(position), 2, 2))
        return self

    def quadratic_contraction(self, velocity):
        return np.zeros_like(velocity)

    def trace_contraction(self):
        return np.zeros((len(self.matrix), 2))


class TestRMHMC:
    @pytest.mark.parametrize(
        "given", [{"n_steps": 3}, {"n_steps": (2, 2)}, {"trajectory_length": 0.7}, {}], ids=str
    )
    @pytest.mark.parametrize("step_size", [None, 0.4, [0.2, 0.3, 0.4, 0.5]])
    def test_what_the_user_set_is_kept(self, step_size, given, begin):
        evaluator, state = begin()
        metric = Flat()
        warmup, _, infos = warm_up(RMHMC(step_size, metric=metric, **given), 20, evaluator, state)
        kernel = warmup.freeze()
        assert kernel.metric is metric
        assert kernel.n_steps == given.get("n_steps")
        length = given.get("trajectory_length", None if "n_steps" in given else 1.5)
        assert kernel.trajectory_length == length
        if step_size is None:
            assert 0 < kernel.step_size < 10
        else:
            np.testing.assert_array_equal(kernel.step_size, step_size)
        assert evaluator.counts.n_gradients == sum(info.n_exact.sum() for info in infos)

    def test_the_step_size_meets_its_target(self, rng):
        evaluator, state = start_gaussian(np.diag([1.0, 0.01]), rng.normal(size=(CHAINS, 2)) * [1.0, 0.1])
        warmup, _, infos = warm_up(RMHMC(n_steps=4, metric=Flat()), 100, evaluator, state)
        assert 0.6 < np.mean([info.acceptance_rate for info in infos[50:]]) < 0.95
        assert 0.05 < warmup.freeze().step_size < 0.3

    def test_a_bad_beginning_does_not_make_trajectories_endless(self):
        """In a metric that is far too wide everything is rejected, and the step size falls and falls."""
        evaluator, state = start_gaussian(1e-12 * np.eye(2), np.full((2, 2), 1e-6))
        _, _, infos = warm_up(RMHMC(metric=Flat()), 7, evaluator, state)
        assert min(info.step_size.min() for info in infos) < 1e-3
        assert max(info.n_steps.max() for info in infos) <= 1.4 * MOST_STEPS + 1


def test_other_kernels_are_taken_as_they_are():
    class Other:
        is_exact = True

        def step(self, streams, state, evaluator):
            raise NotImplementedError

    kernel = Other()
    warmup = warmup_for(kernel, 0, None, None, None)
    assert isinstance(warmup, NoWarmup)
    warmup.learn(None, None, None)
    assert warmup.kernel is warmup.freeze() is kernel


@pytest.mark.parametrize(
    ("method", "learns"),
    [
        (HMC(), True),
        (HMC(0.1), True),
        (HMC(n_steps=5), True),
        (HMC(trajectory_length=1.0, metric=UnitMetric()), True),
        (HMC(0.1, 5, metric="dense"), True),
        (HMC(0.1, 5, metric="diagonal"), True),
        (HMC(0.1, 5, metric="unit"), False),
        (HMC(0.1, 5), False),
        (HMC(0.1, trajectory_length=1.0, metric=DiagonalMetric([1.0])), False),
        (RMHMC(metric=Flat()), True),
        (RMHMC(n_steps=3, metric=Flat()), True),
        (RMHMC(0.1, metric=Flat()), False),
        (object(), False),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bool) else str(value),
)
def test_what_must_be_learned_needs_steps(method, learns):
    require_tuning_steps(method, 20)
    for n in (0, 19):
        if learns:
            with pytest.raises(InputError, match=f"at least 20 steps .* got {n}; use tune=500"):
                require_tuning_steps(method, n)
        else:
            require_tuning_steps(method, n)
