"""What is drawn is not lost: interrupts, failures of the target, and failures that pass.

Here warm-up is made of steps; of the adaptation see `test_automatic_interruptions`.
"""

from __future__ import annotations

import numpy as np
import pytest
from counting import Counted

import leapwise as lw
from leapwise.errors import EvaluationError, StartError
from leapwise.run.progress import Progress
from leapwise.warmup.start import ATTEMPTS

CHAINS, TUNE, DRAWS = 2, 24, 20
SHAPE = {"draws": DRAWS, "tune": TUNE, "chains": CHAINS, "random_seed": 1, "method": lw.HMC()}


def interrupt():
    raise KeyboardInterrupt


def crash():
    raise ZeroDivisionError("the pump has stopped")


@pytest.fixture(scope="module")
def whole():
    """The run as it is when nothing happens."""
    return lw.sample(lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2), **SHAPE)


def call_number(whole, phase):
    """A call in the middle of a phase of the run."""
    start = CHAINS
    learning = whole.warmup.cost.n_gradients
    places = {
        "start": 2,
        "first step size": start + 1,
        "warm-up": (start + learning) // 2,
        "draws": learning + whole.posterior.cost.n_gradients // 2,
        "the last draw": whole.cost.n_gradients,
    }
    return places[phase]


def assert_beginning_of(run, whole):
    """Everything that is there is what the whole run has there."""
    for part, complete in ((run.posterior, whole.posterior), (run.warmup, whole.warmup)):
        n = part.draws.shape[1]
        np.testing.assert_array_equal(part.draws, complete.draws[:, :n])
        for name, values in part.stats.items():
            np.testing.assert_array_equal(values, complete.stats[name][:, :n])


PHASES = ("start", "first step size", "warm-up", "draws", "the last draw")


@pytest.mark.parametrize("phase", PHASES)
class TestAtAnyTime:
    def test_an_interrupt_returns_what_was_drawn(self, phase, whole):
        counted = Counted(at={call_number(whole, phase): interrupt})
        run = lw.sample(counted.target, **SHAPE)
        assert not run.complete
        self.check(run, whole, phase, counted.calls)
        assert any("interrupted" in warning for warning in run.summary().warnings)
        assert "interrupted" in str(run.summary())

    def test_a_failure_holds_what_was_drawn(self, phase, whole):
        number = call_number(whole, phase)
        counted = Counted(at={number + i: crash for i in range(4)})
        with pytest.raises(EvaluationError, match="ZeroDivisionError: the pump has stopped") as caught:
            lw.sample(counted.target, **SHAPE)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.parameters.shape == (2,)
        run = caught.value.run
        assert not run.complete
        self.check(run, whole, phase, counted.calls)
        assert run.cost.n_failures == 1

    @staticmethod
    def check(run, whole, phase, calls):
        assert_beginning_of(run, whole)
        assert run.cost.n_gradients == calls
        made = run.draws.shape[1]
        if phase == "draws":
            assert 0 < made < DRAWS
        elif phase == "the last draw":
            assert made == DRAWS - 1
        else:
            assert made == 0
            assert run.posterior.cost == lw.results.Cost()
        tuned = run.warmup.draws.shape[1]
        expected = {"start": tuned == 0, "first step size": tuned == 0, "warm-up": 0 < tuned < TUNE}
        assert expected.get(phase, tuned == TUNE)
        assert run.seed == 1
        assert run.settings["method"] == "HMC"
        if made:
            assert run.settings == whole.settings
        run.to_datatree()

    @pytest.mark.parametrize("fault", [crash, lambda: np.nan, lambda: np.inf], ids=["crash", "nan", "inf"])
    def test_a_failure_that_passes_changes_nothing(self, phase, fault, whole):
        counted = Counted(at={call_number(whole, phase): fault})
        run = lw.sample(counted.target, **SHAPE)
        assert run.complete
        assert_beginning_of(run, whole)
        assert run.cost.n_gradients == whole.cost.n_gradients + 1 == counted.calls
        assert run.cost.n_failures == 0


