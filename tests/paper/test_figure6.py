"""Figure 6: both samplers in one picture, and a number that says whether they agree."""

import numpy as np
import pytest

from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figure6 import SHOWN, Figure6, agreement, figure6
from leapwise.paper.moments import Moments


class Ready(Cells):
    """Cells that answer every question about a method with independent normal draws."""

    def get(self, name, settings, compute):
        rng = np.random.default_rng(len(name))
        if name.startswith("start"):
            return {"position": np.zeros((4, 50))}
        if name.startswith("table1"):
            return {}
        error = np.full(50, 0.02)
        found = Moments(error * rng.standard_normal(50), np.ones(50), error, error, np.full(50, 2500.0))
        return vars(found) | {
            "draws": rng.standard_normal((4, 300, len(SHOWN))),
            "acceptance": 0.75,
            "n_draws": 1200,
        }


@pytest.fixture(scope="module")
def found():
    return figure6(quick=True, cells=Ready())


def test_every_parameter_is_compared(found):
    assert isinstance(found, Figure)
    assert [row["parameter"] for row in found.rows] == [f"beta_{i}" for i in range(1, 51)]
    assert max(abs(row["z"]) for row in found.rows) == pytest.approx(found.found.worst_z)
    assert f"{found.found.worst_z:.1f} combined standard errors" in found.caption


def test_picture_and_table_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert found.draw(tmp_path / "fig6.png").stat().st_size > 50_000
    assert len(save_table(found.rows, tmp_path / "fig6.csv").read_text().splitlines()) == 51


def test_the_title_tells_of_a_difference(rng):
    a, b = rng.standard_normal((2, 4, 300, 50))
    b[..., 7] += 1.0
    different = Figure6([], agreement(a, b), {}, {"hmc": 0.7, "rns-hmc": 0.7})
    assert different.found.worst_z > 8 and "p = 0.00" in different._title()
