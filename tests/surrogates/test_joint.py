"""Surrogates that learn the model alone: potentials and derivatives against the exact ones and against differences."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import InputError
from leapwise.surrogates.compiled import compile_surrogate
from leapwise.surrogates.joint import JointSurrogate, WithPrior, marginal, without_prior
from leapwise.surrogates.output_space import PriorPotential

T = np.linspace(0.0, 2.0, 5)


def bent(a, b):
    """Outputs that a cubic in positions represents."""
    return a * T + 0.1 * (a**2 + a * b) * T**2 + b


TARGET = lw.ForwardTarget(
    bent,
    lw.GaussianLikelihood(bent(0.5, -0.3) + 0.05, sd="sigma"),
    lw.Prior(sigma=lw.HalfNormal(0.5), a=lw.Normal(0, 1), b=lw.Normal("m", 1.0), m=lw.Normal(0, 1)),
)


@pytest.fixture
def training(rng):
    evaluator = lw.Evaluator(TARGET)
    found = evaluator.value(rng.normal(size=(60, 4)) * 0.5)
    return lw.TrainingSet(found.position, found.potential, outputs=found.outputs)


@pytest.fixture
def fitted(training, rng):
    return JointSurrogate.of(TARGET).fit(training, rng)


def test_a_model_that_can_be_represented_is_learned_and_the_rest_is_exact(fitted, rng):
    here = rng.normal(size=(20, 4)) * 0.5
    exact = lw.Evaluator(TARGET).value(here)
    np.testing.assert_allclose(fitted.potential(here), exact.potential, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(fitted.outputs(here), exact.outputs, atol=1e-4)


def test_it_learns_from_the_inputs_alone(fitted):
    assert TARGET.inputs.tolist() == [1, 2] and fitted.emulated.training.position.shape[1] == 2


def test_derivatives_are_those_of_the_potential(fitted, rng, central_differences):
    here = rng.normal(size=(6, 4)) * 0.5
    _, gradient = fitted.potential_and_gradient(here)
    np.testing.assert_allclose(gradient, central_differences(fitted.potential, here), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compile_surrogate(fitted).gradient(here), gradient, rtol=1e-12)
    second = np.stack(
        [
            central_differences(lambda x, i=i: fitted.potential_and_gradient(x)[1][:, i], here)
            for i in range(4)
        ],
        axis=1,
    )
    np.testing.assert_allclose(fitted.hessian(here), second, rtol=1e-3, atol=1e-3 * np.abs(second).max())


def test_third_derivatives_by_two_ways_agree(fitted, rng):
    here, u = rng.normal(size=(3, 4)) * 0.3, rng.normal(size=(3, 4))
    by_vector = fitted.quadratic_contraction(here, u)
    by_matrix = fitted.trace_contraction(here, u[:, :, None] * u[:, None, :])
    np.testing.assert_allclose(by_matrix, by_vector, rtol=1e-2, atol=1e-2 * np.abs(by_vector).max())


def test_an_update_is_as_good_as_a_fit(fitted, training, rng):
    further = lw.Evaluator(TARGET).value(rng.normal(size=(10, 4)) * 0.5)
    more = lw.TrainingSet(further.position, further.potential, outputs=further.outputs)
    here = rng.normal(size=(5, 4)) * 0.4
    np.testing.assert_allclose(fitted.update(more).potential(here), fitted.potential(here), atol=1e-3)


def test_outputs_are_needed(training, rng):
    with pytest.raises(InputError, match="needs outputs"):
        JointSurrogate.of(TARGET).fit(lw.TrainingSet(training.position, training.potential), rng)


def test_a_marginal_has_the_covariance_of_its_columns(rng):
    factor = np.linalg.cholesky(np.cov(rng.normal(size=(4, 50))))
    some = marginal(lw.Whitening(np.arange(4.0), factor), np.array([2, 0]))
    np.testing.assert_allclose(some.factor @ some.factor.T, (factor @ factor.T)[[2, 0]][:, [2, 0]])
    assert some.mean.tolist() == [2.0, 0.0]


def test_an_exact_prior_and_a_learned_likelihood(rng, central_differences):
    prior = lw.Prior(mu=lw.Normal(0, 1), tau=lw.HalfNormal(1.0), theta=lw.Normal("mu", "tau", shape=2))
    target = lw.Target(
        log_likelihood=lambda theta: -0.5 * float(np.sum((theta - [1.0, 2.0]) ** 2)), log_prior=prior
    )
    found = lw.Evaluator(target).value(rng.normal(size=(40, 4)))
    potential = PriorPotential(prior, target.transform)
    training = without_prior(lw.TrainingSet(found.position, found.potential), potential, target.inputs)
    fitted = WithPrior(lw.QuadraticNetwork().fit(training, rng), potential, target.inputs)
    here = rng.normal(size=(10, 4))
    np.testing.assert_allclose(fitted.potential(here), lw.Evaluator(target).value(here).potential, rtol=1e-8)
    gradient = fitted.potential_and_gradient(here)[1]
    np.testing.assert_allclose(gradient, central_differences(fitted.potential, here), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compile_surrogate(fitted).gradient(here), gradient, rtol=1e-12)
