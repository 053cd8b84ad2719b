import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import leapwise.run
from leapwise.cli import main, output
from leapwise.errors import EvaluationError
from leapwise.results import Cost, Record, Run

MODEL = """
import os
import numpy as np
from leapwise import Target
from leapwise.problems import Problem

print("the model is loaded")

def log_density(x):
    return -0.5 * x @ x

def gradient(x):
    return -x

target = Target(log_density, gradient, dim=2)
valueless = Target(log_density, dim=2)
problem = Problem("mine", "a test", target)

class Flat:
    def at(self, position):
        self.matrix = self.cholesky = np.broadcast_to(np.eye(2), (len(position), 2, 2))
        return self

    def quadratic_contraction(self, velocity):
        return np.zeros_like(velocity)

    def trace_contraction(self):
        return np.zeros((len(self.matrix), 2))

flat_problem = Problem("flat", "has a metric", target, metric=Flat())

def make():
    return target

def noisy(x):
    print("noise from the model")
    os.system("echo noise from a program")
    return -0.5 * x @ x

def fails_later(x, calls=[0]):
    calls[0] += 1
    if calls[0] > 400:
        raise ZeroDivisionError("the pump\\nhas stopped")
    return -0.5 * x @ x

noisy_target = Target(noisy, gradient, dim=2)
failing_target = Target(fails_later, gradient, dim=2)
a_number = 3

def needs(x):
    return target

def makes_nothing():
    return None

def raises():
    raise ValueError("no mesh")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model_for_cli.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(autouse=True)
def _leave_no_modules(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def invoke(*words: object):
    return CliRunner().invoke(main, [str(word) for word in words])


def sample(what: object, *words: object):
    some = ("--draws", 50, "--tune", 30, "--chains", 2, "--seed", 1)
    return invoke("sample", what, *some, "--method", "hmc", *words)


def fake_run(draws: int = 20, complete: bool = True) -> Run:
    values = np.random.default_rng(1).normal(size=(2, draws, 2))
    return Run(
        "x", Record(values, {}, Cost(n_gradients=9)), Record(values[:, :0], {}, Cost()), complete=complete
    )


def test_version():
    assert invoke("--version").output == f"leapwise {leapwise.__version__}\n"


def test_python_m_leapwise():
    words = [sys.executable, "-m", "leapwise", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"leapwise {leapwise.__version__}\n"


def test_problems_are_listed():
    from leapwise.problems import registry

    result = invoke("problems")
    assert result.exit_code == 0
    for name in registry.NAMES:
        assert name in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize("name", ["target", "problem", "make"])
def test_a_target_in_a_file_is_sampled(model, name):
    result = sample(f"{model}:{name}", "--step-size", 0.5, "--n-steps", 3)
    assert result.exit_code == 0, result.output
    assert "2 chains x 50 draws after 30 of warm-up, seed 1" in result.stdout
    assert "exact gradients" in result.stdout
    assert result.stderr == ""


def test_a_built_in_problem_is_sampled():
    result = sample("banana", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["parameters"]) == 2


def test_rmhmc_takes_the_metric_of_the_problem(model):
    result = sample(
        f"{model}:flat_problem", "--method", "rmhmc", "--step-size", 0.5, "--n-steps", 3, "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"]["method"] == "RMHMC"
    assert found["cost"]["total"]["n_metrics"] > 0


def test_by_default_it_tunes_itself_and_draws_at_one_value_each(model, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "surrogate.png"
    words = ("--draws", 50, "--tune", 60, "--chains", 2, "--seed", 1, "--surrogate-plot", picture)
    result = invoke("sample", f"{model}:target", *words, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["settings"]["method"] == "Auto"
    assert found["surrogate"]["kind"]
    assert found["cost"]["draws"]["n_gradients"] == 0
    assert 0 < found["cost"]["draws"]["n_values"] <= 100
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_budget_is_kept_and_is_no_interrupt(model):
    result = invoke("sample", f"{model}:valueless", "--max-evaluations", 120, "--seed", 1)
    assert result.exit_code == 0, result.output
    spent = int(re.search(r"(\d+) of 120 exact evaluations allowed", result.stdout)[1])
    assert 110 < spent <= 120


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), {"tune": None, "max_evaluations": None, "method": "Auto"}),
        (
            ("--tune", 80, "--max-evaluations", 900),
            {"tune": 80, "max_evaluations": 900, "method": "Auto"},
        ),
        (("--method", "hmc"), {"tune": None, "max_evaluations": None, "method": "HMC"}),
    ],
)
def test_what_is_not_said_is_left_to_the_method(model, monkeypatch, words, given):
    seen = {}
    monkeypatch.setattr(leapwise.run, "sample", lambda _, **options: seen.update(options) or fake_run())
    assert invoke("sample", f"{model}:target", *words).exit_code == 0
    assert {name: seen[name] for name in ("tune", "max_evaluations")} | {
        "method": type(seen["method"]).__name__
    } == given


def test_settings_reach_the_kernel(model, monkeypatch):
    seen = {}
    monkeypatch.setattr(leapwise.run, "sample", lambda _, **options: seen.update(options) or fake_run())
    sample(f"{model}:target", "--step-size", 0.5, "--n-steps", 3, "--target-acceptance", 0.9)
    kernel = seen["method"]
    assert (kernel.step_size, kernel.n_steps, kernel.target_acceptance) == (0.5, 3, 0.9)


def test_the_same_seed_gives_the_same_summary(model):
    first, second = (json.loads(sample(f"{model}:target", "--json").stdout) for _ in range(2))
    assert first["parameters"] == second["parameters"]


def test_json_keeps_stdout_clean_of_what_models_print(model):
    options = [
        "--json",
        "--method",
        "hmc",
        "--tune",
        "0",
        "--draws",
        "2",
        "--chains",
        "1",
        "--step-size",
        "0.5",
        "--n-steps",
        "2",
    ]
    words = [sys.executable, "-m", "leapwise", "sample", f"{model}:noisy_target", *options]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["draws"] == 2
    assert "noise from the model" in done.stderr
    assert "noise from a program" in done.stderr


def test_quiet_leaves_only_warnings(model):
    result = sample(f"{model}:target", "--quiet")
    assert result.stdout == "the model is loaded\n"
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())
    assert "effective draws" in result.stderr


def test_files_are_written(model, tmp_path):
    pytest.importorskip("h5netcdf")
    pytest.importorskip("matplotlib")
    draws, picture = tmp_path / "new" / "draws.nc", tmp_path / "new" / "draws.png"
    result = sample(f"{model}:target", "--output", draws, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert draws.exists()
    assert picture.exists()
    assert str(draws) in result.stderr


def test_the_elliptic_problem_draws_its_field(monkeypatch, tmp_path):
    plots = pytest.importorskip("leapwise.problems.elliptic.problem")
    pytest.importorskip("matplotlib")
    calls = []
    monkeypatch.setattr(plots, "plot_field", lambda problem, draws, path: calls.append((draws.shape, path)))
    monkeypatch.setattr(leapwise.run, "sample", lambda *_, **__: fake_run())
    result = invoke("sample", "elliptic-pde", "--plot", tmp_path / "field.png")
    assert result.exit_code == 0, result.output
    assert calls == [((2, 20, 2), tmp_path / "field.png")]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("{model}", "say which target of .* it has target, valueless, problem, .*make\\(\\)"),
        ("{model}:nothing", "has no 'nothing'; it has target"),
        ("{model}:a_number", "is of type int, not a Target"),
        ("{model}:needs", "is a function with arguments, not a Target"),
        ("{model}:np", "is of type module"),
        ("{model}:Target", "is the class Target"),
        ("{model}:makes_nothing", "returned NoneType, not a Target"),
        ("{model}:raises", r"raises\(\) raised ValueError at line \d+: no mesh"),
        ("{model}:valueless", "gradient"),
        ("{folder}/missing.py:target", "there is no file .*missing.py"),
        ("{folder}/text.txt:target", "is not a Python file"),
        ("{folder}/broken.py:target", "is not valid Python: .* line 2"),
        ("{folder}/crash.py:target", "raised ModuleNotFoundError at line 1: .*no_such_library"),
        ("{folder}/stops.py:target", "raised SystemExit at line 2"),
        ("{folder}/empty.py:target", "it has no target: make one with leapwise.Target"),
        ("bananna", "no built-in problem 'bananna'; .*banana.*my_model.py:target"),
    ],
)
def test_what_cannot_be_sampled_is_said_in_one_line(model, what, said):
    folder = model.parent
    (folder / "text.txt").write_text("target")
    (folder / "broken.py").write_text("x = 1\ndef f(:\n")
    (folder / "crash.py").write_text("import no_such_library")
    (folder / "stops.py").write_text("import sys\nsys.exit('bye')")
    (folder / "empty.py").write_text("")
    assert_one_line(sample(what.format(model=model, folder=folder)), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draws", 0], "draws must be"),
        (["--chains", 0], "chains must be"),
        (["--tune", -1], "tune must be"),
        (["--seed", -1], "seed must be"),
        (["--step-size", -0.1], "step_size must be"),
        (["--n-steps", 0], "n_steps must be"),
        (["--method", "rmhmc"], "has no Riemannian metric.*--method hmc"),
        (["--max-evaluations", 0], "max_evaluations must be"),
        (
            ["--method", "auto", "--step-size", 0.1],
            "auto tunes itself and has no --step-size; .*--method hmc",
        ),
        (["--surrogate-plot", "{folder}/x.png"], "hmc has no surrogate to plot"),
        (["--method", "auto", "--surrogate-plot", "{folder}/x.doc"], "must end in"),
        (["--output", "{folder}"], "is a folder"),
        (["--output", "{folder}/x.csv"], r"saved as netCDF, .*must end in .nc, .*give '.*x.nc'"),
        (["--output", "{model}/x.nc"], "cannot make the folder"),
        (["--plot", "{folder}/x.doc"], "must end in"),
    ],
)
def test_wrong_options_are_said_in_one_line(model, words, said):
    filled = [str(word).format(model=model, folder=model.parent) for word in words]
    assert_one_line(sample(f"{model}:target", *filled), said)


def assert_one_line(result, said: str) -> None:
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    assert re.search(said, lines[0]), lines[0]


def test_a_file_in_the_folder_one_is_in(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    (model.parent / "helper.py").write_text("value = 1")
    (model.parent / "uses_helper.py").write_text("import helper\nhelper.nothing")
    assert_one_line(sample("uses_helper.py:target"), "uses_helper.py raised AttributeError at line 2")


def test_outputs_are_checked_before_the_model_is_loaded(model):
    result = sample(f"{model}:target", "--output", model.parent)
    assert "the model is loaded" not in result.stdout


def test_a_missing_extra_is_named_before_the_model_is_loaded(model, monkeypatch):
    monkeypatch.setattr("leapwise.results.datatree.find_spec", lambda _: None)
    result = sample(f"{model}:target", "--output", model.parent / "x.nc")
    assert "pip install 'leapwise[netcdf]'" in result.stderr
    assert "the model is loaded" not in result.stdout


def test_a_model_that_fails_keeps_what_was_drawn(model, tmp_path):
    pytest.importorskip("h5netcdf")
    file = tmp_path / "kept.nc"
    result = sample(
        f"{model}:failing_target", "--step-size", 0.5, "--n-steps", 3, "--draws", 500, "--output", file
    )
    assert result.exit_code == 2
    *notes, error = result.stderr.splitlines()
    assert error.startswith("Error: the target raised ZeroDivisionError: the pump has stopped at parameters")
    assert "The model failed after" in notes[0]
    assert file.exists()


def test_a_model_that_fails_in_warmup_has_nothing_to_keep(model, monkeypatch, tmp_path):
    def fail(*_, **__):
        error = EvaluationError("broken", np.zeros(2))
        error.run = fake_run(0, complete=False)
        raise error

    monkeypatch.setattr(leapwise.run, "sample", fail)
    result = sample(f"{model}:target", "--output", tmp_path / "kept.nc")
    assert result.exit_code == 2
    assert "There are no draws to save." in result.stderr
    assert not (tmp_path / "kept.nc").exists()


def test_ctrl_c_shows_and_saves_what_has_been_drawn(model, monkeypatch, tmp_path):
    pytest.importorskip("h5netcdf")
    monkeypatch.setattr(leapwise.run, "sample", lambda *_, **__: fake_run(complete=False))
    result = sample(f"{model}:target", "--output", tmp_path / "kept.nc")
    assert result.exit_code == 130
    assert "2 chains x 20 draws, interrupted" in result.stdout
    assert (tmp_path / "kept.nc").exists()


def test_ctrl_c_before_anything_is_drawn(model, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(leapwise.run, "sample", interrupt)
    result = sample(f"{model}:target")
    assert result.exit_code == 130
    assert result.stderr == "Interrupted.\n"


def test_progress_is_left_to_the_terminal_or_silenced(model, monkeypatch):
    seen = []
    monkeypatch.setattr(
        leapwise.run, "sample", lambda *_, progressbar, **__: seen.append(progressbar) or fake_run()
    )
    sample(f"{model}:target")
    sample(f"{model}:target", "--quiet")
    assert seen == [None, False]


def test_what_the_summary_says_is_not_logged_besides(caplog):
    """And only while the command runs: others in the same process go on hearing it."""
    log = logging.getLogger("leapwise.draws")

    def make():
        log.warning("chains were held up")
        return fake_run()

    output.saving_on_failure(None, output.Files(), make)
    assert not caplog.messages
    make()
    assert caplog.messages == ["chains were held up"]
