"""Surrogates of outputs: conformance with any likelihood, exact cases, bounds, compression, updates."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from conformance import FACTOR, MEAN, SurrogateConformance, assert_close, differences, skewed

import leapwise as lw
from leapwise.errors import InputError
from leapwise.surrogates.emulator import OutputFeatures
from leapwise.surrogates.output_space import PriorPotential, QuadraticPotential, SmoothPotential
from leapwise.surrogates.outputs import FittedOutputs, OutputSurrogate
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.training import TrainingSet


def bent(position: np.ndarray) -> np.ndarray:
    """Return outputs of an invertible forward model: whitened coordinates that bend one another."""
    z = (position - MEAN) @ np.linalg.inv(FACTOR).T
    return np.stack([z[:, 0] + 0.3 * z[:, 1] ** 2, z[:, 1], z[:, 2] + 0.2 * z[:, 0] * z[:, 1]], axis=1)


class InverseLikelihood:
    """The likelihood for which bent outputs have the skewed potential of the conformance tests, less its prior."""

    def log_density(self, points):
        return self._both(points)[0]

    def gradient(self, points):
        return self._both(points)[1]

    def _both(self, points):
        first = points[:, 0] - 0.3 * points[:, 1] ** 2
        z = np.stack([first, points[:, 1], points[:, 2] - 0.2 * first * points[:, 1]], axis=1)
        potential, slope = skewed(MEAN + z @ FACTOR.T)
        slope = slope @ FACTOR - 0.2 * z
        value = potential - 0.1 * (z**2).sum(axis=1)
        by_first = slope[:, 0] - 0.2 * z[:, 1] * slope[:, 2]
        by_second = slope[:, 1] - 0.2 * first * slope[:, 2] - 0.6 * z[:, 1] * by_first
        return -value, -np.stack([by_first, by_second, slope[:, 2]], axis=1)


def prior(position):
    inverse = np.linalg.inv(FACTOR)
    z = (position - MEAN) @ inverse.T
    return 0.1 * (z**2).sum(axis=1), 0.2 * z @ inverse


def with_outputs(training: TrainingSet) -> TrainingSet:
    outputs = bent(training.position) if training.dim == 3 else None
    return TrainingSet(training.position, training.potential, outputs=outputs)


@dataclass(frozen=True, eq=False)
class FittedWithOutputs(FittedOutputs):
    def update(self, training):
        return super().update(with_outputs(training))


@dataclass(frozen=True)
class WithOutputs(OutputSurrogate):
    def fit(self, training, rng):
        fitted = super().fit(with_outputs(training), rng)
        return FittedWithOutputs(**{field.name: getattr(fitted, field.name) for field in fields(fitted)})


class TestQuadraticFeatures(SurrogateConformance):
    gradients = False
    accuracy = 1e-3  # the forward model is quadratic, so any likelihood is emulated nearly exactly

    @pytest.fixture
    def recipe(self):
        return WithOutputs(InverseLikelihood(), prior)

    def test_needs_different_positions(self, recipe):
        with pytest.raises(InputError, match="at least two different"):
            recipe.fit(TrainingSet(np.ones((4, 3)), np.ones(4)), np.random.default_rng(0))


class TestHiddenUnits(TestQuadraticFeatures):
    accuracy = 0.01

    @pytest.fixture
    def recipe(self):
        return WithOutputs(InverseLikelihood(), prior, n_hidden=30, ridge=1e-2)

    def refit(self, fitted, everything):
        everything = with_outputs(everything)
        rows = fitted.features.rows(fitted.whitening.to_white(everything.position))
        components = fitted.space.encode(everything.outputs)
        penalty = np.sqrt(fitted.ridge * fitted.features.penalty)
        stacked = np.concatenate([rows, np.diag(penalty)])
        targets = np.concatenate([components, np.zeros((len(penalty), components.shape[1]))])
        weights = np.linalg.lstsq(stacked, targets)[0]
        return replace(fitted, solution=weights)


def gaussian_target(n_outputs=6, dim=3, **settings):
    mixing = np.random.default_rng(1).standard_normal((dim, n_outputs))

    def forward(x):
        return np.tanh(0.3 * x @ mixing) + 0.1 * x[:, :1] ** 2

    likelihood = lw.GaussianLikelihood(np.full(n_outputs, 0.2), sd=0.2)
    prior = lw.NormalPrior(0.0, 1.0, dim=dim)
    return lw.ForwardTarget(forward, likelihood, prior, vectorized=True, **settings)


def train(target, rng, n, spread=1.0):
    """Evaluate a target at normal positions."""
    found = lw.Evaluator(target).value(spread * rng.standard_normal((n, target.dim)))
    return TrainingSet(found.position, found.potential, outputs=found.outputs)


@pytest.mark.parametrize("n_hidden", [0, 20])
@pytest.mark.parametrize(
    "bounds", [None, [(0.0, None), (-2.0, 2.0), (None, 1.0)]], ids=["unbounded", "bounded"]
)
def test_derivatives_for_a_gaussian_likelihood_and_bounds(rng, bounds, n_hidden):
    target = gaussian_target(bounds=bounds)
    fitted = OutputSurrogate.of(target, n_hidden).fit(train(target, rng, 60), rng)
    assert isinstance(fitted.misfit, QuadraticPotential)
    points, velocity = 0.5 * rng.standard_normal((5, 3)), rng.standard_normal((5, 3))
    gradient, hessian = fitted.potential_and_gradient(points)[1], fitted.hessian(points)
    assert_close(gradient, differences(fitted.potential, points), 1e-6)
    assert_close(hessian, differences(lambda q: fitted.potential_and_gradient(q)[1], points), 1e-5)
    third = np.einsum("nkab,na,nb->nk", differences(fitted.hessian, points), velocity, velocity)
    assert_close(fitted.quadratic_contraction(points, velocity), third, 1e-4)


@pytest.mark.parametrize("bounds", [None, (-3.0, 3.0)], ids=["unbounded", "bounded"])
def test_bounds_are_in_the_prior_and_exact(rng, bounds):
    """With the exact outputs, prior and likelihood give the evaluator's potential."""
    target = gaussian_target(bounds=bounds)
    training = train(target, rng, 50)
    potential, _ = PriorPotential(target.prior, target.transform)(training.position)
    total = potential - target.likelihood.log_density(training.outputs)
    np.testing.assert_allclose(total, training.potential, rtol=1e-12)


