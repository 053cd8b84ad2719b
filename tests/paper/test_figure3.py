"""Figure 3: networks learn a narrow Gaussian from fewer observations than processes do."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figure3 import SURROGATES, GaussianPlan, figure3, recipe
from leapwise.paper.reproductions import Figure, save_table
from leapwise.surrogates import GaussianProcess

PLAN = GaussianPlan(sizes=(30, 90), n_nodes=60, runs=2, draws=40, chains=2, dim=8)


@pytest.fixture(scope="module")
def found():
    return figure3(plan=PLAN)


def row(found, name, size):
    return next(row for row in found.rows if (row["surrogate"], row["observations"]) == (name, size))


def test_there_is_a_row_for_each_surrogate_and_size_with_ordered_bars(found):
    assert isinstance(found, Figure)
    assert {(row["surrogate"], row["observations"]) for row in found.rows} == {
        (name, size) for name in SURROGATES for size in PLAN.sizes
    }
    for each in found.rows:
        for quantity in ("training_seconds", "acceptance", "ess_rate"):
            assert 0 <= each[f"{quantity}_low"] <= each[quantity] <= each[f"{quantity}_high"]


def test_networks_need_fewer_observations_than_processes(found):
    for network in ("RBF", "softplus"):
        assert row(found, network, 30)["acceptance"] > row(found, "GP", 30)["acceptance"]


def test_more_observations_are_accepted_more_and_never_much_beyond_exact_hmc(found):
    for name in SURROGATES:
        assert row(found, name, 90)["acceptance"] > row(found, name, 30)["acceptance"]
        assert row(found, name, 90)["acceptance"] < found.exact + 0.05


def test_the_process_learns_its_hyperparameters_from_all_observations():
    process = recipe("GP", PLAN, 1700)
    assert isinstance(process, GaussianProcess)
    assert process.max_rows == 1700
    assert not process.use_gradients


@pytest.mark.slow
def test_finished_pieces_are_used_again(tmp_path):
    plan = GaussianPlan(sizes=(30,), n_nodes=20, runs=2, draws=10, chains=2, dim=4)
    lines: list[str] = []
    first = figure3(plan=plan, cells=Cells(tmp_path))
    again = figure3(plan=plan, cells=Cells(tmp_path, report=lines.append))
    assert len(lines) == 3 and all("as computed before" in line for line in lines)
    np.testing.assert_equal(first.rows, again.rows)


def test_table_and_picture_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(found.rows, tmp_path / "fig3.csv").read_text().count("\n") == 9
    assert found.draw(tmp_path / "fig3.png").stat().st_size > 10_000
    assert "From 30 observations" in found.caption
