r"""The banana of Girolami and Calderhead, as in the paper's figure 2.

It is what is left of two parameters when the data see only :math:`\theta_1 + \theta_2^2`:

.. math::
    y_i \sim N(\theta_1 + \theta_2^2, \sigma^2), \quad i = 1..N, \qquad \theta \sim N(0, \tau^2 I).

The data enter through their mean :math:`\bar y` alone, whose variance is :math:`s^2 = \sigma^2 / N`. Given
:math:`\theta_2` the rest is Gaussian, which leaves one-dimensional integrals for the moments:

.. math::
    \theta_1 \mid \theta_2 \sim N\big(k (\bar y - \theta_2^2),\; k s^2\big), \quad k = \frac{\tau^2}{\tau^2 + s^2},
    \qquad
    \log p(\theta_2) = -\frac{(\bar y - \theta_2^2)^2}{2 (\tau^2 + s^2)} - \frac{\theta_2^2}{2 \tau^2} + c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.problems.problem import Problem
from leapwise.targets import Target

N_OBSERVATIONS = 100
NOISE_SD = 2.0
PRIOR_SD = 1.0
_DATA_SEED = 20110323


def banana() -> Problem:
    """Make the banana-shaped posterior of two parameters.

    There are 100 observations with standard deviation 2, simulated from a fixed seed at parameters (0.75, 0.5),
    where their mean is 1; the prior standard deviation is 1.

    Returns
    -------
    Problem
        With mean and covariance by quadrature, accurate to about 1e-12.

    Examples
    --------
    >>> problem = banana()
    >>> problem.target
    Target(dim=2, gradient=True, vectorized=True)
    >>> float(problem.covariance[0, 1])
    0.0
    """
    truth = np.array([0.75, 0.5])
    rng = np.random.default_rng(_DATA_SEED)
    data = rng.normal(truth[0] + truth[1] ** 2, NOISE_SD, N_OBSERVATIONS)
    model = _Banana(float(data.mean()), NOISE_SD**2 / N_OBSERVATIONS)
    mean, covariance = model.moments()
    return Problem(
        name="banana",
        description="2-d banana: two parameters of which the data see one combination",
        target=Target(
            model.log_density,
            dim=2,
            names="theta",
            vectorized=True,
            value_and_gradient=model.value_and_gradient,
        ),
        mean=mean,
        covariance=covariance,
        true_parameters=truth,
    )


@dataclass(frozen=True)
class _Banana:
    data_mean: float
    mean_variance: float  # s^2

    def log_density(self, theta: np.ndarray) -> np.ndarray:
        return self.value_and_gradient(theta)[0]

    def value_and_gradient(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            pull = (self.data_mean - theta[:, 0] - theta[:, 1] ** 2) / self.mean_variance
            value = -0.5 * (self.mean_variance * pull**2 + (theta**2).sum(axis=1) / PRIOR_SD**2)
            slope = np.stack([pull, 2.0 * theta[:, 1] * pull], axis=1) - theta / PRIOR_SD**2
        return value, slope

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Integrate over the second parameter; the trapezoidal rule is spectrally accurate here."""
        theta = np.linspace(-10.0 * PRIOR_SD, 10.0 * PRIOR_SD, 4001)
        square = theta**2
        spread = PRIOR_SD**2 + self.mean_variance
        weight = np.exp(-((self.data_mean - square) ** 2) / (2 * spread) - square / (2 * PRIOR_SD**2))
        weight /= weight.sum()
        shrink = PRIOR_SD**2 / spread
        mean_square = float(weight @ square)
        variance_of_square = float(weight @ (square - mean_square) ** 2)
        mean = np.array([shrink * (self.data_mean - mean_square), 0.0])
        # theta_2 is symmetric about 0 and theta_1 follows its square: they are uncorrelated.
        covariance = np.diag([shrink * self.mean_variance + shrink**2 * variance_of_square, mean_square])
        return mean, covariance
