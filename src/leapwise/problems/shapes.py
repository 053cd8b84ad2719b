r"""Posteriors of known shape: narrow, skewed, bent, funnel-shaped, two-lobed, heavy-tailed.

Each has exact moments (the banana's by quadrature). They test what a sampler does with one difficulty at a time.

**Gaussian** (the paper's figure 3). With :math:`u = (1, \dots, 1)^T / \sqrt d` the covariance is
:math:`0.01\, I + 0.99\, u u^T`: eigenvalue 1 along :math:`u` and 0.01 across. A point splits into its part along u,
which is the mean of its entries, and the rest, so value and gradient cost :math:`O(d)`.

**Gumbel**. Symmetric targets hide sign errors; this one is skewed. It is a linear image :math:`x = A z` of independent
variables with density :math:`\exp(-z_i - e^{-z_i})`. Its mean is :math:`\gamma A 1` (with Euler's constant
:math:`\gamma`) and its covariance :math:`\frac{\pi^2}{6} A A^T`.

**Banana** (Girolami and Calderhead; the paper's figure 2). The data see only :math:`\theta_1 + \theta_2^2`:

.. math::
    y_i \sim N(\theta_1 + \theta_2^2, \sigma^2), \quad i = 1..N, \qquad \theta \sim N(0, \tau^2 I).

The data enter through their mean :math:`\bar y` alone, whose variance is :math:`s^2 = \sigma^2 / N`. Given
:math:`\theta_2` the other parameter is Gaussian, so the moments are one-dimensional integrals:

.. math::
    \theta_1 \mid \theta_2 \sim N\big(k (\bar y - \theta_2^2),\; k s^2\big), \quad k = \frac{\tau^2}{\tau^2 + s^2},
    \qquad
    \log p(\theta_2) = -\frac{(\bar y - \theta_2^2)^2}{2 (\tau^2 + s^2)} - \frac{\theta_2^2}{2 \tau^2} + c.

**Funnel** (Neal). One parameter is the log-variance of the others:

.. math:: v \sim N(0, 3^2), \qquad x_i \mid v \sim N(0, e^v), \quad i = 1 .. d - 1.

Hierarchical models with few data have this shape. No step size suits both its neck and its mouth.

**Lobes**. A mixture of two normals in the plane,

.. math:: p(x) = w\, N(x;\, -m, I) + (1 - w)\, N(x;\, m, I), \qquad m = (2.25, 0), \quad w = 0.6.

The centres are 4.5 standard deviations apart. Halfway, the density is a sixth of its value at the smaller peak. Chains
cross slowly, and a sampler that has seen only one lobe does not know of the other.

**Student t**. With scale matrix :math:`\Sigma_{ij} = 2^{-|i - j|} = L L^T` and :math:`\nu` degrees of freedom,

.. math:: \log p(x) = -\tfrac12 (\nu + d) \log\big(1 + |L^{-1} x|^2 / \nu\big) + c, \qquad
    \operatorname{cov} x = \frac{\nu}{\nu - 2}\, \Sigma.

A draw is a normal draw divided by :math:`\sqrt{\chi^2_\nu / \nu}`, with the same divisor for all entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import expit

from leapwise.checks import require_dim, require_real, require_whole
from leapwise.dynamics.metrics import times_rows
from leapwise.errors import InputError
from leapwise.problems.registry import Problem
from leapwise.targets import Target

#: The Gaussian's variances along and across (1, ..., 1), as in the paper.
WIDE, NARROW = 1.0, 0.01
#: Weight with which the Gumbel variable before enters each parameter: large enough to correlate them strongly.
LINK = 0.8
#: The banana's data and prior: those of Girolami and Calderhead.
N_OBSERVATIONS, NOISE_SD, PRIOR_SD = 100, 2.0, 1.0
_DATA_SEED = 20110323
#: Standard deviation of the funnel's log-variance, as in Neal's paper.
SCALE_SD = 3.0
#: Weight of the left lobe and half the distance between the lobes: they touch, and differ in mass.
WEIGHT = 0.6
CENTRE = np.array([2.25, 0.0])
#: Correlation of neighbouring parameters of the Student t.
CORRELATION = 0.5


def gaussian(dim: int = 32) -> Problem:
    """Make a Gaussian that is ten times as wide along (1, ..., 1) as across it.

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
        target=Target(
            _gaussian_log_density, dim=dim, vectorized=True, value_and_gradient=_gaussian_value_and_gradient
        ),
        mean=np.zeros(dim),
        covariance=NARROW * np.eye(dim) + (WIDE - NARROW) / dim,
    )


