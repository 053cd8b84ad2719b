"""The quick way to fit quadratics with gradients: the same answers as all rows stacked, and its own choice of ridge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leapwise.surrogates import quadratic as quadratic_lesson
from leapwise.surrogates import quadratic_solver
from leapwise.surrogates.elm import Lesson
from leapwise.surrogates.quadratic import QuadraticLesson, QuadraticNetwork, _refit, _without_prior
from leapwise.surrogates.quadratic_solver import LeftOut, QuadraticBasis, choose_ridge
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import guard_radius
from leapwise.surrogates.whitening import Whitening

DIM = 6
FEW, MANY = 15, 40  # fewer and more than the 21 entries of A


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    """Let even small problems be solved by structure."""
    monkeypatch.setattr(quadratic_lesson, "_MAX_SPECTRAL", 0)


@pytest.fixture(params=[(0, False), (0, True), (9, False), (9, True)], ids=str)
def kind(request):
    return request.param


def evaluations(rng, n, dim=DIM):
    """Evaluate a skewed potential."""
    x = 0.5 + rng.standard_normal((n, dim))
    return TrainingSet(x, (0.5 * x**2 + np.exp(0.4 * x)).sum(axis=1), x + 0.4 * np.exp(0.4 * x))


def lesson_of(rng, kind, n, without_gradients=0):
    training = evaluations(rng, n)
    training.gradient[:without_gradients] = np.nan
    white = _without_prior(training.whiten(Whitening(np.zeros(DIM), np.eye(DIM))))
    spread = np.eye(DIM)
    basis = QuadraticBasis.draw(white.position, kind[0], 1.0, kind[1], spread, rng)
    return QuadraticLesson(basis, white, DIM / 3.0)


def dense(lesson, ridge):
    """Return the normal matrix and moment of all rows, stacked."""
    rows = lesson.rows()
    matrix = rows.features.T @ (rows.weights[:, None] * rows.features) + ridge * np.diag(lesson.penalty)
    return matrix, rows.features.T @ (rows.weights * rows.targets)


def test_gram_and_moment_of_gradient_rows(kind, rng):
    lesson = lesson_of(rng, kind, FEW)
    basis, where, target = lesson.basis, lesson.white.position, rng.standard_normal((FEW, DIM))
    rows = basis.gradient_features(where).reshape(-1, basis.size)
    np.testing.assert_allclose(basis.gradient_gram(where), rows.T @ rows, atol=1e-11)
    np.testing.assert_allclose(basis.gradient_moment(where, target), rows.T @ target.ravel(), atol=1e-11)


@pytest.mark.parametrize("n", [FEW, MANY])
@pytest.mark.parametrize("without_gradients", [0, 4])
@pytest.mark.parametrize("ridge", [1e-6, 1.0])
def test_the_minimiser_is_that_of_all_rows(kind, n, without_gradients, ridge, rng):
    lesson = lesson_of(rng, kind, n, without_gradients)
    assert lesson.has_structure
    assert lesson.is_brief == (n == FEW)
    weights, used = lesson.solve(ridge)
    stacked, _ = Lesson.solve(lesson, ridge)
    assert used == ridge
    np.testing.assert_allclose(weights, stacked, atol=1e-6 * np.abs(stacked).max())
    matrix, moment = dense(lesson, ridge)
    np.testing.assert_allclose(matrix @ weights, moment, atol=1e-10 * np.abs(moment).max())


@pytest.mark.parametrize("n", [FEW, MANY])
def test_other_weights_for_a_given_curvature(kind, n, rng):
    lesson = lesson_of(rng, kind, n)
    held = lesson.basis.trend.quadratic_part
    weights = rng.standard_normal(lesson.basis.size + 1)
    expected = _refit(lesson.updater(0.1), weights.copy(), held)
    got = lesson.solve_with_curvature(0.1, weights)
    np.testing.assert_array_equal(got[held], weights[held])
    np.testing.assert_allclose(got, expected, atol=1e-8 * np.abs(expected).max())


def test_the_score_is_that_of_fits_without_each_evaluation(kind, rng, monkeypatch):
    monkeypatch.setattr(quadratic_solver, "N_LEFT_OUT", FEW)
    lesson, ridge = lesson_of(rng, kind, FEW), 0.3
    basis, white = lesson.basis, lesson.white
    slopes = basis.gradient_features(white.position)
    values, gradients = np.empty(FEW), np.empty((FEW, DIM))
    for j in range(FEW):
        others = np.arange(FEW) != j
        rows = slopes[others].reshape(-1, basis.size)
        matrix = lesson.gradient_weight * rows.T @ rows + ridge * np.diag(lesson.penalty[:-1])
        moment = lesson.gradient_weight * rows.T @ white.gradient[others].ravel()
        value, slope = basis.value_and_gradient(white.position[[j]], np.linalg.solve(matrix, moment))
        values[j], gradients[j] = white.value[j] - value[0], white.gradient[j] - slope[0]
    expected = np.square(values - values.mean()).sum() + lesson.gradient_weight * np.square(gradients).sum()
    assert LeftOut.sample(lesson.equations).score(ridge) == pytest.approx(expected, rel=1e-9)


def test_noise_asks_for_a_stronger_ridge(rng):
    lesson = lesson_of(rng, (0, False), FEW)
    noisy = rng.standard_normal(lesson.white.gradient.shape) * 30.0
    loud = replace(lesson, white=replace(lesson.white, gradient=lesson.white.gradient + noisy))
    assert choose_ridge(loud.equations) > 10.0 * choose_ridge(lesson.equations)


@pytest.mark.parametrize("n_hidden", [0, 20])
@pytest.mark.parametrize("n", [FEW, MANY])
def test_held_out_errors_are_no_larger_than_with_leave_one_out(n, n_hidden, rng, monkeypatch):
    training, fresh = evaluations(rng, n), evaluations(rng, 300)

    def error():
        fitted = QuadraticNetwork(n_hidden).fit(training, np.random.default_rng(1))
        return np.std(fitted.potential(fresh.position) - fresh.potential)

    quick = error()
    monkeypatch.setattr(quadratic_lesson, "_MAX_SPECTRAL", 10**12)
    assert quick < 1.1 * error()


@pytest.mark.parametrize("n_hidden", [0, 10])
def test_updates_equal_a_fit_to_all(n_hidden, rng):
    """At first all is learnt again; with more values than entries of A rows are folded in."""
    parts = [evaluations(rng, n) for n in (10, 1, 5, 12, 8)]
    fitted = QuadraticNetwork(n_hidden).fit(parts[0], np.random.default_rng(2))
    everything, updated, folded = parts[0], fitted, []
    for part in parts[1:]:
        everything, updated = everything.join(part), updated.update(part)
        folded.append(updated.updater is not None)
        white = _without_prior(everything.whiten(fitted.whitening))
        shift = white.offset - fitted.lesson.white.offset
        white = replace(white, value=white.value + shift, offset=fitted.lesson.white.offset)
        lesson = replace(fitted.lesson, white=white)
        weights, _ = Lesson.solve(lesson, fitted.ridge)
        np.testing.assert_allclose(updated.trained, weights, atol=1e-7 * np.abs(weights).max())
        assert updated.radius == pytest.approx(guard_radius(white.position))
    assert folded == [False, False, True, True]


def test_few_gradients_have_no_structure(rng):
    assert not lesson_of(rng, (0, False), FEW, without_gradients=10).has_structure
    assert not lesson_of(rng, (0, False), FEW, without_gradients=FEW).has_structure


def test_positions_in_a_plane_do_no_harm(rng):
    x = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 8))
    fitted = QuadraticNetwork().fit(TrainingSet(x, (x**2).sum(axis=1), 2.0 * x), rng)
    assert np.isfinite(fitted.potential(rng.standard_normal((20, 8)))).all()
    np.testing.assert_allclose(fitted.potential(x), (x**2).sum(axis=1), atol=0.2)
