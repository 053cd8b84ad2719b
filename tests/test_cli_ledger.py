"""The command line with a ledger: sample, inspect, resume."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray
from click.testing import CliRunner

from leapwise.cli import main
from leapwise.cli.output import inspection_table
from leapwise.run.ledgers import inspect_ledger

MODEL = """
import leapwise as lw
target = lw.Target(lambda x: -0.5 * x @ x{extra}, lambda x: -x, dim={dim})
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.format(extra="", dim=2))
    return tmp_path


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def begin(draws=30, *more):
    return call(
        "sample",
        "model.py:target",
        "--draws",
        draws,
        "--chains",
        2,
        "--seed",
        1,
        "--ledger",
        "run.db",
        "--json",
        *more,
    )


def test_the_same_command_goes_on(here):
    first = begin(30, "--output", "first.nc")
    assert first.exit_code == 0, first.output
    more = begin(50, "--output", "more.nc")
    assert more.exit_code == 0, more.output
    short, long = (xarray.open_datatree(name)["posterior"]["x"].values for name in ("first.nc", "more.nc"))
    assert long.shape == (2, 50, 2)
    np.testing.assert_array_equal(long[:, :30], short)


def test_resume_needs_no_settings(here):
    assert begin().exit_code == 0
    result = call("resume", "run.db", "model.py:target", "--draws", 40, "--json", "--output", "more.nc")
    assert result.exit_code == 0, result.output
    assert xarray.open_datatree("more.nc")["posterior"].sizes["draw"] == 40


def test_inspect(here):
    assert begin().exit_code == 0
    shown = call("inspect", "run.db")
    assert shown.exit_code == 0
    assert "complete" in shown.output and "30 of 30 draws of each chain" in shown.output
    found = json.loads(call("inspect", "run.db", "--json").output)
    assert found["phase"] == "complete" and found["draws_kept"] == 30
    assert found["n_exact"] == sum(each["n"] for each in found["evaluations"]) > 60
    assert found["min_ess"] > 10 and found["names"] == ["x[0]", "x[1]"]


@pytest.mark.parametrize(
    ("kept", "asked", "says"),
    [
        (100, 50, "100 draws of each chain; the last call asked for 50"),
        (
            0,
            300,
            "in checkpoints: 0 of 300 draws of each chain; the rest is replayed from the recorded evaluations",
        ),
    ],
)
def test_inspect_says_what_is_saved(here, kept, asked, says):
    assert begin().exit_code == 0
    found = replace(inspect_ledger("run.db"), draws_kept=kept, draws_asked=asked)
    (said,) = (
        text
        for name, text in zip(*(column._cells for column in inspection_table(found).columns), strict=True)
        if name == "saved"
    )
    assert said.startswith(says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (MODEL.format(extra="", dim=3), "dim changed from 2 to 3"),
        (MODEL.format(extra=" - x[0]", dim=2), "the model, its data or the prior has changed"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--draws", 40]], ids=["finished", "more draws"])
def test_a_changed_model_is_refused_in_one_line(here, model, says, more):
    assert begin().exit_code == 0
    (here / "model.py").write_text(model)
    result = call("resume", "run.db", "model.py:target", *more)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_changed_setting_is_refused_in_one_line(here):
    assert begin().exit_code == 0
    result = call("sample", "model.py:target", "--chains", 3, "--seed", 1, "--ledger", "run.db")
    assert result.exit_code == 2
    assert "chains: 2 -> 3" in result.output


@pytest.mark.parametrize("command", [("inspect",), ("resume",)])
def test_a_missing_ledger(here, command):
    words = (*command, "nothing.db", *(["model.py:target"] if command == ("resume",) else []))
    result = call(*words)
    assert result.exit_code == 2 and "nothing.db" in result.output
    assert not (here / "nothing.db").exists(), "looking makes no file"


def test_something_else_is_not_a_ledger(here):
    result = call("inspect", "model.py")
    assert result.exit_code == 2 and "model.py" in result.output
