"""Figure 7: how acceptance is followed while ARNS-HMC learns."""

import os

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import get_experiment
from leapwise.paper.figure import Figure
from leapwise.paper.figures7_8 import figure7, learning_curve
from leapwise.paper.learning import LEARNERS, Begin, Plan, run_cell
from leapwise.surrogates import QuadraticNetwork, SoftplusNetwork, TrainingSet

TINY = Plan(runs=2, hmc=5, explore=40, exploit=5, adaptive=60)


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


def test_begin_learns_from_so_many_evaluations_and_their_values_only(rng):
    class Spy:
        def fit(self, training, rng):
            self.seen = training
            return QuadraticNetwork().fit(training, rng)

    x = rng.standard_normal((100, 2))
    training = TrainingSet(x, 0.5 * (x**2).sum(axis=1), x)
    spy = Spy()
    recipe = Begin(spy, most=30)
    recipe.fit(training, rng)
    assert len(spy.seen) == 30 and spy.seen.gradient is None and recipe.seconds > 0
    Begin(spy, most=500, gradients=True).fit(training, rng)
    assert len(spy.seen) == 100 and spy.seen.gradient is not None


def test_what_is_made_afresh_is_what_a_fit_of_everything_gives(rng):
    """From 20 evaluations: 15 more are learnt row by row, 10 more begin anew."""
    x = rng.standard_normal((45, 2))
    everything = TrainingSet(x, np.cos(x).sum(axis=1))
    parts = [everything.rows(np.arange(*ends)) for ends in ((0, 20), (20, 35), (35, 45))]
    parts[2] = TrainingSet(parts[2].position, parts[2].potential, outputs=np.zeros((10, 3)))  # of no use here
    recipe = SoftplusNetwork(10)
    first = Begin(recipe, most=20, afresh=True).fit(parts[0], rng)
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
