"""Examples and code blocks of the documentation run, and one result of each example is checked."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import leapwise as lw

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_decay_finds_the_least_squares_fit():
    from scipy.optimize import curve_fit

    example = load("decay")
    best, covariance = curve_fit(lambda t, a, k: a * np.exp(-k * t), example.t, example.y, (2.0, 0.5))
    run = lw.sample(example.target, draws=500, tune=200, random_seed=1)
    # The posterior mean differs from the fit by far less than a standard deviation.
    assert np.abs(run.draws.mean(axis=(0, 1)) - best) == pytest.approx(0, abs=0.3 * np.sqrt(covariance.max()))


def blocks(page):
    return re.findall(
        r"^```python\n(.*?)^```", (EXAMPLES.parent / page).read_text(), re.MULTILINE | re.DOTALL
    )


def test_readme_shows_the_example():
    (shown,) = blocks("README.md")
    for line in (EXAMPLES / "decay.py").read_text().splitlines():
        if not line.startswith(('"""', "if __name__")):
            assert line.removeprefix("    ") in shown.replace("    ", "")


@pytest.mark.parametrize(
    "page", ["docs/targets.md", "docs/methods.md", "docs/durability.md", "docs/ablation.md"]
)
def test_code_of_the_documentation_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        exec(compile(block, page, "exec"), {"__name__": "documentation"})


def test_code_for_clusters_is_valid():
    for block in blocks("docs/clusters.md"):
        compile(block, "docs/clusters.md", "exec")
