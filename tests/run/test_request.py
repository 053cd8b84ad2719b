"""Requests are checked before anything is evaluated; settings and versions are plain values that can be stored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest

import leapwise as lw
from leapwise import HMC, RMHMC, DenseMetric, DiagonalMetric, Target, UnitMetric
from leapwise.errors import InputError
from leapwise.problems.shapes import gumbel
from leapwise.run import request as module
from leapwise.run.request import Request, describe, read_seed, versions


class Probe:
    """A standard normal that must not be called."""

    def __init__(self, **settings):
        self.target = Target(self.refuse, self.refuse, dim=2, **settings)

    def refuse(self, x):
        raise AssertionError("evaluated")


def check(**changes):
    good = {
        "target": Probe().target,
        "draws": 10,
        "tune": 100,
        "chains": 4,
        "random_seed": 1,
        "method": HMC(),
        "init": None,
        "max_evaluations": None,
    }
    given = good | changes
    seed = read_seed(given.pop("random_seed"))
    Request(**given, seed=seed).check()
    return seed


class Scaled:
    """A Euclidean metric that a user wrote."""

    def momentum(self, normals):
        return normals

    def velocity(self, momentum):
        return momentum @ np.eye(2)

    def mass_times(self, vector):
        return vector


class Inexact:
    is_exact = False

    def step(self, streams, state, evaluator):
        raise AssertionError("stepped")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": lambda x: x}, "got function; wrap your function in Target"),
        ({"target": gumbel()}, "got Problem; pass problem.target"),
        ({"target": Target}, "must be a Target or ForwardTarget"),
        ({"target": Target(lambda x: 0.0, dim=2)}, "HMC needs the gradient"),
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"draws": 10.0}, "draws must be a whole number of at least 1, got 10.0"),
        ({"draws": True}, "draws must be a whole number of at least 1, got True"),
        ({"tune": -1}, "tune must be a whole number of at least 0, got -1"),
        ({"tune": 19}, "tune must be at least 20"),
        ({"chains": 0}, "chains must be a whole number of at least 1, got 0"),
        ({"chains": "4"}, "chains must be a whole number of at least 1, got '4'"),
        ({"random_seed": -1}, "random_seed must be a whole number of at least 0, got -1"),
        ({"random_seed": 1.5}, "random_seed must be a whole number of at least 0, got 1.5"),
        ({"random_seed": np.random.default_rng(1)}, "random_seed must be a whole number"),
        ({"method": HMC}, r"a method, for example Auto\(\) or HMC\(\), got the class HMC"),
        ({"method": "hmc"}, r"a method, for example Auto\(\) or HMC\(\), got 'hmc'"),
        ({"method": Inexact()}, "Inexact does not declare that it is exact"),
        ({"method": HMC([0.1, 0.2], 5)}, r"one for each of the 4 chains, got shape \(2,\)"),
        ({"method": HMC(0.1, 5, metric=DiagonalMetric(np.ones(3)))}, "DiagonalMetric .* 2 parameters"),
        ({"method": HMC(0.1, 5, metric=DenseMetric(np.eye(3)))}, "DenseMetric .* 2 parameters"),
        ({"method": HMC(metric=DenseMetric(np.eye(1)))}, "DenseMetric .* 2 parameters"),
        ({"init": [1.0, 2.0, 3.0]}, r"init must have shape \(2,\)"),
        ({"init": "zeros"}, "init must be an array of real numbers, got 'zeros'"),
    ],
)
def test_what_is_wrong_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        check(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": HMC([0.1, 0.2, 0.3, 0.4], 5)},
        {"method": HMC(0.1, 5, metric=DenseMetric(np.eye(2)))},
        {"method": HMC(0.1, 5, metric=DiagonalMetric(np.ones(2)))},
        {"method": HMC(metric=UnitMetric())},
        {"method": HMC(metric=Scaled())},
        {"method": HMC(0.1, 5), "tune": 0},
        {"init": [1.0, 2.0]},
        {"init": np.zeros((4, 2))},
        {"draws": np.int64(1), "chains": np.int16(4)},
    ],
)
def test_what_is_right_is_not(changes):
    assert check(**changes) == 1


def test_no_seed_is_a_fresh_one_each_time():
    seeds = {check(random_seed=None) for _ in range(20)}
    assert len(seeds) == 20
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds), (
        "they fit where integers have 64 bits"
    )


def test_a_riemannian_metric_is_not_evaluated():
    class Metric:
        def at(self, position):
            raise AssertionError("evaluated")

    assert check(method=RMHMC(0.1, 5, metric=Metric())) == 1


class Flat:
    """The identity as a Riemannian metric."""

    def at(self, position):
        return FlatAt(position)


class FlatAt:
    def __init__(self, position):
        n, dim = position.shape
        self.matrix = self.cholesky = np.broadcast_to(np.eye(dim), (n, dim, dim))

    def quadratic_contraction(self, velocity):
        return np.zeros_like(velocity)

    def trace_contraction(self):
        return np.zeros(self.matrix.shape[:2])


@dataclass
class WithData(Flat):
    """A metric that holds its user's data."""

    data: np.ndarray = field(default_factory=lambda: np.zeros((1000, 50)))
    prior_sd: float = 10.0
    ragged: tuple = ((1, 2), [3])
    function: object = len


