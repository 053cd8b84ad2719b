r"""The Fisher metric of a logistic regression, and the contractions of its derivative.

With rows :math:`x_n`, :math:`\eta = X\beta`, :math:`w(\eta) = s(\eta)(1 - s(\eta))` for the logistic function
:math:`s`, and prior variance :math:`\alpha`, the metric of the paper's section 2.2 is

.. math:: G(\beta) = \sum_n w(\eta_n)\, x_n x_n^T + I / \alpha.

Only :math:`\eta_n` depends on :math:`\beta`, and :math:`\partial_i \eta_n = x_{ni}`, so that
:math:`\partial_i G = \sum_n w'(\eta_n)\, x_{ni}\, x_n x_n^T`. The d matrices would cost :math:`O(N d^3)`; what
the dynamics need of them does not:

.. math::
    \nu_i = v^T \partial_i G\, v &= \sum_n x_{ni}\, w'(\eta_n)\, (x_n^T v)^2
        &&\Rightarrow\quad \nu = X^T \big(w' \circ (X v)^2\big), \quad O(N d), \\
    \tau_i = \mathrm{tr}(G^{-1} \partial_i G) &= \sum_n x_{ni}\, w'(\eta_n)\, x_n^T G^{-1} x_n
        &&\Rightarrow\quad \tau = X^T (w' \circ h), \quad O(N d^2),

where :math:`h_n = x_n^T G^{-1} x_n = \|L^{-1} x_n\|^2` with the Cholesky factor of :math:`G = L L^T`. In terms of
:math:`t = \tanh(\eta / 2)`, :math:`w = \frac14 (1 - t^2)` and :math:`w' = -t\, w`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.dynamics.metrics import batched_cholesky
from leapwise.problems.row_blocks import times, weighted_sums


@dataclass(frozen=True, eq=False)
class LogisticMetric:
    """The Fisher information of a logistic regression and its prior, as a `RiemannianMetric`.

    Attributes
    ----------
    blocks : ndarray of shape (n_blocks, dim, block_rows)
        The features, as `row_blocks` cuts them.
    prior_variance : float
    """

    blocks: np.ndarray
    prior_variance: float

    def at(self, position: np.ndarray) -> LocalLogisticMetric:
        """Evaluate the metric at coefficients ``(n, dim)``."""
        n, dim = position.shape
        matrix = np.tile(np.eye(dim) / self.prior_variance, (n, 1, 1))
        slope = np.empty((len(self.blocks), n, self.blocks.shape[2]))
        scaled = np.empty(self.blocks.shape[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            for block, block_slope in zip(self.blocks, slope, strict=True):
                t, weight = _tanh_and_weight(position, block)
                np.multiply(t, -weight, out=block_slope)
                for one, root in zip(matrix, np.sqrt(weight), strict=True):
                    np.multiply(block, root, out=scaled)
                    one += scaled @ scaled.T  # NumPy sees the symmetry and does half the work
        return LocalLogisticMetric(matrix, batched_cholesky(matrix), self.blocks, slope)

    def product(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`G(\beta)\, v = X^T (w \circ X v) + v / \alpha` of each row, without forming G.

        It costs about as much as a gradient, and `at` several times that.
        """
        total = velocity / self.prior_variance
        with np.errstate(over="ignore", invalid="ignore"):
            for block in self.blocks:
                _, weight = _tanh_and_weight(position, block)
                weight *= times(velocity, block)
                total += weighted_sums(weight, block)
        return total


@dataclass(eq=False)
class LocalLogisticMetric:
    r"""The metric at n positions.

    Attributes
    ----------
    matrix, cholesky : ndarray of shape (n, dim, dim)
    blocks : ndarray of shape (n_blocks, dim, block_rows)
    slope : ndarray of shape (n_blocks, n, block_rows)
        :math:`w'(\eta)` of every row of the data.
    """

    matrix: np.ndarray
    cholesky: np.ndarray
    blocks: np.ndarray
    slope: np.ndarray
    _trace: np.ndarray | None = None

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`\nu = X^T (w' \circ (X v)^2)`, ``(n, dim)``."""
        total = np.zeros_like(velocity)
        with np.errstate(over="ignore", invalid="ignore"):
            for block, slope in zip(self.blocks, self.slope, strict=True):
                along = times(velocity, block)
                along *= along
                along *= slope
                total += weighted_sums(along, block)
        return total

    def trace_contraction(self) -> np.ndarray:
        r"""Return :math:`\tau = X^T (w' \circ h)`, ``(n, dim)``; computed once."""
        if self._trace is None:
            self._trace = self._computed_trace()
        return self._trace

    def _computed_trace(self) -> np.ndarray:
        inverse_factors = np.linalg.inv(self.cholesky)
        total = np.zeros(self.cholesky.shape[:2])
        whitened = np.empty(self.blocks.shape[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            for block, slope in zip(self.blocks, self.slope, strict=True):
                leverage = np.empty_like(slope)  # h of the derivation
                for factor, out in zip(inverse_factors, leverage, strict=True):
                    np.matmul(factor, block, out=whitened)
                    np.square(whitened, out=whitened)
                    np.add.reduce(whitened, axis=0, out=out)
                leverage *= slope
                total += weighted_sums(leverage, block)
        return total


def _tanh_and_weight(position: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return t and w of the rows of a block, each ``(n, block_rows)``."""
    t = times(0.5 * position, block)
    np.tanh(t, out=t)
    weight = t * t
    np.subtract(1.0, weight, out=weight)
    weight *= 0.25
    return t, weight
