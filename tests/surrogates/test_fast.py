"""The bare functions: the same numbers as the surrogate's own, and for networks without asking it."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import evaluations, positions

from understudy.surrogates.fast import fast
from understudy.surrogates.network import RBFNetwork, SoftplusNetwork
from understudy.surrogates.quadratic import QuadraticNetwork


@pytest.mark.parametrize("recipe", [SoftplusNetwork(30), RBFNetwork(30), QuadraticNetwork(10)], ids=repr)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_same_numbers(recipe, scale, rng):
    fitted, where = recipe.fit(evaluations(rng, 60), rng), scale * positions(rng, 9)
    potential, gradient = fitted.potential_and_gradient(where)
    np.testing.assert_allclose(fast(fitted).potential(where), potential, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(fast(fitted).gradient(where), gradient, rtol=1e-8, atol=1e-8)


def test_softplus_networks_are_not_asked(rng, monkeypatch):
    fitted = SoftplusNetwork(30).fit(evaluations(rng, 60), rng)
    functions = fast(fitted)
    for name in ("potential", "potential_and_gradient"):
        monkeypatch.delattr(f"understudy.surrogates.base.FittedExpansion.{name}")
    for function in functions:
        assert np.isfinite(function(positions(rng, 9))).all()
