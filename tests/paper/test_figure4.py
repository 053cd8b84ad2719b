"""Figure 4: acceptance over dimension and hidden units."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figures4_5 import Effort, Grid4, coefficients, figure4

GRID = Grid4((3, 12), (8, 150), 250, Effort(n_rows=500, runs=2, n_starts=100))


@pytest.fixture(scope="module")
def found():
    return figure4(grid=GRID)


def test_rows_cover_the_grid_and_the_quadratic(found):
    assert isinstance(found, Figure)
    assert [(row["dim"], row["n_hidden"]) for row in found.rows] == [
        (dim, units) for dim in (3, 12) for units in (8, 150, 0)
    ]
    assert all(0 <= row["lowest"] <= row["acceptance"] <= row["highest"] <= 1 for row in found.rows)


def test_exact_hmc_is_accepted_at_about_seven_tenths(found):
    np.testing.assert_allclose(found.exact, 0.7, atol=0.08)


def test_enough_units_keep_exact_acceptance_and_too_few_lose_it(found):
    share = found.acceptance.mean(axis=2) / found.exact[:, None]
    assert share[1, 1] > 0.8  # 150 units for the 91 coefficients of a quadratic in 12 dimensions
    assert share[1, 0] < 0.6 * share[1, 1]  # 8 units
    assert (found.quadratic.mean(axis=1) > 0.85 * found.exact).all()


def test_a_quadratic_has_so_many_coefficients():
    np.testing.assert_array_equal(coefficients(np.array([1, 2, 32])), [3, 6, 561])


def test_rows_of_the_map_are_kept_and_depend_on_the_seed_alone(tmp_path, found):
    grid = Grid4((3,), (8,), 60, Effort(n_rows=200, runs=2, n_starts=20))
    first = figure4(grid=grid, cells=Cells(tmp_path))
    told: list[str] = []
    figure4(grid=grid, cells=Cells(tmp_path, tell=told.append))
    assert told == ["[1/1] fig4 · d = 3: as computed before"]
    np.testing.assert_array_equal(figure4(grid=grid).acceptance, first.acceptance)


def test_table_and_picture_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(found.rows, tmp_path / "fig4.csv").read_text().count("\n") == 7
    assert found.draw(tmp_path / "fig4.png").stat().st_size > 10_000
    assert "With 150 units" in found.caption
