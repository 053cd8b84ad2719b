"""A gradient that is not that of the log-density stops the run at once; a correct one never does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import GradientError, OutputError
from leapwise.problems import banana, gaussian, gumbel
from leapwise.warmup.gradient_check import check_density

WRONG = {
    "sign": lambda x: x,
    "twice": lambda x: -2.0 * x,
    "half": lambda x: -0.5 * x,
    "a hundred times": lambda x: -100.0 * x,
    "zero": lambda x: 0.0 * x,
    "one component missing": lambda x: -x * np.array([0.0, 1.0, 1.0]),
    "components swapped": lambda x: -x[::-1],
}


METHODS = {"HMC": (lw.HMC(), 20), "Auto": (lw.Auto(lw.QuadraticNetwork()), 60)}
every_method = pytest.mark.parametrize(("method", "tune"), METHODS.values(), ids=list(METHODS))


@every_method
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gradient_is_named(name, method, tune):
    target = lw.Target(lambda x: -0.5 * x @ x, WRONG[name], dim=3)
    with pytest.raises(GradientError, match="compare it with finite differences") as caught:
        lw.sample(target, draws=1, tune=tune, chains=2, random_seed=1, init=[1.5, 1.0, -0.5], method=method)
    assert caught.value.run.cost.n_exact < 100, "before much is spent"


@pytest.mark.parametrize("seed", range(10))
def test_a_kink_or_an_edge_near_the_start_is_no_mistake(seed):
    """The error of the trapezoidal rule over a kink is as large as that of a wrong gradient, but not everywhere."""
    sharp = lw.Target(
        lambda x: -np.abs(x).sum() if x[1] < 0.02 else -np.inf,
        lambda x: -np.sign(x),
        dim=2,
    )
    start = np.random.default_rng(seed).uniform(-0.02, 0.02, 2)
    lw.sample(sharp, draws=1, tune=20, chains=1, random_seed=seed, init=start, method=lw.HMC())


@every_method
@pytest.mark.parametrize("make", [gaussian, gumbel, banana])
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 25), marks=pytest.mark.slow)], ids=str)
def test_a_correct_gradient_never_raises(make, method, tune, seeds):
    target = make().target
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            lw.sample(target, draws=1, tune=tune + 4 * target.dim, chains=1, random_seed=seed, method=method)


@every_method
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_neither_scale_nor_offset_alarm(scale, offset, method, tune):
    target = lw.Target(lambda x: offset - 0.5 * x @ x / scale**2, lambda x: -x / scale**2, dim=5)
    options = {"draws": 1, "tune": tune, "chains": 1, "random_seed": 1, "method": method}
    lw.sample(target, init=np.full(5, 2.0 * scale), **options)
    lw.sample(target, init=np.zeros(5), **options)


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
    target = lw.ForwardTarget(lambda x: x - 1.0, likelihood, prior)
    if wrong is None:
        lw.sample(target, draws=5, chains=2, random_seed=1)
        return
    with pytest.raises(GradientError, match=f"of the {part} does not match its log-density") as caught:
        lw.sample(target, draws=5, chains=2, random_seed=1)
    assert caught.value.run.cost.n_exact <= 4


class StudentT:
    """With four degrees of freedom; scales may be far smaller than what is measured."""

    def __init__(self, centre, scale):
        self.centre, self.scale = centre, scale

    def log_density(self, x):
        return -2.5 * np.log1p(((x - self.centre) / self.scale) ** 2 / 4).sum(axis=1)

    def gradient(self, x):
        z = (x - self.centre) / self.scale
        return -1.25 * z / (1 + z**2 / 4) / self.scale


class Laplace:
    def log_density(self, x):
        return -np.abs(x).sum(axis=1) / 1e-3

    def gradient(self, x):
        return np.where(x >= 0, -1.0, 1.0) / 1e-3


class Stairs:
    """Constant between whole numbers."""

    def log_density(self, x):
        return np.sin(np.floor(x)).sum(axis=1)

    def gradient(self, x):
        return np.zeros_like(x)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e-5, 1e-3, 1.0, 1e6])
def test_a_kinked_or_stiff_density_is_no_mistake(scale, seed):
    rng = np.random.default_rng(seed)
    white = rng.standard_normal((4, 5))
    for centre in (0.0, 1e6):
        for off in (0.0, 0.01, 1.0, 5.0):
            check_density("prior", StudentT(centre, scale), centre + off * scale * white)
    check_density("prior", Laplace(), scale * white * (white > 0))  # many begin at the kink
    check_density("prior", Stairs(), np.round(white) + 10.0)
    for sd in (1e-6, 1.0, 1e3):
        check_density("likelihood", lw.GaussianLikelihood(np.full(5, scale), sd=sd), white)
        check_density(
            "likelihood", lw.GaussianLikelihood(white[0], sd=sd), white[:1]
        )  # nothing changes there
    check_density("prior", lw.UniformPrior(np.zeros(5), np.ones(5)), white)  # outside most of them


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dim", [2, 4, 10, 15])
def test_one_wrong_component_of_several_is_named(dim, seed):
    """By one chain or another, whatever the seed: a fortune in gradients would be spent on it."""
    wrong = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x * (np.arange(dim) > 0), dim=dim)
    with pytest.raises(GradientError):
        lw.sample(wrong, draws=1, random_seed=seed)


BAD_GRADIENTS = {
    "one row": (lambda x: -x[0], OutputError, r"likelihood.gradient must return shape \(2, 3\)"),
    "an error": (lambda x: 1 // 0, OutputError, "likelihood.gradient raised ZeroDivisionError"),
    "nothing": (lambda x: None, OutputError, "likelihood.gradient must return real numbers"),
    "NaN": (
        lambda x: np.nan * x,
        GradientError,
        "the gradient of the likelihood is NaN where its log-density is",
    ),
}


@pytest.mark.parametrize("name", BAD_GRADIENTS)
def test_a_likelihoods_gradient_of_another_form_is_named(name):
    gradient, error, said = BAD_GRADIENTS[name]
    target = lw.ForwardTarget(lambda x: x - 1.0, Normal(gradient), Normal(dim=3))
    with pytest.raises(error, match=said) as caught:
        lw.sample(target, draws=5, chains=2, random_seed=1)
    assert caught.value.run.cost.n_exact <= 4


def test_a_density_that_will_not_be_asked_near_by_is_left_in_peace():
    class Proud(Normal):
        def log_density(self, x):
            if not (x == np.round(x)).all():
                raise ValueError("whole numbers only")
            return super().log_density(x)

    check_density("likelihood", Proud(lambda x: x), np.array([[1.0, 2.0]]))
