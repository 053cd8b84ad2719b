import re

import numpy as np
import pytest

from leapwise.results import Cost, Record, TargetReport, warnings_for
from leapwise.results.diagnostics import compare_with


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
            r"fewer than 400 effective draws of 2 of 2 parameters .*draws=",
        ),
        ({"values": still()}, r"x\[0\] never changed in all chains; .*init="),
        ({"values": normal(1, 500, 2)}, r"one chain .*chains=4"),
        ({"values": normal(4, 3, 2)}, r"too few draws to judge: 3 of each chain"),
        ({"complete": False}, r"interrupted, with fewer draws than asked for: 500"),
        ({"complete": False, "draws": 0}, r"interrupted during warm-up: there are no draws yet"),
        ({"n_adaptive": 500}, r"still learning .* freeze_after"),
        ({"n_adaptive": 100}, r"first 100 of 500 draws.*exact_draws"),
        (
            {"stats": {"diverging": np.eye(4, 500, dtype=bool)}},
            r"4 of 2000 trajectories diverged: .*target_acceptance=",
        ),
        (
            {"stats": {"acceptance_rate": np.full((4, 500), 0.3)}},
            r"acceptance is 0.30, below 0.5; .*target_acceptance=",
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
    few = make_run(values=normal(4, 40, 2), settings={"max_evaluations": 300})
    assert "draw more (max_evaluations=)" in warnings_for(few)[0]
    none = make_run(draws=0, settings={"max_evaluations": 30})
    assert "spent before the first draw: allow more (max_evaluations=)" in warnings_for(none)[0]


def test_troubles_are_told_apart(make_run):
    run = make_run(complete=False, n_adaptive=500, stats={"diverging": np.ones((4, 500), bool)})
    assert len(warnings_for(run)) == 3


def test_a_single_stuck_chain_is_named(make_run):
    rate = np.full((4, 500), 0.8)
    rate[2] = 0.0
    assert "acceptance is 0.00 in chain 2" in warnings_for(make_run(stats={"acceptance_rate": rate}))[0]


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
    assert "2 of 2 parameters (x[0] and others) never changed in chain 2;" in said


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
    assert all("draw more (draws=)" in said for said in high)


def test_low_acceptance_is_not_told_beside_its_cause(make_surrogate_run, make_report):
    low = {"acceptance_rate": np.full((4, 500), 0.3)}
    (said,) = warnings_for(make_surrogate_run(stats=low))
    assert said.startswith("acceptance is 0.30") and "smaller steps" not in said
    (said,) = warnings_for(make_surrogate_run(stats=low, report=make_report(reason="its sd(D) is 1.2")))
    assert "did not earn full trust" in said
