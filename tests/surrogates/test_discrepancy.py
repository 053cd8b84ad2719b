"""Held-out discrepancy and the choice between surrogates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.surrogates.network import SoftplusNetwork
from leapwise.surrogates.outputs import OutputSurrogate
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.quality import choose, discrepancy_variance
from leapwise.surrogates.training import TrainingSet


@dataclass(frozen=True)
class Formula:
    """A surrogate that does not learn, and remembers what it was given."""

    function: object
    seen: list

    def fit(self, training, rng):
        self.seen.append(training.position)
        return self

    def potential(self, position):
        return self.function(position)


def exact(x):
    return 0.5 * (x**2).sum(axis=1)


@pytest.fixture
def training(rng):
    x = rng.standard_normal((90, 3))
    return TrainingSet(x, exact(x), x)


def test_a_shift_does_not_matter(training):
    shifted = Formula(lambda x: exact(x) - 12.0, [])
    assert discrepancy_variance(shifted, training) == pytest.approx(0.0, abs=1e-25)


def test_it_is_the_variance_of_the_difference(training):
    tilted = Formula(lambda x: exact(x) + 2.0 * x[:, 0], [])
    assert discrepancy_variance(tilted, training) == pytest.approx(4.0 * training.position[:, 0].var())


def test_a_surrogate_that_is_not_finite_is_infinitely_bad(training):
    assert discrepancy_variance(Formula(lambda x: np.full(len(x), np.nan), []), training) == np.inf


def test_one_evaluation_has_no_variance(training):
    with pytest.raises(InputError, match="at least two"):
        discrepancy_variance(Formula(exact, []), training.rows(slice(0, 1)))


def test_what_is_held_out_is_not_trained_on(training, rng):
    """A surrogate that remembers its rows sees two thirds of them in each of three fits, each row twice."""
    memory = Formula(exact, [])
    choose([memory], training, rng)
    assert [len(seen) for seen in memory.seen] == [60, 60, 60]
    _, counts = np.unique(np.concatenate(memory.seen)[:, 0], return_counts=True)
    assert (counts == 2).all()


def test_the_best_is_chosen(training, rng):
    recipes = [SoftplusNetwork(10), QuadraticNetwork(), Formula(lambda x: x[:, 0], [])]
    choice = choose(recipes, training, rng)
    assert choice.index == 1 and choice.surrogate is recipes[1]
    assert choice.variances[1] < 1e-10 < choice.variances[0] < choice.variances[2]


def test_memorising_is_not_rewarded(rng):
    """In-sample error would choose the nearest neighbour, which reproduces what it was trained on."""

    class Nearest:
        def fit(self, training, rng):
            return Formula(
                lambda x: training.potential[
                    np.argmin(((x[:, None] - training.position) ** 2).sum(axis=2), axis=1)
                ],
                [],
            )

    x = rng.standard_normal((120, 3))
    training = TrainingSet(x, exact(x) + 0.1 * rng.standard_normal(120))
    nearest = Nearest()
    assert discrepancy_variance(nearest.fit(training, rng), training) == 0.0
    assert choose([nearest, QuadraticNetwork()], training, rng).index == 1


def test_outputs_and_scalars_compete(rng):
    """Without gradients a nonlinear forward model is better emulated; a likelihood of nonsense is not."""

    class Normal:
        def log_density(self, points):
            return -2.0 * (points**2).sum(axis=1)

        def gradient(self, points):
            return -4.0 * points

    def prior(position):
        return exact(position), position

    x = rng.standard_normal((60, 4))
    outputs = np.stack([x[:, 0] * x[:, 1] - 0.5, x[:, 2] ** 2 - x[:, 3]], axis=1)
    potential = exact(x) + 2.0 * (outputs**2).sum(axis=1)
    training = TrainingSet(x, potential, outputs=outputs)
    emulator = OutputSurrogate(Normal(), prior)
    assert choose([QuadraticNetwork(20), emulator], training, rng).surrogate is emulator
    useless = TrainingSet(x, exact(x), outputs=rng.standard_normal((60, 2)))
    assert choose([QuadraticNetwork(20), emulator], useless, rng).index == 0


def test_too_few_evaluations_to_choose(training, rng):
    with pytest.raises(InputError, match="at least 6"):
        choose([QuadraticNetwork()], training.rows(slice(0, 5)), rng)
    with pytest.raises(InputError, match="at least one surrogate"):
        choose([], training, rng)
    with pytest.raises(InputError, match="folds"):
        choose([QuadraticNetwork()], training, rng, folds=1)
