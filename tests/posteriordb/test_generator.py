"""Random posteriors: gradients, exact draws, starts, and that the seed determines everything."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.posteriordb.generator import KINDS, MOST_DIM, SCALES, random_posterior

SEEDS = range(1, 41)
#: A normal variable exceeds it with a chance of 3e-12; of the 1e5 looked at one does with a chance below 1e-6.
LARGEST_Z = 7.0
WITH_DRAWS = [seed for seed in range(1, 61) if random_posterior(seed).draw is not None]


def values(target, points):
    return target.evaluate(points, gradient=False).log_density


def gradients(target, points):
    return target.evaluate(points, gradient=True).gradient


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_is_that_of_the_value(seed, rng):
    posterior = random_posterior(seed)
    points = posterior.location + rng.standard_normal((3, posterior.dim)) @ posterior.matrix.T
    # Steps along the columns of the matrix: in each a step of one is about a standard deviation.
    step = 1e-4
    moves = step * posterior.matrix.T
    shape = (len(points), posterior.dim)

    def at(factor):
        return values(
            posterior.values, (points[:, None] + factor * moves).reshape(-1, posterior.dim)
        ).reshape(shape)

    found = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * step)
    slopes = gradients(posterior.target, points) @ posterior.matrix
    # The last digit of the value, as far as a difference sees it, and what it sees of the gradient.
    rounding = 1e-13 * (1.0 + np.abs(values(posterior.target, points)).max()) / step
    np.testing.assert_allclose(slopes, found, rtol=1e-5, atol=1e-6 * (1.0 + np.abs(found).max()) + rounding)


def test_every_kind_and_every_dimension_occurs():
    posteriors = [random_posterior(seed) for seed in range(1, 201)]
    assert {each.kind for each in posteriors} == set(KINDS)
    assert {each.dim for each in posteriors} == set(range(1, MOST_DIM + 1))
    sizes = np.concatenate([np.linalg.norm(each.matrix, axis=1) for each in posteriors])
    assert sizes.min() < 10.0 * SCALES[0] and sizes.max() > 0.1 * SCALES[1]
    assert sizes.min() > 0.1 * SCALES[0] and sizes.max() < 10.0 * SCALES[1]


def test_density_is_finite_where_chains_start(rng):
    for seed in range(1, 201):
        posterior = random_posterior(seed)
        found = values(posterior.target, rng.uniform(-2.0, 2.0, (4, posterior.dim)))
        assert np.isfinite(found).all(), (seed, posterior.kind)
        assert found.min() > -1e40


def test_far_away_there_is_no_mass_and_no_failure():
    for seed in SEEDS:
        posterior = random_posterior(seed)
        points = posterior.location + 1e3 * np.ones((1, posterior.dim)) @ posterior.matrix.T
        raw = posterior.target.evaluate(points, gradient=True)
        assert not np.isnan(raw.log_density).any() and np.isfinite(raw.gradient).all()


def test_the_seed_determines_everything():
    one, same, other = (random_posterior(seed) for seed in (7, 7, 8))
    points = one.location + np.eye(one.dim) @ one.matrix.T
    np.testing.assert_array_equal(gradients(one.target, points), gradients(same.target, points))
    assert not np.array_equal(one.location, other.location)


@pytest.mark.parametrize("seed", WITH_DRAWS)
def test_exact_draws_satisfy_stein_identities(seed, rng):
    """For w with density p: E[grad log p] = 0 and E[w_i d_j log p] = -delta_ij."""
    posterior = random_posterior(seed)
    n = 4000
    draws = posterior.draw(rng, n)
    w = np.linalg.solve(posterior.matrix, (draws - posterior.location).T).T
    slopes = gradients(posterior.target, draws) @ posterior.matrix
    products = w[:, :, None] * slopes[:, None]
    z = (products.mean(axis=0) + np.eye(posterior.dim)) / (products.std(axis=0) / np.sqrt(n))
    assert np.abs(z).max() < LARGEST_Z
    assert np.abs(slopes.mean(axis=0) / slopes.std(axis=0)).max() * np.sqrt(n) < LARGEST_Z
    if posterior.mean is not None:
        z = (draws.mean(axis=0) - posterior.mean) / (posterior.sd / np.sqrt(n))
        assert np.abs(z).max() < LARGEST_Z
        squares = ((draws - posterior.mean) / posterior.sd) ** 2
        assert np.abs((squares.mean(axis=0) - 1.0) / squares.std(axis=0)).max() * np.sqrt(n) < LARGEST_Z
