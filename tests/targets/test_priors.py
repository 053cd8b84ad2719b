"""Priors of named variables: each family against scipy and differences, hierarchies, bad input.

Samples are tested against their law with 55 Kolmogorov-Smirnov tests at 1e-6 each: together a false alarm has a chance
of less than 1e-4, and the seeds are fixed.
"""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from leapwise.errors import InputError
from leapwise.targets import Density
from leapwise.targets.families import (
    Beta,
    Cauchy,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    LogUniform,
    MultivariateNormal,
    Normal,
    StudentT,
    TruncatedNormal,
    Uniform,
)
from leapwise.targets.family import Family
from leapwise.targets.priors import Prior, ScipyFamily, as_family
from leapwise.targets.transforms import Transform

COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 2.0, -0.4], [0.1, -0.4, 0.5]])

#: Class, arguments as arrays of shape (3,), and scipy's distribution with them.
FAMILIES = {
    "normal": (Normal, ([0.3, -2, 1], [0.5, 3, 1]), lambda m, s: stats.norm(m, s)),
    "log normal": (LogNormal, ([0.3, -2, 1], [0.5, 2, 1]), lambda m, s: stats.lognorm(s, scale=np.exp(m))),
    "half normal": (HalfNormal, ([0.5, 3, 1],), lambda s: stats.halfnorm(scale=s)),
    "half Cauchy": (HalfCauchy, ([0.5, 3, 1],), lambda s: stats.halfcauchy(scale=s)),
    "exponential": (Exponential, ([0.5, 3, 1],), lambda r: stats.expon(scale=1 / r)),
    "gamma": (Gamma, ([0.5, 3, 1], [2, 0.3, 1]), lambda a, r: stats.gamma(a, scale=1 / r)),
    "inverse gamma": (InverseGamma, ([0.5, 3, 1], [2, 0.3, 1]), lambda a, s: stats.invgamma(a, scale=s)),
    "beta": (Beta, ([0.5, 3, 1], [2, 0.7, 1]), lambda a, b: stats.beta(a, b)),
    "uniform": (Uniform, ([-1, 0, 5], [2, 0.7, 6]), lambda low, up: stats.uniform(low, up - low)),
    "log uniform": (LogUniform, ([0.1, 1e-6, 5], [2, 0.7, 6]), lambda low, up: stats.loguniform(low, up)),
    "Student": (StudentT, ([3, 0.7, 50], [0.3, -2, 1], [0.5, 3, 1]), lambda d, m, s: stats.t(d, m, s)),
    "Cauchy": (Cauchy, ([0.3, -2, 1], [0.5, 3, 1]), lambda m, s: stats.cauchy(m, s)),
    "truncated": (
        TruncatedNormal,
        ([0.3, -2, 1], [0.5, 3, 1], [0, -np.inf, 4], [2, 0, np.inf]),
        lambda m, s, low, up: stats.truncnorm((low - m) / s, (up - m) / s, m, s),
    ),
    "truncated far out": (
        TruncatedNormal,
        ([0.0, 9, 0], [1, 1, 2], [6, -2, -1], [7, 0, 1]),
        lambda m, s, low, up: stats.truncnorm((low - m) / s, (up - m) / s, m, s),
    ),
}


