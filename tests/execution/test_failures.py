"""What the evaluator does when a target fails: retries, errors that name the place, and rejections."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior, Target
from leapwise.errors import EvaluationError, OutputError
from leapwise.execution import engine as engine_module

DIM = 3
BOUNDS = [(None, None), (0, None), (-2, 5)]
FAULTS = {
    "NaN": lambda: np.nan,
    "+inf": lambda: np.inf,
    "an exception": lambda: 1 / 0,
}


def log_density(x):
    return -0.5 * (x**2).sum(axis=-1)


class Probe:
    """A target that fails at one row, and which remembers every row that it is called for.

    It fails where the first parameter is above 10, in the first `times` evaluations.
    """

    def __init__(self, fault, times=10**9, vectorized=False, bounds=None):
        self.fault, self.times = fault, times
        self.rows, self.batches = [], []
        self.target = Target(self.value, self.slope, dim=DIM, vectorized=vectorized, bounds=bounds)

    def value(self, x):
        rows = np.atleast_2d(x)
        self.rows.extend(rows.copy())
        self.batches.append(len(rows))
        returned = log_density(rows)
        for i in np.flatnonzero(rows[:, 0] > 10):
            if self.times > 0:
                self.times -= 1
                returned[i] = self.fault()
        return returned if self.target.vectorized else returned[0]

    def slope(self, x):
        return -x

    def evaluations_of(self, row):
        return sum(np.array_equal(row, other) for other in self.rows)


@pytest.fixture
def position(rng):
    """Five positions; the target fails at number 2."""
    position = rng.normal(size=(5, DIM))
    position[2, 0] = 11.0 + rng.uniform()
    return position


def request(evaluator, position, gradient):
    return evaluator.value_and_gradient(position) if gradient else evaluator.value(position)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
def test_minus_infinity_is_legal(vectorized, gradient, position):
    probe = Probe(lambda: -np.inf, vectorized=vectorized)
    evaluator = Evaluator(probe.target)
    found = request(evaluator, position, gradient)
    assert np.isposinf(found.potential).tolist() == [False, False, True, False, False]
    assert (evaluator.counts.n_failures, len(probe.rows)) == (0, 5)
    if gradient:
        assert not found.gradient[2].any()


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_gradient_where_there_is_no_density_is_not_looked_at(vectorized, position):
    def value(x):
        return np.where(x[..., 0] > 10, -np.inf, log_density(x))

    def gradient(x):
        return np.where(x[..., :1] > 10, np.nan, -x)

    evaluator = Evaluator(Target(value, gradient, dim=DIM, vectorized=vectorized))
    found = evaluator.value_and_gradient(position)
    assert np.isposinf(found.potential).tolist() == [False, False, True, False, False]
    assert not found.gradient[2].any()
    assert (evaluator.counts.n_gradients, evaluator.counts.n_failures) == (5, 0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
class TestFailures:
    def test_a_failure_that_passes_needs_one_retry(self, fault, gradient, vectorized, position):
        probe = Probe(FAULTS[fault], times=1, vectorized=vectorized)
        evaluator = Evaluator(probe.target)
        found = request(evaluator, position, gradient)
        np.testing.assert_allclose(found.potential, -log_density(position))
        if gradient:
            np.testing.assert_allclose(found.gradient, position)
        assert evaluator.counts.n_failures == 0
        assert evaluator.last_failure == ""
        assert probe.evaluations_of(position[2]) == 2
        # A batch that raises does not say which row did: only then must the others be paid again.
        paid_again = vectorized and fault == "an exception"
        assert (
            len(probe.rows)
            == evaluator.counts.n_values + evaluator.counts.n_gradients
            == (10 if paid_again else 6)
        )

    def test_a_lasting_failure_is_an_error_that_names_the_place(self, fault, gradient, vectorized, position):
        probe = Probe(FAULTS[fault], vectorized=vectorized)
        evaluator = Evaluator(probe.target)
        with pytest.raises(EvaluationError, match="retried 1 time") as caught:
            request(evaluator, position, gradient)
        np.testing.assert_array_equal(caught.value.parameters, position[2])
        assert f"{position[2, 0]:.4f}" in str(caught.value)
        assert "on_failure='reject'" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert probe.evaluations_of(position[2]) == 2
        apart = vectorized and fault == "an exception"
        assert probe.evaluations_of(position[4]) == 1 + apart, "the other rows of the batch are not lost"
        if fault == "an exception":
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert "ZeroDivisionError: division by zero" in str(caught.value)
        else:
            assert "returned a log-density of" in str(caught.value)

    def test_a_lasting_failure_can_be_declared_a_rejection(self, fault, gradient, vectorized, position):
        probe = Probe(FAULTS[fault], vectorized=vectorized)
        evaluator = Evaluator(probe.target, on_failure="reject")
        for turn in (1, 2):
            found = request(evaluator, position, gradient)
            assert np.isposinf(found.potential).tolist() == [False, False, True, False, False]
            assert evaluator.counts.n_failures == turn
        assert probe.evaluations_of(position[2]) == 4
        assert f"{position[2, 0]:.4f}" in evaluator.last_failure
        others = [0, 1, 3, 4]
        np.testing.assert_allclose(found.potential[others], -log_density(position[others]))
        if gradient:
            assert not found.gradient[2].any()

    @pytest.mark.parametrize("retries", [0, 3])
    def test_the_number_of_retries(self, fault, gradient, vectorized, retries, position):
        probe = Probe(FAULTS[fault], vectorized=vectorized)
        evaluator = Evaluator(probe.target, retries=retries)
        with pytest.raises(EvaluationError):
            request(evaluator, position[2:3], gradient)
        assert len(probe.rows) == retries + 1
        np.testing.assert_array_equal(probe.rows, np.tile(position[2], (retries + 1, 1)))

    def test_the_error_speaks_in_the_users_coordinates(self, fault, gradient, vectorized, position):
        probe = Probe(FAULTS[fault], vectorized=vectorized, bounds=BOUNDS)
        with pytest.raises(EvaluationError) as caught:
            request(Evaluator(probe.target), position, gradient)
        expected = probe.target.transform.to_parameters(position)[2]
        np.testing.assert_array_equal(caught.value.parameters, expected)
        assert probe.evaluations_of(expected) == 2, "a retry is at the identical position"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_batch_that_raises_names_the_row_with_or_without_retries(retries, position):
    probe = Probe(FAULTS["an exception"], vectorized=True)
    with pytest.raises(EvaluationError) as caught:
        Evaluator(probe.target, retries=retries).value(position)
    np.testing.assert_array_equal(caught.value.parameters, position[2])
    assert probe.batches == [5, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_a_failure(bad, vectorized, position):
    def gradient(x):
        return np.where(x[..., :1] > 10, bad, -x)

    target = Target(log_density, gradient, dim=DIM, vectorized=vectorized)
    with pytest.raises(EvaluationError, match="returned a gradient that is not finite"):
        Evaluator(target).value_and_gradient(position)
    evaluator = Evaluator(target, on_failure="reject")
    found = evaluator.value_and_gradient(position)
    assert (np.isposinf(found.potential).sum(), evaluator.counts.n_failures) == (1, 1)
    assert np.isfinite(found.gradient).all()
    assert np.isfinite(evaluator.value(position).potential).all(), "a value does not need the gradient"


@pytest.mark.parametrize("vectorized", [False, True])
def test_an_interrupt_passes_untouched(vectorized):
    calls = []

    def interrupted(x):
        calls.append(x)
        raise KeyboardInterrupt("now")

    evaluator = Evaluator(Target(interrupted, dim=DIM, vectorized=vectorized), on_failure="reject")
    with pytest.raises(KeyboardInterrupt, match="now"):
        evaluator.value(np.zeros((4, DIM)))
    assert len(calls) == 1


def test_a_model_that_exits_has_failed():
    def leaving(x):
        raise SystemExit("now")

    with pytest.raises(EvaluationError, match=r"SystemExit\(now\)"):
        Evaluator(Target(leaving, dim=DIM)).value(np.zeros((1, DIM)))


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_wrong_shape_is_not_tried_again(vectorized):
    calls = []

    def wrong(x):
        calls.append(x)
        return np.zeros(99)

    evaluator = Evaluator(Target(wrong, dim=DIM, vectorized=vectorized), on_failure="reject", retries=5)
    with pytest.raises(OutputError):
        evaluator.value(np.zeros((4, DIM)))
    assert len(calls) == 1
    assert evaluator.counts.n_failures == 0


def test_failed_calls_are_timed_and_counted(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def failing(x):
        clock.now += 1.0
        raise ZeroDivisionError

    evaluator = Evaluator(Target(failing, dim=DIM), retries=2, on_failure="reject")
    evaluator.value(np.zeros((1, DIM)))
    assert (evaluator.counts.value_seconds, evaluator.counts.n_values, evaluator.counts.n_failures) == (
        3.0,
        3,
        1,
    )


@pytest.mark.parametrize("vectorized", [False, True])
def test_outputs_of_a_model_that_raises_are_nan(vectorized, rng):
    def forward(x):
        if (x[..., 0] > 10).any():
            raise ArithmeticError("no solution")
        return x[..., :2]

    likelihood, prior = GaussianLikelihood([0.0, 1.0], sd=1.0), NormalPrior(0.0, 1.0, dim=DIM)
    evaluator = Evaluator(
        ForwardTarget(forward, likelihood, prior, vectorized=vectorized), on_failure="reject"
    )
    position = rng.normal(size=(4, DIM))
    position[0, 0] = 11.0
    found = evaluator.value(position)
    assert np.isnan(found.outputs).all(axis=1).tolist() == [True, False, False, False]
    assert "ArithmeticError: no solution" in evaluator.last_failure


def test_long_positions_stay_on_one_line():
    target = Target(lambda x: np.nan, dim=100)
    with pytest.raises(EvaluationError) as caught:
        Evaluator(target).value(np.linspace(1e-9, 1e9, 100)[None])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.parameters.shape == (100,)


def test_an_evaluation_error_survives_another_process():
    with pytest.raises(EvaluationError) as caught:
        Evaluator(Target(lambda x: np.nan, dim=2)).value(np.ones((1, 2)))
    caught.value.run = "what was drawn"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is EvaluationError
    assert str(copy) == str(caught.value)
    assert copy.run == "what was drawn"
    np.testing.assert_array_equal(copy.parameters, [1.0, 1.0])
