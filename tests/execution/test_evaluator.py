"""The evaluator: what it counts and times, and which positions it never passes to the target."""

from __future__ import annotations

import threading
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior, Target
from leapwise.errors import BudgetError, InputError, OutputError
from leapwise.execution import engine as engine_module

DIM = 3
BOUNDS = [(None, None), (0, None), (-2, 5)]


def log_density(x):
    return -0.5 * (x**2).sum(axis=-1)


def score(x):
    return -x


def request(evaluator, position, gradient):
    return evaluator.value_and_gradient(position) if gradient else evaluator.value(position)


@pytest.mark.parametrize("bounds", [None, BOUNDS, (0, None), (0, 1)])
@pytest.mark.parametrize("vectorized", [False, True])
def test_potential_and_gradient_belong_together(vectorized, bounds, rng, central_differences):
    evaluator = Evaluator(Target(log_density, score, dim=DIM, vectorized=vectorized, bounds=bounds))
    position = rng.normal(size=(6, DIM))
    found = evaluator.value_and_gradient(position)
    numerical = central_differences(lambda q: evaluator.value(q).potential, position)
    np.testing.assert_allclose(found.gradient, numerical, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.potential, evaluator.value(position).potential, rtol=1e-14)
    assert evaluator.value(position).gradient is None
    assert found.outputs is None


@pytest.mark.parametrize("vectorized", [False, True])
def test_values_and_gradients_are_counted_apart(vectorized, rng):
    evaluator = Evaluator(Target(log_density, score, dim=DIM, vectorized=vectorized))
    for n in (1, 4, DIM, 7):
        evaluator.value(rng.normal(size=(n, DIM)))
    before = evaluator.counts.copy()
    assert (before.n_values, before.n_gradients) == (12 + DIM, 0)
    evaluator.value_and_gradient(rng.normal(size=(9, DIM)))
    spent = evaluator.counts.since(before)
    assert (spent.n_values, spent.n_gradients, spent.n_failures) == (0, 9, 0)
    assert before.n_gradients == 0, "a snapshot must not move"


