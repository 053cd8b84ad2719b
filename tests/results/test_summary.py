import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from leapwise.results.summary import parameters


def lines(run, **options):
    return str(run.summary(**options)).splitlines()


def row(summary, name):
    return next(line.split() for line in str(summary).splitlines() if line.startswith(name))


def test_the_table_shows_what_the_rows_hold(make_run):
    summary = make_run(dim=2, names=("alpha", "beta")).summary()
    shown, held = row(summary, "beta"), summary.rows[1]
    assert shown[0] == held["parameter"]
    numbers = dict(
        zip(
            ("mean", "sd", "q5", "q50", "q95", "mcse", "ess_bulk", "ess_tail", "rhat"), shown[1:], strict=True
        )
    )
    for key, text in numbers.items():
        decimals = len(text.partition(".")[2])
        assert float(text) == pytest.approx(held[key], abs=0.5001 * 10.0**-decimals)


def test_the_cost_block_keeps_warmup_and_draws_apart(make_run):
    summary = make_run().summary()
    assert row(summary, "exact gradients")[2:] == ["1,000", "6,000", "7,000"]
    assert row(summary, "seconds in the model")[4:] == ["0.50", "3.00", "3.50"]
    assert row(summary, "seconds in the sampler")[4:] == ["0.50", "1.00", "1.50"]
    assert "divergences" not in str(summary)
    assert "metric evaluations" not in str(summary)


def test_seconds_in_the_sampler_are_not_shown_where_evaluations_ran_in_parallel(make_run):
    run = make_run()
    draws = replace(run.posterior, cost=replace(run.posterior.cost, in_parallel=True))
    summary = replace(run, posterior=draws).summary()
    assert row(summary, "seconds in the sampler")[4:] == ["0.50", "-", "-"]
    assert summary.to_dict()["cost"]["total"]["sampler_seconds"] is None
    json.dumps(summary.to_dict(), allow_nan=False)


def test_efficiency_counts_every_exact_evaluation(make_run):
    summary = make_run().summary()
    worst = min(each["ess_bulk"] for each in summary.rows)
    assert summary.effective["bulk"] == pytest.approx(worst)
    assert summary.efficiency["bulk"] == pytest.approx(worst / 7014)
    squares = min(each["ess_squares"] for each in summary.rows)
    assert summary.efficiency["squares"] == pytest.approx(squares / 7014)
    assert row(summary, "effective draws, worst")[4:] == ["bulk", "tail", "squares"]
    assert row(summary, "in all")[4] == f"{squares:,.0f}"
    assert row(summary, "per exact evaluation, warm-up included")[-1] == f"{squares / 7014:#.2g}"


def test_a_surrogate_is_named_with_how_good_and_how_trusted_it_was(make_surrogate_run):
    summary = make_surrogate_run(sd=0.3, settings={"method": "Auto", "inner_steps": 3}).summary()
    assert "Auto, surrogate: quadratic, inner steps 3" in str(summary)
    assert row(summary, "sd(D) of the surrogate")[4:] == [
        "0.20",
        f"{summary.cost['draws']['discrepancy_sd']:#.2g}",
    ]
    assert summary.cost["draws"]["discrepancy_sd"] == pytest.approx(0.3, rel=0.1)
    assert row(summary, "steps with exact gradients")[4:] == ["-", "0%"]
    found = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert found["surrogate"]["kind"] == "quadratic"
    assert found["surrogate"]["history"][:2] == [[30, None], [60, 0.5]]
    assert found["cost"]["draws"]["exact_share"] == 0.0
    assert found["effective_draws"]["squares"] > 0


def test_exact_steps_of_a_mixture_are_counted(make_surrogate_run, make_report):
    part = (np.arange(2000).reshape(4, 500) % 4 == 0).astype(int)
    summary = make_surrogate_run(part=part, report=make_report(exact_share=0.3, reason="doubt")).summary()
    assert summary.cost["draws"]["exact_share"] == 0.25
    assert "surrogate: quadratic beside HMC" in str(summary)


def test_a_surrogate_that_was_not_used_is_no_surrogate(make_run, make_report):
    summary = make_run(surrogate=make_report(exact_share=1.0, reason="none", fingerprint="")).summary()
    assert "HMC in place of a surrogate" in str(summary)
    assert row(summary, "steps with exact gradients")[-1] == "100%"


