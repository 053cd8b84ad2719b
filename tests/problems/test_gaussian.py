"""The narrow Gaussian."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.problems.shapes import gaussian


@pytest.mark.parametrize("dim", [1, 2, 32])
def test_the_density_is_that_of_its_covariance(dim, rng):
    problem = gaussian(dim)
    x = rng.normal(size=(5, dim))
    raw = problem.target.evaluate(x, gradient=True)
    precision = np.linalg.inv(problem.covariance)
    np.testing.assert_allclose(raw.log_density, -0.5 * np.einsum("ni,ij,nj->n", x, precision, x), rtol=1e-10)
    np.testing.assert_allclose(raw.gradient, -x @ precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(problem.target.evaluate(x, gradient=False).log_density, raw.log_density)
    np.testing.assert_array_equal(problem.mean, np.zeros(dim))


def test_one_direction_is_wide_and_the_others_narrow():
    covariance = gaussian(32).covariance
    np.testing.assert_allclose(covariance @ np.ones(32), np.ones(32))
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance)[:-1], 0.01)


def test_far_away_it_has_no_mass_and_no_warning():
    far = np.array([[1e308, -1e308, 1e308], [1e200, 0.0, 0.0]])
    assert (gaussian(3).target.evaluate(far, gradient=True).log_density == -np.inf).all()


def test_it_can_be_sent_to_another_process(rng):
    target = gaussian(3).target
    x = rng.normal(size=(2, 3))
    copy = pickle.loads(pickle.dumps(target))
    np.testing.assert_array_equal(
        copy.evaluate(x, gradient=False).log_density, target.evaluate(x, gradient=False).log_density
    )


@pytest.mark.parametrize("dim", [0, 2.5, True])
def test_dim_must_be_a_positive_integer(dim):
    with pytest.raises(InputError, match="dim must be a positive integer"):
        gaussian(dim)
