"""Condensed components: nearly the same potential, bounded below, and unchanged where little would be saved."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import assert_close, differences

import leapwise as lw
from leapwise.surrogates.compiled import compile_surrogate
from leapwise.surrogates.emulator import CubicBasis, CubicForms, Emulator
from leapwise.surrogates.features import SoftplusBasis
from leapwise.surrogates.output_space import TOLERANCE, QuadraticPotential, condense
from leapwise.surrogates.outputs import OutputSurrogate
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.trend import TrendBasis

DIM, P = 4, 24


def emulator(rng, decay=0.6, bend=1.0, n_axes=DIM, n_hidden=0):
    """Return components that vary and bend less and less, like principal components."""
    size = decay ** np.arange(P)
    linear = rng.standard_normal((P, DIM)) * size[:, None]
    matrices = rng.standard_normal((P, DIM, DIM)) * (0.2 * bend * size)[:, None, None]
    trend = TrendBasis(DIM).weights_of(linear, matrices + np.swapaxes(matrices, 1, 2)).T
    axes = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0][:, :n_axes]
    cubic = CubicBasis(n_axes)
    forms = CubicForms(axes, cubic.tensors(0.1 * bend * rng.standard_normal((cubic.size, P)) * size))
    nodes = weights = None
    if n_hidden:
        nodes = SoftplusBasis(rng.standard_normal((n_hidden, DIM)), rng.standard_normal(n_hidden))
        weights = 0.02 * bend * rng.standard_normal((n_hidden, P)) * size
    return Emulator(rng.standard_normal(P), trend, forms, nodes, weights)


def misfit(rng):
    """Return a quadratic form that is not diagonal and not lowest at the origin."""
    factor = np.eye(P) + 0.1 * rng.standard_normal((P, P))
    return QuadraticPotential(rng.standard_normal(P), 3.0, rng.standard_normal(P), factor @ factor.T)


def value(emulator, misfit, white):
    return misfit.value_and_gradient(emulator.components(white))[0]


@pytest.mark.parametrize("settings", [{}, {"n_axes": 2}, {"n_hidden": 7}, {"n_axes": 3, "n_hidden": 7}])
def test_the_potential_is_nearly_the_same(rng, settings):
    many, cost = emulator(rng, **settings), misfit(rng)
    white = rng.standard_normal((300, DIM))
    few, its_cost = condense(many, cost, white)
    assert len(few.constant) <= P // 2
    fresh = rng.standard_normal((1000, DIM))
    lost = value(many, cost, fresh) - value(few, its_cost, fresh)
    assert np.abs(lost).max() > 0
    assert np.sqrt(np.mean(np.clip(lost - np.median(lost), -1.0, 1.0) ** 2)) < 2 * TOLERANCE
    assert abs(np.median(lost)) < 2 * TOLERANCE  # the constant is kept too


def test_it_is_exact_up_to_the_third_order(rng):
    """The loss falls with the fourth power of the distance."""
    many, cost = emulator(rng), misfit(rng)
    few, its_cost = condense(many, cost, rng.standard_normal((300, DIM)))
    direction = rng.standard_normal((50, DIM))
    lost = [
        np.abs(value(many, cost, t * direction) - value(few, its_cost, t * direction)).max()
        for t in (0.4, 0.2)
    ]
    assert lost[0] / lost[1] > 13.0


def test_it_is_bounded_below(rng):
    """A cubic would not be; it may be below the lowest misfit by the added constant, at most 10."""
    many, cost = emulator(rng), misfit(rng)
    few, its_cost = condense(many, cost, rng.standard_normal((300, DIM)))
    assert len(few.constant) < P
    lowest = cost.constant - 0.5 * cost.slope @ np.linalg.solve(cost.matrix, cost.slope)
    far = 10.0 ** rng.uniform(0, 4, (500, 1)) * rng.standard_normal((500, DIM))
    assert (value(few, its_cost, far) >= lowest - 10.0 - 1e-6).all()


def test_components_that_bend_much_are_unchanged(rng):
    many, cost = emulator(rng, decay=0.95), misfit(rng)
    assert condense(many, cost, rng.standard_normal((300, DIM))) == (many, cost)


def test_unchanged_if_the_likelihood_ignores_a_component(rng):
    many = emulator(rng)
    cost = QuadraticPotential(np.zeros(P), 0.0, np.zeros(P), np.diag(np.append(np.ones(P - 1), 0.0)))
    assert condense(many, cost, rng.standard_normal((300, DIM))) == (many, cost)


@pytest.mark.parametrize("n_hidden", [0, 20])
def test_a_surrogate_of_many_outputs_is_condensed(rng, n_hidden):
    mixing = rng.standard_normal((DIM, 60))

    def forward(x):
        return np.tanh(0.2 * x @ mixing) + 0.05 * x[:, :1] ** 2

    prior = lw.NormalPrior(0.0, 1.0, dim=DIM)
    likelihood = lw.GaussianLikelihood(
        forward(np.full((1, DIM), 0.3))[0] + 0.3 * rng.standard_normal(60), sd=0.3
    )
    target = lw.ForwardTarget(forward, likelihood, prior, vectorized=True)
    found = lw.Evaluator(target).value(0.3 + 0.2 * rng.standard_normal((80, DIM)))
    training = TrainingSet(found.position, found.potential, outputs=found.outputs)
    fitted = OutputSurrogate.of(target, n_hidden).fit(training, rng)
    assert isinstance(fitted.prior, QuadraticPotential)
    assert len(fitted.condensed[0].constant) <= len(fitted.emulator.constant) // 2
    points, velocity = 0.3 + 0.2 * rng.standard_normal((5, DIM)), rng.standard_normal((5, DIM))
    whole = -likelihood.log_density(fitted.outputs(points)) - prior.log_density(points)
    assert np.abs(fitted.potential(points) - whole).max() < 0.2
    gradient = fitted.potential_and_gradient(points)[1]
    assert_close(gradient, differences(fitted.potential, points), 1e-6)
    assert_close(
        fitted.hessian(points), differences(lambda q: fitted.potential_and_gradient(q)[1], points), 1e-5
    )
    third = np.einsum("nkab,na,nb->nk", differences(fitted.hessian, points), velocity, velocity)
    assert_close(fitted.quadratic_contraction(points, velocity), third, 1e-4)
    compiled = compile_surrogate(fitted)
    assert_close(compiled.potential(points), fitted.potential(points), 1e-10)
    assert_close(compiled.gradient(points), gradient, 1e-10)
