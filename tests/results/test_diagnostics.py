"""Warnings: each trouble has one, with a remedy that fits, and a run without trouble has none."""

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise import (
    HMC,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    NormalPrior,
    QuadraticNetwork,
    SurrogateTransition,
    Target,
    TrainingSet,
    UniformPrior,
    sample,
)
from leapwise.kernels import State
from leapwise.results import Cost, Record, TargetReport, warnings_for
from leapwise.results.diagnostics import (
    compare_with,
    long_stay,
    longest_tolerable,
    n_outside,
    outside,
    unlike_warmup,
)
from leapwise.results.statistics import longest_stays, spread, surprises
from leapwise.surrogates.quality import robust_discrepancy_sd


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape)


def shifted() -> np.ndarray:
    values = normal(4, 500, 2)
    values[0, :, 1] += 5
    return values


def still() -> np.ndarray:
    values = normal(4, 500, 2)
    values[:, :, 0] = 1.0
    return values


def test_a_healthy_run_has_no_warnings(make_run):
    assert warnings_for(make_run()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"values": shifted()}, r"R-hat is above 1.01 for x\[1\], at worst .*draws="),
        (
            {"values": normal(4, 40, 2)},
            r"There are fewer than 400 effective draws of 2 of 2 parameters .*draws=",
        ),
        ({"values": still()}, r"x\[0\] never changed in all chains\. .*init="),
        ({"values": normal(1, 500, 2)}, r"One chain .*chains=4"),
        ({"values": normal(4, 3, 2)}, r"3 draws of each chain are too few"),
        ({"complete": False}, r"interrupted after 500 draws .* same ledger= makes the rest"),
        ({"complete": False, "draws": 0}, r"interrupted during warm-up, before the first draw"),
        ({"n_adaptive": 500}, r"still learning .* freeze_after"),
        ({"n_adaptive": 100}, r"first 100 of 500 draws.*exact_draws"),
        (
            {"stats": {"diverging": np.eye(4, 500, dtype=bool)}},
            r"4 of 2000 trajectories diverged: .*target_acceptance=",
        ),
        (
            {"stats": {"acceptance_rate": np.full((4, 500), 0.3)}},
            r"Acceptance is 0.30, below 0.5\. .*target_acceptance=",
        ),
        (
            {"stats": {"unsolved": np.arange(2000).reshape(4, 500) % 10 == 0}},
            r"10% of proposals .* not solved",
        ),
    ],
)
def test_each_trouble_has_one_warning_with_a_remedy(make_run, change, said):
    found = warnings_for(make_run(**change))
    assert len([each for each in found if re.search(said, each)]) == 1, found


def test_where_evaluations_are_limited_more_draws_are_not_the_remedy(make_run):
    few = make_run(values=normal(4, 40, 2), settings={"method": "HMC", "max_evaluations": 300})
    assert "Draw more (a new run with a larger max_evaluations=)." in warnings_for(few)[0]
    few = make_run(values=normal(4, 40, 2), settings={"method": "Auto", "max_evaluations": 300})
    assert "larger max_evaluations=, and learn_from= the ledger of this one" in warnings_for(few)[0]
    none = make_run(draws=0, settings={"max_evaluations": 30})
    assert (
        "spent before the first draw. Allow more (a new run with a larger max_evaluations=)"
        in warnings_for(none)[0]
    )


def test_troubles_are_told_apart(make_run):
    run = make_run(complete=False, n_adaptive=500, stats={"diverging": np.ones((4, 500), bool)})
    assert len(warnings_for(run)) == 3


def test_a_single_stuck_chain_is_named(make_run):
    rate = np.full((4, 500), 0.8)
    rate[2] = 0.0
    assert "Acceptance is 0.00 in chain 2" in warnings_for(make_run(stats={"acceptance_rate": rate}))[0]


def test_failures_that_became_rejections_are_counted_in_both_phases(make_run):
    run = make_run()
    failed = Record(run.draws, run.posterior.stats, Cost(n_failures=2))
    warmup = Record(run.warmup.draws, run.warmup.stats, Cost(n_failures=1))
    found = warnings_for(type(run)("x", failed, warmup))
    assert "failed at 3 positions" in found[0]