@pytest.mark.parametrize("vectorized", [False, True])
def test_seconds_are_those_inside_the_target(vectorized, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def slow_value(x):
        clock.now += 0.25
        return log_density(x)

    def slow_gradient(x):
        clock.now += 2.0
        return score(x)

    evaluator = Evaluator(Target(slow_value, slow_gradient, dim=DIM, vectorized=vectorized))
    calls = 1 if vectorized else 4
    evaluator.value(np.zeros((4, DIM)))
    assert (evaluator.counts.value_seconds, evaluator.counts.gradient_seconds) == (0.25 * calls, 0.0)
    evaluator.value_and_gradient(np.zeros((4, DIM)))
    assert (evaluator.counts.value_seconds, evaluator.counts.gradient_seconds) == (0.25 * calls, 2.25 * calls)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("bounds", [None, BOUNDS, (0, None), (None, 1), (0, 1)])
def test_what_has_no_parameter_never_reaches_the_target(bounds, vectorized, gradient):
    seen = []

    def strict(x):
        seen.append(x.copy())
        return -np.abs(x).sum(axis=-1)

    evaluator = Evaluator(
        Target(strict, lambda x: -np.sign(x), dim=DIM, vectorized=vectorized, bounds=bounds)
    )
    odd = [np.nan, np.inf, -np.inf, 800.0, -800.0, 1e308, -1e308, 5e-324, 40.0]
    position = np.full((2 * len(odd) + 1, DIM), 0.1)
    position[: len(odd), 1] = odd
    position[len(odd) : -1, 2] = odd
    with np.errstate(all="raise", under="ignore"):
        found = request(evaluator, position, gradient)
    assert not np.isnan(found.potential).any()
    assert np.isposinf(found.potential[:3]).all()
    assert np.isfinite(found.potential[-1])
    assert evaluator.target.transform.contains(np.vstack([np.atleast_2d(x) for x in seen])).all()
    if gradient:
        assert np.isfinite(found.gradient).all()
        assert not found.gradient[np.isposinf(found.potential)].any()


@pytest.mark.parametrize("vectorized", [False, True])
def test_rows_without_a_parameter_do_not_disturb_the_others(vectorized, rng):
    evaluator = Evaluator(Target(log_density, score, dim=DIM, vectorized=vectorized, bounds=BOUNDS))
    position = rng.normal(size=(5, DIM))
    expected = evaluator.value_and_gradient(position)
    spoilt = np.insert(position, [0, 2, 5], np.nan, axis=0)
    found = evaluator.value_and_gradient(spoilt)
    whole = ~np.isnan(spoilt).any(axis=1)
    np.testing.assert_array_equal(found.potential[whole], expected.potential)
    np.testing.assert_array_equal(found.gradient[whole], expected.gradient)
    assert evaluator.counts.n_gradients == 10


def test_a_gradient_that_overflows_in_positions_holds_no_mass():
    target = Target(lambda x: -1.0, lambda x: np.full(1, 1e300), dim=1, bounds=(0, None))
    found = Evaluator(target).value_and_gradient(np.array([[100.0], [1.0]]))
    assert np.isposinf(found.potential).tolist() == [True, False]
    assert found.gradient[0, 0] == 0.0


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
def test_no_rows_no_calls(vectorized, gradient):
    def never(x):
        raise AssertionError("called for nothing")

    evaluator = Evaluator(Target(never, never, dim=DIM, vectorized=vectorized, bounds=BOUNDS))
    for position in (np.empty((0, DIM)), np.full((2, DIM), np.nan)):
        found = request(evaluator, position, gradient)
        assert found.potential.shape == (len(position),)
        assert np.isposinf(found.potential).all()
        assert (found.gradient is not None) == gradient
        if gradient:
            assert found.gradient.shape == position.shape
    assert evaluator.counts.n_values == evaluator.counts.n_gradients == 0


@pytest.mark.parametrize("vectorized", [False, True])
def test_outputs_are_kept_and_nan_where_the_model_was_not_run(vectorized, rng):
    def forward(x):
        return np.where(x[..., :1] > 10, np.nan, np.stack([x[..., 0], x[..., 1] ** 2], axis=-1))

    likelihood, prior = GaussianLikelihood([0.0, 1.0], sd=1.0), NormalPrior(0.0, 1.0, dim=DIM)
    target = ForwardTarget(forward, likelihood, prior, vectorized=vectorized, bounds=BOUNDS)
    evaluator = Evaluator(target, on_failure="reject")
    position = rng.normal(size=(6, DIM))
    position[1] = np.nan  # never run
    position[4, 0] = 11.0  # fails
    found = evaluator.value(position)
    parameters = target.transform.to_parameters(position)
    usable = [0, 2, 3, 5]
    np.testing.assert_array_equal(found.outputs[usable], forward(parameters[usable]))
    assert np.isnan(found.outputs[[1, 4]]).all()
    nowhere = evaluator.value(np.full((2, DIM), np.inf))
    assert nowhere.outputs.shape == (2, 2)
    assert np.isnan(nowhere.outputs).all()


def test_as_many_rows_as_parameters_cost_no_evaluation_more(rng):
    """The first square batch is split to catch sums over the wrong axis; later ones are whole."""
    batches = []

    def counting(x):
        batches.append(len(x))
        return log_density(x)

    evaluator = Evaluator(Target(counting, dim=DIM, vectorized=True))
    position = rng.normal(size=(DIM, DIM))
    first, second = evaluator.value(position), evaluator.value(position)
    np.testing.assert_allclose(first.potential, second.potential, rtol=1e-14)
    assert batches == [1, DIM - 1, DIM]
    assert evaluator.counts.n_values == 2 * DIM


def test_the_gradient_of_a_square_batch_is_proven_on_its_own():
    evaluator = Evaluator(Target(log_density, lambda x: -x.T, dim=DIM, vectorized=True))
    evaluator.value(np.eye(DIM))
    with pytest.raises(OutputError, match="gradient must return shape"):
        evaluator.value_and_gradient(np.eye(DIM))


@pytest.mark.parametrize("shape", [(DIM,), (4, DIM + 1), (2, 2, DIM), ()])
def test_positions_of_the_wrong_shape(shape):
    evaluator = Evaluator(Target(log_density, score, dim=DIM))
    with pytest.raises(InputError, match=r"positions must have shape \(n, 3\)"):
        evaluator.value(np.zeros(shape))


class TestForAWhile:
    """Limits and observers that hold as long as a context lasts."""

    def test_limit(self):
        evaluator = Evaluator(Target(log_density, dim=DIM), limit=5)
        with evaluator.limited_to(2):
            evaluator.value(np.zeros((2, DIM)))
            with pytest.raises(BudgetError, match="2 exact evaluations are allowed, 2 are spent"):
                evaluator.value(np.zeros((1, DIM)))
            with evaluator.limited_to(None):
                evaluator.value(np.zeros((1, DIM)))
        assert evaluator.limit == 5

    def test_observer(self):
        seen, other = [], []
        evaluator = Evaluator(Target(log_density, dim=DIM), observer=seen.append)
        with evaluator.observed_by(other.append):
            evaluator.value(np.zeros((2, DIM)))
            with evaluator.observed_by(None):
                evaluator.value(np.zeros((3, DIM)))
        evaluator.value(np.zeros((1, DIM)))
        assert [len(each.potential) for each in seen] == [1]
        assert [len(each.potential) for each in other] == [2]


def test_the_lock_is_released_while_the_target_is_called():
    lock, held = threading.Lock(), []
    evaluator = Evaluator(Target(lambda x: held.append(lock.locked()) or 0.0, dim=DIM))
    with lock, evaluator.releasing(lock):
        evaluator.value(np.zeros((2, DIM)))
        assert lock.locked()
    assert held == [False, False]


def test_few_frames_between_the_evaluator_and_the_model():
    """What a user reads in a traceback: value, engine, target, model."""
    names = []

    def model(x):
        stack = traceback.extract_stack()
        names.extend(frame.name for frame in stack)
        return log_density(x)

    Evaluator(Target(model, dim=DIM)).value(np.zeros((1, DIM)))
    assert names[names.index("value") :] == ["value", "evaluate", "evaluate", "model"]
