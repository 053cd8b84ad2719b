"""A trained surrogate as two bare functions, made once and called very often."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from understudy.surrogates.base import Expansion, Fitted, FittedExpansion
from understudy.surrogates.bases import SoftplusBasis
from understudy.surrogates.softplus import LARGEST, softplus


class Fast(NamedTuple):
    """Functions of positions ``(n, dim)``: potentials ``(n,)`` and, without them, gradients ``(n, dim)``."""

    potential: Callable[[np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray], np.ndarray]


def fast(surrogate: Fitted) -> Fast:
    r"""Return the potential and the gradient of a surrogate, each as fast as can be.

    For a network of additive nodes, :math:`w_i \cdot F^{-1}(q - m) + b_i` is an additive node in the caller's own
    coordinates, so the change of coordinates is put into the weights; there is no logarithm to take without the
    potential; and all products are with one matrix, which stays in the cache from step to step. For other
    surrogates they are answers of ``potential`` and ``potential_and_gradient``.

    Examples
    --------
    >>> from understudy.surrogates import SoftplusNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> network = SoftplusNetwork(20).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> bool(np.allclose(fast(network).gradient(x), network.potential_and_gradient(x)[1]))
    True
    """
    if isinstance(surrogate, FittedExpansion) and type(surrogate.basis) is SoftplusBasis:
        return _softplus(surrogate.expansion, surrogate.basis)
    return Fast(surrogate.potential, lambda position: surrogate.potential_and_gradient(position)[1])


def _softplus(surrogate: Expansion, basis: SoftplusBasis) -> Fast:
    nodes = np.ascontiguousarray(surrogate.whitening.gradient_from_white(basis.input_weights).T)  # (dim, s)
    biases = basis.input_biases - surrogate.whitening.mean @ nodes
    weights, offset, nodes_again = surrogate.weights, surrogate.offset, nodes.T

    def potential(position: np.ndarray) -> np.ndarray:
        t = position @ nodes
        t += biases
        return offset + softplus(t) @ weights

    def gradient(position: np.ndarray) -> np.ndarray:
        t = position @ nodes
        t += biases
        np.minimum(t, LARGEST, out=t)
        np.exp(t, out=t)
        t /= 1.0 + t
        t *= weights
        return t @ nodes_again

    return Fast(potential, gradient)
