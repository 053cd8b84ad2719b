"""The gradient of a trained surrogate as a bare function, made once and called very often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from understudy.surrogates.base import Expansion, Fitted, FittedExpansion
from understudy.surrogates.bases import SoftplusBasis
from understudy.surrogates.softplus import LARGEST


def fast_gradient(surrogate: Fitted) -> Callable[[np.ndarray], np.ndarray]:
    r"""Return a function from positions ``(n, dim)`` to gradients ``(n, dim)``.

    For a network of additive nodes, :math:`w_i \cdot F^{-1}(q - m) + b_i` is an additive node in the caller's own
    coordinates, so the change of coordinates is put into the weights; and without the potential there is no
    logarithm to take. For other surrogates it is the second answer of ``potential_and_gradient``.

    Examples
    --------
    >>> from understudy.surrogates import SoftplusNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> network = SoftplusNetwork(20).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> gradient = fast_gradient(network)
    >>> bool(np.allclose(gradient(x), network.potential_and_gradient(x)[1]))
    True
    """
    if isinstance(surrogate, FittedExpansion) and type(surrogate.basis) is SoftplusBasis:
        return _softplus_gradient(surrogate.expansion, surrogate.basis)
    return lambda position: surrogate.potential_and_gradient(position)[1]


def _softplus_gradient(surrogate: Expansion, basis: SoftplusBasis) -> Callable[[np.ndarray], np.ndarray]:
    inward = np.ascontiguousarray(surrogate.whitening.gradient_from_white(basis.input_weights).T)  # (dim, s)
    biases = basis.input_biases - surrogate.whitening.mean @ inward
    outward = np.ascontiguousarray(inward.T * surrogate.weights[:, None])  # (s, dim)

    def gradient(position: np.ndarray) -> np.ndarray:
        t = position @ inward
        t += biases
        np.minimum(t, LARGEST, out=t)
        np.exp(t, out=t)
        t /= 1.0 + t
        return t @ outward

    return gradient
