import pytest

from leapwise.errors import InputError, MissingExtraError
from leapwise.results.plots import plot_draws, require_picture

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    "change", [{"dim": 2}, {"dim": 12}, {"dim": 1, "chains": 1, "draws": 1}, {"names": ("a", "b$", "$c")}]
)
def test_it_draws_a_picture(make_run, tmp_path, change):
    path = plot_draws(make_run(**change), tmp_path / "sub" / "run.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_draws_no_picture(make_run, tmp_path):
    with pytest.raises(InputError, match="no draws to plot"):
        plot_draws(make_run(draws=0), tmp_path / "run.png")


@pytest.mark.parametrize("name", ["run", "run.nc"])
def test_an_ending_that_is_no_picture(tmp_path, name):
    with pytest.raises(InputError, match="must end in"):
        require_picture(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("leapwise.results.plots.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install leapwise\[plots\]"):
        require_picture(tmp_path / "run.png")