@pytest.mark.parametrize("case", FAMILIES, ids=list(FAMILIES))
class TestFamily:
    """What every family of independent entries must do."""

    @pytest.fixture
    def family(self, case) -> Family:
        kind, arguments, _ = FAMILIES[case]
        return kind(*arguments)

    @pytest.fixture
    def reference(self, case):
        _, arguments, scipys = FAMILIES[case]
        return scipys(*(np.asarray(each, dtype=float) for each in arguments))

    @pytest.fixture
    def values(self, reference, rng):
        return reference.ppf(rng.uniform(0.01, 0.99, size=(40, 3)))

    def test_log_density_is_scipys(self, family, reference, values):
        expected = reference.logpdf(values).sum(axis=1)
        np.testing.assert_allclose(family.log_density(values), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(Prior(x=family).log_density(values), expected, rtol=1e-12, atol=1e-12)

    def test_gradient_in_the_value(self, family, values, central_differences):
        lower, upper = family.support
        scale = np.minimum(
            1.0, np.minimum(values - lower, upper - values)
        )  # log-densities bend near the ends
        around, scales = values.repeat(3, axis=0), scale.repeat(3, axis=0)
        expected = central_differences(
            lambda moves: family.log_density(around + moves * scales), np.zeros_like(values)
        )
        found, others = family.gradients(values)
        np.testing.assert_allclose(found * scale, expected, rtol=1e-6, atol=1e-6)
        assert others == {}

    def test_gradient_in_the_arguments(self, case, family, values, central_differences):
        kind, arguments, _ = FAMILIES[case]
        free = [name for name in family.arguments if name not in family.fixed]
        numbers = dict(zip(family.arguments, arguments, strict=True))
        named = kind(**{name: "p" if name in free else numbers[name] for name in numbers}, shape=3)
        given = {name: np.tile(np.asarray(numbers[name], dtype=float), (len(values), 1)) for name in free}
        np.testing.assert_allclose(
            named.log_density(values, **given), family.log_density(values), rtol=1e-13, atol=1e-13
        )
        _, found = named.gradients(values, **given)
        assert list(found) == free
        for name in free:
            expected = central_differences(
                lambda changed, name=name: named.log_density(
                    np.repeat(values, len(changed) // len(values), axis=0),
                    **{
                        key: np.repeat(each, len(changed) // len(values), axis=0)
                        for key, each in given.items()
                    }
                    | {name: changed},
                ),
                given[name],
            )
            np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6)

    def test_one_number_for_all_entries(self, case, family, values):
        kind, arguments, _ = FAMILIES[case]
        single = kind(*(each[0] for each in arguments), shape=3)
        inside = values[:, :1].repeat(3, axis=1)
        free = {name: "p" for name in family.arguments if name not in family.fixed}
        named = kind(
            **dict(zip(family.arguments, (each[0] for each in arguments), strict=True)) | free, shape=3
        )
        rows = {name: np.full(len(values), getattr(single, name)) for name in free}
        full = {name: np.full(values.shape, getattr(single, name)) for name in free}
        np.testing.assert_allclose(named.log_density(inside, **rows), single.log_density(inside), rtol=1e-13)
        for name, slope in named.gradients(inside, **rows)[1].items():
            assert slope.shape == (len(values),)
            np.testing.assert_allclose(
                slope, named.gradients(inside, **full)[1][name].sum(axis=1), rtol=1e-12
            )

    def test_samples_have_its_law(self, family, reference, rng):
        samples = np.stack([family.sample(rng) for _ in range(1000)])
        assert np.isfinite(family.log_density(samples)).all()
        for shares in reference.cdf(samples).T:
            assert stats.kstest(shares, "uniform").pvalue > 1e-6

    def test_support(self, family, reference):
        np.testing.assert_allclose(family.support, np.broadcast_arrays(*reference.support()), rtol=1e-12)
        for i, (lower, upper) in enumerate(zip(*family.support, strict=True)):
            middle = reference.median()
            outside = [end for end in (lower - 1, upper + 1) if np.isfinite(end)]
            edges = [lower, upper, np.nextafter(lower, upper), np.nextafter(upper, lower), 0.0, np.nan, 1e300]
            for place in outside + edges:
                point = middle.copy()
                point[i] = place
                found = family.log_density(point[None])
                assert found.shape == (1,)
                assert not np.isnan(found).any() and found[0] < np.inf
                assert np.isfinite(family.gradients(point[None])[0]).all()
                assert place not in outside or found[0] == -np.inf
            assert np.isfinite(family.log_density(middle[None]))

    def test_arguments_out_of_range_are_quiet(self, case, family, values, rng):
        kind, arguments, _ = FAMILIES[case]
        free = [name for name in family.arguments if name not in family.fixed]
        numbers = dict(zip(family.arguments, arguments, strict=True))
        named = kind(**{name: "p" if name in free else numbers[name] for name in numbers}, shape=3)
        for wrong in (0.0, -1.0, np.nan, np.inf, -np.inf, 5e-324, 1e308):
            given = {name: np.full(len(values), wrong) for name in free}
            found = named.log_density(values, **given)
            assert not np.isnan(found).any() and (found < np.inf).all()
            if wrong <= 0 and family.positive and free:
                assert (found == -np.inf).all()
            in_values, in_arguments = named.gradients(values, **given)
            assert all(np.isfinite(each).all() for each in (in_values, *in_arguments.values()))
            if wrong >= 0:
                assert named.sample(rng, **given | {name: wrong for name in free}).shape == (3,)

    def test_no_rows_and_copies(self, family):
        assert family.log_density(np.empty((0, 3))).shape == (0,)
        prior = Prior(x=family)
        assert prior.gradient(np.empty((0, 3))).shape == (0, 3)
        copy = pickle.loads(pickle.dumps(prior))
        assert repr(copy) == repr(prior)
        assert copy.identity() == prior.identity()
        assert json.loads(json.dumps(prior.identity(), allow_nan=False)) == prior.identity()

    def test_scipys_own_becomes_the_closed_form(self, family, reference):
        found = as_family(reference)
        assert type(found) is type(family)
        for name in family.arguments:
            np.testing.assert_allclose(getattr(found, name), getattr(family, name), rtol=1e-12, atol=1e-12)

    def test_bad_arguments(self, case, family):
        kind, arguments, _ = FAMILIES[case]
        for i, name in enumerate(family.arguments):
            limit = kind is TruncatedNormal and name in family.fixed
            wrong = [np.nan, [1, np.nan, 1], 1j, ["a", "b", "c"], [[1], [1, 2]], {}, [], np.ones(4)]
            wrong += [] if limit else [None, np.inf]
            wrong += [0.0, -1.0, [1, -1, 1]] if name in family.positive else []
            wrong += ["other"] if name in family.fixed else []
            for value in wrong:
                changed = [*arguments]
                changed[i] = value
                with pytest.raises(InputError, match=kind.__name__) as caught:
                    kind(*changed, shape=3)
                assert len(str(caught.value)) < 320

    @pytest.mark.parametrize("shape", [0, -1, 2.0, True, None, "3", (3, 0), 2, (3, 2)], ids=repr)
    def test_bad_shapes(self, case, shape):
        kind, arguments, _ = FAMILIES[case]
        with pytest.raises(InputError, match="shape"):
            kind(*arguments, shape=shape)

    @pytest.mark.parametrize("dims", ["", ("a", "b"), "chain", ["draw"], 3, (3,), ()], ids=repr)
    def test_bad_dims(self, case, dims):
        kind, arguments, _ = FAMILIES[case]
        with pytest.raises(InputError, match=r"dims must be one name for each axis of shape \(3,\)"):
            kind(*arguments, dims=dims)


def test_tags_are_different_and_signatures_alike():
    kinds = {kind for kind, *_ in FAMILIES.values()} | {MultivariateNormal, ScipyFamily}
    assert len({kind.tag for kind in kinds}) == len(kinds)
    for kind in kinds:
        options = [
            each for each in inspect.signature(kind).parameters.values() if each.kind is each.KEYWORD_ONLY
        ]
        assert [each.name for each in options] == ["shape", "dims"]


def test_shapes_and_dims():
    assert Normal(0, 1, shape=np.int64(3)).shape == (3,)
    assert Normal(0, [1, 2]).shape == (2,)
    assert Normal(np.zeros((2, 1)), [1, 2, 3], dims=["a", "b"]).dims == ("a", "b")
    assert Normal([0, 1, 2], 1, shape=(2, 3)).shape == (2, 3)
    grid = Prior(x=Normal(np.arange(6.0).reshape(2, 3), 1))
    np.testing.assert_array_equal(grid.gradient(np.zeros((1, 6)))[0], np.arange(6.0))
    assert grid.names[:2] == ("x[0,0]", "x[0,1]")


def test_later_changes_of_the_arguments_do_not_matter():
    mean, covariance = np.zeros(3), COVARIANCE.copy()
    prior = Prior(a=Normal(mean, 1), b=MultivariateNormal(mean, covariance))
    before = prior.log_density(np.ones((1, 6)))
    mean[:], covariance[:] = 9.0, 9.0
    assert prior.log_density(np.ones((1, 6))) == before


class TestMultivariateNormal:
    MEAN = np.array([0.3, -2, 1])

    def test_log_density_and_gradient(self, rng, central_differences):
        family, points = MultivariateNormal(self.MEAN, COVARIANCE), rng.normal(size=(20, 3))
        expected = stats.multivariate_normal(self.MEAN, COVARIANCE).logpdf(points)
        np.testing.assert_allclose(family.log_density(points), expected, rtol=1e-12)
        expected = central_differences(family.log_density, points)
        np.testing.assert_allclose(family.gradients(points)[0], expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("shape", [(), 3], ids=["one centre", "a centre for each"])
    def test_named_mean(self, rng, central_differences, shape):
        prior = Prior(mu=Normal(0, 1, shape=shape), x=MultivariateNormal("mu", COVARIANCE))
        points = rng.normal(size=(10, prior.dim))
        mu, x = points[:, :-3], points[:, -3:]
        expected = stats.norm.logpdf(mu).sum(axis=1)
        expected = expected + stats.multivariate_normal(np.zeros(3), COVARIANCE).logpdf(x - mu)
        np.testing.assert_allclose(prior.log_density(points), expected, rtol=1e-12)
        expected = central_differences(prior.log_density, points)
        np.testing.assert_allclose(prior.gradient(points), expected, rtol=1e-6, atol=1e-6)

    def test_samples_have_its_law(self, rng):
        family = MultivariateNormal(self.MEAN, COVARIANCE)
        samples = np.stack([family.sample(rng) for _ in range(1000)])
        scores = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (samples - self.MEAN).T)
        for each in scores:
            assert stats.kstest(each, "norm").pvalue > 1e-6

    def test_far_points_are_quiet(self):
        family = MultivariateNormal(self.MEAN, COVARIANCE)
        far = np.array([[1e300, -1e250, 1e200], [np.nan] * 3, [np.inf] * 3])
        np.testing.assert_array_equal(family.log_density(far), -np.inf)
        assert np.isfinite(family.gradients(far)[0]).all()

    def test_scipys(self):
        prior = Prior(x=stats.multivariate_normal(self.MEAN, COVARIANCE))
        assert isinstance(prior.families["x"], MultivariateNormal)
        np.testing.assert_allclose(prior.families["x"].covariance, COVARIANCE, rtol=1e-12)
        assert Prior(x=stats.multivariate_normal(0, 2)).names == ("x[0]",)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: MultivariateNormal(0, "c"), "covariance of MultivariateNormal must be numbers, got 'c'"),
            (lambda: MultivariateNormal(0, np.eye(2), shape=3), "shape"),
            (lambda: MultivariateNormal(0, np.eye(2), shape=(4, 2)), r"must be \(2,\)"),
            (lambda: MultivariateNormal([0, 0, 0], np.eye(2)), "must broadcast"),
            (lambda: MultivariateNormal(np.zeros((2, 2)), np.eye(2)), "must broadcast"),
            (lambda: MultivariateNormal([0, np.nan], np.eye(2)), "mean of MultivariateNormal must be finite"),
            (lambda: MultivariateNormal(0, 2.0), "square matrix"),
            (lambda: MultivariateNormal(0, -np.eye(2)), "positive definite"),
            (lambda: MultivariateNormal(0, np.tri(2)), "symmetric"),
        ],
    )
    def test_bad_input(self, make, words):
        with pytest.raises(InputError, match=words):
            make()


