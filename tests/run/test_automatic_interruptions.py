"""What the adaptation and its draws have paid for is not lost: interrupts, failures, and failures that pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from counting import Skewed

import leapwise as lw
from leapwise.adaptation import adapt
from leapwise.errors import EvaluationError, SurrogateError
from leapwise.run import automatic

CHAINS, DRAWS = 2, 60
SHAPE = {"draws": DRAWS, "chains": CHAINS, "random_seed": 1}
MOMENTS = ("start", "find", "exploration", "the last of warm-up", "the first draw", "draws", "the last draw")


def interrupt():
    raise KeyboardInterrupt


def crash():
    raise ZeroDivisionError("the pump has stopped")


@pytest.fixture(scope="module")
def whole():
    """The run as it is when nothing happens, and the number of a call at each moment of it."""
    model, seen = Skewed(), {}
    find, round_ = adapt.find, adapt.Explorer.round

    def found(*given, **options):
        first = model.calls
        start = find(*given, **options)
        seen["find"] = (first + 1 + model.calls) // 2
        return start

    def explored(self):
        first = model.calls
        round_(self)
        seen["exploration"] = (first + 1 + model.calls) // 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapt, "find", found)
        patch.setattr(adapt.Explorer, "round", explored)
        run = lw.sample(model.target, **SHAPE)
    learning = run.warmup.cost.n_exact
    seen |= {"start": 2, "the last of warm-up": learning, "the first draw": learning + 1}
    seen |= {"draws": learning + run.posterior.cost.n_exact // 2, "the last draw": run.cost.n_exact}
    assert CHAINS < seen["find"] < seen["exploration"] < learning
    return run, seen


def check(run, whole, moment, model):
    """Everything that is there is what the whole run has there, and all of it is counted."""
    complete, _ = whole
    made = run.draws.shape[1]
    assert made == {"draws": DRAWS // 2 - 1, "the last draw": DRAWS - 1}.get(moment, 0)
    np.testing.assert_array_equal(run.draws, complete.draws[:, :made])
    for name, values in run.posterior.stats.items():
        np.testing.assert_array_equal(values, complete.posterior.stats[name][:, :made])
    assert not run.complete
    assert run.cost.n_exact == model.calls
    assert (run.seed, run.settings["method"]) == (1, "Auto")
    if moment in ("the first draw", "draws", "the last draw"):
        assert run.warmup.cost.n_exact == complete.warmup.cost.n_exact
        assert run.settings == complete.settings
        assert run.surrogate.fingerprint == complete.surrogate.fingerprint
        np.testing.assert_array_equal(run.training.position, complete.training.position)
    else:
        assert run.posterior.cost == lw.results.Cost()
        assert run.kernel is None and run.surrogate is None
    assert str(run.summary())
    run.to_datatree()


@pytest.mark.parametrize("moment", MOMENTS)
class TestAtAnyTime:
    def test_an_interrupt_returns_what_there_is(self, moment, whole):
        model = Skewed(at={whole[1][moment]: interrupt})
        run = lw.sample(model.target, **SHAPE)
        check(run, whole, moment, model)
        assert model.calls == whole[1][moment], "and at once"
        assert any("interrupted" in warning for warning in run.summary().warnings)

    def test_a_failure_holds_what_there_is(self, moment, whole):
        number = whole[1][moment]
        model = Skewed(at={number + i: crash for i in range(40)})
        with pytest.raises(EvaluationError, match="ZeroDivisionError: the pump has stopped") as caught:
            lw.sample(model.target, **SHAPE)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.parameters.shape == (3,)
        check(caught.value.run, whole, moment, model)
        assert caught.value.run.cost.n_failures == 1

    def test_a_failure_that_passes_changes_nothing(self, moment, whole):
        complete, calls = whole
        fault = crash if MOMENTS.index(moment) % 2 else lambda: np.nan
        model = Skewed(at={calls[moment]: fault})
        run = lw.sample(model.target, **SHAPE)
        assert run.complete
        np.testing.assert_array_equal(run.draws, complete.draws)
        assert run.surrogate.fingerprint == complete.surrogate.fingerprint
        assert run.cost.n_exact == complete.cost.n_exact + 1 == model.calls
        assert run.cost.n_failures == 0


@pytest.mark.parametrize("moment", ["find", "exploration", "the last of warm-up"])
def test_what_was_paid_for_can_be_learned_from(moment, whole):
    """An interrupted adaptation leaves the evaluations that it has heard of, but for the batch that was under way."""
    complete, calls = whole
    run = lw.sample(Skewed(at={calls[moment]: interrupt}).target, **SHAPE)
    assert 0 < len(run.training) < calls[moment]
    known = complete.training.position[: len(run.training)]
    np.testing.assert_array_equal(run.training.position, known)


def test_a_surrogate_of_no_use_leaves_what_it_was_trained_on(monkeypatch):
    monkeypatch.setattr(
        automatic, "run_adaptation", lambda *given: replace(adapt.run_adaptation(*given), sd=5.0)
    )
    model = Skewed(gradient=False)
    with pytest.raises(SurrogateError, match=r"its sd\(D\) is 5.*tune=") as caught:
        lw.sample(model.target, **SHAPE)
    run = caught.value.run
    assert run.cost.n_exact == model.calls
    assert run.draws.shape[1] == 0 and not run.complete
    assert len(run.training) == model.calls


class TestReject:
    """With ``on_failure="reject"`` points that fail are outside the support; they are counted and told."""

    @pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
    def test_failures_are_no_different_from_no_mass(self, gradient):
        edge = 1.0 if gradient else 3.5  # values alone do not tell a quadratic of an edge amid the posterior

        def cut(beyond):
            model = Skewed()

            def log_density(x):
                value = model.value(x)
                return beyond() if x[0] > edge else value

            return lw.Target(log_density, model.score if gradient else None, dim=3), model

        bounded, _ = cut(lambda: -np.inf)
        failing, model = cut(crash)
        expected = lw.sample(bounded, **SHAPE)
        run = lw.sample(failing, on_failure="reject", retries=0, **SHAPE)
        np.testing.assert_array_equal(run.draws, expected.draws)
        assert (run.draws[:, :, 0] <= edge).all()
        assert run.cost.n_exact == expected.cost.n_exact == model.calls
        assert run.cost.n_failures > 0 and expected.cost.n_failures == 0
        assert any(f"{run.cost.n_failures}" in warning for warning in run.summary().warnings)
