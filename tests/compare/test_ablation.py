"""The ablation marks what a stage changes, and knows which stages a run has used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.ablation import ALL, PROBLEMS, case_of, details, is_wrong, marks, run, summary


def cell(evaluations=1000, ess=0.8, z=1.0, rhat=1.0, **more):
    figures = {"warmup_evaluations": 200, "evaluations": evaluations, "least_per_evaluation": ess}
    known = {"z_mean": z, "z_sd": 0.5, "z_share": None, "rhat": rhat, "sampler_seconds": 1.0, "share": None}
    return {"status": "ok", "started": True, **figures, **known, **more}


def test_a_run_is_wrong_if_it_failed_or_its_draws_are_off():
    assert not is_wrong(cell())
    assert is_wrong(cell(z=9.0)) and is_wrong(cell(rhat=1.2)) and is_wrong(cell(z_share=20.0))
    assert is_wrong({"status": "ok", "started": False, "error": "none"})


def test_only_changes_beyond_noise_are_marked():
    assert marks([(cell(), cell(evaluations=1050, ess=0.85))]) == []
    assert marks([(cell(), cell(evaluations=2000))]) == ["evaluations x 2.00"]
    assert marks([(cell(), cell(z=9.0))]) == ["wrong in 1 of 1 without it, 0 with it"]


def test_tables_have_a_row_for_each_stage_and_each_change():
    pairs = {"tails": {"banana": [(cell(), cell(ess=0.4))], "gumbel": [(cell(), cell())]}, "ridges": {}}
    assert "| tails | 2 (2 runs) | 0 | 0 |" in summary(pairs) and "| ridges | 0 (0 runs) |" in summary(pairs)
    assert "| tails | banana | ESS per evaluation x 0.50 |" in details(pairs) and "gumbel" not in details(
        pairs
    )


@pytest.mark.parametrize("name", ["two-modes", "two-modes, values", "two-decays", "lobes"])
def test_shares_of_modes_are_known(name):
    case = case_of(name)
    assert name in PROBLEMS and case.in_mode is not None and 0.0 < case.share < 1.0


@pytest.mark.slow
def test_a_run_records_the_stages_that_it_used():
    found = run({"case": "gumbel", "method": ALL, "draws": 50, "seed": 0})
    assert found["started"] and "search_density" in found["stages"]
    assert "search_outputs" not in found["stages"]
