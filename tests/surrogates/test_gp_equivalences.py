"""The two equivalences of section 3.3: a network with kernel nodes and the right regulariser is a Gaussian process."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.surrogates.bases import RadialBasis, SquaredExponential
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess
from leapwise.surrogates.gp_likelihood import Hyperparameters
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening

PARAMETERS = Hyperparameters(length=0.9, amplitude=1.7, noise=0.1)
IDENTITY = Whitening(np.zeros(2), np.eye(2))


@pytest.fixture
def training(rng: np.random.Generator) -> TrainingSet:
    x = rng.standard_normal((30, 2))
    return TrainingSet(x, 0.5 * x[:, 0] ** 2 + np.cosh(x[:, 1]))


def kernel_nodes(centres: np.ndarray) -> RadialBasis:
    return RadialBasis(centres, np.full(len(centres), PARAMETERS.length), SquaredExponential())


def test_a_network_with_a_kernel_node_at_each_point_is_the_process(
    training: TrainingSet, rng: np.random.Generator
) -> None:
    process = GaussianProcess(hyperparameters=PARAMETERS, whitening=IDENTITY).fit(training, rng)
    nodes = kernel_nodes(training.position)
    kernel = PARAMETERS.amplitude**2 * nodes.features(training.position)
    sigma = PARAMETERS.amplitude * PARAMETERS.noise
    target = training.potential - training.potential.mean()
    # argmin |K v - t|^2 + sigma^2 v' K v, as one least-squares problem with the root of K below
    root = np.linalg.cholesky(kernel + 1e-13 * np.eye(len(kernel)))
    rows = np.concatenate([kernel, sigma * root.T])
    weights = np.linalg.lstsq(rows, np.append(target, np.zeros(len(target))), rcond=None)[0]
    fresh = rng.standard_normal((50, 2))
    network = PARAMETERS.amplitude**2 * nodes.features(fresh) @ weights + training.potential.mean()
    np.testing.assert_allclose(process.potential(fresh), network, rtol=0, atol=1e-8)


def test_the_predictive_variance_is_the_papers(training: TrainingSet, rng: np.random.Generator) -> None:
    process = GaussianProcess(hyperparameters=PARAMETERS, whitening=IDENTITY).fit(training, rng)
    nodes, fresh = kernel_nodes(training.position), rng.standard_normal((50, 2))
    kernel = PARAMETERS.amplitude**2 * nodes.features(training.position)
    cross = PARAMETERS.amplitude**2 * nodes.features(fresh)
    noisy = kernel + (PARAMETERS.amplitude * PARAMETERS.noise) ** 2 * np.eye(len(kernel))
    explained = np.einsum("ns,ns->n", cross, np.linalg.solve(noisy, cross.T).T)
    np.testing.assert_allclose(process.variance(fresh), PARAMETERS.amplitude**2 - explained, atol=1e-8)


def test_a_network_with_inducing_points_as_centres_is_fitc(
    training: TrainingSet, rng: np.random.Generator
) -> None:
    sparse = FITC(7, hyperparameters=PARAMETERS, whitening=IDENTITY).fit(training, rng)
    inducing = sparse.posterior.inducing
    nodes, variance = kernel_nodes(inducing), PARAMETERS.amplitude**2
    few, many = variance * nodes.features(inducing), variance * nodes.features(training.position)
    left_out = variance - np.einsum("nm,nm->n", many, np.linalg.solve(few, many.T).T)
    diagonal = left_out + variance * PARAMETERS.noise**2
    target = training.potential - training.potential.mean()
    # argmin |D^-1/2 (H v - t)|^2 + v' K_M v, as one least-squares problem with the root of K_M below
    rows = np.concatenate([many / np.sqrt(diagonal)[:, None], np.linalg.cholesky(few).T])
    weights = np.linalg.lstsq(rows, np.append(target / np.sqrt(diagonal), np.zeros(7)), rcond=None)[0]
    fresh = rng.standard_normal((50, 2))
    network = variance * nodes.features(fresh) @ weights + training.potential.mean()
    np.testing.assert_allclose(sparse.potential(fresh), network, rtol=0, atol=1e-8)
    sigma_inverse = np.linalg.inv(few + many.T @ (many / diagonal[:, None]))
    cross = variance * nodes.features(fresh)
    explained = np.einsum("ns,st,nt->n", cross, np.linalg.inv(few) - sigma_inverse, cross)
    np.testing.assert_allclose(sparse.variance(fresh), variance - explained, atol=1e-8)


def test_fitc_with_all_points_inducing_is_the_process(
    training: TrainingSet, rng: np.random.Generator
) -> None:
    process = GaussianProcess(hyperparameters=PARAMETERS, whitening=IDENTITY).fit(training, rng)
    sparse = FITC(1000, hyperparameters=PARAMETERS, whitening=IDENTITY).fit(training, rng)
    fresh = rng.standard_normal((50, 2))
    np.testing.assert_allclose(sparse.potential(fresh), process.potential(fresh), atol=1e-6)
    np.testing.assert_allclose(sparse.variance(fresh), process.variance(fresh), atol=1e-6)
