r"""Bayesian logistic regression: on your own data, and the paper's three experiments (section 5.1).

The coefficients have independent normal priors. Each problem comes with its exact gradient, its Fisher metric, and the
step sizes and numbers of steps that the paper used.

**Log-density and gradient.** With rows :math:`x_n`, labels :math:`y_n \in \{0, 1\}`, :math:`\eta = X\beta`, prior
:math:`N(0, \alpha I)` and :math:`e = \exp(-|\eta|)`, the logistic function is :math:`s(\eta) = \frac12 (1 + t)` with
:math:`t = \tanh(\eta / 2) = \mathrm{sign}(\eta) (1 - e) / (1 + e)`, so that

.. math::
    \log p(y \mid \beta) &= \big(y - \tfrac12\big)^T X \beta
    - \sum_n \big(\tfrac12 |\eta_n| + \log(1 + e_n)\big), \\
    \nabla \log p(y \mid \beta) &= X^T \big(y - \tfrac12\big) - \tfrac12 X^T t.

Both need one exponential per row, and neither overflows for either sign. :math:`X^T (y - \frac12)` is computed once.
Since :math:`1 \le 1 + e \le 2`, the product of 64 such terms is at most :math:`2^{64}`, so that one logarithm serves 64
rows.

**Fisher metric.** With :math:`w(\eta) = s(\eta)(1 - s(\eta))` the metric of the paper's section 2.2 is

.. math:: G(\beta) = \sum_n w(\eta_n)\, x_n x_n^T + I / \alpha.

Only :math:`\eta_n` depends on :math:`\beta`, and :math:`\partial_i \eta_n = x_{ni}`, so that
:math:`\partial_i G = \sum_n w'(\eta_n)\, x_{ni}\, x_n x_n^T`. To form these d matrices would cost :math:`O(N d^3)`. The
dynamics only need two contractions of them, which cost less:

.. math::
    \nu_i = v^T \partial_i G\, v &= \sum_n x_{ni}\, w'(\eta_n)\, (x_n^T v)^2
        &&\Rightarrow\quad \nu = X^T \big(w' \circ (X v)^2\big), \quad O(N d), \\
    \tau_i = \mathrm{tr}(G^{-1} \partial_i G) &= \sum_n x_{ni}\, w'(\eta_n)\, x_n^T G^{-1} x_n
        &&\Rightarrow\quad \tau = X^T (w' \circ h), \quad O(N d^2),

where :math:`h_n = x_n^T G^{-1} x_n = \|L^{-1} x_n\|^2` with the Cholesky factor of :math:`G = L L^T`. In terms of t,
:math:`w = \frac14 (1 - t^2)` and :math:`w' = -t\, w`.

**Blocks.** The rows are kept in blocks that stay in the cache between the products :math:`X\beta` and :math:`X^T t`.
Each block is transposed, so that BLAS runs along the data. The last block is filled up with rows of zeros. These have
:math:`\eta = t = 0`, so they add nothing to a gradient; the log 2 that each adds to a sum of logarithms is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_dim, require_positive, require_real, require_whole
from leapwise.dynamics.metrics import batched_cholesky
from leapwise.errors import InputError
from leapwise.problems.registry import Problem
from leapwise.targets import Target

#: Prior standard deviation of the coefficients in the paper (variance 100).
PRIOR_SD = 10.0
# Seeds of the simulated data and of the projection of a9a: the paper's own are not public.
_SIMULATION_SEED = 20160601
_PROJECTION_SEED = 20160602
# a9a has 123 features; 59 projections and an intercept make the paper's 60 dimensions.
_A9A_FEATURES = 123
_A9A_PROJECTED = 59
# Rows that share a logarithm: 2^64 is far from overflow.
_GROUP = 64
# A block of 4 to 8 MB stays in the last-level cache from one product to the next, and is large enough for BLAS to
# use its threads. Measured: smaller blocks were slower, and so was a single block that does not fit the cache.
_BLOCK_SIZE = 2**19
# BLAS multiplies a few vectors one after the other faster than as one thin matrix. It also rounds them alike then,
# so that the draws of a few chains do not depend on how many there are.
_FEW = 8


def logistic(
    X: ArrayLike,
    y: ArrayLike,
    prior_sd: float = PRIOR_SD,
    *,
    name: str = "logistic",
    description: str | None = None,
    true_parameters: np.ndarray | None = None,
    settings: dict[str, Any] | None = None,
) -> Problem:
    """Make the posterior of a logistic regression.

    Parameters
    ----------
    X : array_like of shape (n_rows, dim)
        Features; include a column of ones for an intercept.
    y : array_like of shape (n_rows,)
        Labels, 0 or 1.
    prior_sd : float
        Standard deviation of the coefficients under their normal prior.
    name, description, true_parameters, settings
        The fields of `Problem` with these names.

    Returns
    -------
    Problem
        Its target evaluates many chains at once; its metric is the Fisher information.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> X = np.column_stack([np.ones(200), rng.normal(size=200)])
    >>> y = rng.random(200) < 1 / (1 + np.exp(-X @ [0.5, 1.0]))
    >>> logistic(X, y).target
    Target(dim=2, gradient=True, vectorized=True)
    """
    model = LogisticRegression(X, y, prior_sd)
    return Problem(
        name=name,
        description=description or f"logistic regression, {model.n_rows} rows, {model.dim} coefficients",
        target=Target(
            model.log_density,
            dim=model.dim,
            names="beta",
            vectorized=True,
            value_and_gradient=model.value_and_gradient,
        ),
        metric=model.metric,
        true_parameters=true_parameters,
        settings=settings or {},
    )


def logistic_simulated(n_rows: int = 100_000, dim: int = 50) -> Problem:
    """Make the paper's simulated regression.

    The first column of X is 1/10, the others are normal with standard deviation 1/10; the coefficients are uniform
    on [0, 1]. Everything is drawn from a fixed seed.

    Parameters
    ----------
    n_rows, dim : int
        Number of rows and of coefficients; the paper's are the defaults.

    Examples
    --------
    >>> problem = logistic_simulated(n_rows=1000, dim=5)
    >>> problem.true_parameters.shape
    (5,)
    """
    n_rows, dim = require_whole("n_rows", n_rows, 1), require_dim(dim)
    rng = np.random.default_rng(_SIMULATION_SEED)
    beta = rng.uniform(size=dim)
    X = np.full((n_rows, dim), 0.1)
    X[:, 1:] = rng.normal(scale=0.1, size=(n_rows, dim - 1))
    y = rng.random(n_rows) < 1.0 / (1.0 + np.exp(-X @ beta))
    return logistic(
        X,
        y,
        name="logistic-simulated",
        description=f"logistic regression, {n_rows} simulated rows, {dim} coefficients",
        true_parameters=beta,
        settings={"hmc": (0.045, 6), "rmhmc": (0.54, 2)},
    )


def logistic_bank() -> Problem:
    """Make the bank marketing regression: which clients take the offer?

    There are 40197 rows, 24 standardised features and an intercept, which is the first coefficient.

    Raises
    ------
    DataError
        If the data file is missing and cannot be downloaded.
    """
    from leapwise.problems.datasets import load_mat

    data = load_mat("bank_marketing.mat")
    return logistic(
        data["X"],
        data["y"].ravel(),
        name="logistic-bank",
        description="logistic regression, bank marketing, 40197 rows, 24 features and an intercept",
        settings={"hmc": (0.012, 45), "rmhmc": (0.4, 6)},
    )


def logistic_a9a() -> Problem:
    """Make the a9a regression, projected at random to 60 dimensions: who earns more than 50K a year?

    The 123 features are standardised and projected to 59 by a random orthonormal matrix (from a fixed seed, since the
    paper's own is not public). The projections are standardised again, and an intercept is the first coefficient.

    Raises
    ------
    DataError
        If the data file is missing and cannot be downloaded.
    """
    from leapwise.problems.datasets import load_libsvm

    features, labels = load_libsvm("a9a", _A9A_FEATURES)
    rng = np.random.default_rng(_PROJECTION_SEED)
    orthonormal, _ = np.linalg.qr(rng.normal(size=(_A9A_FEATURES, _A9A_PROJECTED)))
    projected = _standardised(_standardised(features) @ orthonormal)
    return logistic(
        np.column_stack([np.ones(len(projected)), projected]),
        labels > 0,
        name="logistic-a9a",
        description="logistic regression, a9a, 32561 rows, 59 random projections and an intercept",
        settings={"hmc": (0.012, 10), "rmhmc": (0.5, 4)},
    )


def _standardised(features: np.ndarray) -> np.ndarray:
    return np.asarray((features - features.mean(axis=0)) / features.std(axis=0))


class LogisticRegression:
    """The posterior of the coefficients of a logistic regression.

    Parameters
    ----------
    X : array_like of shape (n_rows, dim)
        Features; include a column of ones for an intercept.
    y : array_like of shape (n_rows,)
        Labels, 0 or 1.
    prior_sd : float
        Standard deviation of the coefficients under their normal prior.

    Attributes
    ----------
    dim, n_rows : int
    metric : LogisticMetric
        The Fisher information of data and prior.

    Examples
    --------
    >>> model = LogisticRegression([[1.0, 0.5], [1.0, -0.5]], [1, 0])
    >>> model.log_density(np.zeros((1, 2)))
    array([-1.38629...])
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, prior_sd: float = PRIOR_SD) -> None:
        features = _checked_features(X)
        self.n_rows, self.dim = features.shape
        labels = _checked_labels(y, self.n_rows)
        self.prior_variance = float(require_positive(prior_sd, "prior_sd", ())) ** 2
        self._blocks = row_blocks(features, multiple=_GROUP)
        self._linear = (labels - 0.5) @ features
        self.metric = LogisticMetric(self._blocks, self.prior_variance)

    def log_density(self, beta: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of coefficients ``(n, dim)``, without the constant of the prior."""
        return self._evaluate(beta, gradient=False)[0]

    def value_and_gradient(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density ``(n,)`` and its gradient ``(n, dim)``."""
        return self._evaluate(beta, gradient=True)

    def _evaluate(self, beta: np.ndarray, *, gradient: bool) -> tuple[np.ndarray, np.ndarray]:
        log_sums = np.zeros(len(beta))
        pull = np.zeros_like(beta)
        with np.errstate(over="ignore", invalid="ignore"):
            for block in self._blocks:
                eta = times(beta, block)
                e = np.abs(eta)
                log_sums += 0.5 * e.sum(axis=1)
                np.negative(e, out=e)
                np.exp(e, out=e)
                if gradient:
                    pull += weighted_sums(np.copysign((1.0 - e) / (1.0 + e), eta), block)
                log_sums += _sum_log1p(e)
            # The rows of zeros that fill the last block have added log 2 each.
            log_sums -= (self._blocks.shape[0] * self._blocks.shape[2] - self.n_rows) * np.log(2.0)
            value = (beta * (self._linear - 0.5 * beta / self.prior_variance)).sum(axis=1) - log_sums
            slope = self._linear - 0.5 * pull - beta / self.prior_variance
        # Coefficients so large that a product overflows have no mass.
        value[np.isnan(value) & np.isfinite(beta).all(axis=1)] = -np.inf
        return value, slope


def _sum_log1p(e: np.ndarray) -> np.ndarray:
    """Return the sum of log(1 + e) over each row of e, whose entries are between 0 and 1; e is overwritten."""
    e += 1.0
    products = np.multiply.reduce(e.reshape(len(e), _GROUP, -1), axis=1)
    return np.asarray(np.log(products).sum(axis=1))


def _checked_features(X: ArrayLike) -> np.ndarray:
    features = require_real(X, "X")
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(
            f"X must have shape (n_rows, dim) with at least one of each, got {features.shape}; "
            "give one row per observation and one column per coefficient"
        )
    return features


def _checked_labels(y: ArrayLike, n_rows: int) -> np.ndarray:
    labels = require_real(y, "y")
    if labels.shape != (n_rows,):
        raise InputError(
            f"y must have shape ({n_rows},), one label for each row of X, got {labels.shape}; "
            "flatten it, and drop the same rows from both"
        )
    if not np.isin(labels, (0.0, 1.0)).all():
        found = ", ".join(f"{value:g}" for value in np.unique(labels)[:4])
        raise InputError(f"y must hold 0 and 1 only, got {found}; for labels -1 and +1 give y > 0")
    return labels


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
        The features, from `row_blocks`.
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

        It costs about as much as a gradient; `at` costs several times that.
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
        return self._trace

    @cached_property
    def _trace(self) -> np.ndarray:
        inverse_factors = np.linalg.inv(self.cholesky)
        total = np.zeros(self.cholesky.shape[:2])
        whitened = np.empty(self.blocks.shape[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            for block, slope in zip(self.blocks, self.slope, strict=True):
                leverage = np.empty_like(slope)  # h in the module's docstring
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
