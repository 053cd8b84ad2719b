"""Cells: computed once, computed again when settings or code have changed, never kept incomplete."""

import functools
import importlib
import sys

import numpy as np
import pytest

from leapwise.paper import cells as cells_module
from leapwise.paper.cells import Cells, source_hash

VALUES = {
    "number": 0.1 + 0.2,
    "count": 3,
    "flag": True,
    "text": "bank · rns-hmc",
    "table": np.arange(6.0).reshape(2, 3),
}


class Counting:
    """A computation that counts its calls."""

    def __init__(self, values=VALUES):
        self.n, self.values = 0, values

    def __call__(self):
        self.n += 1
        return self.values


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        np.testing.assert_array_equal(found[name], value)


def test_a_cell_comes_back_from_disk_as_it_was(tmp_path):
    compute = Counting()
    assert_same(Cells(tmp_path).get("a", {"seed": 1}, compute), VALUES)
    assert_same(Cells(tmp_path).get("a", {"seed": 1}, compute), VALUES)
    assert compute.n == 1


def test_without_a_folder_it_is_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compute, cells = Counting(), Cells()
    cells.get("a", {}, compute)
    cells.get("a", {}, compute)
    assert compute.n == 1
    Cells().get("a", {}, compute)
    assert compute.n == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "settings"), [("b", {"seed": 1}), ("a", {"seed": 2}), ("a", {})])
def test_another_name_or_other_settings_are_another_cell(tmp_path, name, settings):
    compute = Counting()
    Cells(tmp_path).get("a", {"seed": 1}, compute)
    Cells(tmp_path).get(name, settings, compute)
    assert compute.n == 2
    Cells(tmp_path).get("a", {"seed": 1}, compute)
    assert compute.n == 2


def test_fresh_computes_each_cell_once_more(tmp_path):
    compute = Counting()
    Cells(tmp_path).get("a", {}, compute)
    fresh = Cells(tmp_path, fresh=True)
    fresh.get("a", {}, compute)
    fresh.get("a", {}, compute)
    assert compute.n == 2


def test_other_code_computes_it_again(tmp_path, monkeypatch):
    compute = Counting()
    Cells(tmp_path).get("a", {}, compute)
    monkeypatch.setattr(cells_module, "source_hash", lambda _: "another")
    Cells(tmp_path).get("a", {}, compute)
    assert compute.n == 2
    assert len(list((tmp_path / "cells").iterdir())) == 1


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module and returns the hash of the code behind a cell computed in it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def hashed(code):
        (tmp_path / "computes_a_cell.py").write_text(code)
        importlib.invalidate_caches()
        source_hash.cache_clear()
        return source_hash("computes_a_cell")

    yield hashed
    source_hash.cache_clear()


def test_comments_docstrings_and_layout_do_not_count(module):
    first = module("def f(x):\n    return x + 1\n")
    assert (
        module('"""New."""\n# why\ndef f(x):\n    """Add one."""\n\n    return (x +\n        1)\n') == first
    )
    assert module("def f(x):\n    return x + 2\n") != first


def test_the_module_of_a_partial_is_that_of_its_function():
    assert cells_module._module(functools.partial(functools.partial(Counting().__call__))) == __name__


def test_code_that_cannot_change_numbers_does_not_count():
    package = cells_module._PACKAGE
    counted = [f for f in package.rglob("*.py") if cells_module._matters(f.relative_to(package))]
    names = {f.relative_to(package).as_posix() for f in counted}
    assert {"kernels/hmc.py", "surrogates/network.py"} <= names
    assert not {name for name in names if name.startswith(("cli/", "paper/")) or name.endswith("plots.py")}


def test_of_the_experiments_only_imported_modules_count():
    found = {file.name for file in cells_module._experiment_files("leapwise.paper.table1")}
    assert found == {"table1.py", "experiments.py"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_leaves_what_was_finished(tmp_path, error):
    compute = Counting()
    cells = Cells(tmp_path)
    cells.get("first", {}, compute)

    def stop():
        raise error

    with pytest.raises(error):
        cells.get("second", {}, stop)
    again = Cells(tmp_path)
    assert_same(again.get("first", {}, compute), VALUES)
    assert compute.n == 1
    again.get("second", {}, compute)
    assert compute.n == 2


def test_an_interrupt_while_writing_leaves_the_old_cell(tmp_path, monkeypatch):
    Cells(tmp_path).get("a", {}, Counting())

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cells_module.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        Cells(tmp_path, fresh=True).get("a", {}, Counting({"number": 7}))
    monkeypatch.undo()
    compute = Counting()
    assert_same(Cells(tmp_path).get("a", {}, compute), VALUES)
    assert compute.n == 0
    assert [file.suffix for file in (tmp_path / "cells").iterdir()] == [".npz"]


@pytest.mark.parametrize("damage", [b"", b"not a zip file", None])
def test_a_damaged_file_is_computed_again(tmp_path, damage):
    Cells(tmp_path).get("a", {}, Counting())
    (file,) = (tmp_path / "cells").iterdir()
    file.write_bytes(file.read_bytes()[:-40] if damage is None else damage)
    compute = Counting()
    assert_same(Cells(tmp_path).get("a", {}, compute), VALUES)
    assert compute.n == 1


def test_progress_is_reported(tmp_path):
    said = []
    cells = Cells(tmp_path, report=said.append)
    cells.expect(2)
    cells.get("a", {}, Counting())
    cells.get("b", {}, Counting())
    again = Cells(tmp_path, report=said.append)
    again.get("a", {}, Counting())
    assert said == ["[1/2] a ...", "[1/2] a: 0 s", "[2/2] b ...", "[2/2] b: 0 s", "a: as computed before"]
    assert cells.progressbar is None
    assert Cells(tmp_path).progressbar is False
