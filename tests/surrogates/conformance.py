"""Tests that every surrogate must pass: correct derivatives, nothing changes, bad data give clear errors.

A test class inherits `SurrogateConformance` and has the fixture `recipe`. It may turn off gradients in the training
data, and overrides `refit` if updates equal a refit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.surrogates.training import TrainingSet

MEAN = np.array([1.0, -2.0, 0.5])
FACTOR = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.5, 0.3, 1.5]])


def skewed(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return potential and gradient of correlated, skewed variables; symmetric ones would hide sign errors."""
    inverse = np.linalg.inv(FACTOR)
    z = (position - MEAN) @ inverse.T
    potential = (0.25 * z**2 + np.logaddexp(0.0, -2.0 * z) + z).sum(axis=1) + 0.2 * np.sin(z[:, 0] + z[:, 1])
    slope = 0.5 * z - 2.0 / (1.0 + np.exp(2.0 * z)) + 1.0
    slope[:, :2] += 0.2 * np.cos(z[:, 0] + z[:, 1])[:, None]
    return potential, slope @ inverse


def positions(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw positions where the skewed density has its mass."""
    return MEAN + rng.standard_normal((n, 3)) @ FACTOR.T


def evaluations(rng: np.random.Generator, n: int, *, gradient: bool = True) -> TrainingSet:
    """Evaluate the skewed potential at random positions."""
    where = positions(rng, n)
    potential, slope = skewed(where)
    return TrainingSet(where, potential, slope if gradient else None)


def differences(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    """Return derivatives ``(n, dim, ...)`` of a batch function by central differences of fourth order."""
    n, dim = points.shape
    step = 2e-3

    def moved(shift: float) -> np.ndarray:
        values = function((points[:, None] + shift * step * np.eye(dim)).reshape(-1, dim))
        return values.reshape(n, dim, *values.shape[1:])

    return (8.0 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12.0 * step)


def assert_close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Compare arrays relative to the largest expected entry, which must not be tiny."""
    size = np.abs(expected).max()
    assert size > 1e-3
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * size)


