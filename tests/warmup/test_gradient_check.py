"""A gradient that is not that of the log-density stops the run at once; a right one never does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import understudy as us
from understudy.errors import GradientError
from understudy.problems import banana, gaussian, gumbel
from understudy.warmup.gradient_check import check_density

WRONG = {
    "sign": lambda x: x,
    "twice": lambda x: -2.0 * x,
    "half": lambda x: -0.5 * x,
    "a hundred times": lambda x: -100.0 * x,
    "zero": lambda x: 0.0 * x,
    "one component missing": lambda x: -x * np.array([0.0, 1.0, 1.0]),
    "components swapped": lambda x: -x[::-1],
}


METHODS = {"HMC": (us.HMC(), 20), "Auto": (us.Auto(us.QuadraticNetwork()), 60)}
every_method = pytest.mark.parametrize(("method", "tune"), METHODS.values(), ids=list(METHODS))


@every_method
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_named(name, method, tune):
    target = us.Target(lambda x: -0.5 * x @ x, WRONG[name], dim=3)
    with pytest.raises(GradientError, match="compare it with finite differences") as caught:
        us.sample(target, draws=1, tune=tune, chains=2, random_seed=1, init=[1.5, 1.0, -0.5], method=method)
    assert caught.value.run.cost.n_exact < 100, "before much is spent"


@pytest.mark.parametrize("seed", range(10))
def test_a_kink_or_an_edge_near_the_start_is_no_mistake(seed):
    """The error of the trapezoidal rule over a kink is as large as that of a wrong gradient, but not everywhere."""
    sharp = us.Target(
        lambda x: -np.abs(x).sum() if x[1] < 0.02 else -np.inf,
        lambda x: -np.sign(x),
        dim=2,
    )
    start = np.random.default_rng(seed).uniform(-0.02, 0.02, 2)
    us.sample(sharp, draws=1, tune=20, chains=1, random_seed=seed, init=start, method=us.HMC())


@every_method
@pytest.mark.parametrize("make", [gaussian, gumbel, banana])
def test_a_right_gradient_is_not(make, method, tune):
    target = make().target
    for seed in range(25 if tune == 20 else 5):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            us.sample(target, draws=1, tune=tune + 4 * target.dim, chains=1, random_seed=seed, method=method)


@every_method
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_neither_scale_nor_offset_alarm(scale, offset, method, tune):
    target = us.Target(lambda x: offset - 0.5 * x @ x / scale**2, lambda x: -x / scale**2, dim=5)
    options = {"draws": 1, "tune": tune, "chains": 1, "random_seed": 1, "method": method}
    us.sample(target, init=np.full(5, 2.0 * scale), **options)
    us.sample(target, init=np.zeros(5), **options)


class Normal:
    """A standard normal whose gradient is what it is told, and dim if it is a prior."""

    def __init__(self, wrong=lambda x: -x, **known):
        self.gradient = wrong
        vars(self).update(known)

    def log_density(self, x):
        return -0.5 * (x**2).sum(axis=1)

    def sample(self, rng):
        return rng.standard_normal(3)


WRONG_ROWS = {
    "sign": lambda x: x,
    "half": lambda x: -0.5 * x,
    "zero": lambda x: 0.0 * x,
    "one component missing": lambda x: -x * np.array([0.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("wrong", [None, *WRONG_ROWS])
@pytest.mark.parametrize("part", ["likelihood", "prior"])
def test_a_wrong_gradient_of_a_likelihood_or_prior_of_ones_own_is_named(part, wrong):
    """Before anything but the starts has been paid for."""
    gradient = {part: WRONG_ROWS[wrong]} if wrong else {}
    right = lambda x: -x  # noqa: E731
    likelihood = Normal(gradient.get("likelihood", right))
    prior = Normal(gradient.get("prior", right), dim=3)
    target = us.ForwardTarget(lambda x: x - 1.0, likelihood, prior)
    if wrong is None:
        us.sample(target, draws=5, chains=2, random_seed=1)
        return
    with pytest.raises(GradientError, match=f"of the {part} does not match its log-density") as caught:
        us.sample(target, draws=5, chains=2, random_seed=1)
    assert caught.value.run.cost.n_exact <= 4


def test_a_kinked_or_stiff_density_is_no_mistake():
    class Laplace:
        def log_density(self, x):
            return -np.abs(x).sum(axis=1) / 1e-3

        def gradient(self, x):
            return -np.sign(x) / 1e-3

    points = np.random.default_rng(0).standard_normal((3, 50))
    points[0, 0] = 0.0
    check_density("prior", Laplace(), points)
    check_density("likelihood", us.GaussianLikelihood(np.full(50, 1e3), sd=1e-6), points)
    check_density("likelihood", us.GaussianLikelihood(points[0], sd=1.0), points[:1])  # nothing changes there
    check_density("prior", us.UniformPrior(np.zeros(50), np.ones(50)), points)  # outside all of them