def _gaussian_log_density(x: np.ndarray) -> np.ndarray:
    return _gaussian_value_and_gradient(x)[0]


def _gaussian_value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        along = x.mean(axis=1, keepdims=True)
        across = x - along
        energy = x.shape[1] * along[:, 0] ** 2 / WIDE + (across**2).sum(axis=1) / NARROW
        return -0.5 * energy, -along / WIDE - across / NARROW


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
        """Integrate over the second parameter by the trapezoidal rule, which is spectrally accurate here."""
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
        # The variance has overflowed or vanished, or both energies are infinite: there is no mass here.
        value[np.isnan(value) & np.isfinite(position).all(axis=1)] = -np.inf
        return value, slope

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        draws = rng.standard_normal((n, self.dim))
        draws[:, 0] *= SCALE_SD
        draws[:, 1:] *= np.exp(0.5 * draws[:, :1])
        return draws


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
        target=Target(
            _lobes_log_density, dim=2, vectorized=True, value_and_gradient=_lobes_value_and_gradient
        ),
        mean=(1.0 - 2.0 * WEIGHT) * CENTRE,
        covariance=np.eye(2) + 4.0 * WEIGHT * (1.0 - WEIGHT) * np.outer(CENTRE, CENTRE),
        draw=_draw_lobes,
    )


def _lobes_log_density(x: np.ndarray) -> np.ndarray:
    return _lobes_value_and_gradient(x)[0]


def _lobes_value_and_gradient(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        left = np.log(WEIGHT) - 0.5 * ((x + CENTRE) ** 2).sum(axis=1)
        right = np.log1p(-WEIGHT) - 0.5 * ((x - CENTRE) ** 2).sum(axis=1)
        value = np.logaddexp(left, right) - np.log(2.0 * np.pi)
        # The difference of the two is linear in x, so it stays finite where both squares have overflowed.
        share = expit(np.log(WEIGHT / (1.0 - WEIGHT)) - 2.0 * (x * CENTRE).sum(axis=1))
        return value, CENTRE - x - 2.0 * share[:, None] * CENTRE


def _draw_lobes(rng: np.random.Generator, n: int) -> np.ndarray:
    left = rng.random(n) < WEIGHT
    return rng.standard_normal((n, 2)) + np.where(left[:, None], -CENTRE, CENTRE)


def student_t(dim: int = 20, freedom: float = 5.0) -> Problem:
    """Make a multivariate Student t, in which neighbouring parameters have correlation 1/2.

    Parameters
    ----------
    dim : int
        Number of parameters.
    freedom : float
        Degrees of freedom, more than 2 so that there is a covariance. Fewer give heavier tails.

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
        raise InputError(f"freedom must be more than 2, got {freedom:g}; otherwise there is no covariance")
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
        # Where the squares overflow the log-density becomes -inf, which is accurate enough so far out.
        with np.errstate(over="ignore", invalid="ignore"):
            z = times_rows(self.inverse, x)
            square = (z**2).sum(axis=1)
            value = -0.5 * power * np.log1p(square / self.freedom)
            return value, -power * times_rows(self.inverse.T, z) / (self.freedom + square)[:, None]

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        normal = times_rows(self.factor, rng.standard_normal((n, len(self.factor))))
        return normal / np.sqrt(rng.chisquare(self.freedom, size=(n, 1)) / self.freedom)
