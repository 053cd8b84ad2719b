"""Figures 4 and 5: acceptance over dimension, training size and hidden units."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figures4_5 import Grid4, Grid5, LogisticPlan, coefficients, figure4, figure5
from leapwise.paper.reproductions import Figure, save_table

GRID4 = Grid4((3, 12), (8, 150), 250, LogisticPlan(n_rows=500, runs=2, n_starts=100))
GRID5 = Grid5((15, 200), (8, 120), 10, LogisticPlan(n_rows=500, runs=2, n_starts=100))


@pytest.fixture(scope="module")
def fourth():
    return figure4(grid=GRID4)


def test_rows_of_figure_4_cover_the_grid_and_the_quadratic(fourth):
    assert isinstance(fourth, Figure)
    assert [(row["dim"], row["n_hidden"]) for row in fourth.rows] == [
        (dim, units) for dim in (3, 12) for units in (8, 150, 0)
    ]
    assert all(0 <= row["lowest"] <= row["acceptance"] <= row["highest"] <= 1 for row in fourth.rows)


def test_exact_hmc_is_accepted_at_about_seven_tenths(fourth):
    np.testing.assert_allclose(fourth.exact, 0.7, atol=0.08)


def test_enough_units_keep_exact_acceptance_and_too_few_lose_it(fourth):
    share = fourth.acceptance.mean(axis=2) / fourth.exact[:, None]
    assert share[1, 1] > 0.8  # 150 units for the 91 coefficients of a quadratic in 12 dimensions
    assert share[1, 0] < 0.6 * share[1, 1]  # 8 units
    assert (fourth.quadratic.mean(axis=1) > 0.85 * fourth.exact).all()


def test_a_quadratic_has_so_many_coefficients():
    np.testing.assert_array_equal(coefficients(np.array([1, 2, 32])), [3, 6, 561])


def test_rows_of_the_map_are_kept_and_depend_on_the_seed_alone(tmp_path):
    grid = Grid4((3,), (8,), 60, LogisticPlan(n_rows=200, runs=2, n_starts=20))
    first = figure4(grid=grid, cells=Cells(tmp_path))
    lines: list[str] = []
    figure4(grid=grid, cells=Cells(tmp_path, report=lines.append))
    assert lines == ["[1/1] fig4 · d = 3: as computed before"]
    np.testing.assert_array_equal(figure4(grid=grid).acceptance, first.acceptance)


def test_table_and_picture_of_figure_4_are_written(fourth, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(fourth.rows, tmp_path / "fig4.csv").read_text().count("\n") == 7
    assert fourth.draw(tmp_path / "fig4.png").stat().st_size > 10_000
    assert "With 150 units" in fourth.caption


@pytest.fixture(scope="module")
def fifth():
    return figure5(grid=GRID5)


def test_rows_of_figure_5_cover_the_grid_and_the_quadratic(fifth):
    assert isinstance(fifth, Figure)
    assert [(row["training_size"], row["surrogate"], row["n_hidden"]) for row in fifth.rows] == [
        (size, *each)
        for size in (15, 200)
        for each in (("network", 8), ("network", 120), ("network, unscaled weights", 120), ("quadratic", 0))
    ]
    assert {row["exact_acceptance"] for row in fifth.rows} == {fifth.exact}


def test_more_states_and_more_units_are_accepted_more(fifth):
    few, many = fifth.acceptance.mean(axis=2)
    assert many[1] > few[1] + 0.1
    assert many[1] > many[0] + 0.1
    assert many[1] > 0.8 * fifth.exact


@pytest.mark.slow
def test_exploration_and_rows_are_kept(tmp_path):
    grid = Grid5((10, 20), (5,), 3, LogisticPlan(n_rows=200, runs=2, n_starts=20))
    first = figure5(grid=grid, cells=Cells(tmp_path))
    lines: list[str] = []
    again = figure5(grid=grid, cells=Cells(tmp_path, report=lines.append))
    assert len(lines) == 5 and all("as computed before" in line for line in lines)
    np.testing.assert_equal(first.rows, again.rows)


def test_table_and_picture_of_figure_5_are_written(fifth, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(fifth.rows, tmp_path / "fig5.csv").read_text().count("\n") == 9
    assert fifth.draw(tmp_path / "fig5.png").stat().st_size > 10_000
    assert "in the paper" in fifth.caption
