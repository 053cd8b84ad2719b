r"""What a surrogate is: the interfaces, and sums of features with their derivatives.

A `Surrogate` is a recipe, for example `QuadraticNetwork(20)`. Its `fit` returns a `Fitted`, which has a potential and
its derivatives. Both are frozen: `update` returns a new fitted surrogate.

A new surrogate may be any function: linearity in its weights is not required. Kernels call ``potential`` and
``potential_and_gradient``. `SurrogateRMHMC` also needs ``hessian`` and the two contractions, and `ARNSHMC` needs
``update``. `Auto` uses ``hessian``, or differences of gradients if there is none (`hessians`). Along trajectories, a
kind that `leapwise.surrogates.compiled` does not know is evaluated by its own methods, which is correct but slower, or
by the quick functions that its method ``compiled()`` returns.

The built-in surrogates of the potential are linear in trained weights v,

.. math:: \tilde U(q) = \sum_i v_i \, \phi_i(z) + b, \qquad z = F^{-1}(q - m),

with features :math:`\phi_i` of whitened coordinates z (`leapwise.surrogates.whitening`). A `Basis` gives the features
and the derivatives of weighted sums of them by z. An `Expansion` adds the weights and the change of coordinates. A
`FittedExpansion` is a trained surrogate that solves for its expansion when it is first needed, so that a chain of
updates costs a single solve.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np

from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening


class Fitted(Protocol):
    """A trained surrogate of the potential. All methods take positions ``(n, dim)``."""

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        ...

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials ``(n,)`` and gradients ``(n, dim)``."""
        ...

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians ``(n, dim, dim)``."""
        ...

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`u^T (\partial_i H)\, u` for velocities u and the Hessian H, ``(n, dim)``."""
        ...

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(A\, \partial_i H)` for symmetric matrices A ``(n, dim, dim)``, ``(n, dim)``."""
        ...

    def update(self, training: TrainingSet) -> Fitted:
        """Return a new surrogate, trained on further evaluations as well."""
        ...


#: Step of the differences, in widths of the posterior: their errors are about its square, 1e-8.
_DIFFERENCE = 1e-4


def hessians(surrogate: Fitted, position: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return Hessians ``(n, dim, dim)`` of a surrogate; by differences of gradients if it has no `hessian` of its own.

    Parameters
    ----------
    position : ndarray of shape (n, dim)
    factor : ndarray of shape (dim, dim)
        Differences are taken along its columns; ``factor @ factor.T`` is about the posterior covariance.

    Examples
    --------
    >>> class Steep:
    ...     def potential_and_gradient(self, position):
    ...         return 50.0 * (position**2).sum(axis=1), 100.0 * position
    >>> hessians(Steep(), np.ones((1, 2)), 0.1 * np.eye(2)).round(6)
    array([[[100.,   0.],
            [  0., 100.]]])
    """
    if callable(getattr(surrogate, "hessian", None)):
        return surrogate.hessian(position)
    steps = _DIFFERENCE * factor.T
    slopes = [
        surrogate.potential_and_gradient(position + step)[1]
        - surrogate.potential_and_gradient(position - step)[1]
        for step in steps
    ]
    found = np.stack(slopes, axis=2) @ np.linalg.inv(2.0 * steps.T)
    return np.asarray(0.5 * (found + found.swapaxes(1, 2)))


class Surrogate(Protocol):
    """A recipe for a surrogate of the potential."""

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> Fitted:
        """Train on exact evaluations; `rng` draws hidden units and other random choices."""
        ...


class Basis(Protocol):
    """Features of whitened positions, and derivatives of weighted sums of them.

    In all methods `white` are whitened positions ``(n, dim)`` and `weights` are ``(size,)``. A basis may have a method
    ``hessian_product(white, weights, vector)`` if that is cheaper than forming Hessians.
    """

    @property
    def size(self) -> int:
        """Number of features."""
        ...

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        ...

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``; gradients are fitted with these rows."""
        ...

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        ...

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        ...

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        ...

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        ...

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix` ``(n, dim, dim)``, ``(n, dim)``."""
        ...


@dataclass(frozen=True, eq=False)
class Expansion:
    """A weighted sum of features as a function of positions.

    Parameters
    ----------
    basis : Basis
    weights : ndarray of shape (basis.size,)
    offset : float
        Added to the sum: the output bias and the mean potential of the training set.
    whitening : Whitening
    """

    basis: Basis
    weights: np.ndarray
    offset: float
    whitening: Whitening

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        return self.offset + self.basis.value(self.whitening.to_white(position), self.weights)

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        value, gradient = self.basis.value_and_gradient(self.whitening.to_white(position), self.weights)
        return self.offset + value, self.whitening.gradient_from_white(gradient)

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians."""
        white = self.whitening.to_white(position)
        return self.whitening.hessian_from_white(self.basis.hessian(white, self.weights))

    def hessian_product(self, position: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return Hessians times vectors ``(n, dim)``."""
        white, vector = self.whitening.to_white(position), self.whitening.vector_to_white(vector)
        if hasattr(self.basis, "hessian_product"):
            product = self.basis.hessian_product(white, self.weights, vector)
        else:
            product = np.einsum("nij,nj->ni", self.basis.hessian(white, self.weights), vector)
        return self.whitening.gradient_from_white(product)

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        white, velocity = self.whitening.to_white(position), self.whitening.vector_to_white(velocity)
        return self.whitening.gradient_from_white(self.basis.quadratic(white, self.weights, velocity))

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with `matrix`."""
        white, matrix = self.whitening.to_white(position), self.whitening.matrix_to_white(matrix)
        return self.whitening.gradient_from_white(self.basis.trace(white, self.weights, matrix))


class FittedExpansion(ABC):
    """A trained surrogate that is an `Expansion`, solved for when it is first needed.

    A subclass has what was learned as fields, and `expansion` as a cached property.
    """

    @property
    @abstractmethod
    def expansion(self) -> Expansion:
        """The weighted sum of features, in a cached property."""

    @property
    def basis(self) -> Basis:
        """The features."""
        return self.expansion.basis

    @property
    def weights(self) -> np.ndarray:
        """The weights of the features, ``(basis.size,)``."""
        return self.expansion.weights

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        return self.expansion.potential(position)

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        return self.expansion.potential_and_gradient(position)

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians."""
        return self.expansion.hessian(position)

    def hessian_product(self, position: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return Hessians times vectors ``(n, dim)``."""
        return self.expansion.hessian_product(position, vector)

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        return self.expansion.quadratic_contraction(position, velocity)

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with `matrix`."""
        return self.expansion.trace_contraction(position, matrix)


def fingerprint(fitted: object) -> str:
    """Return a hash of all arrays and numbers in a trained surrogate.

    A run compares it before and after sampling, to prove that the surrogate did not change.

    Examples
    --------
    >>> from leapwise.surrogates import QuadraticNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((20, 2))
    >>> fitted = QuadraticNetwork().fit(TrainingSet(x, (x**2).sum(axis=1)), rng)
    >>> before = fingerprint(fitted)
    >>> fitted.potential(x).shape, fingerprint(fitted) == before
    ((20,), True)
    >>> fingerprint(fitted.update(TrainingSet(x + 1.0, ((x + 1.0) ** 2).sum(axis=1)))) == before
    False
    """
    digest = hashlib.sha256()
    _feed(digest, fitted)
    return digest.hexdigest()[:16]


def _feed(digest: Any, value: object) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (bool, int, float, str, np.generic)) or value is None:
        digest.update(repr(value).encode())
    elif isinstance(value, (tuple, list)):
        for each in value:
            _feed(digest, each)
    elif is_dataclass(value):
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif type(value).__module__.startswith("leapwise."):  # objects of users may count calls
        for name, each in sorted(vars(value).items()):
            digest.update(name.encode())
            _feed(digest, each)
