"""Shapes and hierarchies: gradients, exact moments, exact draws, positions far out, pickling."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import stats

from leapwise.errors import InputError
from leapwise.problems import (
    banana,
    eight_schools,
    funnel,
    gaussian,
    gumbel,
    lobes,
    poisson_gp,
    student_t,
)

PROBLEMS = {
    problem.name: problem
    for problem in (
        gaussian(),
        banana(),
        gumbel(5),
        lobes(),
        student_t(),
        funnel(),
        eight_schools(),
        poisson_gp(),
    )
}
DRAWN = [name for name, problem in PROBLEMS.items() if problem.draw is not None]
every = pytest.mark.parametrize("name", PROBLEMS)
drawn = pytest.mark.parametrize("name", DRAWN)


def log_density(problem, x):
    return problem.target.evaluate(x, gradient=False).log_density


@every
def test_the_gradient_is_that_of_the_value(name, rng, central_differences):
    problem = PROBLEMS[name]
    x = rng.normal(size=(6, problem.target.dim))
    raw = problem.target.evaluate(x, gradient=True)
    np.testing.assert_array_equal(log_density(problem, x), raw.log_density)
    slope = central_differences(lambda points: log_density(problem, points), x)
    np.testing.assert_allclose(raw.gradient, slope, atol=1e-7 * np.abs(slope).max())


@every
def test_a_batch_is_its_rows(name, rng):
    problem = PROBLEMS[name]
    x = rng.normal(size=(5, problem.target.dim))
    batch = problem.target.evaluate(x, gradient=True)
    for i in range(5):
        row = problem.target.evaluate(x[[i]], gradient=True)
        np.testing.assert_allclose(row.log_density[0], batch.log_density[i], rtol=1e-14)
        np.testing.assert_allclose(row.gradient[0], batch.gradient[i], rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("scale", [1e3, 1e150, 1e300])
def test_far_away_there_is_no_mass_and_no_warning(name, scale, rng):
    problem = PROBLEMS[name]
    far = scale * rng.choice([-1.0, 1.0], size=(8, problem.target.dim))
    raw = problem.target.evaluate(far, gradient=True)
    assert not raw.failures().any()
    assert (raw.log_density < -100).all()


def test_a_gaussian_overflows_to_no_mass():
    far = np.array([[1e308, -1e308, 1e308], [1e200, 0.0, 0.0]])
    assert (gaussian(3).target.evaluate(far, gradient=True).log_density == -np.inf).all()


@every
def test_it_can_be_pickled(name, rng):
    problem = PROBLEMS[name]
    x = rng.normal(size=(1, problem.target.dim))
    copy = pickle.loads(pickle.dumps(problem))
    assert log_density(copy, x) == log_density(problem, x)


@drawn
def test_draws_and_gradients_belong_together(name, rng):
    """The mean of (x - m) s(x)' is minus the identity, s being the gradient: entries within 6 standard errors.

    With up to 400 entries the chance of a false alarm is below 1e-6. Nothing here knows the moments.
    """
    problem = PROBLEMS[name]
    x = problem.draw(rng, 50_000)
    slope = problem.target.evaluate(x, gradient=True).gradient
    products = x[:, :, None] * slope[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(x))
    assert (np.abs(products.mean(axis=0) + np.eye(x.shape[1])) < 6 * error + 1e-9).all()
    assert (np.abs(slope.mean(axis=0)) < 6 * slope.std(axis=0) / np.sqrt(len(x))).all()


@drawn
def test_draws_have_the_moments_stated(name, rng):
    """Means within 5.5 standard errors, covariances by batches of draws within 7 (t with 49 degrees): below 1e-5."""
    problem = PROBLEMS[name]
    x = problem.draw(rng, 100_000)
    if name == "funnel":  # its fourth moments are too large for a sample: as wide as v says, it is normal
        assert problem.covariance[1, 1] == pytest.approx(np.exp(4.5))
        x[:, 1:] *= np.exp(-0.5 * x[:, :1])
        covariance = np.diag([9.0, 1, 1, 1, 1, 1])
    else:
        covariance = problem.covariance
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(x.mean(axis=0) - problem.mean) < 5.5 * sd / np.sqrt(len(x))).all()
    batches = np.array([np.cov(part.T) for part in np.split(x, 50)])
    z = (batches.mean(axis=0) - covariance) / (batches.std(axis=0, ddof=1) / np.sqrt(50))
    assert np.abs(z).max() < 7


@pytest.mark.parametrize("dim", [1, 2, 32])
def test_the_gaussian_is_that_of_its_covariance(dim, rng):
    problem = gaussian(dim)
    x = rng.normal(size=(5, dim))
    raw = problem.target.evaluate(x, gradient=True)
    precision = np.linalg.inv(problem.covariance)
    np.testing.assert_allclose(raw.log_density, -0.5 * np.einsum("ni,ij,nj->n", x, precision, x), rtol=1e-10)
    np.testing.assert_allclose(raw.gradient, -x @ precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(problem.mean, np.zeros(dim))


def test_the_gaussian_has_one_wide_direction():
    covariance = gaussian(32).covariance
    np.testing.assert_allclose(covariance @ np.ones(32), np.ones(32))
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance)[:-1], 0.01)


@pytest.mark.parametrize("dim", [0, 2.5, True])
def test_dim_must_be_a_positive_integer(dim):
    with pytest.raises(InputError, match="dim must be a positive integer"):
        gaussian(dim)


@pytest.mark.parametrize(
    ("problem", "lower", "upper"),
    [(banana(), (-9, -5), (4, 5)), (gumbel(), (-3, -5), (28, 40))],
    ids=["banana", "gumbel"],
)
def test_moments_agree_with_quadrature_on_a_grid(problem, lower, upper):
    axes = [np.linspace(a, b, 1201) for a, b in zip(lower, upper, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    weight = log_density(problem, points)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    mean = weight @ points
    covariance = (points - mean).T @ ((points - mean) * weight[:, None])
    np.testing.assert_allclose(problem.mean, mean, atol=1e-8)
    np.testing.assert_allclose(problem.covariance, covariance, atol=1e-8)


def test_gumbel_variables_have_the_moments_stated(rng):
    """Independent of the density: 10^5 draws, within 5 standard errors (false alarm 1e-5)."""
    problem = gumbel(3)
    z = rng.gumbel(size=(100_000, 3))
    x = z + 0.8 * np.pad(z[:, :-1], ((0, 0), (1, 0)))
    standard_error = np.sqrt(np.diag(problem.covariance) / len(x))
    assert (np.abs(x.mean(axis=0) - problem.mean) < 5 * standard_error).all()
    np.testing.assert_allclose(np.cov(x.T), problem.covariance, atol=0.12)


def test_the_banana_is_curved_and_its_data_are_fixed():
    problem = banana()
    np.testing.assert_array_equal(problem.mean, banana().mean)
    ridge = np.array([[1.0 - s**2, s] for s in (-1.2, 0.0, 1.2)])
    straight = np.array([[1.0 - 1.2**2, 0.0]])
    assert (log_density(problem, ridge) > log_density(problem, straight) + 5).all()


def test_the_lobes_touch_and_differ():
    problem = lobes()
    left, middle, right = np.exp(log_density(problem, np.array([[-2.25, 0], [0.0, 0], [2.25, 0]])))
    assert middle / right == pytest.approx(0.2, abs=0.05)
    assert left / right == pytest.approx(1.5, abs=0.01)
    grid = np.stack(np.meshgrid(np.linspace(-9, 9, 361), np.linspace(-7, 7, 281)), -1).reshape(-1, 2)
    assert np.exp(log_density(problem, grid)).sum() * 0.05**2 == pytest.approx(1.0, abs=1e-6)


def test_student_t_is_scipys():
    problem = student_t(4, freedom=3.5)
    scale = problem.covariance * 1.5 / 3.5
    x = np.random.default_rng(3).standard_t(2, size=(7, 4))
    theirs = stats.multivariate_t(np.zeros(4), scale, 3.5).logpdf(x)
    ours = log_density(problem, x)
    np.testing.assert_allclose(ours - ours[0], theirs - theirs[0], atol=1e-12)
    with pytest.raises(InputError, match="freedom must be more than 2, got 2"):
        student_t(3, freedom=2.0)


def test_the_funnel_is_two_normals():
    problem = funnel(3)
    x = np.random.default_rng(4).normal(size=(5, 3))
    v = x[:, 0]
    theirs = stats.norm(0, 3).logpdf(v) + stats.norm(0, np.exp(v / 2)[:, None]).logpdf(x[:, 1:]).sum(axis=1)
    difference = log_density(problem, x) - theirs
    np.testing.assert_allclose(difference, difference[0], atol=1e-12)
    with pytest.raises(InputError, match="dim must be a whole number of at least 2"):
        funnel(1)


def test_eight_schools_are_the_textbooks():
    """The prior, the likelihood and the Jacobian of log tau, term by term."""
    effects = np.array([28, 8, -3, 7, -1, 1, 18, 12.0])
    errors = np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    x = np.random.default_rng(5).normal(size=(6, 10))
    mu, tau, eta = x[:, 0], np.exp(x[:, 1]), x[:, 2:]
    theirs = (
        stats.norm(mu[:, None] + tau[:, None] * eta, errors).logpdf(effects).sum(axis=1)
        + stats.norm(0, 1).logpdf(eta).sum(axis=1)
        + stats.norm(0, 5).logpdf(mu)
        + stats.halfcauchy(scale=5).logpdf(tau)
        + np.log(tau)
    )
    difference = log_density(eight_schools(), x) - theirs
    np.testing.assert_allclose(difference, difference[0], atol=1e-12)


def test_the_poisson_process_is_the_one_described(rng):
    problem = poisson_gp()
    x = rng.normal(size=(4, 22)) * 0.7
    t = np.linspace(0, 1, 20)
    counts = problem.target._log_density.__self__.counts
    theirs = []
    for row in x:
        r = np.sqrt(3) * np.abs(t[:, None] - t) / np.exp(row[1])
        factor = np.linalg.cholesky((1 + r) * np.exp(-r) + 1e-8 * np.eye(20))
        rate = 3 * np.exp(np.exp(row[0]) * factor @ row[2:])
        prior = stats.norm(-0.5, 0.7).logpdf(row[0]) + stats.norm(-1.2, 0.6).logpdf(row[1])
        theirs.append(stats.poisson(rate).logpmf(counts).sum() + stats.norm.logpdf(row[2:]).sum() + prior)
    difference = log_density(problem, x) - theirs
    np.testing.assert_allclose(difference, difference[0], atol=1e-9)
    assert counts.min() >= 0 and counts.max() > 5
