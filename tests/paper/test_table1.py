"""Table 1, on small regressions instead of the paper's."""

import importlib
import io
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rich.console import Console

import leapwise as lw
from leapwise.errors import InputError
from leapwise.paper import Cells, experiments, table1
from leapwise.paper.experiments import EXPERIMENTS, METHODS, start
from leapwise.paper.table1 import Table1Plan, _rates, _row, hmc_cell
from leapwise.problems import logistic_simulated
from leapwise.surrogates import SoftplusNetwork

module = importlib.import_module("leapwise.paper.table1")  # the package has a function of this name
PLAN = Table1Plan(60, {"hmc": 30, "rmhmc": 10, "rns-hmc": 30, "rns-rmhmc": 10})
COLUMNS = {
    "acceptance",
    "ess_min",
    "ess_median",
    "ess_max",
    "seconds",
    "min_ess_rate",
    "speed_up",
    "speed_up_all",
    "ess_per_exact",
    "speed_up_two_gradients",
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """Replace the experiments by two small ones."""
    kept = dict(EXPERIMENTS)
    for i, name in enumerate(kept):
        if i > 1:
            del EXPERIMENTS[name]
            continue
        maker = partial(logistic_simulated, n_rows=300, dim=3 + i)
        EXPERIMENTS[name] = replace(kept[name], maker=maker, n_hidden=60)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(kept)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("table1")


@pytest.fixture(scope="module")
def found(folder):
    return table1(cells=Cells(folder), plan=PLAN)


def test_every_experiment_and_method_has_a_row(found):
    assert [(row["experiment"], row["method"]) for row in found.rows] == [
        (name, method) for name in EXPERIMENTS for method in METHODS
    ]
    for row in found.rows:
        assert set(row) >= COLUMNS
        assert all(np.isfinite(value) for value in row.values() if not isinstance(value, str))
        paper = EXPERIMENTS[row["experiment"]].paper[row["method"]]
        assert (row["paper_acceptance"], row["paper_speed_up"]) == (paper.acceptance, paper.speed_up)
        assert 0 < row["ess_min"] <= row["ess_median"] <= row["ess_max"] <= 5000


def test_hmc_is_what_speed_ups_compare_with(found):
    for row in found.rows:
        if row["method"] == "hmc":
            assert row["speed_up"] == row["speed_up_all"] == 1
            assert 1 < row["speed_up_two_gradients"] < 2
            assert row["largest_z"] == 0


def test_surrogate_methods_ask_for_values_alone(found):
    for row in found.rows:
        assert (row["iteration_in_values"] > 1) == row["method"].startswith("rns")


def test_finished_runs_are_used_again(found, folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("nothing is to be sampled")

    monkeypatch.setattr(module, "sample", refuse)
    monkeypatch.setattr(experiments, "sample", refuse)
    assert table1(cells=Cells(folder), plan=PLAN).rows == found.rows
    one = table1(cells=Cells(folder), plan=PLAN, experiment="bank", method="rns-hmc")
    assert one.rows == [
        row for row in found.rows if (row["experiment"], row["method"]) == ("bank", "rns-hmc")
    ]


def test_an_interrupted_run_is_not_kept(tmp_path, monkeypatch):
    real = lw.sample

    def stopped(*words, **options):
        return replace(real(*words, **options), complete=False)

    monkeypatch.setattr(module, "sample", stopped)
    with pytest.raises(KeyboardInterrupt):
        table1(cells=Cells(tmp_path), plan=PLAN, experiment="bank")
    assert [file.name.split("-")[0] for file in (tmp_path / "cells").iterdir()] == ["start"]


class Spy(SoftplusNetwork):
    """A surrogate that keeps its training set."""

    def fit(self, training, rng):
        Spy.seen = training
        return super().fit(training, rng)


def test_the_burn_in_of_hmc_is_the_exploration_of_rns_hmc():
    """One run serves both: RNSHMC with the same seed collects the same states."""
    experiment, cells = EXPERIMENTS["bank"], Cells()
    position = start(experiment, cells)
    cell = hmc_cell(experiment, PLAN, position, cells)
    method = replace(experiment.method("rns-hmc"), surrogate=Spy(20))
    run = lw.sample(
        experiment.problem.target,
        2,
        tune=PLAN.burn_in,
        method=method,
        init=position,
        random_seed=module.SEED,
        progressbar=False,
    )
    seen = np.column_stack([Spy.seen.potential, Spy.seen.position])
    kept = np.column_stack([cell["training_potential"], cell["training_position"]])
    np.testing.assert_array_equal(np.unique(seen, axis=0), np.unique(kept, axis=0))
    assert len(seen) == len(kept)
    assert Spy.seen.gradient is None
    assert run.warmup.cost.n_gradients == cell["burn_in_exact"]
    np.testing.assert_array_equal(run.warmup.draws[:, -1], cell["end"])


def cell(seconds, gradient_seconds, **changes):
    return {
        "chains": 4,
        "kept": 100,
        "acceptance": 0.7,
        "ess": np.array([100.0, 200.0, 400.0]),
        "mean": np.zeros(3),
        "sd": np.ones(3),
        "unsolved": 0.0,
        "cpu_seconds": seconds / 800,
        "cost_seconds": seconds,
        "cost_gradient_seconds": gradient_seconds,
        "cost_value_seconds": 0.0,
        "cost_n_values": 0,
        "cost_n_gradients": 2000,
        "burn_in_iterations": 200,
        "burn_in_seconds": seconds / 2,
        "burn_in_exact": 1000,
    } | changes


def test_rates_are_for_a_run_of_the_papers_size():
    rates = _rates(cell(40.0, 30.0, training_seconds=500.0))
    assert rates["kept"] == pytest.approx(100 / 40)
    # 5000 draws have 1250 effective ones; 10,000 iterations take 0.1 s each, and training 500 s
    assert rates["all"] == pytest.approx(1250 / 1500)
    assert rates["exact"] == pytest.approx(1250 / 50_000)


def test_speed_ups_against_one_gradient_and_two():
    experiment = EXPERIMENTS["bank"]
    cells = {
        ("bank", "hmc"): cell(40.0, 30.0),
        ("bank", "rns-hmc"): cell(
            8.0, 0.0, cost_n_values=400, cost_value_seconds=4.0, mean=np.array([0.3, 0, 0])
        ),
    }
    row = _row(experiment, "rns-hmc", cells)
    assert row["speed_up"] == pytest.approx(5.0)
    assert row["speed_up_two_gradients"] == pytest.approx(5.0 * 70 / 40)
    assert row["speed_up_cpu"] == pytest.approx(5.0)
    assert row["iteration_in_values"] == pytest.approx(2.0)
    assert row["largest_z"] == pytest.approx(0.3 / np.sqrt(2 / 100))


def test_a_busy_machine_is_named_in_the_notes(found):
    quiet = [row | {"seconds": row["cpu_seconds"]} for row in found.rows]
    assert not any("busy" in note for note in module.notes(PLAN, quiet))
    busy = [row | {"seconds": 3 * row["cpu_seconds"]} for row in found.rows]
    assert "up to 3.0 times CPU seconds" in module.notes(PLAN, busy)[-1]


def test_the_terminal_shows_all_rows_within_100_columns(found):
    stream = io.StringIO()
    Console(file=stream, width=100).print(found)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("  paper") == len(found.rows)
    assert "…" not in text
    assert "4 chains" in text


def test_markdown_has_a_line_for_each_row(found, tmp_path):
    lines = found.save_markdown(tmp_path / "new" / "table1.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(found.rows)
    assert len({line.count("|") for line in table}) == 1


def test_the_caption_has_ours_and_the_papers(found):
    assert "RNS-HMC" in found.caption
    assert "on bank (paper 8.01)" in found.caption
    assert "no speed-up" in module.caption([row for row in found.rows if row["method"] == "hmc"])


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="no method 'nuts'"):
        table1(method="nuts")
    with pytest.raises(InputError, match="no experiment 'sonar'"):
        table1(experiment="sonar")
    with pytest.raises(InputError, match="no method 'nuts'"):
        EXPERIMENTS["bank"].method("nuts")
