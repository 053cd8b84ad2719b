"""Figure 5: acceptance over training size and hidden units."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figures4_5 import Effort, Grid5, figure5

GRID = Grid5((15, 200), (8, 120), 10, Effort(n_rows=500, runs=2, n_starts=100))


@pytest.fixture(scope="module")
def found():
    return figure5(grid=GRID)


def test_rows_cover_the_grid_and_the_quadratic(found):
    assert isinstance(found, Figure)
    assert [(row["training_size"], row["surrogate"], row["n_hidden"]) for row in found.rows] == [
        (size, *each)
        for size in (15, 200)
        for each in (("network", 8), ("network", 120), ("network, unscaled weights", 120), ("quadratic", 0))
    ]
    assert {row["exact_acceptance"] for row in found.rows} == {found.exact}


def test_more_states_and_more_units_are_accepted_more(found):
    few, many = found.acceptance.mean(axis=2)
    assert many[1] > few[1] + 0.1
    assert many[1] > many[0] + 0.1
    assert many[1] > 0.8 * found.exact


def test_exploration_and_rows_are_kept(tmp_path):
    grid = Grid5((10, 20), (5,), 3, Effort(n_rows=200, runs=2, n_starts=20))
    first = figure5(grid=grid, cells=Cells(tmp_path))
    told: list[str] = []
    again = figure5(grid=grid, cells=Cells(tmp_path, tell=told.append))
    assert len(told) == 5 and all("as computed before" in line for line in told)
    np.testing.assert_equal(first.rows, again.rows)


def test_table_and_picture_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(found.rows, tmp_path / "fig5.csv").read_text().count("\n") == 9
    assert found.draw(tmp_path / "fig5.png").stat().st_size > 10_000
    assert "in the paper" in found.caption
