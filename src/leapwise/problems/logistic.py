"""Bayesian logistic regression: on your own data, and the paper's three experiments (section 5.1).

The coefficients have independent normal priors of variance 100. Each problem comes with its exact gradient, its
Fisher metric, and the step sizes and numbers of steps that the paper used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_dim, require_whole
from leapwise.problems.logistic_model import LogisticRegression
from leapwise.problems.problem import Problem
from leapwise.targets import Target

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
