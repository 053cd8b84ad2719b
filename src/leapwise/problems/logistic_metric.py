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

A tall matrix in blocks of rows that fit the cache, and products of a batch of vectors with a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.dynamics.metrics import batched_cholesky

# A block of 4 to 8 MB stays in the last-level cache from one product to the next, and is large enough for BLAS to
# use its threads. Smaller blocks were slower, and so was a single one where the matrix does not fit the cache.
_BLOCK_SIZE = 2**19
# BLAS multiplies a few vectors one after the other faster than as one thin matrix. It also rounds them alike then,
# so that the draws of a few chains do not depend on how many there are.
_FEW = 8


def row_blocks(matrix: np.ndarray, multiple: int = 1) -> np.ndarray:
    """Cut a matrix into blocks of rows, each transposed so that BLAS runs along the rows' index.

    Parameters
    ----------
    matrix : ndarray of shape (n_rows, dim)
    multiple : int
        The number of rows in a block is a multiple of this.

    Returns
    -------
    ndarray of shape (n_blocks, dim, block_rows)
        The last block is filled up with rows of zeros.

    Examples
    --------
    >>> row_blocks(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), multiple=4)
    array([[[1., 3., 5., 0.],
            [2., 4., 6., 0.]]])
    """
    n_rows, dim = matrix.shape
    n_blocks = max(matrix.size // _BLOCK_SIZE, 1)
    width = -(-n_rows // (n_blocks * multiple)) * multiple
    padded = np.zeros((n_blocks * width, dim))
    padded[:n_rows] = matrix
    return np.ascontiguousarray(padded.reshape(n_blocks, width, dim).transpose(0, 2, 1))


def times(vectors: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the products ``(n, block_rows)`` of vectors ``(n, dim)`` with the rows of a block."""
    if len(vectors) >= _FEW:
        return np.asarray(vectors @ block)
    products = np.empty((len(vectors), block.shape[1]))
    for vector, product in zip(vectors, products, strict=True):
        np.matmul(vector, block, out=product)
    return products


def weighted_sums(weights: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the sums ``(n, dim)`` of the rows of a block with weights ``(n, block_rows)``."""
    if len(weights) >= _FEW:
        return np.asarray(weights @ block.T)
    sums = np.empty((len(weights), len(block)))
    for weight, total in zip(weights, sums, strict=True):
        np.matmul(block, weight, out=total)
    return sums


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
