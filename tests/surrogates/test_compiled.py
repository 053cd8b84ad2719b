"""Compiled surrogates: the same numbers as the surrogate's methods, which are called only if a class overrides them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pytest
from conformance import evaluations, positions

from leapwise.surrogates.base import Expansion, FittedExpansion
from leapwise.surrogates.compiled import compile_surrogate
from leapwise.surrogates.features import RationalQuadratic, SumBasis
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess
from leapwise.surrogates.gp_posterior import Hyperparameters
from leapwise.surrogates.network import RBFNetwork, SoftplusNetwork
from leapwise.surrogates.outputs import OutputSurrogate
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import TrendBasis
from leapwise.surrogates.whitening import Whitening

KNOWN = Hyperparameters(2.0, 3.0)


class Gaussian:
    """A likelihood whose gradient is affine for power 2."""

    def __init__(self, power=2):
        self.power = power

    def log_density(self, points):
        return -np.abs((points - 0.3) ** self.power).sum(axis=1)

    def gradient(self, points):
        return -self.power * (points - 0.3) ** (self.power - 1)


def prior(position):
    return 0.1 * (position**2).sum(axis=1), 0.2 * position


@dataclass(frozen=True)
class WithOutputs:
    """A recipe that adds outputs to the training set."""

    recipe: OutputSurrogate

    def fit(self, training, rng):
        x = training.position
        outputs = np.stack([x[:, 0] ** 2, x[:, 1] * x[:, 2], np.sin(x[:, 2]), x.sum(axis=1)], axis=1)
        return self.recipe.fit(TrainingSet(x, training.potential, outputs=outputs), rng)


RECIPES = {
    "softplus": SoftplusNetwork(30),
    "rbf": RBFNetwork(30),
    "quadratic": QuadraticNetwork(),
    "radial": QuadraticNetwork(radial=True),
    "nodes": QuadraticNetwork(10),
    "radial nodes": QuadraticNetwork(40, radial=True),
    "process": GaussianProcess(hyperparameters=KNOWN),
    "rational process": GaussianProcess("rational_quadratic", hyperparameters=KNOWN),
    "process with a quadratic": GaussianProcess(trend="quadratic", hyperparameters=KNOWN),
    "process with radial terms": GaussianProcess("rational_quadratic", trend="radial", hyperparameters=KNOWN),
    "process on values": GaussianProcess(
        "rational_quadratic", trend="radial", use_gradients=False, hyperparameters=KNOWN
    ),
    "sparse process": FITC(20, hyperparameters=KNOWN),
    "outputs": WithOutputs(OutputSurrogate(Gaussian(), prior)),
    "outputs and nodes": WithOutputs(OutputSurrogate(Gaussian(), prior, n_hidden=20)),
    "outputs, not Gaussian": WithOutputs(OutputSurrogate(Gaussian(4), prior)),
}


@pytest.fixture(scope="module", params=RECIPES, ids=str)
def fitted(request):
    rng = np.random.default_rng(20161027)
    return RECIPES[request.param].fit(evaluations(rng, 60), rng)


def assert_same(surrogate, where, frame=None):
    """Compare with the surrogate's methods, row by row, relative to the largest entry of each."""
    compiled, points = compile_surrogate(surrogate, frame), where
    potential, gradient = surrogate.potential_and_gradient(where)
    if frame is not None:
        points, gradient = frame.to_white(where), gradient @ frame.factor
    bound = 1e-9 * (1.0 + np.abs(potential))
    np.testing.assert_array_less(np.abs(compiled.potential(points) - potential), bound)
    bound = 1e-9 * (1.0 + np.abs(gradient).max(axis=1, keepdims=True))
    np.testing.assert_array_less(
        np.abs(compiled.gradient(points) - gradient), np.broadcast_to(bound, gradient.shape)
    )


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4, 1e6])
def test_same_numbers(fitted, scale, rng):
    mean = fitted.whitening.mean
    assert_same(fitted, mean + scale * (positions(rng, 9) - mean))


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1e4])
def test_same_numbers_in_a_frame(fitted, scale, rng):
    factor = np.array([[0.7, 0.0, 0.0], [-0.4, 1.3, 0.0], [0.2, 0.5, 2.0]])
    frame = Whitening.from_factor(fitted.whitening.mean + np.array([0.3, -0.2, 0.1]), factor)
    assert_same(fitted, frame.from_white(scale * rng.standard_normal((9, 3))), frame)


