"""Figure 8: the error of the mean as time passes."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figures7_8 import SHOWN, compare_errors, error_curve, figure8
from leapwise.paper.learning import Plan

PACE = {"hmc": 1.0, "rns-hmc": 0.5, "gradients": 0.5, "quadratic": 0.1}


class Ready(Cells):
    """Cells that know each method as a stream of independent draws around 1, at a pace of its own."""

    def get(self, name, settings, compute):
        if name.startswith("start"):
            return {"position": np.zeros((4, 25))}
        if name.startswith("reference"):
            return {key: np.ones(25) for key in ("mean", "sd", "ess")} | {
                key: np.full(25, 1e-4) for key in ("mean_error", "sd_error")
            }
        method = next(part for part in reversed(name.split(" · ")) if part in PACE)
        n, rng = 400, np.random.default_rng([settings["seed"], len(method)])
        draws = 1.0 + rng.standard_normal((n, 25))
        return {
            "seconds": PACE[method] * np.arange(1, n + 1),
            "mean": np.cumsum(draws, axis=0) / np.arange(1, n + 1)[:, None],
            "acceptance": np.full(n - 10, 0.7),
            "began": 10 * PACE[method],
        }


@pytest.fixture(scope="module")
def found():
    return figure8(cells=Ready(), experiment="bank", plan=Plan(runs=5))


def test_errors_fall_and_the_faster_sampler_is_below(found):
    assert isinstance(found, Figure)
    hmc = [row for row in found.rows if row["method"] == "hmc"]
    assert hmc[0]["error"] > 0.5 and hmc[-1]["error"] < 0.15
    assert all(row["low"] <= row["error"] <= row["high"] for row in found.rows)
    assert {row["method"] for row in found.rows} == set(SHOWN)
    best = next(row for row in found.comparison if row["method"] == "quadratic")
    assert best["share_below_hmc"] == 1.0
    # At a tenth of the time for a draw the error is smaller by a factor of 10 ** 0.5.
    assert best["median_hmc_over_error"] == pytest.approx(10**0.5, rel=0.4)


def test_errors_are_those_of_draws_made_by_then():
    run = {"seconds": np.array([1.0, 2.0, 4.0]), "mean": np.array([[2.0], [1.5], [1.0]])}
    curve = error_curve([run], np.array([1.0]))
    assert curve[0]["error"] == 1.0 and curve[-1]["error"] == 0.0
    assert all(row["error"] == 0.5 for row in curve if 2.0 <= row["seconds"] < 3.99)


def test_curves_are_compared_at_equal_times():
    times = np.geomspace(1.0, 100.0, 200)
    hmc = [{"seconds": t, "error": t**-0.5} for t in times]
    mine = [{"seconds": t / 4, "error": t**-0.5} for t in times]
    found = compare_errors(mine, hmc, learnt=2.0)
    assert found["share_below_hmc"] == 1.0 and found["to_seconds"] == pytest.approx(25.0)
    assert found["hmc_over_error"] == pytest.approx(2.0, rel=0.05)


def test_picture_and_table_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert found.draw(tmp_path / "fig8.png").stat().st_size > 30_000
    lines = save_table(found.rows, tmp_path / "fig8.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found.rows)


def test_a_run_that_ends_too_early_is_not_compared():
    curve = [{"seconds": t, "error": 1.0} for t in (1.0, 2.0)]
    found = compare_errors(curve, curve, learnt=3.0)
    assert np.isnan(found["share_below_hmc"]) and found["to_seconds"] == 2.0
