"""Gaussian processes and FITC: conformance, accuracy, updates, tails, bad data, and the paper's equivalences."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conformance import SurrogateConformance, evaluations

from leapwise.errors import InputError
from leapwise.problems.elliptic import elliptic_pde
from leapwise.run import sample
from leapwise.surrogates.features import RadialBasis, RationalQuadratic, SquaredExponential
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import FittedProcess, GaussianProcess, GradientKernelBasis
from leapwise.surrogates.gp_posterior import Hyperparameters
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening

RECIPES = [
    GaussianProcess(),
    pytest.param(GaussianProcess("rational_quadratic", trend="quadratic"), marks=pytest.mark.slow),
    GaussianProcess("rational_quadratic", trend="radial"),
    GaussianProcess(use_gradients=False, trend="quadratic"),
    FITC(8),
]


def evaluate(x: np.ndarray, gradient: bool = True) -> TrainingSet:
    """Evaluate a skewed potential."""
    root = np.exp(0.3 * x)
    potential = (0.5 * x**2 + root).sum(axis=1) + 0.2 * x[:, 0] * x[:, -1]
    slope = x + 0.3 * root
    slope[:, 0] += 0.2 * x[:, -1]
    slope[:, -1] += 0.2 * x[:, 0]
    return TrainingSet(x, potential, slope if gradient else None)


def error(fitted: object, x: np.ndarray) -> float:
    return float(np.std(fitted.potential(x) - evaluate(x).potential))  # type: ignore[attr-defined]


class ProcessConformance(SurrogateConformance):
    """Gives the recipe as an attribute, so that all tests of a class share one fit, which never changes."""

    n_training = 25
    process: GaussianProcess | FITC

    @pytest.fixture
    def recipe(self):
        return self.process

    @pytest.fixture
    def training(self):
        return process_training(self.n_training, self.gradients)

    @pytest.fixture
    def fitted(self):
        return fitted_process(self.process, self.n_training, self.gradients)

    def refit(self, fitted, everything):
        if isinstance(self.process, FITC) or self.process.trend is None:
            return None  # they return to the mean of the first evaluations, which a refit would change
        same = replace(self.process, hyperparameters=fitted.hyperparameters, whitening=fitted.whitening)
        return same.fit(everything, None)


@cache
def process_training(n, gradients):
    return evaluations(np.random.default_rng(20161027), n, gradient=gradients)


@cache
def fitted_process(recipe, n, gradients):
    return recipe.fit(process_training(n, gradients), np.random.default_rng(3))


class TestSquaredExponential(ProcessConformance):
    process = GaussianProcess()


class TestRationalQuadraticWithRadialTrend(ProcessConformance):
    process = GaussianProcess("rational_quadratic", trend="radial")


@pytest.mark.slow
class TestSquaredExponentialWithTrend(ProcessConformance):
    process = GaussianProcess(trend="quadratic")


class TestValuesOnly(ProcessConformance):
    process = GaussianProcess(trend="quadratic")
    gradients = False
    n_training = 80


class TestFITC(ProcessConformance):
    process = FITC(40)
    n_training = 80


class TestLearning:
    def test_gradients_help(self, rng: np.random.Generator) -> None:
        training, fresh = evaluate(rng.standard_normal((15, 4))), rng.standard_normal((200, 4))
        with_gradients = GaussianProcess(trend="quadratic").fit(training, rng)
        without = GaussianProcess(trend="quadratic", use_gradients=False).fit(training, rng)
        assert error(with_gradients, fresh) < 0.2 * error(without, fresh)
        assert error(with_gradients, fresh) < 0.02

    def test_it_interpolates_values_and_gradients(self, rng: np.random.Generator) -> None:
        training = evaluate(rng.standard_normal((15, 3)))
        parameters = Hyperparameters(length=2.0, amplitude=3.0, noise=1e-5)
        for trend in (None, "quadratic"):
            recipe = GaussianProcess(trend=trend, hyperparameters=parameters)  # type: ignore[arg-type]
            value, gradient = recipe.fit(training, rng).potential_and_gradient(training.position)
            np.testing.assert_allclose(value, training.potential, atol=1e-5)
            np.testing.assert_allclose(gradient, training.gradient, atol=1e-5)

    def test_gradients_may_be_known_at_some_points_only(self, rng: np.random.Generator) -> None:
        whole = evaluate(rng.standard_normal((20, 3)))
        assert whole.gradient is not None
        gradient = whole.gradient.copy()
        gradient[::2] = np.nan
        some = TrainingSet(whole.position, whole.potential, gradient)
        fitted = GaussianProcess(trend="quadratic").fit(some, rng)
        assert error(fitted, rng.standard_normal((200, 3))) < 0.02
        found = fitted.potential_and_gradient(whole.position)[1]
        np.testing.assert_allclose(found[1::2], whole.gradient[1::2], atol=1e-3)

    def test_the_variance_covers_the_errors(self, rng: np.random.Generator) -> None:
        fitted = GaussianProcess(trend="quadratic").fit(evaluate(rng.standard_normal((12, 4))), rng)
        fresh = rng.standard_normal((500, 4))
        misses = np.abs(fitted.potential(fresh) - evaluate(fresh).potential) / np.sqrt(fitted.variance(fresh))
        assert (misses < 4.0).mean() > 0.95
        far = fitted.variance(10.0 * fresh)
        assert far.min() > fitted.variance(fresh).mean()

    def test_radial_terms_help_with_heavy_tails(self, rng: np.random.Generator) -> None:
        dim, degrees = 8, 4.0
        identity = Whitening(np.zeros(dim), np.eye(dim))

        def student(x: np.ndarray) -> TrainingSet:
            square = 1.0 + (x**2).sum(axis=1) / degrees
            slope = (degrees + dim) / degrees * x / square[:, None]
            return TrainingSet(x, 0.5 * (degrees + dim) * np.log(square), slope)

        x = rng.standard_normal((240, dim)) / np.sqrt(rng.chisquare(degrees, size=(240, 1)) / degrees)
        training, fresh = student(x[:40]), student(x[40:])

        def spread(recipe: GaussianProcess) -> float:
            found = recipe.fit(training, np.random.default_rng(1)).potential(fresh.position)
            return float(
                np.quantile(np.abs(found - fresh.potential), 0.9)
            )  # further out every recipe extrapolates

        quadratic = GaussianProcess("rational_quadratic", "quadratic", whitening=identity)
        assert spread(replace(quadratic, trend="radial")) < 0.5 * spread(quadratic)


class TestUpdate:
    @pytest.mark.parametrize("recipe", RECIPES)
    def test_one_by_one_equals_all_at_once(self, recipe: object, rng: np.random.Generator) -> None:
        x = rng.standard_normal((30, 3))
        training = evaluate(x)
        first = recipe.fit(training.rows(np.arange(10)), np.random.default_rng(1))  # type: ignore[attr-defined]
        one_by_one = first
        for row in range(10, 30):
            one_by_one = one_by_one.update(training.rows(np.array([row])))
        at_once = first.update(training.rows(np.arange(10, 30)))
        fresh = rng.standard_normal((20, 3))
        np.testing.assert_allclose(one_by_one.potential(fresh), at_once.potential(fresh), atol=1e-7)
        np.testing.assert_allclose(one_by_one.variance(fresh), at_once.variance(fresh), atol=1e-7)

    @pytest.mark.parametrize("recipe", RECIPES[:4])
    def test_it_equals_a_fit_with_the_same_settings(
        self, recipe: GaussianProcess, rng: np.random.Generator
    ) -> None:
        training, fresh = evaluate(rng.standard_normal((30, 3))), rng.standard_normal((20, 3))
        potential = training.potential.copy()
        potential[6:] += potential[:6].mean() - potential[6:].mean()  # the same mean is taken away by both
        training = TrainingSet(training.position, potential, training.gradient)
        given = replace(recipe, hyperparameters=Hyperparameters(2.0, 2.0, 0.01, 1.0))
        first = given.fit(training.rows(np.arange(6)), rng)
        same = replace(given, whitening=first.whitening)
        updated, whole = first.update(training.rows(np.arange(6, 30))), same.fit(training, rng)
        np.testing.assert_allclose(updated.potential(fresh), whole.potential(fresh), atol=1e-6)
        np.testing.assert_allclose(updated.hessian(fresh), whole.hessian(fresh), atol=1e-5)
        np.testing.assert_allclose(updated.variance(fresh), whole.variance(fresh), atol=1e-6)

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_it_learns(self, recipe: object, rng: np.random.Generator) -> None:
        x, fresh = rng.standard_normal((46, 3)), rng.standard_normal((100, 3))
        first = recipe.fit(evaluate(x[:12]), rng)  # type: ignore[attr-defined]
        assert error(first.update(evaluate(x[12:])), fresh) < error(first, fresh)

    def test_gradients_may_come_later(self, rng: np.random.Generator) -> None:
        x, fresh = rng.standard_normal((20, 3)), rng.standard_normal((100, 3))
        first = GaussianProcess(trend="quadratic").fit(evaluate(x[:15], gradient=False), rng)
        assert error(first.update(evaluate(x[15:])), fresh) < 0.7 * error(first, fresh)

    def test_evaluations_far_above_are_left_out(self, rng: np.random.Generator) -> None:
        first = GaussianProcess(trend="quadratic").fit(evaluate(rng.standard_normal((20, 3))), rng)
        assert first.update(evaluate(np.full((1, 3), 40.0))) is first


class TestTails:
    @pytest.mark.parametrize("trend", ["quadratic", "radial"])
    def test_a_process_with_a_trend_grows_in_the_end(self, trend: str, rng: np.random.Generator) -> None:
        x = rng.standard_normal((40, 3))
        # Curved downwards along the first axis: a quadratic fit to this alone would fall without bound.
        training = TrainingSet(x, 0.5 * (x[:, 1:] ** 2).sum(axis=1) - 2 * np.log(np.cosh(x[:, 0])))
        fitted = GaussianProcess(trend=trend).fit(training, rng)  # type: ignore[arg-type]
        rays = rng.standard_normal((50, 3))
        rays = np.concatenate([np.eye(3), -np.eye(3), rays / np.linalg.norm(rays, axis=1)[:, None]])
        near, far = fitted.potential(30.0 * rays), fitted.potential(60.0 * rays)
        assert (far > near + 100.0).all()
        curvature = np.linalg.eigvalsh(fitted.hessian(1000.0 * rays))
        assert curvature.min() > 0


class TestDifficultData:
    @pytest.mark.parametrize("recipe", RECIPES)
    def test_duplicates(self, recipe: object, rng: np.random.Generator) -> None:
        x = np.repeat(rng.standard_normal((8, 2)), 4, axis=0)
        fitted = recipe.fit(evaluate(x), rng)  # type: ignore[attr-defined]
        fitted = fitted.update(evaluate(x[:5]))
        assert error(fitted, x) < 0.3
        assert np.isfinite(fitted.variance(x)).all()

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_contradicting_values(self, recipe: object, rng: np.random.Generator) -> None:
        x = np.repeat(rng.standard_normal((15, 2)), 2, axis=0)
        training = evaluate(x, gradient=False)
        noisy = TrainingSet(x, training.potential + 0.05 * np.tile([1.0, -1.0], 15))
        fitted = recipe.fit(noisy, rng)  # type: ignore[attr-defined]
        assert error(fitted, x) < 0.3

    @pytest.mark.parametrize("recipe", RECIPES)
    @pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow), 12])
    def test_one_dimension_and_few_points(self, recipe: object, n: int, rng: np.random.Generator) -> None:
        training = evaluate(np.linspace(-2, 2, n)[:, None])
        fitted = recipe.fit(training, rng)  # type: ignore[attr-defined]
        value, gradient = fitted.potential_and_gradient(training.position)
        assert np.isfinite(value).all() and np.isfinite(gradient).all()

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_fewer_rows_than_trend_terms(self, recipe: object, rng: np.random.Generator) -> None:
        fitted = recipe.fit(evaluate(rng.standard_normal((3, 12))), rng)  # type: ignore[attr-defined]
        assert np.isfinite(fitted.potential(rng.standard_normal((5, 12)))).all()

    @pytest.mark.parametrize("recipe", RECIPES)
    @pytest.mark.parametrize("potential", ["constant", "quadratic"])
    def test_a_process_with_no_residual(
        self, recipe: object, potential: str, rng: np.random.Generator
    ) -> None:
        x = rng.standard_normal((20, 2))
        value, slope = (np.full(20, 3.0), 0 * x) if potential == "constant" else (0.5 * (x**2).sum(axis=1), x)
        fitted = recipe.fit(TrainingSet(x, value, slope), rng)  # type: ignore[attr-defined]
        np.testing.assert_allclose(fitted.potential(x), value, atol=0.1)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"kernel": "matern"}, "kernel must be"),
            ({"trend": "cubic"}, "trend must be"),
            ({"use_gradients": 1}, "use_gradients must be"),
            ({"max_rows": 0}, "max_rows must be"),
            ({"hyperparameters": 3.0}, "hyperparameters must be"),
        ],
    )
    def test_bad_settings(self, settings: dict[str, object], message: str) -> None:
        with pytest.raises(InputError, match=message):
            GaussianProcess(**settings)  # type: ignore[arg-type]

    def test_too_many_rows(self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("leapwise.surrogates.gp.MAX_ROWS", 40)
        fitted = GaussianProcess().fit(evaluate(rng.standard_normal((10, 3))), rng)
        assert fitted.update(evaluate(rng.standard_normal((1, 3)))) is fitted
        with pytest.raises(InputError, match=r"at most 40 rows .* got 44.*use_gradients=False"):
            GaussianProcess().fit(evaluate(rng.standard_normal((11, 3))), rng)

    def test_bad_settings_of_fitc_and_hyperparameters(self) -> None:
        with pytest.raises(InputError, match="n_inducing"):
            FITC(0)
        with pytest.raises(InputError, match="length must be positive"):
            Hyperparameters(length=-1.0, amplitude=1.0)


def test_sums_of_kernel_functions_and_derivatives_are_those_of_their_features(
    rng: np.random.Generator,
) -> None:
    basis = GradientKernelBasis(rng.standard_normal((5, 3)), 1.3, RationalQuadratic())
    weights, white = rng.standard_normal(basis.size), rng.standard_normal((4, 3))
    value, gradient = basis.value_and_gradient(white, weights)
    np.testing.assert_allclose(basis.features(white) @ weights, value, atol=1e-12)
    np.testing.assert_allclose(basis.value(white, weights), value, atol=1e-12)
    np.testing.assert_allclose(basis.gradient_features(white) @ weights, gradient, atol=1e-12)


class TestEquivalences:
    """The two equivalences of section 3.3: a network of kernel functions with the right regulariser is a process."""

    parameters = Hyperparameters(length=0.9, amplitude=1.7, noise=0.1)
    identity = Whitening(np.zeros(2), np.eye(2))

    @pytest.fixture
    def training(self, rng: np.random.Generator) -> TrainingSet:
        x = rng.standard_normal((30, 2))
        return TrainingSet(x, 0.5 * x[:, 0] ** 2 + np.cosh(x[:, 1]))

    @pytest.fixture
    def process(self, training: TrainingSet, rng: np.random.Generator) -> FittedProcess:
        return GaussianProcess(hyperparameters=self.parameters, whitening=self.identity).fit(training, rng)

    @pytest.fixture
    def fresh(self) -> np.ndarray:
        return np.random.default_rng(1).standard_normal((50, 2))

    def units(self, centres: np.ndarray) -> RadialBasis:
        return RadialBasis(centres, np.full(len(centres), self.parameters.length), SquaredExponential())

    def test_a_kernel_unit_at_each_point_gives_the_process(
        self, process: FittedProcess, training: TrainingSet, fresh: np.ndarray
    ) -> None:
        units, variance = self.units(training.position), self.parameters.amplitude**2
        kernel = variance * units.features(training.position)
        sigma = self.parameters.amplitude * self.parameters.noise
        target = training.potential - training.potential.mean()
        # argmin |K v - t|^2 + sigma^2 v' K v, as one least-squares problem with the root of K below
        root = np.linalg.cholesky(kernel + 1e-13 * np.eye(len(kernel)))
        rows = np.concatenate([kernel, sigma * root.T])
        weights = np.linalg.lstsq(rows, np.append(target, np.zeros(len(target))), rcond=None)[0]
        network = variance * units.features(fresh) @ weights + training.potential.mean()
        np.testing.assert_allclose(process.potential(fresh), network, rtol=0, atol=1e-8)

    def test_the_predictive_variance_is_the_papers(
        self, process: FittedProcess, training: TrainingSet, fresh: np.ndarray
    ) -> None:
        units, variance = self.units(training.position), self.parameters.amplitude**2
        kernel, cross = variance * units.features(training.position), variance * units.features(fresh)
        noisy = kernel + variance * self.parameters.noise**2 * np.eye(len(kernel))
        explained = np.einsum("ns,ns->n", cross, np.linalg.solve(noisy, cross.T).T)
        np.testing.assert_allclose(process.variance(fresh), variance - explained, atol=1e-8)

    def test_inducing_points_as_centres_give_fitc(
        self, training: TrainingSet, fresh: np.ndarray, rng: np.random.Generator
    ) -> None:
        sparse = FITC(7, hyperparameters=self.parameters, whitening=self.identity).fit(training, rng)
        inducing = sparse.posterior.inducing
        units, variance = self.units(inducing), self.parameters.amplitude**2
        few, many = variance * units.features(inducing), variance * units.features(training.position)
        unexplained = variance - np.einsum("nm,nm->n", many, np.linalg.solve(few, many.T).T)
        diagonal = unexplained + variance * self.parameters.noise**2
        target = training.potential - training.potential.mean()
        # argmin |D^-1/2 (H v - t)|^2 + v' K_M v, as one least-squares problem with the root of K_M below
        rows = np.concatenate([many / np.sqrt(diagonal)[:, None], np.linalg.cholesky(few).T])
        weights = np.linalg.lstsq(rows, np.append(target / np.sqrt(diagonal), np.zeros(7)), rcond=None)[0]
        network = variance * units.features(fresh) @ weights + training.potential.mean()
        np.testing.assert_allclose(sparse.potential(fresh), network, rtol=0, atol=1e-8)
        sigma_inverse = np.linalg.inv(few + many.T @ (many / diagonal[:, None]))
        cross = variance * units.features(fresh)
        explained = np.einsum("ns,st,nt->n", cross, np.linalg.inv(few) - sigma_inverse, cross)
        np.testing.assert_allclose(sparse.variance(fresh), variance - explained, atol=1e-8)

    def test_fitc_with_all_points_inducing_is_the_process(
        self, process: FittedProcess, training: TrainingSet, fresh: np.ndarray, rng: np.random.Generator
    ) -> None:
        sparse = FITC(1000, hyperparameters=self.parameters, whitening=self.identity).fit(training, rng)
        np.testing.assert_allclose(sparse.potential(fresh), process.potential(fresh), atol=1e-6)
        np.testing.assert_allclose(sparse.variance(fresh), process.variance(fresh), atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif("LEAPWISE_DATA" not in os.environ, reason="LEAPWISE_DATA names no folder of data")
@pytest.mark.parametrize(("n", "largest"), [(100, 0.40), (200, 0.22)])
def test_the_elliptic_pde(n: int, largest: float, rng: np.random.Generator) -> None:
    target = elliptic_pde(observations="paper").target
    run = sample(target, draws=500, tune=500, chains=4, random_seed=3, progressbar=False)
    # Train on two of the chains, test on the others.
    learn, fresh = (run.draws[half].reshape(-1, target.dim) for half in (slice(2), slice(2, 4)))
    draws = np.concatenate([rng.permutation(learn)[:n], fresh[::2]])
    raw = target.evaluate(draws, gradient=True)
    assert raw.gradient is not None
    everything = TrainingSet(draws, -raw.log_density, -raw.gradient)
    recipe = GaussianProcess("rational_quadratic", trend="radial")
    fitted = recipe.fit(everything.rows(np.arange(n)), rng)
    error = fitted.potential(fresh[::2]) - everything.potential[n:]
    assert len(error) == 500 and error.std() <= largest
