"""Quadratic networks: conformance, what they learn exactly, few rows, the tail rule, the banana."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conformance import MEAN, SurrogateConformance, positions

from leapwise.dynamics import PhasePoint, UnitMetric, leapfrog
from leapwise.errors import InputError
from leapwise.problems import banana
from leapwise.surrogates import elm
from leapwise.surrogates.quadratic import QuadraticNetwork, _without_prior
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import MIN_CURVATURE, guard_radius
from leapwise.surrogates.whitening import Whitening


class QuadraticConformance(SurrogateConformance):
    def refit(self, fitted, everything):
        white = _without_prior(everything.whiten(fitted.whitening))
        lesson = replace(fitted.lesson, white=white)
        weights, _ = lesson.solve(fitted.ridge)
        return replace(fitted, lesson=lesson, solution=weights, radius=guard_radius(white.position))


class TestWithNodes(QuadraticConformance):
    @pytest.fixture
    def recipe(self):
        return QuadraticNetwork(40)


class TestWithNodesOnValues(QuadraticConformance):
    gradients = False

    @pytest.fixture
    def recipe(self):
        return QuadraticNetwork(40)


class TestWithRadialTerms(QuadraticConformance):
    @pytest.fixture
    def recipe(self):
        return QuadraticNetwork(20, radial=True)


class TestQuadraticBeyondTheGuard(QuadraticConformance):
    """A quadratic has third derivatives where the guard is: it is looked at there."""

    accuracy = 0.4

    @pytest.fixture
    def recipe(self):
        return QuadraticNetwork()

    @pytest.fixture
    def points(self):
        return MEAN + 12.0 * (positions(np.random.default_rng(4), 5) - MEAN)


def gaussian(rng, n, dim, *, gradient=True):
    """Evaluate a correlated Gaussian at its own draws."""
    factor = np.tril(rng.standard_normal((dim, dim)), -1) + np.diag(rng.uniform(0.5, 2.0, dim))
    precision = np.linalg.inv(factor @ factor.T)
    x = 3.0 + rng.standard_normal((n, dim)) @ factor.T
    slope = (x - 3.0) @ precision
    potential = 0.5 * ((x - 3.0) * slope).sum(axis=1) + 100.0
    return TrainingSet(x, potential, slope if gradient else None), precision


def test_a_gaussian_is_learnt_exactly(rng):
    training, precision = gaussian(rng, 40, 5)
    fitted = QuadraticNetwork().fit(training, rng)
    np.testing.assert_allclose(fitted.potential(training.position), training.potential, atol=1e-6)
    np.testing.assert_allclose(fitted.hessian(training.position[:1])[0], precision, atol=1e-6)


def test_without_rows_to_say_otherwise_the_hessian_is_the_whitenings(rng):
    """Three values cannot decide 65 weights: the ridge keeps the Hessian near the identity in whitened coordinates."""
    training, _ = gaussian(rng, 3, 10, gradient=False)
    fitted = QuadraticNetwork(ridge=1e6).fit(training, rng)
    hessian = fitted.whitening.factor.T @ fitted.hessian(training.position[:1])[0] @ fitted.whitening.factor
    np.testing.assert_allclose(hessian, np.eye(10), atol=1e-3)


@pytest.mark.parametrize("n_hidden", [0, 30])
@pytest.mark.parametrize("gradient", [False, True])
def test_fewer_rows_than_unknowns_do_no_harm(rng, n_hidden, gradient):
    training, _ = gaussian(rng, 4, 10, gradient=gradient)
    fitted = QuadraticNetwork(n_hidden).fit(training, rng)
    fresh = 3.0 + rng.standard_normal((200, 10))
    assert np.isfinite(fitted.potential(fresh)).all()
    assert np.linalg.eigvalsh(fitted.hessian(fitted.whitening.mean[None]))[0, 0] > 0


def test_large_problems_are_solved_by_gram_matrices_alike(rng, monkeypatch):
    training, _ = gaussian(rng, 60, 4)
    bent = TrainingSet(
        training.position,
        training.potential + np.sin(training.position[:, 0]),
        training.gradient + np.cos(training.position[:, :1]) * np.eye(4)[0],
    )
    recipe = QuadraticNetwork(15, ridge=1e-3)
    stacked = recipe.fit(bent, np.random.default_rng(1))
    monkeypatch.setattr(elm, "MAX_STACKED", 0)
    by_gram = recipe.fit(bent, np.random.default_rng(1))
    np.testing.assert_allclose(by_gram.potential(bent.position), stacked.potential(bent.position), rtol=1e-6)


def test_hidden_nodes_see_coordinates_whitened_by_the_quadratic(rng):
    """The covariance of positions is shrunk, and misses strong correlations; gradients know better."""
    factor = np.array([[1.0, 0.0, 0.0], [1.0, 0.01, 0.0], [0.0, 0.0, 5.0]])
    x = rng.standard_normal((60, 3)) @ factor.T
    slope = x @ np.linalg.inv(factor @ factor.T)
    training = TrainingSet(x, 0.5 * (x * slope).sum(axis=1), slope)
    covariance = factor @ factor.T
    plain, refined = (QuadraticNetwork(n_hidden).fit(training, rng).whitening for n_hidden in (0, 10))
    assert np.linalg.cond(np.linalg.solve(covariance, plain.factor @ plain.factor.T)) > 100
    np.testing.assert_allclose(refined.factor @ refined.factor.T, covariance, rtol=1e-3, atol=1e-9)


def test_a_quadratic_that_is_there_already_spares_its_fit(rng):
    x, fresh = rng.standard_normal((60, 3)), rng.standard_normal((5, 3))
    training = TrainingSet(x, 0.5 * (x**2).sum(axis=1) + np.sin(x[:, 0]), x + np.cos(x) * [1.0, 0.0, 0.0])
    frame = Whitening.from_positions(x)
    plain = QuadraticNetwork(whitening=frame).fit(training, rng)
    network = QuadraticNetwork(20, whitening=frame)
    made, given = (network.fit(training, np.random.default_rng(1), each) for each in (None, plain))
    np.testing.assert_array_equal(made.potential(fresh), given.potential(fresh))


def test_hidden_nodes_look_where_the_quadratic_fails(rng):
    """Only one direction of ten is not quadratic: nodes point there, and little data is enough."""
    x, fresh = rng.standard_normal((60, 10)), rng.standard_normal((300, 10))
    axis = np.full(10, 10.0**-0.5)

    def potential(x):
        return 0.5 * (x**2).sum(axis=1) + np.sin(1.5 * x @ axis)

    slope = x + 1.5 * np.cos(1.5 * x @ axis)[:, None] * axis
    fitted = QuadraticNetwork(40).fit(TrainingSet(x, potential(x), slope), rng)
    inputs = fitted.lesson.basis.bases[1].input_weights
    along = np.square(inputs @ fitted.whitening.factor.T @ axis).sum() / np.square(inputs).sum()
    assert along > 0.5  # a tenth, were they drawn alike in all directions
    plain = QuadraticNetwork().fit(TrainingSet(x, potential(x), slope), rng)
    errors = [np.median(np.abs(f.potential(fresh) - potential(fresh))) for f in (fitted, plain)]
    assert errors[0] < 0.2 * errors[1]


def test_radial_terms_rescue_heavy_tails(rng):
    dim, dof = 10, 4.0
    x = rng.standard_normal((900, dim)) / np.sqrt(rng.chisquare(dof, (900, 1)) / dof)
    square = (x**2).sum(axis=1)
    slope = (dof + dim) * x / (dof + square)[:, None]
    everything = TrainingSet(x, 0.5 * (dof + dim) * np.log1p(square / dof), slope).select()
    training, fresh = everything.rows(slice(0, 300)), everything.rows(slice(300, None))
    plain, radial = (
        QuadraticNetwork(radial=radial).fit(training, rng).potential(fresh.position) - fresh.potential
        for radial in (False, True)
    )
    assert radial.std() < 0.2 * plain.std()


class TestTailRule:
    """Outside the trained region the surrogate grows and does not fall below the potential without bound."""

    def surrogates(self, rng):
        """Surrogates that would like to fall: a saddle, noise, a potential that decreases outwards."""
        x = rng.standard_normal((60, 3))
        saddle = TrainingSet(x, x[:, 0] ** 2 - x[:, 1] ** 2, 2.0 * x * [1.0, -1.0, 0.0])
        noise = TrainingSet(x, 3.0 * rng.standard_normal(60))
        falling = TrainingSet(x, -np.square(x).sum(axis=1), -2.0 * x)
        for training in (saddle, noise, falling):
            for recipe in (QuadraticNetwork(), QuadraticNetwork(30), QuadraticNetwork(10, radial=True)):
                yield recipe.fit(training, rng)

    def test_trend_is_convex(self, rng):
        for fitted in self.surrogates(rng):
            trend = fitted.lesson.basis.trend
            values = np.linalg.eigvalsh(trend.matrix(fitted.weights[: trend.size]))
            assert values[0] >= MIN_CURVATURE - 1e-9

    def test_grows_along_every_ray(self, rng):
        rays = rng.standard_normal((300, 3))
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        for fitted in self.surrogates(rng):
            far = [fitted.whitening.from_white(k * fitted.radius * rays) for k in (50, 100, 200)]
            values = np.stack([fitted.potential(where) for where in far])
            assert (np.diff(values, axis=0) > 0).all()
            # Curvature of at least 1.02 in the end: value / distance^2 tends to at least 0.51.
            assert (values[-1] > 0.5 * (200 * fitted.radius) ** 2).all()

    def test_bounded_under_estimate_of_a_potential_with_less_curvature(self, rng):
        """U - U~ along rays, for a unit Gaussian in whitened coordinates, has a largest value not far out."""
        rays = rng.standard_normal((300, 3))
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        for fitted in self.surrogates(rng):
            distance = fitted.radius * np.geomspace(1.0, 1e4, 60)
            white = distance[:, None, None] * rays
            values = fitted.potential(fitted.whitening.from_white(white.reshape(-1, 3))).reshape(60, 300)
            under = 0.5 * distance[:, None] ** 2 - values
            assert under[-1].max() < under[:40].max()

    def test_fit_inside_survives_the_rule(self, rng):
        """Two wells: the trend alone would bend downwards; nodes make up for what the rule takes away."""
        x = rng.choice([-1.0, 1.0], (400, 1)) + 0.35 * rng.standard_normal((400, 1))
        wells = TrainingSet(x, 4.0 * (x[:, 0] ** 2 - 1) ** 2, 16.0 * x * (x**2 - 1))
        fitted = QuadraticNetwork(60, gain=3.0).fit(wells, rng)
        assert (fitted.potential(x) - wells.potential).std() < 0.05

    def test_update_keeps_the_rule(self, rng):
        x = rng.standard_normal((60, 3))
        fitted = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1), x), rng)
        falling = TrainingSet(2.0 * x, 0.1 * x[:, 0], -20.0 * x)
        updated = fitted.update(falling)
        trend = updated.lesson.basis.trend
        assert np.linalg.eigvalsh(trend.matrix(updated.weights[: trend.size]))[0] >= MIN_CURVATURE - 1e-9
        assert updated.radius > fitted.radius


def test_far_evaluations_are_left_out(rng):
    training, _ = gaussian(rng, 60, 3)
    far = TrainingSet(np.full((1, 3), 1e3), [1e9], np.full((1, 3), 1e7))
    both = training.join(far)
    one, two = (QuadraticNetwork().fit(t, np.random.default_rng(0)) for t in (training, both))
    np.testing.assert_array_equal(one.potential(training.position), two.potential(training.position))
    assert one.update(far) is one


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"n_hidden": -1}, "n_hidden"),
        ({"ridge": -1.0}, "ridge"),
        ({"radial": 1}, "radial"),
        ({"gain": 0}, "gain"),
    ],
)
def test_bad_settings_are_named(settings, word):
    with pytest.raises(InputError, match=word):
        QuadraticNetwork(**settings)


def test_whitening_of_another_dimension_is_refused(rng):
    training, _ = gaussian(rng, 10, 3)
    with pytest.raises(InputError, match="2 coordinates"):
        QuadraticNetwork(whitening=Whitening(np.zeros(2), np.eye(2))).fit(training, rng)


def test_surrogate_flow_on_the_banana(rng):
    """With 150 units, at least 0.95 of surrogate trajectories are accepted, exact Metropolis included."""
    target, step_size, n_steps, n = banana().target, 0.05, 14, 60

    def exact(theta):
        raw = target.evaluate(theta, gradient=True)
        return -raw.log_density, -raw.gradient

    def run(force, theta, draws):
        kept, rates = [], []
        for _ in range(draws):
            momentum = rng.standard_normal(theta.shape)
            start = PhasePoint(theta, momentum, *force(theta), complete=np.ones(n, dtype=bool))
            end, _ = leapfrog(force, UnitMetric(), start, np.full(n, step_size), np.full(n, n_steps))
            before = exact(theta)[0] + 0.5 * (momentum**2).sum(axis=1)
            after = exact(end.position)[0] + 0.5 * (end.momentum**2).sum(axis=1)
            rate = np.where(end.complete, np.exp(np.minimum(0.0, before - after)), 0.0)
            theta = np.where((rng.random(n) < rate)[:, None], end.position, theta)
            kept.append(theta)
            rates.append(rate.mean())
        return np.concatenate(kept), float(np.mean(rates))

    explored, _ = run(exact, np.tile([0.75, 0.5], (n, 1)), 60)
    chosen = rng.permutation(np.arange(20 * n, len(explored)))[:400]
    fitted = QuadraticNetwork(150).fit(TrainingSet(explored[chosen], *exact(explored[chosen])), rng)
    # 60 chains of 30 draws: five seeds gave rates from 0.9866 to 0.9878, as exact forces do.
    _, rate = run(fitted.potential_and_gradient, explored[-n:], 30)
    assert rate > 0.95
