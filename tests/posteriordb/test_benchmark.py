"""The benchmark on posteriordb: tables, figures and repeated runs, without peers and without sampling."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import leapwise as lw

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.compare.cells import Cells
from benchmarks.posteriordb import __main__ as command
from benchmarks.posteriordb import runs, table
from benchmarks.posteriordb.cases import get_case, transformed

SKEWED = "random-9"  # any with a reference and more than one parameter


def made(case="a", method="auto", seed=0, **changes):
    """A cell as a run leaves it."""
    figures = {
        "warmup_evaluations": 100 * (seed + 1),
        "evaluations": 1000,
        "per_evaluation": 0.5,
        "per_evaluation_squares": 0.25,
        "rhat": 1.0 + 0.01 * seed,
        "z_mean": 1.0 + seed,
        "z_sd": 2.0,
        "sd_ratio": 0.01,
        "surrogate": "quadratic",
        "exact_share": 0.0,
        "sampler_seconds": 1.5,
        "warnings": [],
    }
    return {"request": asked_for(case, method, seed), "status": "ok", "started": True, **figures, **changes}


def asked_for(case, method, seed):
    return {"case": case, "method": method, "seed": seed, "kind": "funnel", "dim": 3}


def cells_of(text):
    """The cells of a Markdown table by row and column."""
    head, _, *rows = [[each.strip() for each in line.split("|")[1:-1]] for line in text.splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_table_has_medians_and_the_worst():
    cells = [made(seed=seed, warnings=["look | here"] * seed) for seed in range(3)]
    cells.append(made(seed=3, started=False, error="StartError: no\nmass"))
    (row,) = cells_of(table.by_posterior(cells))
    assert row["started"] == "3 of 4" and row["warm-up"] == "200"
    assert row["R-hat"] == "1.020" and row["z of mean"] == "3.0"
    assert row["warnings"] == "3; not started: StartError: no mass"


def test_table_by_kind_lists_what_did_not_start_or_mix():
    hung = {"request": asked_for("random-3", "hmc", 0), "status": "not done after 9 s"}
    cells = [
        made("random-1"),
        made("random-2", rhat=1.2),
        made("random-3", started=False, error="E: x"),
        hung,
    ]
    text = table.by_kind(cells)
    assert "3 of 4" in text
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line.split()[1] for line in listed] == ["random-2", "random-3", "random-3"]
    assert "R-hat 1.2" in listed[0] and "E: x" in listed[1] and "not done" in listed[2]


def test_a_chain_that_never_moved_counts_as_trouble():
    draws = np.zeros((4, 100, 2))
    draws[..., 0] = np.random.default_rng(1).standard_normal((4, 100))
    found = runs.figures(runs.Found(draws, 10, 400), None)
    assert found["rhat"] == np.inf and found["per_evaluation"] == 0.0
    assert table.has_trouble(made(rhat=found["rhat"]))


def test_z_is_small_for_the_right_draws_and_large_for_wrong_ones(rng):
    """A maximum of four z: above 5.5 by chance in fewer than 1e-6 of cases."""
    draws, reference = rng.gamma(3.0, size=(4, 1000, 2)), rng.gamma(3.0, size=(10, 1000, 2))
    right = runs.figures(runs.Found(draws, 0, 4000), reference)
    assert max(right["z_mean"], right["z_sd"]) < 5.5 and right["sd_ratio"] < 0.1
    wrong = runs.figures(runs.Found(1.2 * draws, 0, 4000), reference)
    assert min(wrong["z_mean"], wrong["z_sd"]) > 5.5 and wrong["sd_ratio"] > 0.1


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_transformed_moves_density_gradient_and_reference_together(scale, rng):
    case = get_case(SKEWED)
    order = rng.permutation(case.target.dim)
    new = transformed(case, scale, 100.0, order)
    at = case.reference[0, :5]
    moved = new.reference[0, :5]
    np.testing.assert_allclose(moved, scale * (at + 100.0 * case.sd)[:, order])
    old, found = (c.target.evaluate(x, gradient=True) for c, x in ((case, at), (new, moved)))
    np.testing.assert_allclose(found.log_density, old.log_density, rtol=1e-6)
    # By differences: a step of a thousandth of a standard deviation in each of the new parameters.
    step = 1e-3 * new.sd
    ahead, behind = (
        new.values.evaluate((moved[:, None] + sign * np.diag(step)).reshape(-1, len(step)), gradient=False)
        for sign in (1.0, -1.0)
    )
    slopes = (ahead.log_density - behind.log_density).reshape(moved.shape) / 2.0
    np.testing.assert_allclose(found.gradient * step, slopes, rtol=1e-3, atol=1e-6)


def test_starts_are_those_of_sample_and_wider_if_asked():
    target = lw.Target(lambda x: -0.5 * x @ x, dim=3)
    first = np.stack([g.uniform(-2.0, 2.0, 3) for g in lw.Streams(5, 4).generators])
    np.testing.assert_array_equal(runs.starts(target, 5, 4, 2.0), first)
    np.testing.assert_allclose(runs.starts(target, 5, 4, 10.0), 5.0 * first)


def test_a_start_without_density_is_drawn_again():
    target = lw.Target(lambda x: -np.inf if x[0] < 0 else -x[0], dim=1)
    assert (runs.starts(target, 1, 20, 2.0) >= 0).all()


def test_seconds_of_the_model_are_not_the_samplers(monkeypatch):
    monkeypatch.setattr(runs.time, "process_time", iter(range(100)).__next__)
    target = lw.Target(lambda x: -0.5 * x @ x, dim=1)
    clock = runs.ModelClock(target)
    for _ in range(3):
        target.evaluate(np.zeros((1, 1)), gradient=False)
    assert clock.seconds == 3


def test_an_error_of_the_sampler_is_a_result(monkeypatch):
    def fail(*args):
        raise lw.errors.StartError("found nothing")

    monkeypatch.setitem(runs.METHODS, "auto", fail)
    request = {"case": SKEWED, "method": "auto", "seed": 0, "draws": 10, "settings": {"rescale": 2.0}}
    found = runs.main(request)
    assert not found["started"] and found["error"] == "StartError: found nothing"


def test_finished_runs_are_not_run_again(tmp_path, monkeypatch, capsys):
    asked = []

    def make(self, request):
        asked.append(request)
        return {**made(**{key: request[key] for key in ("case", "method", "seed")})}

    monkeypatch.setattr(Cells, "_make", make)
    usual = ["--methods", "auto", "hmc", "--folder", str(tmp_path)]
    command.main(["--random", "2", *usual])
    assert len(asked) == 4
    command.main(["--random", "3", *usual])
    assert [each["case"] for each in asked[4:]] == ["random-3"] * 2
    command.main(["--random", "1", "--rescale", "1e-4", *usual])  # other coordinates are other runs
    assert [each["settings"] for each in asked[6:]] == [{"rescale": 1e-4}] * 2
    command.main(["--random", "3", "--kept", *usual])
    assert len(asked) == 8 and "Not started, or R-hat above 1.05: 0 of 6." in capsys.readouterr().out