class SurrogateConformance:
    """Inherit this class and add the fixture `recipe`."""

    #: Whether the training data have gradients.
    gradients = True
    n_training = 80
    #: The spread of errors at fresh positions, as a share of the spread of the potential, must be below this.
    accuracy = 0.2

    def refit(self, fitted, everything):
        """Return the surrogate trained on `everything` at once, which updates must equal; None if they need not."""
        return None

    @pytest.fixture
    def training(self, rng):
        return evaluations(rng, self.n_training, gradient=self.gradients)

    @pytest.fixture
    def fitted(self, recipe, training):
        return recipe.fit(training, np.random.default_rng(3))

    @pytest.fixture
    def points(self):
        return positions(np.random.default_rng(4), 5)

    def test_learns_the_potential(self, fitted):
        where = positions(np.random.default_rng(5), 400)
        exact, _ = skewed(where)
        assert (fitted.potential(where) - exact).std() < self.accuracy * exact.std()

    def test_both_methods_give_the_same_potential(self, fitted, points):
        assert_close(fitted.potential_and_gradient(points)[0], fitted.potential(points), 1e-12)

    def test_gradient_is_that_of_the_potential(self, fitted, points):
        gradient = fitted.potential_and_gradient(points)[1]
        assert_close(gradient, differences(fitted.potential, points), 1e-6)

    def test_hessian_is_that_of_the_potential(self, fitted, points):
        hessian = fitted.hessian(points)
        assert_close(hessian, differences(lambda q: fitted.potential_and_gradient(q)[1], points), 1e-5)
        assert_close(hessian, np.swapaxes(hessian, 1, 2), 1e-12)

    def test_quadratic_contraction_is_that_of_the_hessian(self, fitted, points, rng):
        velocity = rng.standard_normal(points.shape)
        expected = np.einsum("nkab,na,nb->nk", differences(fitted.hessian, points), velocity, velocity)
        assert_close(fitted.quadratic_contraction(points, velocity), expected, 1e-4)

    def test_trace_contraction_is_that_of_the_hessian(self, fitted, points, rng):
        root = rng.standard_normal((len(points), 3, 3))
        matrix = root @ np.swapaxes(root, 1, 2)
        expected = np.einsum("nkab,nab->nk", differences(fitted.hessian, points), matrix)
        assert_close(fitted.trace_contraction(points, matrix), expected, 1e-4)

    def test_a_batch_is_its_rows(self, fitted, points, rng):
        velocity = rng.standard_normal(points.shape)
        matrix = np.einsum("na,nb->nab", velocity, velocity) + np.eye(3)
        together = [
            *fitted.potential_and_gradient(points),
            fitted.hessian(points),
            fitted.quadratic_contraction(points, velocity),
            fitted.trace_contraction(points, matrix),
        ]
        for i in range(len(points)):
            row = slice(i, i + 1)
            alone = [
                *fitted.potential_and_gradient(points[row]),
                fitted.hessian(points[row]),
                fitted.quadratic_contraction(points[row], velocity[row]),
                fitted.trace_contraction(points[row], matrix[row]),
            ]
            for one, many in zip(alone, together, strict=True):
                np.testing.assert_allclose(one, many[row], rtol=1e-9, atol=1e-9 * np.abs(many).max())

    def test_no_positions(self, fitted):
        potential, gradient = fitted.potential_and_gradient(np.empty((0, 3)))
        assert potential.shape == (0,) and gradient.shape == (0, 3)

    @pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 2), (1, 2, 3)])
    def test_positions_of_another_shape_are_refused(self, fitted, shape):
        for method in (fitted.potential, fitted.potential_and_gradient, fitted.hessian):
            with pytest.raises(InputError, match=r"must have shape \(n, 3\), one row each, got"):
                method(np.zeros(shape))

    def test_the_seed_determines_the_fit(self, recipe, training, points):
        one, two = (recipe.fit(training, np.random.default_rng(9)) for _ in range(2))
        np.testing.assert_array_equal(one.potential(points), two.potential(points))

    def test_neither_arguments_nor_the_fit_are_changed(self, fitted, points, training, rng):
        given, before = points.copy(), fitted.potential_and_gradient(points)
        kept = training.position.copy(), training.potential.copy()
        fitted.hessian(points)
        changed = fitted.update(evaluations(rng, 10, gradient=self.gradients))
        assert changed is not fitted
        np.testing.assert_array_equal(points, given)
        np.testing.assert_array_equal(training.position, kept[0])
        np.testing.assert_array_equal(training.potential, kept[1])
        for now, then in zip(fitted.potential_and_gradient(points), before, strict=True):
            np.testing.assert_array_equal(now, then)
        name = dataclasses.fields(fitted)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(fitted, name, None)

    def test_recipe_is_frozen(self, recipe):
        name = dataclasses.fields(recipe)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(recipe, name, 1)

    def test_update_equals_refit(self, fitted, training, points, rng):
        further = [evaluations(rng, n, gradient=self.gradients) for n in (1, 30)]
        expected = self.refit(fitted, training.join(further[0]).join(further[1]))
        if expected is None:
            pytest.skip("updates of this surrogate are not meant to equal a refit")
        updated = fitted
        for part in further:
            updated = updated.update(part)
        assert np.abs(updated.potential(points) - fitted.potential(points)).max() > 1e-7
        for got, wanted in zip(
            updated.potential_and_gradient(points), expected.potential_and_gradient(points), strict=True
        ):
            assert_close(got, wanted, 1e-7)

    @pytest.mark.parametrize("n", [1, 5], ids=["one", "equal"])
    def test_needs_different_positions(self, recipe, n):
        training = TrainingSet(np.ones((n, 3)), np.ones(n), np.ones((n, 3)) if self.gradients else None)
        with pytest.raises(InputError, match="at least two different"):
            recipe.fit(training, np.random.default_rng(0))

    def test_update_of_another_dimension_is_refused(self, fitted):
        with pytest.raises(InputError, match="3"):
            fitted.update(TrainingSet([[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0], np.ones((2, 2))))

    def test_few_rows_give_finite_numbers(self, recipe, rng, points):
        fitted = recipe.fit(evaluations(rng, 4, gradient=self.gradients), np.random.default_rng(0))
        potential, gradient = fitted.potential_and_gradient(points)
        assert np.isfinite(potential).all() and np.isfinite(gradient).all()
        assert np.abs(potential).max() < 1e6

    def test_repeated_evaluations(self, recipe, training, points):
        twice = training.rows(np.tile(np.arange(len(training)), 2))
        fitted = recipe.fit(twice, np.random.default_rng(0))
        assert np.isfinite(fitted.potential_and_gradient(points)[1]).all()