class TestPrior:
    @pytest.fixture
    def prior(self):
        # The variables come in an order in which they cannot be drawn.
        return Prior(
            theta=Normal("mu", "tau", shape=(2, 2), dims=("row", "column")),
            tau=HalfCauchy(2),
            mu=Normal("a", [[1, 2], [3, 4]]),
            a=StudentT("nu", 0, "tau"),
            nu=Gamma(2, 0.1),
        )

    @pytest.fixture
    def points(self, prior, rng):
        return np.stack([prior.sample(rng) for _ in range(30)])

    def test_log_density_by_hand(self, prior, points):
        theta, tau, mu, a, nu = np.split(points, [4, 5, 9, 10], axis=1)
        expected = (
            stats.norm.logpdf(theta, mu, tau).sum(axis=1)
            + stats.halfcauchy.logpdf(tau, scale=2)[:, 0]
            + stats.norm.logpdf(mu, a, [1, 2, 3, 4]).sum(axis=1)
            + stats.t.logpdf(a, nu, 0, tau)[:, 0]
            + stats.gamma.logpdf(nu, 2, scale=10)[:, 0]
        )
        np.testing.assert_allclose(prior.log_density(points), expected, rtol=1e-12)

    def test_gradient(self, prior, points, central_differences):
        points = points[points[:, 4] > 0.1]
        expected = central_differences(prior.log_density, points)
        np.testing.assert_allclose(prior.gradient(points), expected, rtol=1e-6, atol=1e-6)

    def test_layout(self, prior):
        assert isinstance(prior, Density)
        assert prior.dim == 11
        assert prior.names[:6] == ("theta[0,0]", "theta[0,1]", "theta[1,0]", "theta[1,1]", "tau", "mu[0,0]")
        assert [each.shape for each in prior.variables] == [(2, 2), (), (2, 2), (), ()]
        assert prior.variables[0].dims == ("row", "column")
        assert prior.bounds == [(None, None)] * 4 + [(0.0, None)] + [(None, None)] * 5 + [(0.0, None)]
        assert Transform.from_bounds(prior.bounds, prior.dim).lower[4] == 0
        assert prior.parents("theta") == ("mu", "tau")
        assert prior.parents("nu") == ()
        assert Prior(s=HalfNormal(1), x=Gamma("s", "s")).parents("x") == ("s",)
        with pytest.raises(InputError, match=r"no variable 'eta'; it has 'theta', 'tau'"):
            prior.parents("eta")

    def test_locations(self, prior):
        assert list(prior.locations) == ["theta", "mu"]
        assert prior.locations["theta"] == ("mu", "tau")
        mean, sd = prior.locations["mu"]
        assert mean == "a"
        np.testing.assert_array_equal(sd, [[1, 2], [3, 4]])
        assert Prior(a=Normal(0, 1), b=LogNormal("a", 1)).locations == {}

    def test_text(self, prior):
        assert repr(prior) == (
            "Prior(theta=Normal('mu', 'tau', shape=(2, 2), dims=('row', 'column')), tau=HalfCauchy(2), "
            "mu=Normal('a', [[1.0, 2.0], [3.0, 4.0]]), a=StudentT('nu', 0, 'tau'), nu=Gamma(2, 0.1))"
        )
        assert repr(Prior(x=TruncatedNormal(0, 1.5, lower=0))) == "Prior(x=TruncatedNormal(0, 1.5, 0, inf))"
        assert len(repr(Normal(np.arange(1e4), 1))) < 100

    def test_identity(self, prior):
        found = prior.identity()["variables"]
        assert found[0] == {
            "name": "theta",
            "shape": [2, 2],
            "family": "normal",
            "mean": "mu",
            "sd": "tau",
        }
        assert found[2]["sd"] == [[1.0, 2.0], [3.0, 4.0]]
        assert Prior(x=Normal([0, 0], 1)).identity() == Prior(x=Normal(0, 1, shape=2, dims="i")).identity()
        assert Prior(x=Normal(0, 1)).identity() != Prior(x=Cauchy(0, 1)).identity()
        assert Prior(x=TruncatedNormal(0, 1, 0)).identity()["variables"][0]["upper"] is None

    def test_samples_follow_their_parents(self, rng):
        prior = Prior(theta=Normal("mu", "tau", shape=2), tau=Uniform(1, 2), mu=Normal(100, 1))
        samples = np.stack([prior.sample(rng) for _ in range(1000)])
        theta, tau, mu = samples[:, :2], samples[:, 2:3], samples[:, 3:]
        for each in ((theta - mu) / tau).T:
            assert stats.kstest(each, "norm").pvalue > 1e-6
        again = prior.sample(np.random.default_rng(1))
        np.testing.assert_array_equal(again, prior.sample(np.random.default_rng(1)))

    def test_outside_the_support_of_a_parent(self, prior, points):
        for wrong in (0.0, -1.0, np.nan, np.inf):
            outside = points[:3].copy()
            outside[:, 4] = wrong
            np.testing.assert_array_equal(prior.log_density(outside), -np.inf)
            assert np.isfinite(prior.gradient(outside)).all()

    def test_points_are_left_alone_and_rows_do_not_mix(self, prior, points):
        kept = points.copy()
        whole, slopes = prior.log_density(points), prior.gradient(points)
        np.testing.assert_array_equal(points, kept)
        np.testing.assert_allclose([prior.log_density(each[None])[0] for each in points], whole, rtol=1e-13)
        np.testing.assert_allclose(np.concatenate([prior.gradient(each[None]) for each in points]), slopes)

    @pytest.mark.parametrize("points", [np.zeros(11), np.zeros((3, 10)), np.zeros((1, 3, 11)), 0.0])
    def test_bad_points(self, prior, points):
        for function in (prior.log_density, prior.gradient):
            with pytest.raises(InputError, match=r"shape \(n, 11\)"):
                function(points)

    def test_copies(self, prior, points):
        copy = pickle.loads(pickle.dumps(prior))
        np.testing.assert_array_equal(copy.log_density(points), prior.log_density(points))