def test_outputs_beat_the_scalar_without_gradients(rng):
    target = gaussian_target()
    training, fresh = train(target, rng, 60), train(target, rng, 500)
    emulated = OutputSurrogate.of(target, 20).fit(training, rng)
    scalar = QuadraticNetwork(20).fit(training, rng)
    errors = [(f.potential(fresh.position) - fresh.potential).std() for f in (emulated, scalar)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("n_hidden", [0, 10])
def test_gradients_are_used_where_they_are_known(rng, n_hidden):
    """Ninety-six evaluations of eight parameters: gradients halve the error."""
    target = gaussian_target(dim=8, jacobian=tanh_jacobian(8))
    evaluator = lw.Evaluator(target)
    found = evaluator.value_and_gradient(0.3 * rng.standard_normal((96, 8)))
    fresh = train(target, rng, 300, spread=0.3)
    recipe = OutputSurrogate.of(target, n_hidden)
    errors = []
    for gradient in (None, found.gradient):
        training = TrainingSet(found.position, found.potential, gradient, found.outputs)
        fitted = recipe.fit(training, np.random.default_rng(0))
        errors.append((fitted.potential(fresh.position) - fresh.potential).std())
    assert errors[1] < 0.5 * errors[0]


def test_the_regression_with_gradients_is_solved_exactly(rng):
    """Woodbury's identity agrees with the stacked least-squares problem for all weights at once."""
    target = gaussian_target(jacobian=tanh_jacobian(3))
    found = lw.Evaluator(target).value_and_gradient(rng.standard_normal((12, 3)))
    gradient = found.gradient.copy()
    gradient[::3] = np.nan
    training = TrainingSet(found.position, found.potential, gradient, found.outputs)
    recipe = OutputSurrogate(target.likelihood, PriorPotential(target.prior, target.transform), ridge=0.5)
    fitted = recipe.fit(training, rng)
    kept, features = fitted.training, fitted.features
    white = fitted.whitening.to_white(kept.position)
    rows, components = features.rows(white), fitted.space.encode(kept.outputs)
    p, known = components.shape[1], ~np.isnan(kept.gradient[:, 0])
    cotangent = -target.likelihood.gradient(kept.outputs[known]) @ fitted.space.decoder.T
    length = np.linalg.norm(cotangent, axis=1)
    slopes = features.gradient_rows(white[known]).reshape(known.sum(), 3, -1)
    coupled = np.einsum("nds,np->ndsp", slopes, cotangent / length[:, None]).reshape(known.sum() * 3, -1)
    pulled = fitted.whitening.gradient_to_white(kept.gradient[known])
    pulled = (pulled - fitted.prior.value_and_gradient(white[known])[1]) / length[:, None]
    stacked = np.concatenate(
        [np.kron(rows, np.eye(p)), coupled, np.diag(np.repeat(np.sqrt(0.5 * features.penalty), p))]
    )
    targets = np.concatenate([components.ravel(), pulled.ravel(), np.zeros(rows.shape[1] * p)])
    weights = np.linalg.lstsq(stacked, targets)[0].reshape(-1, p)
    np.testing.assert_allclose(
        fitted.emulator.components(white), features.emulator(weights).components(white), atol=1e-6
    )


def test_cubic_outputs_are_emulated(rng):
    """Quadratic features alone leave about a tenth unexplained."""

    def forward(x):
        return np.stack([x[:, 0] ** 3 / 6, x[:, 0] * x[:, 1] ** 2, x[:, 2] + x.prod(axis=1)], axis=1)

    prior = lw.NormalPrior(0.0, 1.0, dim=3)
    target = lw.ForwardTarget(forward, lw.GaussianLikelihood(np.ones(3), sd=0.3), prior, vectorized=True)
    training, fresh = train(target, rng, 60), train(target, rng, 200).select()
    fitted = OutputSurrogate.of(target).fit(training, rng)
    assert (fitted.potential(fresh.position) - fresh.potential).std() < 1e-3 * fresh.potential.std()


def test_many_parameters_have_few_cubic_features(rng):
    target = gaussian_target(dim=40)
    training = train(target, rng, 60, spread=0.1)
    fitted = OutputSurrogate.of(target).fit(training, rng)
    assert fitted.features.cubic.size <= 2000 < fitted.features.cubic.dim**3
    gradient = fitted.potential_and_gradient(training.position[:2])[1]
    assert_close(gradient, differences(fitted.potential, training.position[:2]), 1e-6)


def test_weights_are_solved_for_when_first_used(rng, monkeypatch):
    target = gaussian_target(jacobian=tanh_jacobian(3))
    found = lw.Evaluator(target).value_and_gradient(rng.standard_normal((40, 3)))
    both = TrainingSet(found.position, found.potential, found.gradient, found.outputs)
    values = TrainingSet(found.position, found.potential, outputs=found.outputs)
    for training in (both, values):
        fitted = OutputSurrogate.of(target).fit(training.rows(slice(0, 20)), rng)
        calls = []
        emulator = OutputFeatures.emulator
        with monkeypatch.context() as patch:
            patch.setattr(OutputFeatures, "emulator", lambda *parts: calls.append(1) or emulator(*parts))  # noqa: B023
            for i in range(20, 40):
                fitted = fitted.update(training.rows(slice(i, i + 1)))
            assert not calls
            for _ in range(3):
                fitted.potential(training.position)
            assert len(calls) == 1


def test_an_update_with_gradients_is_more_accurate(rng):
    target = gaussian_target(jacobian=tanh_jacobian(3))
    found = lw.Evaluator(target).value_and_gradient(rng.standard_normal((30, 3)))
    everything = TrainingSet(found.position, found.potential, found.gradient, found.outputs)
    fitted = OutputSurrogate.of(target).fit(everything.rows(slice(0, 20)), rng)
    updated = fitted.update(everything.rows(slice(20, None)))
    assert len(updated.training) == len(fitted.training) + 10
    fresh = train(target, rng, 200)
    errors = [(f.potential(fresh.position) - fresh.potential).std() for f in (fitted, updated)]
    assert errors[1] < errors[0]


def tanh_jacobian(dim, n_outputs=6):
    mixing = np.random.default_rng(1).standard_normal((dim, n_outputs))

    def jacobian(x):
        inner = np.tanh(0.3 * x @ mixing)
        slopes = 0.3 * (1.0 - inner**2)[:, :, None] * mixing.T
        slopes[:, :, 0] += 0.2 * x[:, :1]
        return inner + 0.1 * x[:, :1] ** 2, slopes

    return jacobian


def test_many_outputs_are_compressed(rng):
    """A thousand outputs that are functions of three parameters need few components."""
    target = gaussian_target(n_outputs=1000)
    training = train(target, rng, 80, spread=0.1)
    fitted = OutputSurrogate.of(target).fit(training, rng)
    assert fitted.space.decoder.shape[0] < 40
    outputs = training.select().outputs
    lost = outputs - fitted.space.decode(fitted.space.encode(outputs))
    assert (lost**2).sum() / 0.2**2 / len(outputs) <= 1e-4


def test_outputs_that_matter_little_are_dropped_and_those_that_matter_kept(rng):
    """Components are scaled by the likelihood, not by the outputs."""
    x = rng.standard_normal((50, 2))
    outputs = np.stack([1e3 * x[:, 0], 1e-3 * x[:, 1]], axis=1)
    likelihood = lw.GaussianLikelihood(np.zeros(2), sd=[1e6, 1e-4])
    training = TrainingSet(x, -likelihood.log_density(outputs) + 0.5 * (x**2).sum(axis=1), outputs=outputs)
    fitted = OutputSurrogate(likelihood, lambda q: (0.5 * (q**2).sum(axis=1), q)).fit(training, rng)
    kept = np.abs(fitted.space.decoder)
    assert kept.shape[0] == 1
    assert kept[0, 1] == pytest.approx(1e-4) and kept[0, 0] < 1e-3 * 1e6


def test_constant_outputs(rng):
    target = gaussian_target()
    training = train(target, rng, 40)
    outputs = training.outputs.copy()
    outputs[:, 2] = 0.7
    fitted = OutputSurrogate.of(target).fit(
        TrainingSet(training.position, training.potential, outputs=outputs), rng
    )
    np.testing.assert_allclose(fitted.outputs(training.position)[:, 2], 0.7)
    assert np.isfinite(fitted.potential(training.position)).all()


def test_other_likelihoods_are_not_quadratic_forms(rng):
    class Student:
        def log_density(self, points):
            return -2.5 * np.log1p((points - 0.2) ** 2 / 0.16).sum(axis=1)

        def gradient(self, points):
            return -5.0 * (points - 0.2) / (0.16 + (points - 0.2) ** 2)

    target = gaussian_target()
    training = train(target, rng, 40)
    recipe = OutputSurrogate(Student(), PriorPotential(target.prior, target.transform))
    assert isinstance(recipe.fit(training, rng).misfit, SmoothPotential)


class Truncated(lw.NormalPrior):
    """Normal up to a hard edge that its gradient does not show."""

    def log_density(self, points):
        return np.where((points < 1.5).all(axis=1), super().log_density(points), -np.inf)


def test_a_prior_becomes_a_quadratic_form_only_if_it_is_one(rng):
    target = gaussian_target()
    training = train(target, rng, 40, spread=0.3)
    for prior, kind in (
        (lw.NormalPrior(0.0, 1.0, dim=3), QuadraticPotential),
        (Truncated(0.0, 1.0, dim=3), SmoothPotential),
    ):
        recipe = OutputSurrogate(target.likelihood, PriorPotential(prior, target.transform))
        fitted = recipe.fit(training, rng)
        assert type(fitted.prior) is kind
        points = 0.3 * rng.standard_normal((5, 3))
        white = fitted.whitening.to_white(points)
        np.testing.assert_allclose(
            fitted.prior.value_and_gradient(white)[0], -prior.log_density(points), rtol=1e-10
        )
        assert np.isinf(fitted.potential(np.full((1, 3), 3.0))[0]) == (kind is SmoothPotential)


def test_far_out_it_stays_above_the_prior(rng):
    target = gaussian_target()
    fitted = OutputSurrogate.of(target, 10).fit(train(target, rng, 30), rng)
    far = 1e3 * rng.standard_normal((200, 3))
    best = target.likelihood.log_density(target.likelihood.data[None])[0]
    assert (fitted.potential(far) >= -target.prior.log_density(far) - best - 1e-6).all()


def test_fewer_rows_than_features(rng):
    target = gaussian_target(dim=8)
    training, fresh = train(target, rng, 30, spread=0.3), train(target, rng, 200, spread=0.3)
    fitted = OutputSurrogate.of(target).fit(training, rng)
    assert (fitted.potential(fresh.position) - fresh.potential).std() < 0.3 * fresh.potential.std()


@pytest.mark.parametrize("n", [11, 14, 20])
def test_a_linear_model_is_learned_exactly_from_fewer_rows_than_features(rng, n):
    """Otherwise measurement errors of 1e-5 of the prior's spread could not be resolved."""
    slope = rng.standard_normal((2, 6))
    target = lw.ForwardTarget(
        lambda x: x @ slope.T,
        lw.GaussianLikelihood(np.ones(2), sd=1.0),
        lw.NormalPrior(0.0, 1.0, dim=6),
        vectorized=True,
    )
    position = rng.standard_normal((n, 6))
    raw = target.evaluate(position, gradient=False)
    fitted = OutputSurrogate.of(target).fit(TrainingSet(position, -raw.log_density, outputs=raw.outputs), rng)
    fresh = rng.standard_normal((50, 6))
    np.testing.assert_allclose(fitted.outputs(fresh), fresh @ slope.T, atol=1e-9)


def test_evaluations_of_high_potential_are_used_while_there_are_few(rng):
    """With a thousand precise outputs no two evaluations have similar potentials, and all are useful."""
    target = gaussian_target(n_outputs=1000)
    training, fresh = train(target, rng, 8), train(target, rng, 100)
    assert len(training.select()) < 3
    fitted = OutputSurrogate.of(target).fit(training, rng)
    assert (fitted.potential(fresh.position) - fresh.potential).std() < fresh.potential.std()


def test_outputs_are_needed(rng):
    target = gaussian_target()
    training = train(target, rng, 20)
    without = TrainingSet(training.position, training.potential)
    with pytest.raises(InputError, match="outputs"):
        OutputSurrogate.of(target).fit(without, rng)
    fitted = OutputSurrogate.of(target).fit(training, rng)
    with pytest.raises(InputError, match="6 outputs"):
        fitted.update(without)


@pytest.mark.parametrize(
    ("settings", "word"), [({"n_hidden": -1}, "n_hidden"), ({"ridge": -1.0}, "ridge"), ({"gain": 0}, "gain")]
)
def test_bad_settings_are_named(settings, word):
    with pytest.raises(InputError, match=word):
        OutputSurrogate(InverseLikelihood(), prior, **settings)


class TestPlain:
    """Two emulators share what does not depend on hidden units."""

    def test_all_but_hidden_units_is_shared(self, rng):
        target = gaussian_target()
        training = train(target, rng, 60)
        plain = OutputSurrogate.of(target).fit(training, rng)
        network = OutputSurrogate.of(target, 20).fit(training, rng, plain)
        assert network.space is plain.space and network.features.cubic is plain.features.cubic
        assert network.solution.shape[0] == plain.solution.shape[0] + 20
        again = OutputSurrogate.of(target).fit(training, rng, network)
        np.testing.assert_array_equal(again.solution, plain.solution)

    def test_other_evaluations_or_coordinates_are_refused(self, rng):
        target = gaussian_target()
        training = train(target, rng, 60)
        plain = OutputSurrogate.of(target).fit(training.rows(slice(0, 50)), rng)
        frame = plain.whitening
        moved = replace(OutputSurrogate.of(target), whitening=replace(frame, mean=frame.mean + 0.1))
        for recipe, given in ((OutputSurrogate.of(target, 20), training), (moved, plain.training)):
            with pytest.raises(InputError, match="same evaluations in the same coordinates"):
                recipe.fit(given, rng, plain)
        same = replace(moved, whitening=frame)
        assert same.fit(plain.training, rng, plain).space is plain.space  # not refused for another reason
