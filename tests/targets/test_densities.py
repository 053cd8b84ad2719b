"""Likelihoods and priors: against scipy.stats, against differences, and against bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leapwise.errors import InputError
from leapwise.targets import Density, GaussianLikelihood, NormalPrior, UniformPrior

DATA = np.array([0.3, -1.2, 2.0])
SDS = np.array([0.1, 1.0, 3.0])
COVARIANCE = np.array([[1.0, 0.6, 0.1], [0.6, 2.0, -0.4], [0.1, -0.4, 0.5]])

DENSITIES = {
    "one sd": (GaussianLikelihood(DATA, 0.7), stats.multivariate_normal(DATA, 0.49 * np.eye(3))),
    "sds": (GaussianLikelihood(DATA, SDS), stats.multivariate_normal(DATA, np.diag(SDS**2))),
    "covariance": (
        GaussianLikelihood(DATA, covariance=COVARIANCE),
        stats.multivariate_normal(DATA, COVARIANCE),
    ),
    "normal prior": (NormalPrior(DATA, SDS), stats.multivariate_normal(DATA, np.diag(SDS**2))),
    "standard prior": (NormalPrior(0, 1, dim=3), stats.multivariate_normal(np.zeros(3), np.eye(3))),
}


@pytest.fixture(params=DENSITIES, ids=list(DENSITIES))
def pair(request):
    return DENSITIES[request.param]


def test_log_density_is_scipys(pair, rng):
    ours, reference = pair
    points = rng.normal(scale=3.0, size=(20, 3))
    np.testing.assert_allclose(ours.log_density(points), reference.logpdf(points), rtol=1e-11)


def test_gradient_is_that_of_the_log_density(pair, rng, central_differences):
    ours, _ = pair
    points = rng.normal(size=(20, 3))
    expected = central_differences(ours.log_density, points)
    np.testing.assert_allclose(ours.gradient(points), expected, rtol=1e-6, atol=1e-6)


def test_densities_fit_the_protocol_and_take_no_rows(pair):
    ours, _ = pair
    assert isinstance(ours, Density)
    assert ours.log_density(np.empty((0, 3))).shape == (0,)
    assert ours.gradient(np.empty((0, 3))).shape == (0, 3)


def test_points_are_left_alone(pair, rng):
    ours, _ = pair
    points = rng.normal(size=(4, 3))
    kept = points.copy()
    ours.log_density(points)
    ours.gradient(points)
    np.testing.assert_array_equal(points, kept)


def test_rows_do_not_mix(pair, rng):
    ours, _ = pair
    points = rng.normal(size=(6, 3))
    one_by_one = np.concatenate([ours.log_density(point[None]) for point in points])
    np.testing.assert_allclose(ours.log_density(points), one_by_one, rtol=1e-14)


def test_far_points_are_quiet(pair):
    ours, _ = pair
    far = np.array([[1e300, -1e250, 1e200]])
    assert ours.log_density(far)[0] == -np.inf
    assert np.isfinite(ours.gradient(far)).all()


def test_nan_outputs_give_nan_not_an_error(pair):
    ours, _ = pair
    assert np.isnan(ours.log_density(np.full((1, 3), np.nan)))[0]


def test_three_ways_to_say_the_same_errors(rng):
    points = rng.normal(size=(5, 3))
    same = [
        GaussianLikelihood(DATA, 0.5),
        GaussianLikelihood(DATA, [0.5, 0.5, 0.5]),
        GaussianLikelihood(DATA, covariance=0.25 * np.eye(3)),
    ]
    for likelihood in same:
        np.testing.assert_allclose(likelihood.log_density(points), same[0].log_density(points), rtol=1e-13)
        np.testing.assert_allclose(likelihood.gradient(points), same[0].gradient(points), rtol=1e-13)
        np.testing.assert_allclose(likelihood.sd, 0.5)


def test_later_changes_of_the_data_do_not_matter():
    data, sd, covariance = DATA.copy(), SDS.copy(), COVARIANCE.copy()
    densities = [
        GaussianLikelihood(data, sd),
        GaussianLikelihood(data, covariance=covariance),
        NormalPrior(data, sd),
    ]
    points = np.ones((1, 3))
    before = [density.log_density(points) for density in densities]
    data[:], sd[:], covariance[:] = 9.0, 9.0, 9.0
    assert [density.log_density(points) for density in densities] == before


def test_uniform_prior_is_scipys(rng):
    prior = UniformPrior([0.0, -1.0], [2.0, 5.0])
    points = rng.uniform(-2, 6, size=(200, 2))
    reference = stats.uniform([0.0, -1.0], [2.0, 6.0]).logpdf(points).sum(axis=1)
    np.testing.assert_allclose(prior.log_density(points), reference)
    assert np.isinf(reference).any()
    assert np.isfinite(reference).any()
    np.testing.assert_array_equal(prior.gradient(points), np.zeros((200, 2)))
    assert prior.bounds == [(0.0, 2.0), (-1.0, 5.0)]


@pytest.mark.parametrize(
    ("prior", "distribution"),
    [
        (NormalPrior([1.0, -2.0], [0.5, 3.0]), stats.norm([1.0, -2.0], [0.5, 3.0])),
        (UniformPrior([0.0, -1.0], [2.0, 5.0]), stats.uniform([0.0, -1.0], [2.0, 6.0])),
    ],
    ids=["normal", "uniform"],
)
def test_samples_have_the_prior_law(prior, distribution, rng):
    samples = np.stack([prior.sample(rng) for _ in range(2000)])
    assert samples.shape == (2000, 2)
    assert np.isfinite(prior.log_density(samples)).all()
    for shares in distribution.cdf(samples).T:
        assert stats.kstest(shares, "uniform").pvalue > 1e-5  # the chance of a false alarm


def test_dim_from_any_of_the_arguments():
    priors = [
        NormalPrior([0, 0], 1),
        NormalPrior(0, [1, 1]),
        NormalPrior(0, 1, dim=2),
        NormalPrior([0, 0], [1, 1], 2),
    ]
    assert [prior.dim for prior in priors] == [2, 2, 2, 2]
    assert [prior.mean.shape for prior in priors] == [(2,)] * 4
    assert UniformPrior(0, [1, 1]).dim == UniformPrior(0, 1, dim=np.int64(2)).dim == 2
    assert repr(priors[0]) == "NormalPrior(dim=2)"
    assert repr(UniformPrior(0, 1, 3)) == "UniformPrior(dim=3)"


SQUARE = np.eye(3)
BAD = {
    "no errors": (lambda: GaussianLikelihood(DATA), "exactly one"),
    "both errors": (lambda: GaussianLikelihood(DATA, 1.0, covariance=SQUARE), "exactly one"),
    "negative sd": (lambda: GaussianLikelihood(DATA, -1.0), "sd must be positive, got -1"),
    "one negative sd": (lambda: GaussianLikelihood(DATA, [1, -2, 3]), "got -2 at index 1"),
    "zero sd": (lambda: GaussianLikelihood(DATA, 0.0), "sd must be positive"),
    "NaN sd": (lambda: GaussianLikelihood(DATA, np.nan), "sd must be finite"),
    "infinite sd": (lambda: GaussianLikelihood(DATA, np.inf), "sd must be finite"),
    "too few sds": (lambda: GaussianLikelihood(DATA, [1.0, 2.0]), r"shape \(3,\), got shape \(2,\)"),
    "column of sds": (lambda: GaussianLikelihood(DATA, SDS[:, None]), r"shape \(3,\), got shape \(3, 1\)"),
    "masked data": (lambda: GaussianLikelihood(np.ma.masked_greater(DATA, 1), 1.0), "missing"),
    "no data": (lambda: GaussianLikelihood([], 1.0), r"got shape \(0,\)"),
    "complex data": (lambda: GaussianLikelihood(DATA + 1j, 1.0), "data must be real numbers"),
    "object data": (lambda: GaussianLikelihood(DATA.astype(object), 1.0), "data must be real numbers"),
    "strings": (lambda: GaussianLikelihood(["1", "2"], 1.0), "data must be real numbers"),
    "ragged data": (lambda: GaussianLikelihood([[1, 2], [3]], 1.0), "data must be real numbers"),
    "string sd": (lambda: GaussianLikelihood(DATA, "0.1"), "sd must be real numbers"),
    "small covariance": (lambda: GaussianLikelihood(DATA, covariance=np.eye(2)), r"shape \(3, 3\)"),
    "vector covariance": (
        lambda: GaussianLikelihood(DATA, covariance=SDS),
        r"shape \(3, 3\).*give their standard",
    ),
    "indefinite covariance": (lambda: GaussianLikelihood(DATA, covariance=-SQUARE), "positive definite"),
    "singular covariance": (
        lambda: GaussianLikelihood(DATA, covariance=np.ones((3, 3))),
        "positive definite",
    ),
    "asymmetric covariance": (lambda: GaussianLikelihood(DATA, covariance=np.tri(3)), "symmetric"),
    "NaN covariance": (
        lambda: GaussianLikelihood(DATA, covariance=SQUARE * np.nan),
        "covariance must be finite",
    ),
    "complex covariance": (lambda: GaussianLikelihood(DATA, covariance=SQUARE * 1j), "real numbers"),
    "prior without dim": (lambda: NormalPrior(0.0, 1.0), "give dim="),
    "prior of two lengths": (lambda: NormalPrior([0, 0], [1, 1, 1]), r"\[2, 3\]"),
    "prior and dim": (lambda: NormalPrior([0, 0], 1.0, dim=3), r"\[2, 3\]"),
    "empty prior": (lambda: NormalPrior([], 1.0), "give dim="),
    "table of means": (lambda: NormalPrior(SQUARE, 1.0), "flatten"),
    "NaN mean": (lambda: NormalPrior([0, np.nan], 1.0), "mean must be finite"),
    "ragged mean": (lambda: NormalPrior([[0], [1, 2]], 1.0), "mean must be real numbers"),
    "no mean": (lambda: NormalPrior(None, 1.0, dim=2), "mean must be real numbers"),
    "negative prior sd": (lambda: NormalPrior(0.0, [1, -1]), "sd must be positive"),
    "zero dim": (lambda: NormalPrior(0.0, 1.0, dim=0), "dim must be a positive integer"),
    "float dim": (lambda: NormalPrior(0.0, 1.0, dim=2.0), "dim must be a positive integer"),
    "flag as dim": (lambda: UniformPrior(0.0, 1.0, dim=True), "dim must be a positive integer"),
    "inverted limits": (lambda: UniformPrior([0, 2], [1, 1]), "got 2 and 1 for parameter 1"),
    "equal limits": (lambda: UniformPrior(1, 1, dim=2), "lower < upper"),
    "infinite limit": (lambda: UniformPrior(0, np.inf, dim=2), "upper must be finite"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=list(BAD))
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert len(str(caught.value)) < 300


def test_messages_stay_short_for_long_arrays():
    sd = np.ones(10**5)
    sd[77777] = -1.0
    with pytest.raises(InputError, match="got -1 at index 77777") as caught:
        GaussianLikelihood(np.zeros(10**5), sd)
    assert len(str(caught.value)) < 200