def test_a_run_without_statistics_can_be_judged(make_run):
    run = make_run()
    assert warnings_for(type(run)("x", Record(run.draws, {}, Cost()), Record(run.draws, {}, Cost()))) == []


def test_a_chain_that_never_moved_has_one_warning(make_run):
    values = normal(4, 500, 2)
    values[2] = 1.0
    rate = np.full((4, 500), 0.8)
    rate[2] = 0.0
    (said,) = warnings_for(make_run(values=values, stats={"acceptance_rate": rate}))
    assert "2 of 2 parameters (x[0] and others) never changed in chain 2." in said


def test_hmc_is_no_remedy_without_a_gradient(make_run):
    run = make_run(values=still(), target=TargetReport(has_gradient=False))
    (said,) = warnings_for(run)
    assert "init=" in said and "HMC" not in said
    assert compare_with(run) == "those of another random_seed="


def test_chains_that_disagree_are_not_told_twice(make_run):
    (said,) = warnings_for(make_run(values=shifted()))
    assert "the chains disagree" in said and "effective draws" in said


def test_few_draws_are_no_disagreement(make_run):
    """R-hat of 100 independent draws is often above 1.01 by chance."""
    found = [
        warnings_for(make_run(values=np.random.default_rng(i).normal(size=(4, 25, 1)))) for i in range(40)
    ]
    high = [said for (said,) in found if "R-hat" in said]
    assert len(high) > 5
    assert sum("disagree" in said for said in high) < 0.5 * len(high)
    assert all("Draw more (draws=)" in said for said in high)


def test_low_acceptance_is_not_told_beside_its_cause(make_surrogate_run, make_report):
    low = {"acceptance_rate": np.full((4, 500), 0.3)}
    (said,) = warnings_for(make_surrogate_run(stats=low))
    assert said.startswith("Acceptance is 0.30") and "smaller steps" not in said
    (said,) = warnings_for(make_surrogate_run(stats=low, report=make_report(reason="its sd(D) is 1.2")))
    assert "not fully trusted" in said


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
    assert any("Chain 3 stayed at one place for 60 draws" in said for said in warnings_for(run))
    values = values.copy()
    values[3, 125:] = np.random.default_rng(2).normal(size=(375, 2))  # which leaves 25
    shorter = replace(run, posterior=replace(run.posterior, draws=values))
    assert not any("stayed" in said for said in warnings_for(shorter))


def test_a_chain_that_never_moved_has_a_warning_of_its_own():
    assert long_stay(np.zeros((2, 100, 1)), np.zeros((2, 100)), "others", "draws=") == []


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
    assert said.startswith(f"The surrogate cuts {tail}: draws rarely go there")
    assert "Reparametrise" in said and "tune longer (tune=)" in said and other in said
    assert warnings_for(make_surrogate_run(report=make_report())) == []


@pytest.mark.parametrize("low", [[-5.0], [-2.5] * 6])
def test_surprises_that_stand_for_more_are_told(make_surrogate_run, low):
    run = make_surrogate_run(sd=0.05, draws=1000)
    run.posterior.stats["discrepancy"][1, : len(low)] = low
    (said,) = warnings_for(run)
    assert f"at {len(low)} of 4,000 proposals" in said
    assert f"by {-low[0]:.1f}"[:-1] in said
    assert "there may be mass that the surrogate has not seen. Tune longer (tune=)" in said


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
    assert said.startswith("The run fell back on HMC")
    assert why in said
    (said,) = warnings_for(make_surrogate_run(report=make_report(reason=why)))
    assert "without a gradient there are no exact steps" in said and "(tune=)" in said
    limited = {"settings": {"max_evaluations": 300}, "report": make_report(reason=why)}
    (said,) = warnings_for(make_surrogate_run(**limited))
    assert "(a new run with a larger max_evaluations=)" in said and "tune=" not in said


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
    assert "mass that the surrogate has not seen" in said or "stayed at one place" in said


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
    found = unlike_warmup(discrepancy, SimpleNamespace(sd=in_warmup), "others")
    assert bool(found) == told
    assert not unlike_warmup(discrepancy, None, "others")