def test_same_numbers_at_training_positions(fitted):
    training = evaluations(np.random.default_rng(20161027), 60)
    assert_same(fitted, training.position)


def test_same_numbers_on_both_sides_of_the_guard(rng):
    network = QuadraticNetwork(radial=True).fit(evaluations(rng, 60), rng)
    ray = rng.standard_normal((1, 3))
    ray /= np.linalg.norm(ray)
    for share in (0.999, 1.0, 1.001, 1.5):
        where = network.whitening.from_white(share * network.radius * ray)
        assert_same(network, where)
        assert_same(network, np.concatenate([where, network.whitening.from_white(0.1 * ray)]))


def test_finite_where_the_surrogate_is(fitted, rng):
    where = 10.0 ** rng.uniform(50, 300, (40, 1)) * positions(rng, 40)
    with np.errstate(all="ignore"):
        potential, gradient = fitted.potential_and_gradient(where)
        compiled = compile_surrogate(fitted)
        np.testing.assert_array_equal(np.isfinite(compiled.potential(where)), np.isfinite(potential))
        same = np.isfinite(compiled.gradient(where)).all(axis=1) == np.isfinite(gradient).all(axis=1)
    assert same.all()


def test_far_from_the_origin_and_correlated(rng):
    """No digits are lost where coordinates are large compared with their spread, or strongly correlated."""
    factor = np.array([[1e-3, 0.0, 0.0], [1e-3, 1e-8, 0.0], [0.0, 0.0, 1e3]])
    whitening = Whitening.from_factor(np.array([5.0, 5.0, -1e6]), factor)
    white = rng.standard_normal((80, 3))
    value, slope = (
        0.5 * (white**2).sum(axis=1) + np.sin(white[:, 0]),
        white + np.cos(white[:, :1]) * [1, 0, 0],
    )
    training = TrainingSet(whitening.from_white(white), value, whitening.gradient_from_white(slope))
    for recipe in (
        QuadraticNetwork(40, radial=True, whitening=whitening),
        GaussianProcess("rational_quadratic", "radial", hyperparameters=KNOWN, whitening=whitening),
    ):
        network = recipe.fit(training, rng)
        where = training.position[:9]
        compiled, (potential, gradient) = compile_surrogate(network), network.potential_and_gradient(where)
        np.testing.assert_allclose(compiled.potential(where), potential, rtol=1e-8, atol=1e-8)
        # Compared in whitened coordinates, where all entries have about the same size.
        got, wanted = (whitening.gradient_to_white(g) for g in (compiled.gradient(where), gradient))
        np.testing.assert_allclose(got, wanted, atol=1e-8 * np.abs(wanted).max())


def test_a_batch_is_its_rows(fitted, rng):
    where = positions(rng, 7) * np.array([1.0, 1.0, 1.0, 1.0, 5.0, 40.0, 1e3])[:, None]
    for function in compile_surrogate(fitted):
        together = function(where)
        for i in range(len(where)):
            np.testing.assert_allclose(function(where[i : i + 1])[0], together[i], rtol=1e-9, atol=1e-9)


def test_shapes_and_nothing_is_overwritten(fitted, rng):
    where = positions(rng, 5)
    given = where.copy()
    compiled = compile_surrogate(fitted)
    for function in compiled:
        first = function(where)
        kept = first.copy()
        function(where + 1.0)
        np.testing.assert_array_equal(where, given)
        np.testing.assert_array_equal(first, kept)
    assert compiled.potential(np.empty((0, 3))).shape == (0,)
    assert compiled.gradient(np.empty((0, 3))).shape == (0, 3)


