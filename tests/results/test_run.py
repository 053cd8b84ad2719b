import json

import numpy as np
import pytest

from leapwise.errors import InputError, MissingExtraError
from leapwise.results import Cost

pytest.importorskip("xarray")


def test_costs_add_up():
    total = Cost(1, 2, 3, 4, 0.5, 0.25, 1.0) + Cost(10, 20, 30, 40, 5.0, 2.5, 10.0)
    assert total == Cost(11, 22, 33, 44, 5.5, 2.75, 11.0)
    assert total.n_exact == 33
    assert total.model_seconds + total.sampler_seconds == pytest.approx(total.seconds)


def test_clock_noise_never_gives_negative_time():
    assert Cost(value_seconds=1.001, seconds=1.0).sampler_seconds == 0.0


def test_time_in_the_sampler_is_unknown_where_time_in_the_model_is_no_wall_time():
    """Summed over workers, or spent in an earlier call."""
    beside = Cost(value_seconds=0.8, seconds=1.0, in_parallel=True)
    assert np.isnan(beside.sampler_seconds)
    assert (beside + Cost(seconds=1.0)).in_parallel is (Cost(seconds=1.0) + beside).in_parallel is True
    assert np.isnan(Cost(value_seconds=2.0, seconds=1.0).sampler_seconds)


def test_cost_of_a_run_includes_its_warmup(make_run):
    run = make_run()
    assert run.cost.n_gradients == run.warmup.cost.n_gradients + run.posterior.cost.n_gradients


def test_datatree_holds_the_draws_and_the_warmup_apart(make_run):
    run = make_run(dim=3)
    tree = run.to_datatree()
    assert set(tree.children) == {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"}
    assert tree["posterior"]["x"].dims == ("chain", "draw", "x_dim_0")
    np.testing.assert_array_equal(tree["posterior"]["x"], run.draws)
    np.testing.assert_array_equal(tree["warmup_posterior"]["x"], run.warmup.draws)
    np.testing.assert_array_equal(tree["warmup_sample_stats"]["lp"], run.warmup.stats["lp"])
    assert tree["sample_stats"]["diverging"].dtype == bool


def test_datatree_without_warmup_draws_has_no_warmup_groups(make_run):
    assert set(make_run(tune=0).to_datatree().children) == {"posterior", "sample_stats"}


def test_datatree_has_a_group_for_the_surrogate(make_surrogate_run, make_report):
    report = make_report(exact_share=0.25, reason="its sd(D) is 0.9")
    run = make_surrogate_run(part=np.tile([0, 0, 0, 1], (4, 125)), report=report)
    tree = run.to_datatree()
    assert {"discrepancy", "inner_acceptance", "proposal_potential", "part"} <= set(
        tree["sample_stats"].data_vars
    )
    group = tree["surrogate"]
    np.testing.assert_array_equal(group["n_exact"], report.history[:, 0])
    np.testing.assert_array_equal(group["discrepancy_sd"], report.history[:, 1])
    for name in ("kind", "sd", "usual", "surprises", "exact_share", "reason", "fingerprint"):
        assert group.attrs[name] == getattr(report, name)


@pytest.mark.parametrize(
    "changes", [{}, {"history": np.empty((0, 2)), "sd": np.inf, "usual": np.nan, "fingerprint": ""}]
)
def test_the_surrogate_group_reads_back(make_surrogate_run, make_report, tmp_path, changes):
    pytest.importorskip("h5netcdf")
    import xarray

    run = make_surrogate_run(report=make_report(**changes))
    path = run.save(tmp_path / "run.nc")
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        written = run.to_datatree()["surrogate"]
        assert tree["surrogate"].to_dataset().equals(written.to_dataset())
        assert tree["surrogate"].attrs.keys() == written.attrs.keys()
        for name, value in written.attrs.items():
            np.testing.assert_equal(tree["surrogate"].attrs[name], value)


def test_named_parameters_become_scalar_variables(make_run):
    run = make_run(dim=2, names=("alpha", "beta"))
    tree = run.to_datatree()
    assert tree["posterior"]["beta"].dims == ("chain", "draw")
    np.testing.assert_array_equal(tree["posterior"]["beta"], run.draws[:, :, 1])


def test_names_that_a_datatree_reserves_do_not_cost_the_draws(make_run):
    run = make_run(dim=3, names=("chain", "rate/hour", "draw"))
    variables = run.to_datatree()["posterior"].data_vars
    assert set(variables) == {"chain_", "rate_hour", "draw_"}


def test_more_chains_than_draws_is_no_warning(make_run):
    assert make_run(chains=8, draws=5, tune=2).to_datatree()["posterior"].sizes["chain"] == 8


def test_attributes_say_how_the_draws_came_about(make_run):
    attrs = make_run(complete=False).to_datatree()["posterior"].attrs
    assert attrs["inference_library"] == "leapwise"
    assert attrs["inference_library_version"] == "9.9"
    assert attrs["sampling_time"] == 4.0
    assert attrs["tuning_steps"] == 100
    assert json.loads(attrs["settings"]) == {"method": "hmc", "step_size": 0.25}
    assert (attrs["n_gradients"], attrs["warmup_n_gradients"]) == (6000, 1000)
    assert (attrs["complete"], attrs["exact"]) == (0, 1)
    assert int(attrs["random_seed"]) == 7


@pytest.mark.parametrize(
    "change", [{}, {"draws": 0}, {"seed": 2**127}, {"seed": None, "names": ("a", "b", "c")}]
)
def test_a_saved_run_reads_back(make_run, tmp_path, change):
    pytest.importorskip("h5netcdf")
    import xarray

    run = make_run(**change)
    path = run.save(tmp_path / "made" / "for" / "it.nc")
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        for group, variables in run.to_datatree().children.items():
            assert tree[group].to_dataset().equals(variables.to_dataset())
        assert tree["posterior"].attrs["settings"] == run.to_datatree()["posterior"].attrs["settings"]


def test_saving_over_a_file_that_is_being_read(make_run, tmp_path):
    pytest.importorskip("h5netcdf")
    import xarray

    path = make_run().save(tmp_path / "run.nc")
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        make_run(dim=2).save(path)
        assert tree["posterior"].sizes["x_dim_0"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_a_folder_is_not_a_file(make_run, tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        make_run().save(tmp_path)


@pytest.mark.parametrize(
    ("name", "better"), [("run.csv", "run.nc"), ("run", "run.nc"), ("a.b/run.h5", "a.b/run.nc")]
)
def test_a_file_that_is_not_netcdf_by_its_name_is_refused(make_run, tmp_path, name, better):
    with pytest.raises(InputError, match=f"must end in .nc, got .*{name}'; give '.*{better}'"):
        make_run().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        make_run().save(tmp_path / "file" / "run.nc")


def test_a_place_that_cannot_be_written(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match="permission denied"):
        make_run().save(tmp_path / "run.nc")


def test_saving_without_the_extra_names_it(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("leapwise.results.datatree.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'leapwise\[netcdf\]'"):
        make_run().save(tmp_path / "run.nc")


def test_repr_is_short(make_run):
    assert repr(make_run(complete=False)) == "Run(4 chains x 500 draws, 3 parameters, interrupted)"
