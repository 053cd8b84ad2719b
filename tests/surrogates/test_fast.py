"""The bare gradient: the same numbers as the surrogate's own, and for networks without asking it."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import evaluations, positions

from understudy.surrogates.fast import fast_gradient
from understudy.surrogates.network import RBFNetwork, SoftplusNetwork
from understudy.surrogates.quadratic import QuadraticNetwork


@pytest.mark.parametrize("recipe", [SoftplusNetwork(30), RBFNetwork(30), QuadraticNetwork(10)], ids=repr)
def test_same_gradient(recipe, rng):
    fitted, where = recipe.fit(evaluations(rng, 60), rng), positions(rng, 9)
    expected = fitted.potential_and_gradient(where)[1]
    np.testing.assert_allclose(fast_gradient(fitted)(where), expected, rtol=1e-9, atol=1e-9)


def test_softplus_networks_are_not_asked(rng, monkeypatch):
    fitted = SoftplusNetwork(30).fit(evaluations(rng, 60), rng)
    gradient = fast_gradient(fitted)
    monkeypatch.delattr("understudy.surrogates.base.FittedExpansion.potential_and_gradient")
    assert np.isfinite(gradient(positions(rng, 9))).all()
