r"""A target with heavy tails: the multivariate Student t.

With scale matrix :math:`\Sigma_{ij} = 2^{-|i - j|} = L L^T` and :math:`\nu` degrees of freedom,

.. math:: \log p(x) = -\tfrac12 (\nu + d) \log\big(1 + |L^{-1} x|^2 / \nu\big) + c, \qquad
    \operatorname{cov} x = \frac{\nu}{\nu - 2}\, \Sigma.

A draw is a normal one divided by :math:`\sqrt{\chi^2_\nu / \nu}`, the same for all its entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.checks import require_dim, require_real
from leapwise.dynamics.metrics import times_rows
from leapwise.errors import InputError
from leapwise.problems.problem import Problem
from leapwise.targets import Target

CORRELATION = 0.5


def student_t(dim: int = 20, freedom: float = 5.0) -> Problem:
    """Make a multivariate Student t, in which neighbouring parameters have correlation 1/2.

    Parameters
    ----------
    dim : int
        Number of parameters.
    freedom : float
        Degrees of freedom; the fewer, the heavier the tails. More than 2, so that there is a covariance.

    Returns
    -------
    Problem
        With exact mean and covariance, and exact draws.

    Examples
    --------
    >>> problem = student_t(3)
    >>> problem.covariance.round(4)
    array([[1.6667, 0.8333, 0.4167],
           [0.8333, 1.6667, 0.8333],
           [0.4167, 0.8333, 1.6667]])
    """
    dim = require_dim(dim)
    freedom = float(require_real(freedom, "freedom"))
    if freedom <= 2:
        raise InputError(f"freedom must be more than 2, got {freedom:g}; there is no covariance otherwise")
    scale = CORRELATION ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))
    factor = np.linalg.cholesky(scale)
    model = _StudentT(freedom, factor, np.linalg.inv(factor))
    return Problem(
        name="student-t",
        description=f"{dim}-d Student t with {freedom:g} degrees of freedom: heavy tails",
        target=Target(
            model.log_density, dim=dim, vectorized=True, value_and_gradient=model.value_and_gradient
        ),
        mean=np.zeros(dim),
        covariance=freedom / (freedom - 2.0) * scale,
        draw=model.draw,
    )


@dataclass(frozen=True, eq=False)
class _StudentT:
    freedom: float
    factor: np.ndarray  # L
    inverse: np.ndarray

    def log_density(self, x: np.ndarray) -> np.ndarray:
        return self.value_and_gradient(x)[0]

    def value_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        power = self.freedom + x.shape[1]
        # So far out that squares overflow the log-density is -inf, which is near enough.
        with np.errstate(over="ignore", invalid="ignore"):
            z = times_rows(self.inverse, x)
            square = (z**2).sum(axis=1)
            value = -0.5 * power * np.log1p(square / self.freedom)
            return value, -power * times_rows(self.inverse.T, z) / (self.freedom + square)[:, None]

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        normal = times_rows(self.factor, rng.standard_normal((n, len(self.factor))))
        return normal / np.sqrt(rng.chisquare(self.freedom, size=(n, 1)) / self.freedom)