T = np.linspace(0.0, 3.0, 8)
DATA = 2.0 * np.exp(-0.5 * T) + 0.05 * np.array([1.0, -1.0, 0.5, 0.0, -0.5, 1.0, 0.0, -1.0])


def solve(x):
    return x[0] * np.exp(-x[1] * T)


def solve_with_jacobian(x):
    decay = np.exp(-x[1] * T)
    return x[0] * decay, np.stack([decay, -T * x[0] * decay], axis=1)


def decay(sd, prior=None, likelihood=None):
    return ForwardTarget(
        solve,
        likelihood or GaussianLikelihood(DATA, sd=sd),
        prior or UniformPrior([0.1, 0.01], [10.0, 5.0]),
        jacobian=solve_with_jacobian,
    )


class Laplace:
    """Errors that are not Gaussian."""

    def log_density(self, points):
        return -np.abs(points - DATA).sum(axis=1) / 1e-3

    def gradient(self, points):
        return -np.sign(points - DATA) / 1e-3


def left(n: int) -> dict[str, np.ndarray]:
    """Statistics of HMC with `n` of 2000 trajectories outside the support."""
    found = np.arange(2000).reshape(4, 500) < n
    return {"diverging": found, "left": found, "acceptance_rate": np.where(found, 0.0, 0.9)}


class TestEdges:
    @pytest.mark.parametrize(
        ("target", "said", "unsaid"),
        [
            (None, "Give bounds= for", "prior"),
            (TargetReport(), "Give bounds= for", "prior"),
            (TargetReport(is_forward=True), "Give the prior's limits as bounds=", "for parameters"),
            (TargetReport(is_forward=True, is_bounded=True), "Reparametrise", "bounds="),
            (TargetReport(is_bounded=True), "Reparametrise", "bounds="),
        ],
    )
    def test_advice_fits_the_target(self, make_run, target, said, unsaid):
        (found,) = warnings_for(make_run(stats=left(400), target=target))
        assert found.startswith("400 of 2000 trajectories ended outside the support")
        assert said in found and unsaid not in found
        assert "smaller steps" not in found  # which would not keep them inside

    def test_few_are_no_trouble(self, make_run):
        assert warnings_for(make_run(stats=left(100))) == []
        assert len(warnings_for(make_run(stats=left(101)))) == 1

    def test_rejections_outside_have_one_warning(self, make_run):
        """1300 of 2000 are lost, but all those inside are accepted."""
        (found,) = warnings_for(make_run(stats=left(1300)))
        assert "outside the support" in found

    def test_divergences_inside_are_told_apart(self, make_run):
        stats = left(400)
        stats["diverging"] = stats["diverging"].copy()
        stats["diverging"][3, -3:] = True
        run, inside = make_run(stats=stats), 3
        edge, lost = warnings_for(run)
        assert edge.startswith("400 of 2000") and lost.startswith(f"{inside} of 2000 trajectories diverged")
        cost = run.summary().cost["draws"]
        assert (cost["n_outside"], cost["n_divergences"]) == (400, inside)
        assert "outside the support, rejected" in str(run.summary())

    def test_proposals_of_a_surrogate_outside_are_no_fault_of_its(self, make_surrogate_run):
        run = make_surrogate_run()
        stats = run.posterior.stats
        beyond = np.arange(2000).reshape(4, 500) % 2 == 0
        stats["discrepancy"] = np.where(beyond, np.inf, stats["discrepancy"])
        stats["diverging"], stats["acceptance_rate"] = beyond, np.where(beyond, 0.0, 0.9)
        run.draws[0, 100:140] = run.draws[0, 100]  # 40 draws at one place, as half of its proposals are lost
        (found,) = warnings_for(run)
        assert "1000 of 2000 trajectories ended outside the support" in found
        stats["discrepancy"] = np.where(beyond, 5000.0, stats["discrepancy"])
        assert any("surrogate trajectories diverged" in each for each in warnings_for(run))

    def test_edges_of_a_surrogate_are_not_those_of_the_support(self):
        stats = {"diverging": np.ones((1, 2), bool), "left": np.ones((1, 2), bool)}
        assert outside(stats).all()
        assert not outside(stats | {"discrepancy": np.full((1, 2), np.nan)}).any()
        mixed = stats | {"discrepancy": np.full((1, 2), np.nan), "part": np.ones((1, 2), int)}
        assert outside(mixed).all()

    def test_failures_are_counted_once(self, make_run):
        run = make_run(stats=left(400))
        posterior = Record(run.draws, run.posterior.stats, Cost(n_failures=380))
        assert n_outside(posterior) == 20
        (found,) = warnings_for(replace(run, posterior=posterior))
        assert "failed at 380 positions" in found

    def test_a_run_at_an_edge_says_so(self):
        target = Target(lambda x: -0.5 * x @ x if x[0] > 0 else -np.inf, lambda x: -x, dim=1)
        run = sample(target, draws=100, tune=100, method=HMC(), init=np.ones((4, 1)), random_seed=1)
        share = run.posterior.stats["left"].mean()
        assert share > 0.05
        found = " ".join(warnings_for(run))
        assert f"{share * 400:.0f} of 400 trajectories ended outside the support" in found
        assert "Give bounds= for parameters" in found and "smaller steps" not in found


