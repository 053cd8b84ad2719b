"""The exact rank test: every public kernel passes, and a kernel made slightly wrong does not.

A correct kernel fails one of these tests with probability 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from public_kernels import LISTED
from scipy.stats import chisquare
from wrong_kernels import Lost, TooWide, Turn

from leapwise import HMC, Mixture, State, Target, UnitMetric
from leapwise.errors import InputError
from leapwise.testing import ExactTarget, gaussian, gumbel
from leapwise.testing.sequential import check_ranks, check_two_samples, exact_ranks

FALSE_ALARM = 1e-6
KERNEL = HMC(0.9, 3, metric=UnitMetric())
ROUND = ExactTarget(
    Target(lambda x: -0.5 * (x**2).sum(axis=1), lambda x: -x, dim=2, vectorized=True),
    lambda rng, n: rng.standard_normal((n, 2)),
    "round",
)


#: One lot serves all chains of a mixture: their ranks are not independent. Its parts are tested.
RANKED = [name for name, listed in LISTED.items() if Mixture not in listed.covers]


@pytest.mark.parametrize("name", RANKED)
def test_every_kernel_is_reversible(name, record_property):
    record_property("false_alarm", FALSE_ALARM)
    kernel, n_chains = LISTED[name].make(gumbel()), LISTED[name].n_chains // 100
    if isinstance(kernel, Mixture):  # a self-tuned run may mix exact steps in
        kernel = kernel.kernels[0]
    verdict = check_ranks(kernel, gumbel(), n_chains=n_chains, false_alarm=FALSE_ALARM)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("name", ["HMC", "RNS-HMC", "surrogate transition"])
def test_the_same_a_tenth_too_wide_is_caught(name):
    verdict = check_ranks(TooWide(LISTED[name].make(gumbel())), gumbel(), false_alarm=FALSE_ALARM)
    assert not verdict.passed, str(verdict)


def test_a_kernel_that_goes_one_way_is_caught_though_it_is_invariant(record_property):
    record_property("false_alarm", FALSE_ALARM)
    assert not check_ranks(Turn(), ROUND, length=3).passed
    assert check_two_samples(Turn(), ROUND, false_alarm=FALSE_ALARM).passed


def test_a_kernel_that_never_moves_has_uniform_ranks(record_property):
    """All ties, broken at random: it is reversible."""
    record_property("false_alarm", FALSE_ALARM)

    class Stays:
        def step(self, streams, state, evaluator):
            return state, None

    ranks = exact_ranks(
        Stays(), gumbel(), 20_000, np.random.default_rng(2), length=5, statistics=lambda q, u: {"U": u}
    )
    assert chisquare(np.bincount(ranks["U"], minlength=5)).pvalue > FALSE_ALARM


def test_independent_draws_have_uniform_ranks(record_property):
    class Anew:
        def step(self, streams, state, evaluator):
            return State.from_evaluation(evaluator.value(streams.normals(2))), None

    record_property("false_alarm", FALSE_ALARM)
    verdict = check_ranks(Anew(), ROUND, n_chains=2000, false_alarm=FALSE_ALARM)
    assert verdict.passed, str(verdict)


def test_chains_that_are_lost_are_no_pass():
    verdict = check_ranks(Lost(), gumbel(), n_chains=500)
    assert not verdict.passed and verdict.stages[0].adjusted == 0.0


def test_ranks_are_ranks():
    ranks = exact_ranks(
        KERNEL,
        gumbel(),
        500,
        np.random.default_rng(1),
        length=6,
        statistics=lambda q, u: {"first": q[:, 0], "U": u, "sign": q[:, 0] > 0},
    )
    assert set(ranks) == {"first", "U", "sign"}
    for rank in ranks.values():
        assert rank.shape == (500,) and set(np.unique(rank)) == set(range(6))


def test_a_target_comes_with_draws_of_its_own_or_is_given_them(record_property):
    record_property("false_alarm", FALSE_ALARM)
    target, draw = gumbel().target, gumbel().draw
    assert check_ranks(KERNEL, target, draw, n_chains=500, false_alarm=FALSE_ALARM).passed
    with pytest.raises(InputError, match="draw="):
        check_ranks(KERNEL, target)


def test_draws_that_are_not_of_the_target_are_caught():
    def narrow(rng, n):
        return 0.8 * rng.standard_normal((n, 2))

    verdict = check_ranks(KERNEL, ROUND.target, narrow)
    assert not verdict.passed, str(verdict)


def test_the_seed_decides():
    one, two, other = (check_ranks(KERNEL, gaussian(), n_chains=500, random_seed=seed) for seed in (1, 1, 2))
    assert one.stages[0].p_values == two.stages[0].p_values != other.stages[0].p_values


@pytest.mark.parametrize(
    "bad", [{"length": 1}, {"length": 2.0}, {"n_chains": 20}, {"false_alarm": 0.0}], ids=str
)
def test_bad_settings_are_refused_with_a_sentence(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        check_ranks(KERNEL, gumbel(), **bad)