ODD = {
    "Weibull": stats.weibull_min(1.5, scale=2),
    "shifted gamma": stats.gamma(2.5, loc=1),
    "shifted exponential": stats.expon(-3),
    "wide beta": stats.beta(2, 3, loc=-1, scale=4),
    "Gumbel far from 0": stats.gumbel_r(1e6, 0.1),
    "logistic": stats.logistic([0, 5], [1e-6, 10]),
    "chi2": stats.chi2(5),
}


class TestScipy:
    @pytest.mark.parametrize("name", ODD, ids=list(ODD))
    def test_odd_ones_go_by_differences(self, name, rng):
        reference = ODD[name]
        prior = Prior(x=reference)
        family = prior.families["x"]
        assert isinstance(family, ScipyFamily)
        values = reference.ppf(rng.uniform(0.01, 0.99, size=(20, *family.shape)))
        points = values.reshape(20, -1)
        logs = reference.logpdf(values).reshape(20, -1)
        np.testing.assert_array_equal(prior.log_density(points), logs.sum(axis=1))
        low, high = (np.broadcast_to(end, family.shape).ravel() for end in reference.support())
        np.testing.assert_array_equal(np.stack(family.support).reshape(2, -1), [low, high])
        # By Richardson's rule, with another step.
        spread = np.broadcast_to(reference.ppf(0.75) - reference.ppf(0.25), family.shape)
        to_end = np.minimum(values - family.support[0], family.support[1] - values)
        step = 1e-3 * np.minimum(spread, to_end)
        one, two = (
            (reference.logpdf(values + k * step) - reference.logpdf(values - k * step))
            / ((values + k * step) - (values - k * step))
            for k in (1, 2)
        )
        expected = ((4 * one - two) / 3 * spread).reshape(20, -1)
        found = prior.gradient(points) * spread.ravel()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", ODD, ids=list(ODD))
    def test_odd_ones_elsewhere(self, name, rng):
        reference = ODD[name]
        prior = Prior(x=reference)
        samples = np.stack([prior.sample(rng) for _ in range(500)])
        for shares in (
            np.asarray(reference.cdf(samples.reshape(500, *np.shape(reference.mean())))).reshape(500, -1).T
        ):
            assert stats.kstest(shares, "uniform").pvalue > 1e-6
        for place in (
            -1e12,
            1e300,
            np.nan,
            np.inf,
            *(end for ends in prior.bounds for end in ends if end is not None),
        ):
            point = np.full((1, prior.dim), place)
            assert not np.isnan(prior.log_density(point)).any()
            assert np.isfinite(prior.gradient(point)).all()
        copy = pickle.loads(pickle.dumps(prior))
        np.testing.assert_array_equal(copy.log_density(samples), prior.log_density(samples))
        assert json.loads(json.dumps(prior.identity(), allow_nan=False)) == copy.identity()

    def test_histograms_are_told_apart(self, rng):
        first, second = (
            stats.rv_histogram(np.histogram(rng.gamma(2.0, size=300)), density=True)() for _ in range(2)
        )
        assert Prior(x=first).identity() != Prior(x=second).identity()
        assert Prior(x=first).dim == 1

    def test_parents_and_positional_arguments(self, rng):
        prior = Prior(s=stats.weibull_min(1.5, 0, 2), x=Normal(0, "s", shape=2), y=stats.lognorm(0.5, 0, 3))
        assert repr(prior.families["y"]) == "LogNormal(1.09861228867, 0.5)"
        assert repr(prior.families["s"]) == "weibull_min(1.5, 0, 2)"
        point = prior.sample(rng)[None]
        expected = stats.weibull_min(1.5, 0, 2).logpdf(point[:, 0]) + stats.norm(0, point[:, :1]).logpdf(
            point[:, 1:3]
        ).sum(axis=1)
        expected = expected + stats.lognorm(0.5, 0, 3).logpdf(point[:, 3])
        np.testing.assert_allclose(prior.log_density(point), expected, rtol=1e-12)

    def test_names_alone_do_not_make_it_scipys(self):
        class Odd(stats.rv_continuous):
            def _pdf(self, x):
                return 2 * x

        family = as_family(Odd(a=0, b=1, name="norm")())
        assert isinstance(family, ScipyFamily)
        np.testing.assert_allclose(family.gradients(np.array([0.5]))[0], 2.0, rtol=1e-6)

    def test_arrays_give_the_shape(self):
        assert Prior(x=stats.expon(loc=[0, 0], scale=2)).dim == 2
        assert Prior(x=stats.weibull_min([1, 2, 3], scale=[[1], [2]])).variables[0].shape == (2, 3)

    def test_only_its_users_import_it(self):
        code = """
import sys
from leapwise.targets.families import Normal
from leapwise.targets.priors import Prior
print(Prior(a=Normal(0, 1)).dim, "scipy.stats" in sys.modules)
"""
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.split() == ["1", "False"]


