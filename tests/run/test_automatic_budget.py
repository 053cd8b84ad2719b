"""What may be spent: `max_evaluations` is never exceeded, `tune` caps the warm-up, and too little is told."""

from __future__ import annotations

import re

import numpy as np
import pytest
from counting import Skewed

import leapwise as lw
from leapwise.adaptation import Trust
from leapwise.errors import BudgetError, InputError, SurrogateError
from leapwise.run import automatic

BUDGETS = (40, 80, 150, 300)


def allow(model, budget=None, **settings):
    shape = {"draws": 60, "chains": 2, "random_seed": 1} | settings
    return lw.sample(model.target, max_evaluations=budget, **shape)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("dim", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
def test_the_budget_is_never_exceeded(budget, dim, gradient):
    model = Skewed(dim, gradient)
    try:
        run = allow(model, budget)
    except (BudgetError, SurrogateError) as error:
        assert not gradient and budget <= 150, "values alone take more"
        run = error.run
        assert run.draws.shape[1] == 0 and not run.complete
    else:
        assert run.complete and run.exact
        assert 0 < run.draws.shape[1] <= 60
        # A step of all chains, with exact gradients at most a dozen, may no longer have fitted in.
        spare = budget - run.cost.n_exact
        assert run.draws.shape[1] == 60 or spare < 2 * (1 if run.surrogate.exact_share == 0 else 15)
    assert model.calls == run.cost.n_exact <= budget


def test_more_budget_than_is_needed_is_not_spent():
    run = allow(Skewed(2), 10_000)
    assert run.draws.shape == (2, 60, 2) and run.complete
    assert run.cost.n_exact < 400


def test_retries_are_within_the_budget():
    flaky = Skewed(2, at=dict.fromkeys(range(3, 200, 7), lambda: np.nan))
    run = allow(flaky, 80)
    assert flaky.calls == run.cost.n_exact <= 80
    assert run.draws.shape[1] > 0


def test_a_fallback_is_within_the_budget(monkeypatch):
    monkeypatch.setattr(automatic, "judge", lambda outcome: Trust(1.0, "told so"))
    model = Skewed(3)
    run = allow(model, 200)
    assert model.calls == run.cost.n_exact <= 200
    assert 0 < run.draws.shape[1] < 60
    assert 0 < run.surrogate.exact_share < 1


def test_a_budget_that_would_do_is_no_reason_to_fail():
    """What is found without a limit is found with a limit that is no smaller."""
    free = allow(Skewed(2, gradient=False))
    limited = allow(Skewed(2, gradient=False), free.cost.n_exact + 100)
    assert limited.draws.shape[1] > 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_tune_caps_the_warmup(seed):
    """Also where so little was not enough to earn trust."""
    model = Skewed(2)
    run = allow(model, tune=48, chains=10, random_seed=seed, draws=10)
    assert run.warmup.cost.n_exact <= 48
    assert run.cost.n_exact == model.calls


def test_tune_and_a_budget_both_hold():
    model = Skewed(3)
    run = allow(model, 150, tune=60)
    assert run.warmup.cost.n_exact <= 60
    assert model.calls <= 150


class TestTooLittle:
    """The error names what would be enough, and it is."""

    @pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
    @pytest.mark.parametrize(("dim", "chains"), [pytest.param(2, 1, marks=pytest.mark.slow), (2, 10), (6, 2)])
    def test_the_remedy_works(self, dim, chains, gradient):
        model = Skewed(dim, gradient)
        with pytest.raises(BudgetError, match="warm-up") as caught:
            allow(model, tune=chains + 1, chains=chains)
        assert caught.value.run.cost.n_exact == model.calls <= chains + 1
        (enough,) = (int(found) for found in re.findall(r"allow\D*(\d+)", str(caught.value)))
        again = Skewed(dim, gradient)
        run = allow(again, tune=enough, chains=chains, draws=10)
        assert run.draws.shape == (chains, 10, dim)
        assert run.warmup.cost.n_exact <= enough

    def test_fewer_than_there_are_chains(self):
        model = Skewed(2)
        with pytest.raises(BudgetError, match="max_evaluations="):
            allow(model, 3, chains=4)
        assert model.calls <= 3

    def test_other_methods_take_no_budget_of_this_kind_for_granted(self):
        """With HMC a budget may end the warm-up; it is told, and never exceeded."""
        model = Skewed(2)
        with pytest.raises(BudgetError, match="110 exact evaluations are allowed") as caught:
            allow(model, 110, method=lw.HMC(), tune=25)
        assert model.calls == caught.value.run.cost.n_exact <= 110

    def test_other_methods_know_what_their_warmup_takes_at_least(self):
        model = Skewed(2)
        with pytest.raises(BudgetError, match=r"500 steps of warm-up of 4 chains take at least 2004 .*tune="):
            allow(model, 2003, method=lw.HMC(), chains=4)
        assert model.calls == 0

    @pytest.mark.parametrize(
        ("dim", "gradient", "budget"), [(2, True, 16), (6, False, 100), (30, False, 1500)]
    )
    def test_nothing_is_spent_where_nothing_could_come_of_it(self, dim, gradient, budget):
        model = Skewed(dim, gradient)
        with pytest.raises(BudgetError, match=r"too few to find the posterior .* \(tune=\), or \d+ in all"):
            allow(model, budget, chains=4)
        assert model.calls == 0

    @pytest.mark.parametrize("bad", [0, -5, 99.5, "100", True])
    def test_no_number_of_evaluations(self, bad):
        model = Skewed(2)
        with pytest.raises(InputError, match="max_evaluations must be a whole number of at least 1"):
            allow(model, bad)
        assert model.calls == 0
