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
    found = np.array([run["a"].mean(), run["k"].mean()])
    assert np.abs(found - best) == pytest.approx(0, abs=0.5 * np.sqrt(covariance.max()))


def test_lotka_volterra_has_unknown_noise_for_two_species():
    """Noise of 0.2 in simulated data of 20 years: within a factor of 2."""
    run = lw.sample(load("lotka_volterra").target, draws=50, random_seed=1)
    assert run.surrogate.sd < 0.5
    assert all(0.1 < run[name].mean() < 0.4 for name in ("noise_hares", "noise_lynxes"))


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


def test_code_of_the_page_on_models_runs():
    namespace = {}
    for block in blocks("docs/models.md"):
        exec(compile(block, "docs/models.md", "exec"), namespace)
    assert namespace["run"]["sigma"].shape == (4, 200) and namespace["schools"].dim == 10
    assert namespace["found"].error["y"].shape == (3, 8)
