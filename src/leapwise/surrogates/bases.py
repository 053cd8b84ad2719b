r"""Features of whitened positions, with all derivatives that dynamics and metrics ask for.

Additive nodes (section 3.2 of the paper) are softplus functions of projections :math:`t_i = w_i \cdot z + b_i`. A sum
:math:`\sum_i v_i\, a(t_i)` has

.. math::
    \nabla = \sum_i v_i a'(t_i)\, w_i, \qquad
    H = \sum_i v_i a''(t_i)\, w_i w_i^T, \qquad
    u^T (\partial_k H)\, u = \sum_i v_i a'''(t_i) (w_i \cdot u)^2 w_{ik},

and :math:`\mathrm{tr}(A\, \partial_k H)` has :math:`w_i^T A w_i` in the place of :math:`(w_i \cdot u)^2`.

Contractions with a vector cost O(s d) and with a matrix O(s d^2): no full tensor of third derivatives is ever formed.
Radial nodes are in `leapwise.surrogates.radial`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.surrogates.base import Basis
from leapwise.surrogates.contractions import outer_sums, quadratic_forms
from leapwise.surrogates.profiles import Profile, RationalQuadratic, SquaredExponential
from leapwise.surrogates.radial import RadialBasis
from leapwise.surrogates.softplus import sigmoid, softplus, softplus_sums

__all__ = ["Profile", "RadialBasis", "RationalQuadratic", "SoftplusBasis", "SquaredExponential", "SumBasis"]


@dataclass(frozen=True, eq=False)
class SoftplusBasis:
    """Additive nodes: softplus of random projections.

    Parameters
    ----------
    input_weights : ndarray of shape (s, dim)
    input_biases : ndarray of shape (s,)

    Examples
    --------
    >>> basis = SoftplusBasis(np.eye(2), np.zeros(2))
    >>> basis.features(np.zeros((1, 2))).round(4)
    array([[0.6931, 0.6931]])
    """

    input_weights: np.ndarray
    input_biases: np.ndarray

    @classmethod
    def through(cls, white: np.ndarray, directions: np.ndarray, rng: np.random.Generator) -> SoftplusBasis:
        """Let each node's kink pass through one of the points ``(n, dim)``, drawn at random."""
        kinks = white[rng.integers(len(white), size=len(directions))]
        return cls(directions, -np.einsum("sd,sd->s", directions, kinks))

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.input_weights)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return softplus(self._projection(white))

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        return self.slopes(white)[:, None, :] * self.input_weights.T

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows without forming them."""
        slope = self.slopes(white)
        return (slope.T @ slope) * (self.input_weights @ self.input_weights.T)

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``, without forming the rows."""
        return np.asarray(np.einsum("ns,ns->s", self.slopes(white), target @ self.input_weights.T))

    def slopes(self, white: np.ndarray) -> np.ndarray:
        """Return what the gradients of the features are as multiples of the input weights, ``(n, size)``."""
        return sigmoid(self._projection(white))

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return self.features(white) @ weights

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        slope = self._projection(white)
        value = softplus_sums(slope, weights)  # leaves slopes times weights
        return value, slope @ self.input_weights

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        slope = sigmoid(self._projection(white))
        return outer_sums(weights * slope * (1.0 - slope), self.input_weights)

    def hessian_product(self, white: np.ndarray, weights: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """Return the Hessian times a vector ``(n, dim)``, at the cost of a gradient."""
        slope = sigmoid(self._projection(white))
        return (weights * slope * (1.0 - slope) * (vector @ self._columns)) @ self.input_weights

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        return self._third(white, weights, (velocity @ self._columns) ** 2)

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        return self._third(white, weights, quadratic_forms(matrix, self.input_weights))

    def _third(self, white: np.ndarray, weights: np.ndarray, form: np.ndarray) -> np.ndarray:
        slope = sigmoid(self._projection(white))
        curvature = slope * (1.0 - slope) * (1.0 - 2.0 * slope)  # the third derivative of softplus
        return (weights * curvature * form) @ self.input_weights

    @cached_property
    def _columns(self) -> np.ndarray:
        """The transposed weights, laid out so that few rows times them is ten times faster than with a view."""
        return np.ascontiguousarray(self.input_weights.T)

    def _projection(self, white: np.ndarray) -> np.ndarray:
        projection = white @ self._columns
        projection += self.input_biases
        return projection


@dataclass(frozen=True, eq=False)
class SumBasis:
    """The features of several bases, one after the other.

    Examples
    --------
    >>> part = SoftplusBasis(np.eye(2), np.zeros(2))
    >>> SumBasis((part, part)).size
    4
    """

    bases: Sequence[Basis]

    @property
    def size(self) -> int:
        """Number of features."""
        return sum(basis.size for basis in self.bases)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        return np.concatenate([basis.features(white) for basis in self.bases], axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        return np.concatenate([basis.gradient_features(white) for basis in self.bases], axis=2)

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        return _total(basis.value(white, part) for basis, part in self._parts(weights))

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        pairs = [basis.value_and_gradient(white, part) for basis, part in self._parts(weights)]
        return _total(value for value, _ in pairs), _total(gradient for _, gradient in pairs)

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        return _total(basis.hessian(white, part) for basis, part in self._parts(weights))

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        return _total(basis.quadratic(white, part, velocity) for basis, part in self._parts(weights))

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        return _total(basis.trace(white, part, matrix) for basis, part in self._parts(weights))

    def _parts(self, weights: np.ndarray) -> Iterator[tuple[Basis, np.ndarray]]:
        ends = np.cumsum([basis.size for basis in self.bases])
        return zip(self.bases, np.split(weights, ends[:-1]), strict=True)


def _total(parts: Iterator[np.ndarray]) -> np.ndarray:
    total = next(parts)
    for part in parts:
        total = total + part
    return total
