r"""Two lobes that touch: a mixture of two normals in the plane.

.. math:: p(x) = w\, N(x;\, -m, I) + (1 - w)\, N(x;\, m, I), \qquad m = (2.25, 0), \quad w = 0.6.

The centres are 4.5 standard deviations apart: halfway the density is a sixth of what it is at the smaller peak. Chains
cross, if slowly; a sampler that has seen one lobe only will not know of the other.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from leapwise.problems.problem import Problem
from leapwise.targets import Target

WEIGHT = 0.6
CENTRE = np.array([2.25, 0.0])


def lobes() -> Problem:
    """Make a mixture of two normals that touch, with 60 % of the mass on the left.

    Returns
    -------
    Problem
        With exact mean and covariance, and exact draws.

    Examples
    --------
    >>> problem = lobes()
    >>> float(problem.mean[0].round(12))
    -0.45
    >>> left = problem.draw(np.random.default_rng(1), 10_000)[:, 0] < 0
    >>> float(left.mean().round(1))
    0.6
    """
    return Problem(
        name="lobes",
        description="2-d mixture: two normals that touch, 60 % of the mass in one of them",
        target=Target(_log_density, dim=2, vectorized=True, value_and_gradient=_value_and_gradient),
        mean=(1.0 - 2.0 * WEIGHT) * CENTRE,
        covariance=np.eye(2) + 4.0 * WEIGHT * (1.0 - WEIGHT) * np.outer(CENTRE, CENTRE),
        draw=_draw,
    )


def _log_density(x: np.ndarray) -> np.ndarray:
    return _value_and_gradient(x)[0]


def _value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        left = np.log(WEIGHT) - 0.5 * ((x + CENTRE) ** 2).sum(axis=1)
        right = np.log1p(-WEIGHT) - 0.5 * ((x - CENTRE) ** 2).sum(axis=1)
        value = np.logaddexp(left, right) - np.log(2.0 * np.pi)
        # Their difference is linear in x, and stays finite where both squares have overflowed.
        share = expit(np.log(WEIGHT / (1.0 - WEIGHT)) - 2.0 * (x * CENTRE).sum(axis=1))
        return value, CENTRE - x - 2.0 * share[:, None] * CENTRE


def _draw(rng: np.random.Generator, n: int) -> np.ndarray:
    left = rng.random(n) < WEIGHT
    return rng.standard_normal((n, 2)) + np.where(left[:, None], -CENTRE, CENTRE)
