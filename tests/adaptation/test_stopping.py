"""The efficiency of a surrogate against simulation, and when learning stops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leapwise.adaptation.stopping import (
    AdaptationPlan,
    acceptance,
    efficiency,
    learning_pays,
    learning_pays_within,
)


@pytest.mark.parametrize("sd", [0.2, 0.6, 1.0])
def test_an_independent_chain_has_this_acceptance_and_efficiency(sd):
    """A thousand chains of independent proposals; the bounds are six standard errors over chains."""
    rng = np.random.default_rng(1)
    n, steps = 1000, 400
    here, value = rng.normal(-(sd**2), sd, n), rng.standard_normal(n)
    total, accepted = np.zeros(n), np.zeros(n)
    for _ in range(steps):
        there = rng.normal(0.0, sd, n)
        chance = np.exp(np.minimum(0.0, here - there))
        moves = rng.random(n) < chance
        here = np.where(moves, there, here)
        value = np.where(moves, rng.standard_normal(n), value)
        total += value
        accepted += chance
    rate = accepted / steps
    assert abs(rate.mean() - acceptance(sd)) < 6 * rate.std() / np.sqrt(n)
    worth = steps * np.mean((total / steps) ** 2)  # variance of the mean, in units of one independent draw's
    assert abs(worth * efficiency(sd) - 1.0) < 6 * np.sqrt(2.0 / n) + 0.02


def test_a_better_surrogate_is_worth_more():
    sds = np.linspace(0.0, 3.0, 40)
    worth = [efficiency(sd) for sd in sds]
    assert (np.diff(worth) < 0).all() and worth[0] == 1.0
    assert efficiency(np.inf) == 0.0


def test_learning_pays_while_there_is_something_to_gain():
    assert learning_pays(np.inf, 100, 4000)
    assert learning_pays(1.0, 100, 4000) and not learning_pays(0.02, 100, 4000)
    assert not learning_pays(0.3, 300, 4000, rate=0.0)
    assert learning_pays_within(1000, 100, 1.0) and not learning_pays_within(1000, 700, 1.0)


class TestPlan:
    def test_surprises_are_reason_to_go_on(self):
        plan = AdaptationPlan(dim=5, n_draws=4000, most=400)
        assert plan.is_enough(200, 0.02, surprises=0.0, rate=0.7)
        assert not plan.is_enough(200, 0.02, surprises=0.3, rate=0.7)
        assert plan.is_enough(400, 0.02, surprises=0.3, rate=0.7)

    def test_there_is_a_least(self):
        plan = AdaptationPlan(dim=20, n_draws=400, most=350)
        assert not plan.is_enough(60, 0.001, 0.0, 0.7) and plan.is_enough(81, 0.001, 0.0, 0.7)

    def test_a_budget_keeps_something_for_draws(self):
        plan = AdaptationPlan(dim=20, n_draws=4000, most=133, budget=200)
        assert plan.is_enough(133, 5.0, 1.0, 0.7)


def test_a_plan_grows_as_far_as_it_may():
    plan = AdaptationPlan(dim=2, n_draws=4000, most=190, reserve=20, extra=100)
    first = plan.extended(150)
    assert (first.most, first.extra) == (215, 75)
    last = first.extended(400)
    assert (last.most, last.extra) == (290, 0)
    assert last.extended(1000).most == 290
    assert AdaptationPlan(dim=2, n_draws=4000, most=190).extended(190).most == 190, (
        "a limit of the user's stays"
    )

    def test_evaluations_far_above_the_typical_set_do_not_count_as_learning(self):
        plan = AdaptationPlan(dim=5, n_draws=4000, most=400)
        assert plan.after_initialise(300, n_far=250).most == 650
        assert plan.after_initialise(300).most == 400
        assert AdaptationPlan(5, 4000, 400, is_capped=True).after_initialise(300, n_far=250).most == 400

    def test_a_useless_surrogate_is_learned_on_as_long_as_it_gets_better_at_all(self):
        plan = AdaptationPlan(dim=5, n_draws=4000, most=400, patience=500, poor_sd=2.0)
        assert plan.extended_while_poor(400, 1.95) is None
        assert plan.extended_while_poor(400, 1.95, insist=True).most > 400
        assert plan.extended_while_poor(400, 2.05, insist=True) is None
        assert replace(plan, poor_sd=1.0).extended_while_poor(400, 0.95, insist=True) is None, "it is of use"
