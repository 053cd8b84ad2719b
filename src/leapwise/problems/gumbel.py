r"""A skewed target whose moments are known: correlated Gumbel variables.

Symmetric targets hide sign errors; this one does not. It is a linear image :math:`x = A z` of independent
variables with density :math:`\exp(-z_i - e^{-z_i})`, so its mean is :math:`\gamma A 1` (with Euler's constant)
and its covariance :math:`\frac{\pi^2}{6} A A^T`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from leapwise.checks import require_dim
from leapwise.dynamics.metrics import times_rows
from leapwise.problems.problem import Problem
from leapwise.targets import Target

LINK = 0.8


def gumbel(dim: int = 2) -> Problem:
    """Make a skewed target: correlated Gumbel variables.

    Parameters
    ----------
    dim : int
        Number of parameters; each is a Gumbel variable plus 0.8 times that of the parameter before it.

    Returns
    -------
    Problem
        With exact mean and covariance.

    Examples
    --------
    >>> gumbel().covariance.round(4)
    array([[1.6449, 1.3159],
           [1.3159, 2.6977]])
    """
    dim = require_dim(dim)
    link = np.eye(dim) + LINK * np.eye(dim, k=-1)
    model = _Gumbel(solve_triangular(link, np.eye(dim), lower=True))
    return Problem(
        name="gumbel",
        description=f"{dim}-d skewed target: correlated Gumbel variables",
        target=Target(
            model.log_density, dim=dim, vectorized=True, value_and_gradient=model.value_and_gradient
        ),
        mean=np.euler_gamma * link.sum(axis=1),
        covariance=np.pi**2 / 6 * link @ link.T,
    )


@dataclass(frozen=True, eq=False)
class _Gumbel:
    inverse: np.ndarray  # of A; det A is 1

    def log_density(self, x: np.ndarray) -> np.ndarray:
        return self.value_and_gradient(x)[0]

    def value_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            z = times_rows(self.inverse, x)
            tail = np.exp(-z)
            return -(z + tail).sum(axis=1), times_rows(self.inverse.T, tail - 1.0)
