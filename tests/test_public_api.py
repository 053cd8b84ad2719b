"""The public face: every name is there and explained, and a minimal install is enough for the core."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import leapwise

# Plain records that the library makes and the user reads.
RECORDS = {"Evaluation", "LocalMetric", "ProductMetric", "RiemannianMetric", "State"}
EXTRAS = ("matplotlib", "pooch", "skfem", "h5netcdf", "h5py")


def python(code):
    """Run code in a fresh interpreter; return what it printed as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_names_are_there():
    assert len(set(leapwise.__all__)) == len(leapwise.__all__)
    for name in leapwise.__all__:
        assert getattr(leapwise, name).__module__.startswith("leapwise.")


def test_everything_exported_is_listed():
    public = {
        name
        for name, value in vars(leapwise).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(leapwise.__all__)


@pytest.mark.parametrize("name", leapwise.__all__)
def test_every_name_is_explained_with_an_example(name):
    what = getattr(leapwise, name)
    text = inspect.getdoc(what)
    assert text and text.split("\n\n")[0].endswith((".", ":"))
    if name not in RECORDS:
        assert "Examples\n--------\n" in text
        assert doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize("name", leapwise.__all__)
def test_public_methods_are_explained(name):
    what = getattr(leapwise, name)
    if inspect.isclass(what):
        for member, value in inspect.getmembers(what, callable):
            if not member.startswith("_"):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_the_version_is_that_of_the_package():
    assert leapwise.__version__ == version("leapwise")


def test_importing_brings_only_what_is_needed():
    slow = [*EXTRAS, "xarray", "arviz_base", "arviz_stats", "pandas", "scipy.stats", "scipy.optimize"]
    code = f"import json, sys, leapwise; print(json.dumps([m for m in {slow} if m in sys.modules]))"
    assert python(code) == []


def test_a_minimal_install_samples_and_names_the_extra_where_one_is_needed(tmp_path):
    code = f"""
import json, os, sys, warnings
warnings.simplefilter("error")
for name in {EXTRAS}:
    sys.modules[name] = None  # as if it were not installed
os.environ.pop("LEAPWISE_DATA", None)
import leapwise as lw
from leapwise.errors import DataError, MissingExtraError
from leapwise.problems import registry
from leapwise.results import plots

problem = registry.get("gumbel")
run = lw.sample(problem.target, draws=50, chains=2, random_seed=1)
found = {{"summary": str(run.summary()), "groups": sorted(run.to_datatree().children)}}
for name, error, act in [
    ("save", MissingExtraError, lambda: run.save({str(tmp_path / "run.nc")!r})),
    ("plot", MissingExtraError, lambda: plots.plot_draws(run, {str(tmp_path / "run.png")!r})),
    ("data", DataError, lambda: registry.get("logistic-bank")),
]:
    try:
        act()
    except error as caught:
        found[name] = str(caught)
print(json.dumps(found))
"""
    found = python(code)
    assert "x[0]" in found["summary"] and "R-hat" in found["summary"]
    assert found["groups"] == ["estimates", "posterior", "sample_stats", "surrogate"]
    assert "pip install 'leapwise[netcdf]'" in found["save"]
    assert "pip install 'leapwise[plots]'" in found["plot"]
    assert "leapwise[paper]" in found["data"]
    assert list(tmp_path.iterdir()) == []
