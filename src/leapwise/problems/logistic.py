r"""Bayesian logistic regression: on your own data, and the paper's three experiments (section 5.1).

The coefficients have independent normal priors of variance 100. Each problem comes with its exact gradient, its
Fisher metric, and the step sizes and numbers of steps that the paper used.

Bayesian logistic regression: log-density, gradient and Fisher metric, each in few passes over the data.

With rows :math:`x_n`, labels :math:`y_n \in \{0, 1\}`, :math:`\eta = X\beta`, prior :math:`N(0, \alpha I)` and
:math:`e = \exp(-|\eta|)`, the logistic function is :math:`s(\eta) = \frac12 (1 + t)` with
:math:`t = \tanh(\eta / 2) = \mathrm{sign}(\eta) (1 - e) / (1 + e)`, so that

.. math::
    \log p(y \mid \beta) &= \big(y - \tfrac12\big)^T X \beta
    - \sum_n \big(\tfrac12 |\eta_n| + \log(1 + e_n)\big), \\
    \nabla \log p(y \mid \beta) &= X^T \big(y - \tfrac12\big) - \tfrac12 X^T t.

One exponential a row serves both, without overflow for either sign. :math:`X^T (y - \frac12)` is known from
the start. Since :math:`1 \le 1 + e \le 2`, the product of 64 such terms is at most :math:`2^{64}`, and one
logarithm does for all of them.

The rows are kept in blocks that stay in the cache between the products :math:`X\beta` and :math:`X^T t`, each
block transposed, so that BLAS runs along the data. Rows of zeros fill the last block: they have
:math:`\eta = t = 0` and add nothing to a gradient, and log 2 each to a sum of logarithms, which is taken off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_dim, require_positive, require_real, require_whole
from leapwise.errors import InputError
from leapwise.problems.logistic_metric import LogisticMetric, row_blocks, times, weighted_sums
from leapwise.problems.problem import Problem
from leapwise.targets import Target

_GROUP = 64  # rows that share a logarithm


class LogisticRegression:
    """The posterior of the coefficients of a logistic regression.

    Parameters
    ----------
    X : array_like of shape (n_rows, dim)
        Features; put a column of ones in for an intercept.
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

    def __init__(self, X: ArrayLike, y: ArrayLike, prior_sd: float = 10.0) -> None:
        features = _checked_features(X)
        self.n_rows, self.dim = features.shape
        labels = _checked_labels(y, self.n_rows)
        self.prior_variance = float(require_positive(prior_sd, "prior_sd", ())) ** 2
        self._blocks = row_blocks(features, multiple=_GROUP)
        self._linear = (labels - 0.5) @ features
        self.metric = LogisticMetric(self._blocks, self.prior_variance)

    def log_density(self, beta: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of coefficients ``(n, dim)``; the prior's constant is left out."""
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
            # Rows of zeros that fill the last block have added log 2 each.
            log_sums -= (self._blocks.shape[0] * self._blocks.shape[2] - self.n_rows) * np.log(2.0)
            value = (beta * (self._linear - 0.5 * beta / self.prior_variance)).sum(axis=1) - log_sums
            slope = self._linear - 0.5 * pull - beta / self.prior_variance
        # Coefficients so large that a product overflows have no mass, whatever the sign of what is left.
        value[np.isnan(value) & np.isfinite(beta).all(axis=1)] = -np.inf
        return value, slope


def _sum_log1p(e: np.ndarray) -> np.ndarray:
    """Return the sum of log(1 + e) over each row of e, which are between 0 and 1; e is lost."""
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


PRIOR_SD = 10.0
_SIMULATION_SEED = 20160601
_PROJECTION_SEED = 20160602
_A9A_FEATURES = 123
_A9A_PROJECTED = 59


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
        Features; put a column of ones in for an intercept.
    y : array_like of shape (n_rows,)
        Labels, 0 or 1.
    prior_sd : float
        Standard deviation of the coefficients under their normal prior.
    name, description, true_parameters, settings
        What else is known, for the fields of `Problem`.

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
    """Make the bank marketing regression: does a client take the offer?

    There are 40197 rows, 24 standardised features and an intercept, which comes first.

    Raises
    ------
    DataError
        If the data file is not there and cannot be downloaded.
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

    The 123 features are standardised, projected to 59 by a random orthonormal matrix (from a fixed seed: the
    paper's own is not public), standardised again, and an intercept is put first.

    Raises
    ------
    DataError
        If the data file is not there and cannot be downloaded.
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