def test_runs_without_a_surrogate_do_not_speak_of_one(make_run):
    summary = make_run().summary()
    assert "surrogate" not in str(summary)
    assert "steps with exact" not in str(summary)
    assert summary.to_dict()["surrogate"] is None


def test_a_budget_is_accounted_for_in_one_line(make_surrogate_run):
    summary = make_surrogate_run(settings={"method": "Auto", "max_evaluations": 8000}).summary()
    assert "7,014 of 8,000 exact evaluations allowed; 500 draws of each chain" in str(summary).splitlines()
    assert summary.warnings == []
    found = summary.to_dict()
    assert (found["evaluations_spent"], found["evaluations_allowed"]) == (7014, 8000)


def test_many_parameters_show_the_worst_and_count_the_rest(make_run):
    values = np.random.default_rng(1).normal(size=(4, 200, 40))
    values[:, :, 33] = np.repeat(values[:, ::20, 33], 20, axis=1)
    run = make_run(values=values)
    few, every = lines(run), lines(run, all=True)
    assert sum(line.startswith("x[") for line in few) == 24
    assert next(line for line in few if line.startswith("x[")).startswith("x[33]")
    assert any("and 16 more" in line for line in few)
    assert sum(line.startswith("x[") for line in every) == 40
    assert len(run.summary().rows) == 40


@pytest.mark.parametrize(
    "change",
    [
        {"draws": 0, "complete": False},
        {"draws": 3},
        {"chains": 1, "draws": 1, "tune": 0},
        {"values": np.ones((2, 50, 2))},
        {"values": np.full((4, 50, 2), 1e12) + np.random.default_rng(1).normal(size=(4, 50, 2))},
        {"values": 1e-12 * np.random.default_rng(1).normal(size=(4, 50, 2))},
    ],
)
def test_odd_runs_can_be_summarised(make_run, change):
    summary = make_run(**change).summary()
    text = str(summary)
    assert "nan" not in text
    assert max(map(len, text.splitlines())) <= 100
    json.dumps(summary.to_dict(), allow_nan=False)


def test_unknown_rhat_of_one_chain_is_a_dash(make_run):
    summary = make_run(chains=1).summary()
    assert row(summary, "x[0]")[-1] == "-"
    assert summary.to_dict()["parameters"][0]["rhat"] is None


def test_to_dict_is_plain_json(make_run):
    found = (
        make_run(settings={"method": "hmc", "step_size": np.float64(0.5), "scales": np.ones(2)})
        .summary()
        .to_dict()
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["settings"] == {"method": "hmc", "step_size": 0.5, "scales": [1.0, 1.0]}
    assert found["cost"]["total"]["n_exact"] == 7014
    assert found["seed"] == 7


@pytest.mark.parametrize("name", ["x", "a_rather_long_name_of_a_parameter_that_somebody_chose"])
def test_it_fits_a_terminal_of_80_columns(make_run, name):
    stream = io.StringIO()
    values = np.random.default_rng(1).normal(-300.0, 100.0, size=(4, 1000, 3))
    summary = make_run(values=values, names=name).summary()
    Console(file=stream, width=80).print(summary)
    printed = stream.getvalue()
    assert printed.count("\n") < 40
    assert max(map(len, printed.splitlines())) <= 80
    assert f"{summary.rows[0]['ess_tail']:.0f}" in printed  # names give way, numbers do not
    assert f"{summary.rows[0]['rhat']:.3f}" in printed


def test_digits_follow_the_spread():
    base = {
        "mcse": 0.01,
        "ess_bulk": 100.0,
        "ess_tail": 100.0,
        "rhat": 1.0,
        "q5": 0.0,
        "q50": 0.0,
        "q95": 0.0,
    }
    rows = [
        {"parameter": "a", "mean": 1.23456789, "sd": 0.00123, **base},
        {"parameter": "b", "mean": 1234.56, "sd": 123.0, **base},
    ]
    stream = io.StringIO()
    Console(file=stream, width=100).print(parameters(rows))
    assert "1.23457" in stream.getvalue()
    assert " 1235 " in stream.getvalue()


def test_brackets_in_names_are_not_markup(make_run):
    assert row(make_run(dim=1, names=("rate[bold]",)).summary(), "rate")[0] == "rate[bold]"
