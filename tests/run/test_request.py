"""What `sample` is asked for is checked before anything is evaluated."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import HMC, RMHMC, DenseMetric, DiagonalMetric, Target, UnitMetric
from leapwise.errors import InputError
from leapwise.problems.shapes import gumbel
from leapwise.run.request import Request, read_seed


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
    """A Euclidean metric of somebody else's."""

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
        ({"method": HMC}, r"such as Auto\(\), HMC\(\), .* got the class HMC"),
        ({"method": "hmc"}, r"such as Auto\(\), HMC\(\), .* got 'hmc'"),
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
