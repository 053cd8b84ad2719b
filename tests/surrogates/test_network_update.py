"""Networks that learn further evaluations, against the same networks trained on all of them at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leapwise.surrogates import online
from leapwise.surrogates.elm import Lesson
from leapwise.surrogates.network import RBFNetwork, SoftplusNetwork
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.training import TrainingSet, WhiteSet

DIM = 3
RECIPES = [SoftplusNetwork(40), RBFNetwork(40), SoftplusNetwork(40, ridge=1e-6)]


def evaluations(seed, n, gradients):
    """A skewed potential, with no, some or all gradients."""
    x = np.random.default_rng(seed).standard_normal((n, DIM))
    potential = 0.5 * (x**2).sum(axis=1) + 0.3 * x[:, 0] ** 3 + np.exp(0.5 * x[:, 1])
    gradient = x.copy()
    gradient[:, 0] += 0.9 * x[:, 0] ** 2
    gradient[:, 1] += 0.5 * np.exp(0.5 * x[:, 1])
    if gradients == "none":
        return TrainingSet(x, potential)
    if gradients == "some":
        gradient[::2] = np.nan
    return TrainingSet(x, potential, gradient)


def refitted(fitted, training):
    """Weights with the bias, for all evaluations at once and everything else as it was."""
    white = training.whiten(fitted.whitening)
    base = fitted.lesson.white.offset
    shifted = WhiteSet(
        white.position, white.value + (white.offset - base), white.gradient, white.has_gradient, base
    )
    return Lesson(fitted.basis, shifted, fitted.lesson.gradient_weight).solve(fitted.ridge)[0], base


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("gradients", ["none", "some", "all"])
def test_update_equals_refit(recipe, gradients):
    first, second = evaluations(1, 60, gradients), evaluations(2, 40, gradients)
    start = recipe.fit(first, np.random.default_rng(0))
    fitted = start.update(second.rows(np.arange(25))).update(second.rows(np.arange(25, 40)))
    weights, base = refitted(start, first.join(second))
    unseen = np.random.default_rng(3).standard_normal((200, DIM))
    expected = replace(
        start.expansion, weights=weights[:-1], offset=base + weights[-1]
    ).potential_and_gradient(unseen)
    for found, wanted in zip(fitted.potential_and_gradient(unseen), expected, strict=True):
        assert np.abs(found - wanted).max() < 1e-8 * wanted.std()


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_single_evaluations_one_after_the_other(recipe):
    first, second = evaluations(4, 60, "all"), evaluations(5, 100, "all")
    fitted = start = recipe.fit(first, np.random.default_rng(0))
    for i in range(len(second)):
        fitted = fitted.update(second.rows(np.arange(i, i + 1)))
    weights, base = refitted(start, first.join(second))
    unseen = np.random.default_rng(6).standard_normal((200, DIM))
    expected = replace(start.expansion, weights=weights[:-1], offset=base + weights[-1]).potential(unseen)
    assert np.abs(fitted.potential(unseen) - expected).max() < 1e-8 * expected.std()


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_update_leaves_the_old_one_alone_and_learns(recipe):
    start = recipe.fit(evaluations(7, 30, "none"), np.random.default_rng(0))
    test = evaluations(8, 300, "none")
    before = start.potential(test.position)
    learnt = start.update(evaluations(9, 300, "all"))
    np.testing.assert_array_equal(start.potential(test.position), before)
    assert np.std(learnt.potential(test.position) - test.potential) < 0.5 * np.std(before - test.potential)


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=repr)
def test_update_after_training_by_gram_matrices(recipe, monkeypatch):
    """Where rows were too many to stack, the first factor comes from their Gram matrix, at half the digits."""
    first, second = evaluations(10, 200, "all"), evaluations(11, 40, "all")
    monkeypatch.setattr("leapwise.surrogates.network.MAX_STACKED", 0)
    start = recipe.fit(first, np.random.default_rng(0))
    fitted = start.update(second)
    monkeypatch.undo()
    weights, base = refitted(start, first.join(second))
    unseen = np.random.default_rng(12).standard_normal((200, DIM))
    expected = replace(start.expansion, weights=weights[:-1], offset=base + weights[-1]).potential(unseen)
    assert np.abs(fitted.potential(unseen) - expected).max() < 1e-5 * expected.std()


@pytest.mark.parametrize("recipe", [*RECIPES[:2], QuadraticNetwork(), QuadraticNetwork(10)], ids=repr)
def test_weights_are_not_solved_for_until_they_are_used(recipe, monkeypatch):
    """An adaptive sampler learns at every iteration and publishes rarely: only publishing may pay for a solve."""
    calls = []
    solve = online._solve
    monkeypatch.setattr(online, "_solve", lambda *parts: calls.append(1) or solve(*parts))
    fitted = recipe.fit(evaluations(13, 60, "all"), np.random.default_rng(0))
    further = evaluations(14, 30, "all")
    for i in range(len(further)):
        fitted = fitted.update(further.rows(np.arange(i, i + 1)))
    assert not calls
    for _ in range(3):
        fitted.potential_and_gradient(further.position)
    assert len(calls) == 1


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=repr)
def test_far_evaluations_are_left_out(recipe):
    training = evaluations(15, 60, "all").select()
    far = TrainingSet(np.full((1, DIM), 1e3), [1e9], np.full((1, DIM), 1e7))
    one, two = (recipe.fit(each, np.random.default_rng(0)) for each in (training, training.join(far)))
    np.testing.assert_array_equal(one.potential(training.position), two.potential(training.position))
    assert one.update(far) is one
