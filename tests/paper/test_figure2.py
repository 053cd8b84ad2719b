"""Figure 2: a small network follows the banana."""

import numpy as np
import pytest

from leapwise.paper.figures1_2 import START, BananaPlan, figure2
from leapwise.paper.reproductions import Figure, save_table

PLAN = BananaPlan(size=150, networks=3, trajectories=3, n_steps=8, n_starts=100)


@pytest.fixture(scope="module")
def found():
    return figure2(plan=PLAN)


def test_rows_are_hmc_and_each_network_and_one_is_drawn(found):
    assert isinstance(found, Figure)
    assert [row["method"] for row in found.rows] == ["HMC"] + 3 * ["RNS-HMC"]
    assert sum(row["drawn"] for row in found.rows[1:]) == 1
    drawn = next(row["acceptance"] for row in found.rows[1:] if row["drawn"])
    assert drawn == np.median([row["acceptance"] for row in found.rows[1:]])


def test_a_network_loses_little_acceptance(found):
    exact, *networks = (row["acceptance"] for row in found.rows)
    assert exact > 0.9
    assert np.median(networks) > exact - 0.1


def test_both_samplers_start_alike_and_end_close(found):
    exact, network = found.found["exact_paths"], found.found["paths"]
    assert exact.shape == network.shape == (3, PLAN.n_steps + 1, 2)
    for paths in (exact, network):
        np.testing.assert_array_equal(paths[:, 0], np.tile(START, (3, 1)))
    far = np.linalg.norm(exact[:, -1] - exact[:, 0], axis=1).mean()
    assert np.linalg.norm(exact[:, -1] - network[:, -1], axis=1).mean() < 0.5 * far


def test_table_and_picture_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert save_table(found.rows, tmp_path / "fig2.csv").read_text().count("\n") == 5
    assert found.draw(tmp_path / "fig2.png").stat().st_size > 10_000
    assert "in the paper from 0.97 to 0.88" in found.caption
