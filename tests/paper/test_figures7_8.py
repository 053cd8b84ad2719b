"""Figures 7 and 8: acceptance while ARNS-HMC learns, and the error of the mean over time."""

import os

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import get_experiment
from leapwise.paper.figures7_8 import SHOWN, compare_errors, error_curve, figure7, figure8, learning_curve
from leapwise.paper.learning import LEARNERS, FirstFit, LearningPlan, run_cell
from leapwise.paper.reproductions import Figure, save_table
from leapwise.surrogates import QuadraticNetwork, SoftplusNetwork, TrainingSet

TINY = LearningPlan(runs=2, hmc=5, explore=40, exploit=5, adaptive=60)
PACE = {"hmc": 1.0, "rns-hmc": 0.5, "gradients": 0.5, "quadratic": 0.1}


def test_the_windows_cover_all_draws_and_find_when_learning_is_over():
    """Acceptance rises from 0.1 to 0.8 after 200 of 1000 draws, that is 100 + 4 * 200 evaluations."""
    acceptance = np.full((3, 1000), 0.8)
    acceptance[:, :200] = 0.1
    acceptance[1] += 0.05
    rows = learning_curve(acceptance, first=100)
    assert rows[0]["acceptance"] == pytest.approx(0.1) and rows[-1]["acceptance"] == pytest.approx(0.8)
    assert rows[0]["high"] > rows[0]["acceptance"] >= rows[0]["low"]
    assert rows[0]["final"] == pytest.approx(0.8)
    assert 900 < rows[0]["evaluations_to_90"] <= 1010
    at = [row["evaluations"] for row in rows]
    assert at == sorted(at) and at[0] > 100 and at[-1] < 100 + 4000


def test_a_constant_acceptance_is_reached_at_once():
    rows = learning_curve(np.full((2, 30), 0.5), first=10)
    assert len(rows) == 1 and rows[0]["evaluations_to_90"] == 10 + 4 * 30


def test_the_first_fit_uses_the_given_number_of_evaluations_and_only_values(rng):
    class Spy:
        def fit(self, training, rng):
            self.seen = training
            return QuadraticNetwork().fit(training, rng)

    x = rng.standard_normal((100, 2))
    training = TrainingSet(x, 0.5 * (x**2).sum(axis=1), x)
    spy = Spy()
    recipe = FirstFit(spy, most=30)
    recipe.fit(training, rng)
    assert len(spy.seen) == 30 and spy.seen.gradient is None and recipe.seconds > 0
    FirstFit(spy, most=500, gradients=True).fit(training, rng)
    assert len(spy.seen) == 100 and spy.seen.gradient is not None


def test_a_refitted_surrogate_equals_a_fit_of_everything(rng):
    """From 20 evaluations: 15 more update it row by row, 10 more make it anew."""
    x = rng.standard_normal((45, 2))
    everything = TrainingSet(x, np.cos(x).sum(axis=1))
    parts = [everything.rows(np.arange(*ends)) for ends in ((0, 20), (20, 35), (35, 45))]
    parts[2] = TrainingSet(parts[2].position, parts[2].potential, outputs=np.zeros((10, 3)))  # of no use here
    recipe = SoftplusNetwork(10)
    first = FirstFit(recipe, most=20, refitted=True).fit(parts[0], rng)
    second = first.update(parts[1])
    assert second.n_fitted == 20 and len(second.training) == 35
    assert np.array_equal(second.potential(x), first.fitted.update(parts[1]).potential(x))
    third = second.update(parts[2])
    again = recipe.fit(everything, np.random.default_rng([first.seed, 45]))
    assert third.n_fitted == 45
    assert np.array_equal(third.potential_and_gradient(x)[1], again.potential_and_gradient(x)[1])


def test_unknown_methods_are_named():
    with pytest.raises(InputError, match="'nuts'"):
        run_cell(get_experiment("elliptic"), "nuts", TINY, 0, np.zeros((4, 20)), Cells())


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("LEAPWISE_DATA"), reason="LEAPWISE_DATA is not set")
def test_a_quadratic_with_gradients_accepts_like_hmc_from_200_evaluations_on(tmp_path):
    pytest.importorskip("matplotlib")
    found = figure7(cells=Cells(), experiment="bank", plan=TINY)
    assert isinstance(found, Figure)
    summary = {row["learner"]: row for row in found.summary()}
    assert set(summary) == set(LEARNERS)
    assert summary["quadratic"]["begins"] > 0.5 > summary["printed"]["begins"]
    assert found.draw(tmp_path / "fig7.png").stat().st_size > 10_000


class FakeCells(Cells):
    """Cells whose every method has independent draws around 1, at its own pace."""

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
    return figure8(cells=FakeCells(), experiment="bank", plan=LearningPlan(runs=5))


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
    found = compare_errors(mine, hmc, learned=2.0)
    assert found["share_below_hmc"] == 1.0 and found["to_seconds"] == pytest.approx(25.0)
    assert found["hmc_over_error"] == pytest.approx(2.0, rel=0.05)


def test_picture_and_table_of_figure_8_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert found.draw(tmp_path / "fig8.png").stat().st_size > 30_000
    lines = save_table(found.rows, tmp_path / "fig8.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found.rows)


def test_a_run_that_ends_too_early_is_not_compared():
    curve = [{"seconds": t, "error": 1.0} for t in (1.0, 2.0)]
    found = compare_errors(curve, curve, learned=3.0)
    assert np.isnan(found["share_below_hmc"]) and found["to_seconds"] == 2.0