class TestFit:
    @pytest.mark.parametrize("method", [None, HMC()])
    @pytest.mark.parametrize(("sd", "told"), [(0.05, False), (0.002, True)])
    def test_a_model_that_does_not_fit_is_told(self, method, sd, told):
        run = sample(decay(sd), draws=200, tune=None if method is None else 200, method=method, random_seed=1)
        found = [each for each in warnings_for(run) if "does not fit the data" in each]
        assert len(found) == told
        chi2 = min(np.sum(((solve(x) - DATA) / sd) ** 2) for x in run.draws.reshape(-1, 2))
        assert run.target.misfit == pytest.approx(chi2, abs=4.0)
        assert not told or f"chi^2 of {run.target.misfit:,.0f} for 8 outputs" in found[0]

    def test_it_is_not_known_of_other_likelihoods(self):
        state = State(np.array([[0.0, 0.0]]), np.array([1e6]))
        found = TargetReport.of(decay(0.0, likelihood=Laplace()), state)
        assert found.is_forward and np.isnan(found.misfit) and found.fits
        plain = TargetReport.of(Target(lambda x: -1e6, dim=2), state)
        assert not plain.is_forward and plain.fits

    @pytest.mark.parametrize("prior", [UniformPrior([0.1, 0.01], [10.0, 5.0]), NormalPrior(1.0, 2.0, dim=2)])
    @pytest.mark.parametrize("correlated", [False, True])
    def test_it_is_that_of_the_lowest_position(self, prior, correlated, rng):
        covariance = 0.01 * (np.eye(8) + 0.3 * correlated)
        likelihood = GaussianLikelihood(DATA, covariance=covariance)
        target = decay(0.0, prior, likelihood)
        position = target.transform.to_position(rng.uniform(0.5, 3.0, (20, 2)))
        parameters = target.transform.to_parameters(position)
        potential = np.array(
            [-target.evaluate(each[None], gradient=False).log_density[0] for each in parameters]
        )
        potential = potential - target.transform.log_jacobian(position)
        residual = solve(parameters[potential.argmin()]) - DATA
        halves = State(position[:10], potential[:10]), State(position[10:], potential[10:])
        found = TargetReport.of(target, None, *halves)
        assert found.misfit == pytest.approx(residual @ np.linalg.solve(covariance, residual), rel=1e-9)
        assert found.is_bounded == isinstance(prior, UniformPrior)

    def test_nothing_is_said_before_there_are_draws(self, make_run):
        far = TargetReport(is_forward=True, misfit=500.0, n_outputs=8)
        assert len(warnings_for(make_run(target=far))) == 1
        assert not any("fit" in each for each in warnings_for(make_run(target=far, draws=0, complete=False)))

    def test_the_limit_is_six_standard_deviations(self):
        for m in (1, 8, 1000):
            limit = m + 6.0 * np.sqrt(2.0 * m)
            assert TargetReport(misfit=limit - 0.01, n_outputs=m).fits
            assert not TargetReport(misfit=limit + 0.01, n_outputs=m).fits
