import numpy as np
import pytest

from leapwise.errors import InputError, MissingExtraError
from leapwise.results.plots import _proposals, plot_draws, require_picture

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    "change", [{"dim": 2}, {"dim": 12}, {"dim": 1, "chains": 1, "draws": 1}, {"names": ("a", "b$", "$c")}]
)
def test_it_plots_the_draws(make_run, tmp_path, change):
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
    with pytest.raises(MissingExtraError, match=r"pip install 'leapwise\[plots\]'"):
        require_picture(tmp_path / "run.png")


def test_it_plots_the_surrogate(make_surrogate_run, tmp_path):
    path = make_surrogate_run().plot_surrogate(tmp_path / "sub" / "surrogate.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "history",
    [np.empty((0, 2)), np.array([[30, np.inf]]), np.array([[30, 0.5]]), np.array([[30, 1e-9], [60, 1e-9]])],
)
def test_short_histories_are_drawn_too(make_surrogate_run, make_report, tmp_path, history):
    run = make_surrogate_run(report=make_report(history=history))
    assert run.plot_surrogate(tmp_path / "surrogate.png").exists()


def test_a_perfect_surrogate_and_a_wild_proposal_are_drawn_too(make_surrogate_run, tmp_path):
    assert make_surrogate_run(sd=0.0).plot_surrogate(tmp_path / "perfect.png").exists()
    run = make_surrogate_run()
    run.posterior.stats["proposal_potential"][0, 0] = 1e12
    run.posterior.stats["proposal_potential"][0, 1] = np.inf
    assert run.plot_surrogate(tmp_path / "wild.png").exists()


def test_a_surrogate_that_was_not_used_shows_its_warmup(make_run, make_report, tmp_path):
    run = make_run(surrogate=make_report(exact_share=1.0, fingerprint=""))
    assert run.plot_surrogate(tmp_path / "surrogate.png").exists()


def test_potentials_are_those_of_the_proposals(make_surrogate_run):
    run = make_surrogate_run()
    stats = run.posterior.stats
    stats["discrepancy"][1, 2] = np.nan
    exact, predicted, accepted = _proposals(run)
    assert len(exact) == len(accepted) == 1999
    assert exact.min() == 0.0
    known = np.isfinite(stats["discrepancy"])
    np.testing.assert_allclose(exact - predicted, stats["discrepancy"][known])
    np.testing.assert_array_equal(accepted, stats["accepted"][known])


def test_without_a_surrogate_there_is_no_picture(make_run, tmp_path):
    with pytest.raises(InputError, match="no surrogate to plot"):
        make_run().plot_surrogate(tmp_path / "surrogate.png")