CHAIN = {"a": Normal("b", 1), "b": Normal("c", 1), "c": Normal("a", 1)}
BAD = {
    "nothing": (lambda: Prior(), "at least one variable"),
    "chain": (lambda: Prior(chain=Normal(0, 1)), "chain"),
    "draw": (lambda: Prior(draw=Normal(0, 1)), "draw"),
    "a space": (lambda: Prior(**{"a b": Normal(0, 1)}), "'a b'"),
    "an index": (lambda: Prior(**{"a[0]": Normal(0, 1)}), "letters, digits"),
    "a number": (lambda: Prior(a=1.0), "a: a variable must be a family.*got 1.0"),
    "a class": (lambda: Prior(a=Normal), "a: a variable must be a family"),
    "a bound": (lambda: Prior(a=(0, 1)), "a: a variable must be a family"),
    "a kde": (lambda: Prior(a=stats.gaussian_kde([1, 2, 4])), "a: a variable must be a family"),
    "itself": (lambda: Prior(a=Normal("a", 1)), "mean of a names a itself"),
    "unknown": (lambda: Prior(a=Normal("mu", 1), b=Normal(0, 1)), "names 'mu', but the variables are a, b;"),
    "a number as a name": (lambda: Prior(a=Normal("0.5", 1)), "mean of a names '0.5', but .*give a number"),
    "no name": (lambda: Prior(a=Normal("", 1)), "names ''"),
    "circle": (lambda: Prior(**CHAIN), "circle, got [abc] -> [abc] -> [abc] -> [abc]"),
    "named limit": (lambda: Uniform(0, "b"), "upper of Uniform must be numbers, got 'b'"),
    "named log limit": (lambda: LogUniform("b", 1), "lower of LogUniform must be numbers"),
    "named cut": (lambda: TruncatedNormal(0, 1, lower="b"), "lower of TruncatedNormal must be numbers"),
    "signed sd": (lambda: Prior(a=Normal(0, 1), b=Normal(0, "a")), "sd of b must be positive, but a=Normal"),
    "signed df": (lambda: Prior(a=Uniform(-1, 1), b=StudentT("a", 0, 1)), "df of b must be positive"),
    "signed alpha": (lambda: Prior(a=stats.gumbel_r(), b=Beta("a", 1)), "alpha of b must be positive"),
    "one signed": (
        lambda: Prior(a=Uniform([0, -1], 1), b=Normal(0, "a", shape=2)),
        "sd of b must be positive",
    ),
    "long parent": (
        lambda: Prior(mu=Normal(0, 1, shape=8), a=Normal("mu", 1)),
        r"mean of a names mu.*shape \(\) of a, got shape \(8,\); give a the shape \(8,\)",
    ),
    "other shape": (
        lambda: Prior(mu=Normal(0, 1, shape=3), a=Normal("mu", 1, shape=(2, 3))),
        r"got shape \(3,\)",
    ),
    "inverted": (lambda: Prior(a=Uniform(1, 0)), "Uniform needs lower < upper, got 1 and 0"),
    "one inverted": (lambda: Prior(a=LogUniform([1, 2], [3, 2])), "got 2 and 2"),
    "cut off": (lambda: TruncatedNormal(0, 1, 1, 1), "TruncatedNormal needs lower < upper"),
    "infinite on the wrong side": (lambda: TruncatedNormal(0, 1, np.inf), "got inf and inf"),
    "no mass": (lambda: TruncatedNormal(0, 1e-200, 1, 2), "no mass between its limits"),
    "dim is a variable": (
        lambda: Prior(i=Normal(0, 1), a=Normal(0, 1, shape=2, dims="i")),
        "name of a variable",
    ),
    "two lengths": (
        lambda: Prior(a=Normal(0, 1, shape=2, dims="i"), b=Normal(0, 1, shape=3, dims="i")),
        "'i' with 3 entries and with 2 elsewhere",
    ),
    "discrete": (lambda: Prior(n=stats.poisson(3)), "n: .*continuous, got the discrete poisson"),
    "discrete, not frozen": (lambda: Prior(n=stats.poisson), "got the discrete poisson"),
    "not frozen": (lambda: Prior(a=stats.norm), r"got norm .*as in stats.norm\(...\)"),
    "odd, not frozen": (lambda: Prior(a=stats.weibull_min), "got weibull_min of scipy.stats without"),
    "vector, not frozen": (lambda: Prior(a=stats.multivariate_normal), "got multivariate_normal of"),
    "other vector": (lambda: Prior(a=stats.dirichlet([1, 2])), "a: a variable must be a family"),
    "negative scale": (lambda: Prior(a=stats.norm(0, -1)), "a: scale of norm must be positive, got -1"),
    "zero scale": (lambda: Prior(a=stats.expon(scale=0)), "scale of expon must be positive"),
    "NaN shape": (lambda: Prior(a=stats.gamma(np.nan)), "a: alpha of Gamma must be finite"),
    "negative odd": (lambda: Prior(a=stats.weibull_min(-1)), "weibull_min.*does not accept"),
    "negative odd scale": (lambda: Prior(a=stats.logistic(0, -1)), "scale of logistic must be positive"),
    "singular": (
        lambda: Prior(a=stats.multivariate_normal([0, 0], np.ones((2, 2)), allow_singular=True)),
        "a: covariance must be positive definite",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=list(BAD))
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert len(str(caught.value)) < 300