FIXED = lw.HMC(0.5, 3)
METHODS = {
    "tuned": lw.HMC(),
    "unit": lw.HMC(0.5, 3, metric="unit"),
    "range": lw.HMC(0.5, (1, 3)),
    "NumPy numbers": lw.HMC(np.float32(0.5), np.int64(3)),
    "a step size for each chain": lw.HMC([0.4, 0.5], 3),
    "time": lw.HMC(0.5, trajectory_length=np.float64(1.5)),
    "diagonal": lw.HMC(metric="diagonal"),
    "dense": lw.HMC(metric="dense"),
    "unit object": lw.HMC(metric=lw.UnitMetric()),
    "diagonal object": lw.HMC(metric=lw.DiagonalMetric([1.0, 2.0])),
    "dense object": lw.HMC(metric=lw.DenseMetric(np.eye(2))),
    "riemannian": lw.RMHMC(0.5, 2, metric=Flat()),
    "riemannian tuned": lw.RMHMC(n_steps=2, metric=Flat()),
    "riemannian with data": lw.RMHMC(0.5, 2, metric=WithData()),
}


def short(method=FIXED, **settings):
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2, **settings)
    return lw.sample(target, draws=8, tune=20, chains=2, method=method, random_seed=1)


@pytest.mark.parametrize("name", METHODS)
def test_settings_survive_json(name):
    run = short(METHODS[name])
    assert json.loads(json.dumps(run.settings, allow_nan=False)) == run.settings
    assert run.settings["method"] == type(METHODS[name]).__name__
    assert (run.settings["tune"], run.settings["on_failure"], run.settings["retries"]) == (20, "raise", 1)
    assert run.settings["step_size"] is not None
    assert len(json.dumps(run.settings)) < 2000, "settings, not data"


@pytest.mark.parametrize("method", [lw.Auto(), lw.Auto(lw.QuadraticNetwork(50))], ids=["chosen", "given"])
def test_a_self_tuned_run_tells_what_it_chose(method):
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    run = lw.sample(target, draws=8, chains=2, method=method, max_evaluations=300, random_seed=1)
    assert json.loads(json.dumps(run.settings, allow_nan=False)) == run.settings
    assert (run.settings["method"], run.settings["max_evaluations"]) == ("Auto", 300)
    for name in ("step_size", "trajectory_length", "inner_steps"):
        assert run.settings[name] == getattr(run.kernel, name)
    np.testing.assert_array_equal(run.settings["metric"]["covariance"], run.kernel.metric.covariance)
    if method.surrogate is None:
        assert run.settings["surrogate"] is None, "what was given; the report says what was chosen"
    else:
        assert run.settings["surrogate"]["n_hidden"] == 50
    assert len(json.dumps(run.settings)) < 2000, "settings, not data"


def test_settings_given_as_numpy_numbers_survive_json():
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    run = lw.sample(
        target,
        draws=2,
        tune=np.int64(60),
        chains=2,
        random_seed=np.int64(1),
        max_evaluations=np.int64(200),
        retries=np.int64(2),
    )
    assert json.loads(json.dumps(run.settings)) == run.settings
    assert json.dumps(run.seed) == "1"


def test_settings_make_the_same_kernel_again():
    settings = short(lw.HMC()).settings
    kernel = lw.HMC(
        settings["step_size"],
        trajectory_length=settings["trajectory_length"],
        jitter=settings["jitter"],
        metric=lw.DenseMetric(settings["metric"]["covariance"]),
    )
    assert describe(kernel) == {key: settings[key] for key in describe(kernel)}


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lw.UnitMetric(), "UnitMetric"),
        (lw.DiagonalMetric([1.0, 2.0]), {"variance": [1.0, 2.0]}),
        (lw.DenseMetric([[1.0, 0.5], [0.5, 1.0]]), {"covariance": [[1.0, 0.5], [0.5, 1.0]]}),
    ],
)
def test_metrics_are_told_in_full(metric, told):
    assert describe(lw.HMC(0.1, 5, metric=metric))["metric"] == told


def test_data_are_told_by_their_shape():
    told = describe(lw.RMHMC(0.1, 5, metric=WithData()))
    assert told["metric"] == {
        "data": "array of shape (1000, 50)",
        "prior_sd": 10.0,
        "ragged": [[1, 2], [3]],
        "function": "len",
    }
    assert told["solver"]["max_iterations"] > 0


def test_a_kernel_that_is_no_dataclass_is_told_by_its_name():
    class Mine:
        pass

    assert describe(Mine()) == {"method": "Mine"}


def test_versions_are_those_installed():
    found = versions()
    assert found["leapwise"] == lw.__version__
    assert found["numpy"] == np.__version__
    assert set(found) == {"python", "leapwise", "numpy", "scipy", "arviz-base", "arviz-stats"}


def test_a_missing_version_loses_no_run(monkeypatch):
    def missing(package):
        raise module.PackageNotFoundError(package)

    monkeypatch.setattr(module, "version", missing)
    assert short().versions["numpy"] == "unknown"


@pytest.mark.parametrize("name", ["tuned", "riemannian"])
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_a_real_run_goes_to_arviz_and_to_disk_and_back(name, names, tmp_path):
    pytest.importorskip("h5netcdf", reason="saving needs the extra netcdf")
    import xarray

    run = short(METHODS[name], names=names, bounds=[(0, None), (-5, 5)])
    tree = run.to_datatree()
    with xarray.open_datatree(run.save(tmp_path / "run.nc"), engine="h5netcdf") as saved:
        for found in (tree, saved):
            posterior = found["posterior"]
            draws = np.stack([posterior[each] for each in names], axis=2) if names else posterior["x"]
            np.testing.assert_array_equal(draws, run.draws)
            for stat, values in run.posterior.stats.items():
                np.testing.assert_array_equal(found["sample_stats"][stat], values)
            assert found["warmup_posterior"].sizes["draw"] == 20
            assert json.loads(posterior.attrs["settings"]) == run.settings
            assert posterior.attrs["random_seed"] == "1"
            assert posterior.attrs["n_gradients"] == run.posterior.cost.n_gradients
