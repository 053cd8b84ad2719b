"""Random networks: conformance, training on values and gradients, updates, and the paper's banana."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conformance import SurrogateConformance, evaluations, positions, skewed

from leapwise.dynamics import PhasePoint, UnitMetric, leapfrog
from leapwise.errors import InputError
from leapwise.problems import banana
from leapwise.surrogates import network, online
from leapwise.surrogates.network import (
    LeastSquaresProblem,
    RBFNetwork,
    SoftplusNetwork,
    balanced_gradient_weight,
)
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening

RECIPES = {"softplus": SoftplusNetwork(60), "rbf": RBFNetwork(60)}


class NetworkConformance(SurrogateConformance):
    def refit(self, fitted, everything):
        return refitted(fitted, everything)


def refitted(fitted, training):
    """Return the network trained on all evaluations at once, with everything but the weights as it was."""
    white = training.whiten(fitted.whitening)
    weights, _ = LeastSquaresProblem(fitted.basis, white, fitted.problem.gradient_weight).solve(fitted.ridge)
    return replace(fitted.expansion, weights=weights[:-1], offset=white.offset + weights[-1])


class TestSoftplusNetwork(NetworkConformance):
    @pytest.fixture
    def recipe(self):
        return SoftplusNetwork(60)


class TestSoftplusNetworkOnValues(NetworkConformance):
    gradients = False

    @pytest.fixture
    def recipe(self):
        return SoftplusNetwork(60)


@pytest.mark.slow
class TestSoftplusNetworkWithMoreUnitsThanRows(NetworkConformance):
    gradients = False

    @pytest.fixture
    def recipe(self):
        return SoftplusNetwork(200)


class TestRBFNetwork(NetworkConformance):
    @pytest.fixture
    def recipe(self):
        return RBFNetwork(60)


@pytest.mark.slow
class TestRBFNetworkOnValues(NetworkConformance):
    gradients = False
    accuracy = 0.3

    @pytest.fixture
    def recipe(self):
        return RBFNetwork(60, width=1.0)


@pytest.mark.parametrize("kind", [SoftplusNetwork, RBFNetwork])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_hidden": 0}, "n_hidden must be a whole number of at least 1, got 0"),
        ({"n_hidden": 2.5}, "n_hidden must be a whole number"),
        ({"n_hidden": 5, "ridge": -1.0}, "ridge must be a number of at least 0, got -1"),
        ({"n_hidden": 5, "ridge": np.nan}, "ridge must be a number of at least 0, got nan"),
        ({"n_hidden": 5, "ridge": "big"}, "ridge must be a number of at least 0"),
    ],
)
def test_bad_recipes_are_rejected(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


def test_bad_gain_width_and_whitening_are_rejected(rng):
    with pytest.raises(InputError, match="gain"):
        SoftplusNetwork(5, gain=0.0)
    with pytest.raises(InputError, match="width"):
        RBFNetwork(5, width=-1.0)
    whitening = Whitening(np.zeros(2), np.eye(2))
    with pytest.raises(InputError, match="must have 2 coordinates"):
        SoftplusNetwork(5, whitening=whitening).fit(evaluations(rng, 9), rng)


@pytest.mark.parametrize("kind", RECIPES)
def test_the_chosen_ridge_beats_bad_ones(kind, rng):
    training, recipe = evaluations(rng, 100, gradient=False), RECIPES[kind]
    where = positions(rng, 500)
    exact, _ = skewed(where)

    def error(ridge):
        fitted = type(recipe)(60, ridge=ridge).fit(training, np.random.default_rng(1))
        return (fitted.potential(where) - exact).std()

    assert error(None) < 0.9 * min(error(1e3), error(1e-13))


@pytest.mark.parametrize("kind", RECIPES)
def test_gradients_help(kind, rng):
    training = evaluations(rng, 40)
    where = positions(rng, 500)
    exact, _ = skewed(where)
    errors = []
    for known in (training, TrainingSet(training.position, training.potential)):
        fitted = [RECIPES[kind].fit(known, np.random.default_rng(seed)) for seed in range(5)]
        errors.append(np.median([np.abs(each.potential(where) - exact) for each in fitted]))
    assert errors[0] < 0.8 * errors[1]


def test_units_and_shifts_do_not_matter(rng):
    """The same posterior in other coordinates, and with a constant added, gets the same surrogate."""
    training = evaluations(rng, 60)
    scale, points = np.array([1e3, 1e-4, 1.0]), positions(rng, 5)
    one = SoftplusNetwork(40).fit(training, np.random.default_rng(0))
    moved = TrainingSet(training.position * scale, training.potential + 1e3, training.gradient / scale)
    two = SoftplusNetwork(40).fit(moved, np.random.default_rng(0))
    np.testing.assert_allclose(two.potential(points * scale) - 1e3, one.potential(points), atol=1e-6)


def test_gradient_rows_weigh_as_much_as_values(rng):
    white = evaluations(rng, 200).whiten(Whitening(np.zeros(3), np.eye(3)))
    weight = balanced_gradient_weight(white)
    assert np.isclose(weight * np.square(white.gradient).sum(), np.square(white.value).sum())


def test_the_weight_is_a_half_for_a_gaussian(rng):
    for dim in (2, 30):
        x = rng.standard_normal((20_000, dim))
        training = TrainingSet(x, 0.5 * (x**2).sum(axis=1), x)
        white = training.whiten(Whitening(np.zeros(dim), np.eye(dim)))
        assert abs(balanced_gradient_weight(white) - 0.5) < 0.03


def test_some_gradients_are_unknown(rng):
    training = evaluations(rng, 60)
    gradient = training.gradient.copy()
    gradient[::2] = np.nan
    fitted = SoftplusNetwork(50).fit(TrainingSet(training.position, training.potential, gradient), rng)
    where = positions(rng, 300)
    exact, _ = skewed(where)
    assert (fitted.potential(where) - exact).std() < 0.2 * exact.std()


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("ridge", [1e-3, None])
def test_without_stacking_the_network_is_the_same(kind, ridge, rng, monkeypatch):
    """When rows are too many to stack, only their Gram matrix is formed."""
    training, points = evaluations(rng, 150), positions(rng, 20)
    recipe = type(RECIPES[kind])(30, ridge=ridge)
    stacked = recipe.fit(training, np.random.default_rng(0))
    monkeypatch.setattr(network, "MAX_STACKED", 0)
    summed = recipe.fit(training, np.random.default_rng(0))
    exact, _ = skewed(points)
    if ridge is None:
        assert (summed.potential(points) - exact).std() < 2.0 * (
            stacked.potential(points) - exact
        ).std() + 0.01
    else:
        np.testing.assert_allclose(summed.potential(points), stacked.potential(points), atol=1e-6)
    further = evaluations(rng, 10)
    updated = summed.update(further)
    monkeypatch.undo()
    if ridge is not None:
        np.testing.assert_allclose(
            updated.potential(points), stacked.update(further).potential(points), atol=1e-6
        )


def test_updates_in_parts_equal_one_update(rng):
    parts = [evaluations(rng, n) for n in (50, 3, 1, 20)]
    fitted = SoftplusNetwork(30).fit(parts[0], rng)
    in_parts = fitted.update(parts[1]).update(parts[2]).update(parts[3])
    at_once = fitted.update(parts[1].join(parts[2]).join(parts[3]))
    points = positions(rng, 10)
    np.testing.assert_allclose(in_parts.potential(points), at_once.potential(points), atol=1e-8)


@pytest.mark.parametrize("recipe", [*RECIPES.values(), SoftplusNetwork(40, ridge=1e-6)], ids=repr)
@pytest.mark.parametrize("gradients", ["none", "some", "all"])
def test_single_evaluations_one_after_the_other_equal_a_refit(recipe, gradients, rng):
    training = evaluations(rng, 90, gradient=gradients != "none")
    if gradients == "some":
        training.gradient[::2] = np.nan
    fitted = start = recipe.fit(training.rows(np.arange(60)), np.random.default_rng(0))
    for i in range(60, 90):
        fitted = fitted.update(training.rows(np.arange(i, i + 1)))
    unseen = positions(rng, 200)
    expected = refitted(start, training).potential_and_gradient(unseen)
    for found, wanted in zip(fitted.potential_and_gradient(unseen), expected, strict=True):
        assert np.abs(found - wanted).max() < 1e-7 * wanted.std()


@pytest.mark.parametrize("kind", RECIPES)
def test_an_update_with_more_data_predicts_better(kind, rng):
    start = RECIPES[kind].fit(evaluations(rng, 30, gradient=False), np.random.default_rng(0))
    test, updated = evaluations(rng, 300), start.update(evaluations(rng, 300))
    before, after = (np.std(each.potential(test.position) - test.potential) for each in (start, updated))
    assert after < 0.5 * before


@pytest.mark.parametrize("recipe", [*RECIPES.values(), QuadraticNetwork(), QuadraticNetwork(10)], ids=repr)
def test_weights_are_not_solved_for_until_they_are_used(recipe, rng, monkeypatch):
    """Adaptive samplers update at every iteration and use the network rarely: only use may cost a solve."""
    calls = []
    solve = online._solve
    monkeypatch.setattr(online, "_solve", lambda *parts: calls.append(1) or solve(*parts))
    fitted, further = recipe.fit(evaluations(rng, 60), rng), evaluations(rng, 30)
    for i in range(len(further)):
        fitted = fitted.update(further.rows(np.arange(i, i + 1)))
    assert not calls
    for _ in range(3):
        fitted.potential_and_gradient(further.position)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", RECIPES)
def test_evaluations_far_above_the_others_are_left_out(kind, rng):
    training = evaluations(rng, 60).select()
    far = TrainingSet(np.full((1, 3), 1e3), [1e9], np.full((1, 3), 1e7))
    one, two = (RECIPES[kind].fit(each, np.random.default_rng(0)) for each in (training, training.join(far)))
    np.testing.assert_array_equal(one.potential(training.position), two.potential(training.position))
    assert one.update(far) is one


def test_far_away_nothing_overflows(rng):
    fitted = SoftplusNetwork(40).fit(evaluations(rng, 60), rng)
    potential, gradient = fitted.potential_and_gradient(np.array([[1e5, -1e5, 1e5], [1e200, 0.0, 0.0]]))
    assert np.isfinite(potential).all() and np.isfinite(gradient).all()


class Banana:
    """The paper's figure 2: leapfrog on the surrogate, Metropolis with the exact potential."""

    step_size, n_steps = 0.1, 12

    def __init__(self) -> None:
        self.target = banana().target

    def exact(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = self.target.evaluate(theta, gradient=True)
        return -raw.log_density, -raw.gradient

    def chains(self, force, rng, draws: int, theta: np.ndarray) -> tuple[np.ndarray, float]:
        """Run many chains and return all positions with the mean acceptance probability."""
        n, kept, rates = len(theta), [], []
        for _ in range(draws):
            momentum = rng.standard_normal(theta.shape)
            start = PhasePoint(theta, momentum, *force(theta), complete=np.ones(n, dtype=bool))
            end, _ = leapfrog(
                force, UnitMetric(), start, np.full(n, self.step_size), np.full(n, self.n_steps)
            )
            before = self.exact(theta)[0] + 0.5 * (momentum**2).sum(axis=1)
            after = self.exact(end.position)[0] + 0.5 * (end.momentum**2).sum(axis=1)
            rate = np.where(end.complete, np.exp(np.minimum(0.0, before - after)), 0.0)
            theta = np.where((rng.random(n) < rate)[:, None], end.position, theta)
            kept.append(theta)
            rates.append(rate.mean())
        return np.concatenate(kept), float(np.mean(rates))


@pytest.mark.parametrize(
    "gradients", [pytest.param(False, marks=pytest.mark.slow), True], ids=["values", "gradients"]
)
def test_acceptance_on_the_banana_is_that_of_the_paper(gradients):
    """Forty units and 400 points reach at least 0.88 for each of three seeds; exact HMC has about 0.94 here."""
    problem, rng = Banana(), np.random.default_rng(2)
    start = np.tile(banana().true_parameters, (50, 1))
    explored, exact_rate = problem.chains(problem.exact, rng, 60, start)
    assert exact_rate > 0.92
    for seed in range(3):
        chosen = rng.permutation(np.arange(1000, len(explored)))[:400]
        potential, slope = problem.exact(explored[chosen])
        training = TrainingSet(explored[chosen], potential, slope if gradients else None)
        fitted = SoftplusNetwork(40).fit(training, np.random.default_rng(seed))
        # 50 chains of 30 draws: the standard error of the rate is about 0.005, and rates are near 0.93.
        _, rate = problem.chains(fitted.potential_and_gradient, rng, 30, explored[-50:])
        assert rate > 0.88
