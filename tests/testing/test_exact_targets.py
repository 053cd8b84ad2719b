"""Exact targets: gradients agree with values, draws with densities, and expectations with draws."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, Target, testing
from leapwise.errors import InputError
from leapwise.testing import ExactTarget, gaussian
from leapwise.testing.harness import MomentStatistics

NAMES = ("gaussian", "gumbel", "banana", "mixture", "student_t", "exponential")
every_target = pytest.mark.parametrize("name", NAMES)
every_dim = pytest.mark.parametrize("dim", [1, 2, 4])


@every_target
@every_dim
def test_the_gradient_is_that_of_the_potential(name, dim, rng, central_differences):
    exact = getattr(testing, name)(dim)
    evaluator, position = Evaluator(exact.target), exact.positions(rng, 50)
    expected = central_differences(lambda q: evaluator.value(q).potential, position)
    found = evaluator.value_and_gradient(position).gradient
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@every_target
@every_dim
def test_the_score_of_exact_draws_has_mean_zero(name, dim, rng):
    """E grad U = 0 and E q_i d_i U = 1, by parts, for whatever density vanishes far out: here all do.

    Twelve z-scores at most, each over 6 with chance 2e-9.
    """
    exact = getattr(testing, name)(dim)
    position = exact.positions(rng, 200_000)
    gradient = Evaluator(exact.target).value_and_gradient(position).gradient
    for values in (gradient, position * gradient - 1.0):
        z = values.mean(axis=0) / (values.std(axis=0) / np.sqrt(len(values)))
        assert np.abs(z).max() < 6.0


@every_target
@every_dim
def test_what_is_expected_is_found(name, dim, rng):
    """Up to eleven z-scores, each over 6 with chance 2e-9, or not much more; powers of four are left out."""
    exact = getattr(testing, name)(dim)
    position = exact.positions(rng, 400_000)
    found = MomentStatistics()(position, Evaluator(exact.target).value(position).potential)
    known = [key for key in exact.expected if "^4" not in key]
    assert len(known) == (4 if dim == 1 else 8)
    for key in known:
        error = found[key] - exact.expected[key]
        assert abs(error.mean()) < 6.0 * error.std() / np.sqrt(len(error)), key


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("gaussian", "q1^4", 3 * (1 + 0.64) ** 2),
        (
            "gumbel",
            "q0^4",
            np.euler_gamma**4
            + np.euler_gamma**2 * np.pi**2
            + 8 * np.euler_gamma * 1.2020569031595942
            + 3 * np.pi**4 / 20,
        ),
        ("banana", "q0 q1", 0.0),
        ("student_t", "q0^4", 25.0),
        ("exponential", "q0 < -0.5", 1 - np.exp(-np.exp(-0.5))),
        ("exponential", "U", 2 * (1 + np.euler_gamma)),
    ],
)
def test_expectations_in_closed_form(name, key, expected):
    assert abs(getattr(testing, name)().expected[key] - expected) < 1e-9 * max(1.0, abs(expected))


@every_target
def test_there_is_no_density_too_far_out_to_tell(name):
    exact = getattr(testing, name)()
    far = Evaluator(exact.target).value_and_gradient(np.array([[1e200, -1e200], [-1e160, 1e200]]))
    assert not np.isnan(far.potential).any() and np.isfinite(far.gradient).all()


def test_positions_are_unconstrained():
    exact = testing.exponential()
    parameters = exact.draw(np.random.default_rng(1), 10)
    np.testing.assert_allclose(exact.positions(np.random.default_rng(1), 10), np.log(parameters))


@pytest.mark.parametrize("bad", [np.zeros((10, 3)), np.zeros(10), np.zeros((9, 2))])
def test_draws_of_a_wrong_shape_are_refused(bad):
    exact = ExactTarget(gaussian().target, lambda rng, n: bad)
    with pytest.raises(InputError, match=r"draw must return an array of shape \(10, 2\)"):
        exact.positions(np.random.default_rng(0), 10)


def test_what_is_no_target_is_refused():
    with pytest.raises(InputError, match="target must be"):
        ExactTarget(lambda x: 0.0, lambda rng, n: None)
    with pytest.raises(InputError, match="draw must be a function"):
        ExactTarget(Target(lambda x: 0.0, dim=1), np.zeros((3, 1)))
