"""The accept rules: formulas, detailed balance, and proposals that are never accepted."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.kernels.accept import metropolis


def test_probability_is_that_of_the_formula(rng):
    energy, proposal = rng.normal(size=(2, 1000)) * 5
    _, probability = metropolis(energy, proposal, rng.random(1000))
    np.testing.assert_allclose(probability, np.minimum(1.0, np.exp(energy - proposal)), rtol=1e-14)


def test_accepts_with_that_probability(rng):
    energy, proposal = rng.normal(size=(2, 1000))
    for uniforms in (np.zeros(1000), rng.random(1000), np.full(1000, np.nextafter(1.0, 0.0))):
        accepted, probability = metropolis(energy, proposal, uniforms)
        np.testing.assert_array_equal(accepted, uniforms < probability)


def test_an_equal_or_lower_energy_is_always_accepted():
    accepted, probability = metropolis(np.array([1.0, 1.0]), np.array([1.0, -3.0]), np.full(2, 1 - 1e-16))
    assert accepted.all() and (probability == 1.0).all()


@pytest.mark.parametrize("proposal", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("energy", [0.0, 1e300, np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_accepted(energy, proposal):
    accepted, probability = metropolis(np.array([energy]), np.array([proposal]), np.array([0.0]))
    assert not accepted[0]
    assert probability[0] == 0.0


@pytest.mark.parametrize("energy", [np.nan, np.inf, -np.inf])
def test_a_chain_without_a_finite_energy_stays(energy):
    accepted, probability = metropolis(np.array([energy]), np.array([0.0]), np.array([0.0]))
    assert not accepted[0]
    assert probability[0] == 0.0


def test_extreme_rises_are_quiet():
    accepted, probability = metropolis(np.array([-1e308, 1e308]), np.array([1e308, -1e308]), np.zeros(2))
    assert accepted.tolist() == [False, True] and probability.tolist() == [0.0, 1.0]


def test_detailed_balance_on_a_finite_space(rng):
    """All pairs of 12 states, two of which have no mass, and a symmetric proposal."""
    energy = np.concatenate([rng.normal(size=10) * 3, [np.inf, np.inf]])
    proposal = rng.random((12, 12))
    proposal = proposal + proposal.T
    proposal /= proposal.sum(axis=1).max()  # symmetric, and no row above one: the rest stays
    mass = np.exp(-energy) / np.exp(-energy).sum()
    start, end = (index.ravel() for index in np.indices((12, 12)))
    _, probability = metropolis(energy[start], energy[end], np.zeros(144))
    flow = mass[:, None] * proposal * probability.reshape(12, 12)
    np.testing.assert_allclose(flow, flow.T, rtol=0, atol=1e-13)
    transition = proposal * probability.reshape(12, 12)
    np.fill_diagonal(transition, 0.0)
    np.fill_diagonal(transition, 1.0 - transition.sum(axis=1))
    np.testing.assert_allclose(mass @ transition, mass, rtol=0, atol=1e-13)
    assert (transition[:10, 10:] == 0).all()
    assert (transition[np.ix_(range(10), range(10))] > 0).all()
