"""`leapwise reproduce`, with quick fakes in the place of the experiments."""

import inspect
import re

import pytest
from click.testing import CliRunner

from leapwise.cli import main
from leapwise.cli.commands import reproduce as command
from leapwise.paper import reproductions
from leapwise.paper.experiments import EXPERIMENTS, METHODS


class FakeFigure:
    """A figure with fifty rows, its caption and its picture."""

    caption = "It is larger."

    def __init__(self):
        self.rows = [{"method": "hmc", "value": 0.123456, "draws": n} for n in range(50)]

    def draw(self, path):
        path.write_text("a picture")
        return path


@pytest.fixture
def fakes(monkeypatch):
    """Put in the place of the paper's experiments makers that note what they are asked."""
    asked = []

    def figure(quick, cells):
        asked.append({"quick": quick})
        cells.get("fake · one", {"quick": quick}, lambda: asked.append("computed") or {"x": 1})
        return FakeFigure()

    def by_experiment(quick, cells, experiment=None):
        asked.append({"experiment": experiment})
        return FakeFigure()

    makers = dict.fromkeys(reproductions.NAMES, figure) | {"fig8": by_experiment}
    monkeypatch.setattr(reproductions.Reproduction, "load", lambda self: makers[self.name])
    return asked


def reproduce(folder, *words: object):
    return CliRunner().invoke(main, ["reproduce", *map(str, words), "--folder", str(folder)])


def assert_one_line(result, said: str) -> None:
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert re.search(said, line), line


def test_all_that_is_registered_can_be_reproduced():
    assert command.params[0].type.choices == (*reproductions.NAMES, "all")
    for name in reproductions.NAMES:
        parameters = inspect.signature(reproductions.get(name).load()).parameters
        assert {"quick", "cells"} <= set(parameters), name


def test_the_choices_are_those_of_the_experiments():
    choices = {
        option.name: option.type.choices
        for option in command.params
        if option.name in ("experiment", "method")
    }
    assert choices == {"experiment": tuple(EXPERIMENTS), "method": (*METHODS, "arns-hmc")}


def test_a_figure_is_computed_shown_and_saved(fakes, tmp_path):
    pytest.importorskip("matplotlib")
    result = reproduce(tmp_path / "new", "fig3")
    assert result.exit_code == 0, result.output
    assert fakes == [{"quick": True}, "computed"]
    assert "0.1235" in result.stdout and "and 10 more rows" in result.stdout
    assert "It is larger." in result.stdout
    assert "fake · one" in result.stderr and "Saved" in result.stderr
    assert len((tmp_path / "new" / "fig3.csv").read_text().splitlines()) == 51
    assert (tmp_path / "new" / "fig3.png").read_text() == "a picture"


def test_finished_work_is_used_again_unless_fresh(fakes, tmp_path):
    pytest.importorskip("matplotlib")
    for words in (["fig3"], ["fig3", "--quiet"], ["fig3", "--full"], ["fig3", "--fresh"]):
        result = reproduce(tmp_path, *words)
        assert result.exit_code == 0, result.output
    quick, full = {"quick": True}, {"quick": False}
    assert fakes == [quick, "computed", quick, full, "computed", quick, "computed"]


def test_quiet_shows_no_progress(fakes, tmp_path):
    pytest.importorskip("matplotlib")
    assert "fake · one" not in reproduce(tmp_path, "fig3", "--quiet").stderr


def test_all_are_reproduced_and_options_go_where_they_are_known(fakes, tmp_path):
    pytest.importorskip("matplotlib")
    result = reproduce(tmp_path, "all", "--experiment", "bank")
    assert result.exit_code == 0, result.output
    assert fakes.count({"quick": True}) == 9
    assert fakes.count({"experiment": "bank"}) == 1
    assert len(list(tmp_path.glob("*.csv"))) == 10


def test_an_option_that_a_figure_does_not_know_is_refused(fakes, tmp_path):
    pytest.importorskip("matplotlib")
    assert_one_line(reproduce(tmp_path, "fig3", "--experiment", "bank"), "fig3 has no --experiment; leave it")
    assert fakes == []


def test_an_interrupt_says_how_to_go_on(fakes, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeFigure, "draw", interrupt)
    result = reproduce(tmp_path, "fig3", "--quiet")
    assert result.exit_code == 130
    assert "the same command continues from there" in result.stderr


def test_a_missing_extra_is_named_before_anything_is_computed(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr("leapwise.results.plots.find_spec", lambda _: None)
    assert_one_line(reproduce(tmp_path, "fig3"), r"pip install 'leapwise\[plots\]'")
    assert fakes == []
