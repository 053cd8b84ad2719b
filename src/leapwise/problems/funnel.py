r"""Neal's funnel: a scale, and parameters that are as wide as it says.

.. math:: v \sim N(0, 3^2), \qquad x_i \mid v \sim N(0, e^v), \quad i = 1 .. d - 1.

It has the shape of hierarchical models with few data. No step size suits both its neck and its mouth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.checks import require_whole
from leapwise.problems.problem import Problem
from leapwise.targets import Target

SCALE_SD = 3.0


def funnel(dim: int = 6) -> Problem:
    """Make Neal's funnel.

    Parameters
    ----------
    dim : int
        Number of parameters, at least 2: the log-variance v comes first, then the others.

    Returns
    -------
    Problem
        With exact mean and covariance, and exact draws.

    Examples
    --------
    >>> problem = funnel()
    >>> problem.target
    Target(dim=6, gradient=True, vectorized=True)
    >>> problem.draw(np.random.default_rng(1), 1000).shape
    (1000, 6)
    """
    dim = require_whole("dim", dim, 2)
    model = _Funnel(dim)
    return Problem(
        name="funnel",
        description=f"{dim}-d funnel: one parameter is the log-variance of the others",
        target=Target(
            model.log_density,
            dim=dim,
            names=("v", *(f"x[{i}]" for i in range(dim - 1))),
            vectorized=True,
            value_and_gradient=model.value_and_gradient,
        ),
        mean=np.zeros(dim),
        covariance=np.diag([SCALE_SD**2] + (dim - 1) * [np.exp(0.5 * SCALE_SD**2)]),
        draw=model.draw,
    )


@dataclass(frozen=True)
class _Funnel:
    dim: int

    def log_density(self, position: np.ndarray) -> np.ndarray:
        return self.value_and_gradient(position)[0]

    def value_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, x = position[:, 0], position[:, 1:]
        n = x.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            pull = x * np.exp(-v)[:, None]
            energy = (pull * x).sum(axis=1)
            value = -0.5 * (v**2 / SCALE_SD**2 + n * v + energy)
            slope = np.column_stack([0.5 * (energy - n) - v / SCALE_SD**2, -pull])
        # The variance has overflowed, or vanished, or both energies are infinite: no mass, whatever is left.
        value[np.isnan(value) & np.isfinite(position).all(axis=1)] = -np.inf
        return value, slope

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        draws = rng.standard_normal((n, self.dim))
        draws[:, 0] *= SCALE_SD
        draws[:, 1:] *= np.exp(0.5 * draws[:, :1])
        return draws
