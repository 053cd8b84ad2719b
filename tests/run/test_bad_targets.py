"""Targets that cannot be sampled well are told plainly, or sampled at a bounded price; never with a raw error."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import (
    BudgetError,
    GradientError,
    ImproperError,
    OutputError,
    StartError,
    SurrogateError,
)
from leapwise.results.diagnostics import warnings_for
from leapwise.run import automatic


def disc(given):
    return lw.Target(lambda x: 0.0 if x @ x < 1 else -np.inf, np.zeros_like if given else None, dim=2)


def cut_normal(given):
    return lw.Target(
        lambda x: -0.5 * x @ x if x @ x < 1 else -np.inf, (lambda x: -x) if given else None, dim=2
    )


def exponential(given):
    return lw.Target(
        lambda x: -x.sum() if (x > 0).all() else -np.inf, (lambda x: -np.ones(4)) if given else None, dim=4
    )


class TestEdges:
    @pytest.mark.parametrize("make", [disc, cut_normal, pytest.param(exponential, marks=pytest.mark.slow)])
    def test_the_price_of_falling_back_is_bounded(self, make):
        run = lw.sample(make(True), draws=50, random_seed=1)
        assert run.cost.n_exact < 10_000
        assert any("bounds=" in each for each in warnings_for(run))

    @pytest.mark.parametrize("make", [disc, exponential])
    def test_without_a_gradient_it_is_told(self, make):
        with pytest.raises(SurrogateError, match=r"outside the support.*bounds=") as caught:
            lw.sample(make(False), draws=50, random_seed=1)
        assert "sd(D) is inf" not in str(caught.value)

    def test_an_edge_that_cuts_off_some_of_the_mass_is_no_reason_to_fail(self):
        run = lw.sample(cut_normal(False), draws=1000, random_seed=1)
        assert (run.draws**2).sum(axis=2).max() < 1.0
        exact = 2.0 - 1.0 / (np.exp(0.5) - 1.0)
        assert np.square(run.draws).sum(axis=2).mean() == pytest.approx(exact, abs=0.04)

    @pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.slow)])
    def test_kinks_are_no_reason_to_fail(self, seed):
        target = lw.Target(lambda x: -np.abs(x).sum(), lambda x: -np.sign(x), dim=5)
        run = lw.sample(target, draws=20, random_seed=seed)
        assert run.complete


def test_a_wrong_gradient_costs_a_few_evaluations_of_each_chain():
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: x, dim=3)
    with pytest.raises(GradientError, match=r"not of its negative.*leave it out") as caught:
        lw.sample(target, random_seed=1)
    assert caught.value.run.cost.n_exact <= 5 * 4


@pytest.mark.parametrize("given", [True, False], ids=["gradients", "values"])
def test_no_mass_anywhere_is_about_the_start(given):
    target = lw.Target(lambda x: -np.inf, (lambda x: 0 * x) if given else None, dim=2)
    with pytest.raises(StartError, match=r"is -inf at the last of .* random starts"):
        lw.sample(target, draws=50, random_seed=1)


def test_a_flat_direction_that_only_shows_later_is_told():
    """No axis is flat, and values alone show no curvature: what was learned is absurdly wide in the end."""
    target = lw.Target(lambda x: -((x[0] + x[1]) ** 2), dim=2)
    with pytest.raises(ImproperError, match=r"along [+-]x\[0\], [+-]x\[1\]"):
        lw.sample(target, draws=500, random_seed=1)


class TestAdvice:
    """What is said applies to the kind of target at hand."""

    @staticmethod
    def forward():
        return lw.ForwardTarget(
            lambda x: x, lw.GaussianLikelihood([0.0], sd=1.0), lw.NormalPrior(0.0, 1.0, dim=1)
        )

    @pytest.mark.parametrize(
        ("target", "said", "unsaid"),
        [
            (lw.Target(lambda x: 0.0, lambda x: x, dim=1), ["bounds="], ["gradient", "prior"]),
            (lw.Target(lambda x: 0.0, dim=1), ["bounds=", "gradient="], ["prior", "vjp="]),
            (forward(), ["prior", "vjp="], ["bounds=", "ForwardTarget"]),
        ],
        ids=["gradients", "values", "outputs"],
    )
    def test_of_a_posterior_that_was_not_found(self, target, said, unsaid, monkeypatch):
        def fail(record, *_):
            record.evaluator.value(np.arange(38.0)[:, None])
            raise BudgetError("spent")

        monkeypatch.setattr(automatic, "run_adaptation", fail)
        with pytest.raises(BudgetError, match="not found in 38 evaluations") as caught:  # spent, not allowed
            lw.sample(target, draws=10, tune=1000, random_seed=1)
        message = str(caught.value)
        assert all(word in message for word in said) and not any(word in message for word in unsaid)

    def test_of_linear_algebra_that_gives_up(self, monkeypatch):
        def fail(*_):
            raise np.linalg.LinAlgError("not positive definite")

        monkeypatch.setattr(automatic, "run_adaptation", fail)
        with pytest.raises(SurrogateError, match=r"too large or too small.*not positive definite.*rescale"):
            lw.sample(lw.Target(lambda x: -0.5 * x @ x, dim=2), draws=10, random_seed=1)

    def test_too_little_is_still_that(self):
        with pytest.raises(BudgetError, match="too few"):
            lw.sample(lw.Target(lambda x: -0.5 * x @ x, dim=2), draws=10, tune=8, chains=2, random_seed=1)


@pytest.mark.parametrize("width", [1e-2, 1e-4])
def test_a_posterior_is_found_however_narrow_and_far_it_is(width):
    """By values alone, from half a million widths away and more."""
    centre = np.array([1000.0, -5000.0])
    target = lw.Target(lambda x: -0.5 * (((x - centre) / width) ** 2).sum(), dim=2)
    run = lw.sample(target, draws=200, random_seed=1)
    assert np.abs(run.draws.mean(axis=(0, 1)) - centre).max() < 0.3 * width
    assert np.allclose(run.draws.std(axis=(0, 1)), width, rtol=0.2)


class TestTwoFunctionsOfOneTarget:
    """A value and a value with its gradient are told apart at the start, and so is a wrong derivative of a model."""

    DATA = lw.GaussianLikelihood([1.0, 2.0, 3.0], sd=1.0)
    PRIOR = lw.NormalPrior(0.0, 1.0, dim=2)

    @staticmethod
    def outputs(x):
        return np.array([x[0] + x[1], x[0] - x[1], x[0] ** 2])

    @staticmethod
    def slopes(x):
        return np.array([[1.0, 1.0], [1.0, -1.0], [2.0 * x[0], 0.0]])

    def forward(self, jacobian):
        calls = []

        def counted(x):
            calls.append(x)
            return self.outputs(x)

        return lw.ForwardTarget(counted, self.DATA, self.PRIOR, jacobian=jacobian), calls

    def test_a_log_density_that_is_another_with_its_gradient(self):
        def both(x):
            return -0.5 * x @ x - 0.5 * (x[0] - 3.0) ** 2, -x - np.array([x[0] - 3.0, 0.0])

        calls = []
        target = lw.Target(lambda x: calls.append(x) or -0.5 * x @ x, value_and_gradient=both, dim=2)
        with pytest.raises(OutputError, match="make both functions return the same value"):
            lw.sample(target, random_seed=1, progressbar=False)
        assert len(calls) == 1

    def test_outputs_that_are_others_with_a_jacobian(self):
        target, calls = self.forward(lambda x: (self.outputs(x) + 1.0, self.slopes(x)))
        with pytest.raises(OutputError, match="make both functions return the same value"):
            lw.sample(target, random_seed=1, progressbar=False)
        assert len(calls) == 1

    @pytest.mark.parametrize("factor", [-1.0, 1.5], ids=["negated", "too large"])
    def test_a_wrong_jacobian(self, factor):
        target, calls = self.forward(lambda x: (self.outputs(x), factor * self.slopes(x)))
        with pytest.raises(GradientError, match="does not match the log-density"):
            lw.sample(target, random_seed=1, progressbar=False)
        assert len(calls) == 1

    def test_a_right_one_is_let_pass_and_costs_little(self):
        target, _ = self.forward(lambda x: (self.outputs(x), self.slopes(x)))
        run = lw.sample(target, draws=100, random_seed=1, progressbar=False)
        assert run.warmup.cost.n_gradients <= 40

    def test_under_a_limit_no_gradient_is_spent_on_it(self):
        target, _ = self.forward(lambda x: (self.outputs(x), self.slopes(x)))
        run = lw.sample(target, max_evaluations=150, random_seed=1, progressbar=False)
        assert run.warmup.cost.n_gradients == 0
