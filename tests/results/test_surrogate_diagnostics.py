"""What is said of surrogates: alarm where mass is missed, and only there."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise import Evaluator, QuadraticNetwork, SurrogateTransition, Target, TrainingSet, sample
from leapwise.results import warnings_for
from leapwise.results.diagnostics import held_up, longest_tolerable, unlike_warmup
from leapwise.results.statistics import longest_stays, spread, surprises
from leapwise.surrogates.quality import robust_discrepancy_sd


def brute_longest(chain: np.ndarray) -> int:
    longest = now = 1
    for before, after in pairwise(chain):
        now = now + 1 if (before == after).all() else 1
        longest = max(longest, now)
    return longest


def test_longest_stays_are_counted():
    draws = np.random.default_rng(1).integers(0, 2, (6, 60, 2)).astype(float)
    draws[2, -9:] = 0.0
    assert longest_stays(draws).tolist() == [brute_longest(chain) for chain in draws]
    assert longest_stays(draws)[2] >= 9
    assert longest_stays(draws[:, :0]).tolist() == [0] * 6


def independence_chains(sd: float, n: int, chains: int, rng: np.random.Generator) -> np.ndarray:
    """Return which draws of chains that propose anew each time, with D normal, are new places, ``(chains, n, 1)``."""
    here = rng.normal(-(sd**2), sd, chains)
    place, places = rng.random(chains), []
    for _ in range(n):
        there = rng.normal(0.0, sd, chains)
        accepted = rng.exponential(size=chains) > there - here
        here, place = np.where(accepted, there, here), np.where(accepted, rng.random(chains), place)
        places.append(place)
    return np.stack(places, axis=1)[:, :, None]


@pytest.mark.parametrize(("sd", "most"), [(0.3, 0), (0.5, 0.02), (0.8, 0.05), (1.0, 0.05)])
def test_stays_that_the_discrepancy_explains_are_no_alarm(sd, most):
    """100 runs of 4 x 1000 draws. The rates of alarms are 0 in 200, 0.000-0.01, 0.015 and 0.03: 0.05 leaves room."""
    draws = independence_chains(sd, 1000, 400, np.random.default_rng(3)).reshape(100, 4, 1000, 1)
    tolerable = longest_tolerable(1000, sd)
    alarms = np.mean([longest_stays(run).max() > tolerable for run in draws])
    assert alarms <= most


def test_a_hole_in_the_surrogate_holds_chains_up(make_surrogate_run):
    values = np.random.default_rng(1).normal(size=(4, 500, 2))
    values[3, 100:160] = values[3, 100]
    run = make_surrogate_run(values=values)
    assert any("chain 3 stayed at one place for 60 draws" in said for said in warnings_for(run))
    values = values.copy()
    values[3, 125:] = np.random.default_rng(2).normal(size=(375, 2))  # which leaves 25
    shorter = replace(run, posterior=replace(run.posterior, draws=values))
    assert not any("stayed" in said for said in warnings_for(shorter))


def test_a_chain_that_never_moved_has_a_warning_of_its_own():
    assert held_up(np.zeros((2, 100, 1)), np.zeros((2, 100))) == []


def test_only_surrogates_hold_chains_up(make_run):
    values = np.random.default_rng(1).normal(size=(4, 500, 2))
    values[3, 100:160] = values[3, 100]
    assert not any("stayed" in said for said in warnings_for(make_run(values=values)))


def test_good_surrogates_raise_no_alarm(make_surrogate_run):
    """A normal D is more than 6 sd below its median with probability 1e-9: 8e-6 for these proposals."""
    for sd in (0.01, 0.1, 0.3, 0.8):
        run = make_surrogate_run(sd=sd, draws=2000)
        assert warnings_for(run) == []


def test_heavy_tails_that_stand_for_little_raise_no_alarm(make_surrogate_run):
    run = make_surrogate_run(sd=0.05, draws=1000)
    run.posterior.stats["discrepancy"][0, :2] = -2.5, -2.1  # 0.5 % of the mass
    assert surprises(run.posterior.stats["discrepancy"], run.surrogate).count == 2
    assert warnings_for(run) == []


@pytest.mark.parametrize(("gradient", "other"), [(True, "method=HMC()"), (False, "another random_seed=")])
def test_a_tail_that_warmup_could_not_learn_is_told(make_surrogate_run, make_report, gradient, other):
    """Draws cannot show it: they are not there."""
    tail = "a tail of x[1] that would add about 16% to its variance"
    run = make_surrogate_run(report=make_report(tail=tail, has_gradient=gradient))
    (said,) = warnings_for(run)
    assert said.startswith(f"the surrogate cuts {tail}: draws hardly come there")
    assert "reparametrise" in said and "tune longer (tune=)" in said and other in said
    assert warnings_for(make_surrogate_run(report=make_report())) == []


@pytest.mark.parametrize("low", [[-5.0], [-2.5] * 6])
def test_surprises_that_stand_for_more_are_told(make_surrogate_run, low):
    run = make_surrogate_run(sd=0.05, draws=1000)
    run.posterior.stats["discrepancy"][1, : len(low)] = low
    (said,) = warnings_for(run)
    assert f"at {len(low)} of 4,000 proposals" in said
    assert f"by {-low[0]:.1f}"[:-1] in said
    assert "there may be mass it has not seen; tune longer (tune=)" in said


def test_what_is_usual_is_that_of_warmup_if_it_is_higher(make_surrogate_run, make_report):
    """Chains that have moved to where the surrogate is too high find nothing low there."""
    discrepancy = make_surrogate_run(sd=0.1).posterior.stats["discrepancy"] - 5.0
    assert surprises(discrepancy, None).count == 0
    assert surprises(discrepancy, make_report(usual=0.0)).count == discrepancy.size
    assert surprises(discrepancy, make_report(usual=np.nan, sd=np.inf)).count == 0


def test_surprises_do_not_hide_themselves():
    discrepancy = np.random.default_rng(1).normal(0.0, 0.1, 1000)
    discrepancy[:100] = -30.0
    found = surprises(discrepancy, None)
    assert (found.count, found.mass) == (100, pytest.approx(1.0))
    assert robust_discrepancy_sd(discrepancy) < 0.2 < spread(discrepancy)
    shifted = surprises(discrepancy + 1e6, None)  # constants cancel, and nothing overflows
    assert (shifted.count, shifted.mass) == (100, pytest.approx(1.0))


def test_no_proposals_no_surprises(make_report):
    assert surprises(np.full((2, 3), np.nan), make_report()).count == 0
    assert surprises(None, None).mass == 0.0
    assert np.isnan(spread(None))


def test_sd_is_that_of_all_but_wild_proposals():
    discrepancy = np.random.default_rng(1).normal(7.0, 0.5, (4, 1000))
    assert spread(discrepancy) == pytest.approx(discrepancy.std(), rel=1e-3)
    discrepancy[0, 0], discrepancy[0, 1], discrepancy[0, 2] = 1e9, np.nan, np.inf
    assert spread(discrepancy) == pytest.approx(0.5, rel=0.05)


def test_trust_that_was_not_earned_is_told_in_its_own_words(make_surrogate_run, make_run, make_report):
    why = "its sd(D) is 0.9"
    mixed = make_surrogate_run(
        part=np.tile([0, 0, 0, 1], (4, 125)), report=make_report(exact_share=0.25, reason=why)
    )
    (said,) = warnings_for(mixed)
    assert said.startswith("25% of the steps were made with exact gradients")
    assert why in said
    (said,) = warnings_for(make_run(surrogate=make_report(exact_share=1.0, reason=why, fingerprint="")))
    assert said.startswith("fell back on HMC")
    assert why in said
    (said,) = warnings_for(make_surrogate_run(report=make_report(reason=why)))
    assert "no gradient for exact steps" in said and "(tune=)" in said
    limited = {"settings": {"max_evaluations": 300}, "report": make_report(reason=why)}
    (said,) = warnings_for(make_surrogate_run(**limited))
    assert "(max_evaluations=)" in said and "tune=" not in said


@pytest.fixture(scope="module")
def lobes() -> Target:
    """Two normals five apart, three fifths of the mass in the left."""

    def log_density(x):
        left, right = (-0.5 * ((x[:, 0] - at) ** 2 + x[:, 1] ** 2) for at in (-2.5, 2.5))
        return np.logaddexp(left + np.log(0.6), right + np.log(0.4))

    return Target(log_density, dim=2, vectorized=True)


@pytest.mark.parametrize("seed", range(2))
def test_a_lobe_that_warmup_has_not_seen_does_not_go_unsaid(lobes, seed):
    """A quadratic trained on the left lobe finds the right one too rarely, and cannot leave it."""
    x = np.random.default_rng(seed).normal([-2.5, 0.0], 1.0, (60, 2))
    seen = TrainingSet(x, Evaluator(lobes).value(x).potential)
    surrogate = QuadraticNetwork().fit(seen, np.random.default_rng(seed))
    kernel = SurrogateTransition(0.5, 4, surrogate=surrogate, inner_steps=4)
    run = sample(lobes, tune=0, method=kernel, init=x[:4], random_seed=seed)
    assert abs((run.draws[:, :, 0] > 0).mean() - 0.4) > 0.02
    said = " ".join(warnings_for(run))
    assert "mass it has not seen" in said or "stayed at one place" in said


@pytest.mark.parametrize(
    ("at_draws", "in_warmup", "told"),
    [
        (0.5, 0.01, True),
        (0.4, 0.1, False),
        (0.25, 0.001, True),
        (0.15, 0.001, False),
        (0.5, np.inf, False),
        (1.5, 0.5, True),
        (1.5, 0.9, False),
    ],
)
def test_draws_unlike_warm_up_are_told(at_draws, in_warmup, told, rng):
    discrepancy = rng.normal(scale=at_draws, size=(4, 1000))
    found = unlike_warmup(discrepancy, SimpleNamespace(sd=in_warmup))
    assert bool(found) == told
    assert not unlike_warmup(discrepancy, None)