def test_without_retries_a_failure_stops_at_once(whole):
    number = call_number(whole, "draws")
    counted = Counted(at={number: crash})
    with pytest.raises(EvaluationError):
        lw.sample(counted.target, retries=0, **SHAPE)
    assert counted.calls < number + CHAINS, "others of the same batch may have been under way"


def test_an_interrupt_at_the_very_end_is_too_late(whole, monkeypatch):
    monkeypatch.setattr(Progress, "__exit__", lambda *_: interrupt())
    run = lw.sample(Counted().target, **SHAPE)
    assert run.complete
    assert_beginning_of(run, whole)


class TestReject:
    """With ``on_failure="reject"`` the user declares that failing points are outside the support."""

    @staticmethod
    def target(beyond):
        def log_density(x):
            return beyond() if x[0] > 1.0 else -0.5 * x @ x

        return lw.Target(log_density, lambda x: -x, dim=2)

    @pytest.mark.parametrize("fault", [crash, lambda: np.nan, lambda: np.inf], ids=["crash", "nan", "inf"])
    def test_failures_are_rejected_counted_and_told(self, fault):
        bounded = lw.sample(self.target(lambda: -np.inf), **SHAPE)
        run = lw.sample(self.target(fault), on_failure="reject", **SHAPE)
        assert_beginning_of(run, bounded)
        assert run.complete
        assert (run.draws[:, :, 0] <= 1.0).all()
        assert run.cost.n_failures > 0
        assert run.cost.n_gradients == bounded.cost.n_gradients + run.cost.n_failures
        assert any(f"{run.cost.n_failures}" in warning for warning in run.summary().warnings)
        assert bounded.cost.n_failures == 0

    def test_otherwise_they_stop_the_run(self):
        with pytest.raises(EvaluationError, match="on_failure='reject'"):
            lw.sample(self.target(crash), **SHAPE)

    def test_a_model_that_always_fails_has_no_start(self):
        calls = []

        def failing(x):
            calls.append(x)
            crash()

        with pytest.raises(StartError, match=r"chain 0 is -inf.*random starts.*pump has stopped"):
            lw.sample(lw.Target(failing, lambda x: x, dim=2), on_failure="reject", retries=0, **SHAPE)
        assert len(calls) == ATTEMPTS * CHAINS


def test_a_wrong_shape_in_the_middle_is_told_as_such(whole):
    """Once a target has answered well, it is a failure like any other: how a solver that stops early shows itself."""
    number = call_number(whole, "draws")
    # The position and its retry, whatever else is in the batch.
    wrong = Counted(at={number + i: lambda: np.zeros(3) for i in range(2 * CHAINS)})
    with pytest.raises(EvaluationError, match=r"single number, got shape \(3,\)") as caught:
        lw.sample(wrong.target, **SHAPE)
    assert caught.value.run.draws.shape[1] > 0


def test_an_error_of_the_users_metric_keeps_what_was_drawn():
    class Breaks:
        """A flat metric that fails at its hundredth call."""

        calls = 0

        def at(self, position):
            Breaks.calls += 1
            if Breaks.calls == 100:
                raise ZeroDivisionError("no metric here")
            return Flat(position)

    class Flat:
        def __init__(self, position):
            self.matrix = self.cholesky = np.tile(np.eye(2), (len(position), 1, 1))

        def quadratic_contraction(self, velocity):
            return np.zeros_like(velocity)

        def trace_contraction(self):
            return np.zeros(self.matrix.shape[:2])

    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    method = lw.RMHMC(0.5, 2, metric=Breaks())
    with pytest.raises(ZeroDivisionError) as caught:
        lw.sample(target, draws=100, tune=0, chains=2, method=method, random_seed=1)
    assert 0 < caught.value.run.draws.shape[1] < 100
    assert not caught.value.run.complete