def test_methods_of_the_surrogate_are_not_called(fitted, monkeypatch, rng):
    compiled = compile_surrogate(fitted)
    kind = FittedExpansion if isinstance(fitted, FittedExpansion) else type(fitted)
    for name in ("potential", "potential_and_gradient"):
        monkeypatch.delattr(kind, name)
        monkeypatch.delattr(Expansion, name)
    for function in compiled:
        assert np.isfinite(function(positions(rng, 9))).all()


def overriding(kind):
    """Return a subclass with its own potential."""

    class Overriding(kind):
        def potential(self, position):
            return np.full(len(position), 7.0)

        def potential_and_gradient(self, position):
            return self.potential(position), np.full(position.shape, 5.0)

    return Overriding


def test_a_subclass_with_its_own_potential_is_called(fitted, rng):
    same = {field.name: getattr(fitted, field.name) for field in fields(fitted)}
    compiled = compile_surrogate(overriding(type(fitted))(**same))
    assert (compiled.potential(positions(rng, 3)) == 7.0).all()
    assert (compiled.gradient(positions(rng, 3)) == 5.0).all()


class Bowl:
    """A surrogate of another kind."""

    def potential(self, position):
        return 0.5 * (position**2).sum(axis=1)

    def potential_and_gradient(self, position):
        return self.potential(position), position


class CompiledBowl(Bowl):
    """One that compiles itself."""

    def compiled(self):
        return self.potential, lambda position: position


@pytest.mark.parametrize("surrogate", [Bowl(), CompiledBowl()], ids=["methods", "compiled"])
def test_surrogates_of_another_kind(surrogate, rng):
    frame, white = Whitening.from_factor(np.ones(2), [[2.0, 0.0], [1.0, 3.0]]), rng.standard_normal((5, 2))
    where = frame.from_white(white)
    assert_same(surrogate, where)
    assert_same(surrogate, where, frame)


@dataclass(frozen=True)
class Fixed(FittedExpansion):
    """A given expansion."""

    given: Expansion

    @cached_property
    def expansion(self):
        return self.given


class OtherTrend(TrendBasis):
    """A subclass, which may override anything."""


class OtherProfile(RationalQuadratic):
    """A subclass, which may override anything."""


def test_sums_with_terms_that_have_no_compiled_form(rng):
    nodes = GaussianProcess(hyperparameters=KNOWN).fit(evaluations(rng, 10), rng).basis
    for basis in (
        OtherTrend(3),
        SumBasis((TrendBasis(3), OtherTrend(3))),
        SumBasis((TrendBasis(3), TrendBasis(3))),
        replace(nodes, profile=OtherProfile()),
        SumBasis((nodes, nodes)),
    ):
        weights = rng.standard_normal(basis.size)
        fixed = Fixed(Expansion(basis, weights, 0.0, Whitening(np.zeros(3), np.eye(3))))
        assert compile_surrogate(fixed).potential == fixed.potential
        assert_same(fixed, positions(rng, 9))


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_rational_quadratics_of_any_power(alpha, rng):
    process = GaussianProcess("rational_quadratic", trend="radial", hyperparameters=KNOWN)
    expansion = process.fit(evaluations(rng, 20), rng).expansion
    trend, nodes, guard = expansion.basis.bases
    basis = SumBasis((trend, replace(nodes, profile=RationalQuadratic(alpha)), guard))
    for scale in (1.0, 30.0):
        assert_same(Fixed(replace(expansion, basis=basis)), scale * positions(rng, 9))


def test_updates_are_compiled_anew(rng):
    for recipe in (QuadraticNetwork(radial=True), GaussianProcess(trend="radial", hyperparameters=KNOWN)):
        first = recipe.fit(evaluations(rng, 40), rng)
        where, compiled = positions(rng, 5), compile_surrogate(first)
        before = compiled.gradient(where)
        second = first.update(evaluations(rng, 20))
        assert_same(second, where)
        np.testing.assert_array_equal(compiled.gradient(where), before)
        assert np.abs(compile_surrogate(second).gradient(where) - before).max() > 1e-7
