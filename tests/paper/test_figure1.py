"""Figure 1: its claim holds on the authors' data."""

import csv
import os
from itertools import pairwise

import numpy as np
import pytest

from leapwise.paper import Figure, figure1, save_table
from leapwise.paper.figures1_2 import GRID, SIZES

pytestmark = pytest.mark.skipif(not os.environ.get("LEAPWISE_DATA"), reason="LEAPWISE_DATA is not set")


@pytest.fixture(scope="module")
def found():
    return figure1(repeats=3)


def errors(found, size, name):
    return next(row for row in found.rows if row["observations"] == size and row["surrogate"] == name)


def test_the_observations_are_nested(found):
    for fewer, more in pairwise(SIZES):
        assert set(found.data[fewer][0]) <= set(found.data[more][0])


@pytest.mark.parametrize("size", SIZES)
def test_all_fit_inside_the_data_and_softplus_generalises_better_outside(found, size):
    for name in ("GP", "FITC", "RBF", "softplus"):
        assert errors(found, size, name)["average_inside"] < 0.2
    others = [errors(found, size, name)["average_outside"] for name in ("GP", "FITC")]
    assert errors(found, size, "softplus")["average_outside"] < min(others)


def test_table_and_picture_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert isinstance(found, Figure)
    table, picture = save_table(found.rows, tmp_path / "fig1.csv"), found.draw(tmp_path / "fig1.png")
    with table.open() as stream:
        assert len(list(csv.DictReader(stream))) == 12
    assert picture.stat().st_size > 10_000
    assert all(np.isfinite(curve).all() and curve.shape == GRID.shape for curve in found.curves.values())


def test_the_caption_names_the_best_first(found):
    best = min(("GP", "FITC", "RBF", "softplus"), key=lambda name: errors(found, 40, name)["average_outside"])
    assert f"with N = 40 it is {best}" in found.caption
