"""The picture of the field."""

import numpy as np
import pytest

from leapwise.errors import InputError, MissingExtraError
from leapwise.problems.elliptic import elliptic_pde, plot_field
from leapwise.problems.elliptic.problem import _fields
from leapwise.problems.registry import Problem

DRAWS = 0.5 * np.random.default_rng(10).standard_normal((4, 25, 20))


@pytest.fixture(scope="module")
def problem():
    return elliptic_pde(n=10)


def test_a_picture_is_written(problem, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = plot_field(problem, DRAWS, tmp_path / "new" / "field.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_equal_draws_make_a_flat_sd(problem, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert plot_field(problem, np.zeros((2, 20)), tmp_path / "flat.png").exists()


def test_moments_are_those_of_the_fields(problem):
    mean, sd, truth, x = _fields(problem, DRAWS)
    field = problem.model.modes.on_grid(x, x)
    fields = np.stack([field(weights) for weights in DRAWS.reshape(-1, 20)])
    np.testing.assert_allclose(mean, fields.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(sd, fields.std(axis=0, ddof=1), atol=1e-12)
    np.testing.assert_allclose(truth, field(problem.true_parameters))


@pytest.mark.parametrize("shape", [(20,), (1, 20), (50, 19), (0, 20)])
def test_bad_draws(problem, tmp_path, shape):
    with pytest.raises(InputError, match=r"draws must have shape \(..., 20\)"):
        plot_field(problem, np.zeros(shape), tmp_path / "field.png")


def test_only_for_this_problem(problem, tmp_path):
    other = Problem("other", "something else", problem.target)
    with pytest.raises(InputError, match="elliptic_pde"):
        plot_field(other, DRAWS, tmp_path / "field.png")


def test_without_matplotlib_the_error_names_the_extra(problem, tmp_path, monkeypatch):
    monkeypatch.setattr("leapwise.results.plots.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"leapwise\[plots\]"):
        plot_field(problem, DRAWS, tmp_path / "field.png")
