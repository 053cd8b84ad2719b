r"""The narrow Gaussian of the paper's figure 3, for any number of dimensions.

With :math:`u = (1, \dots, 1)^T / \sqrt d` the covariance is :math:`0.01\, I + 0.99\, u u^T`: eigenvalue 1 along
:math:`u` and 0.01 across. A point splits into its part along u, which is the mean of its entries, and the rest;
so value and gradient cost :math:`O(d)`.
"""

from __future__ import annotations

import numpy as np

from leapwise.checks import require_dim
from leapwise.problems.problem import Problem
from leapwise.targets import Target

WIDE, NARROW = 1.0, 0.01


def gaussian(dim: int = 32) -> Problem:
    """Make a Gaussian ten times as wide along (1, ..., 1) as across it.

    Parameters
    ----------
    dim : int
        Number of parameters; the paper has 32.

    Returns
    -------
    Problem
        With exact mean and covariance.

    Examples
    --------
    >>> problem = gaussian(4)
    >>> np.linalg.eigvalsh(problem.covariance).round(12).tolist()
    [0.01, 0.01, 0.01, 1.0]
    """
    dim = require_dim(dim)
    return Problem(
        name="gaussian",
        description=f"{dim}-d Gaussian, ten times as wide along (1, ..., 1) as across it",
        target=Target(_log_density, dim=dim, vectorized=True, value_and_gradient=_value_and_gradient),
        mean=np.zeros(dim),
        covariance=NARROW * np.eye(dim) + (WIDE - NARROW) / dim,
    )


def _log_density(x: np.ndarray) -> np.ndarray:
    return _value_and_gradient(x)[0]


def _value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        along = x.mean(axis=1, keepdims=True)
        across = x - along
        energy = x.shape[1] * along[:, 0] ** 2 / WIDE + (across**2).sum(axis=1) / NARROW
        return -0.5 * energy, -along / WIDE - across / NARROW
