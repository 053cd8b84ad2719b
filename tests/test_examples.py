"""Examples are tests: each is imported, and one thing about it is checked."""

import importlib.util
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


def test_readme_shows_the_example():
    readme = (EXAMPLES.parent / "README.md").read_text()
    for line in (EXAMPLES / "decay.py").read_text().splitlines():
        if line.startswith(("t =", "y =", "def ", "    outputs =", "    return ")):
            assert line in readme
