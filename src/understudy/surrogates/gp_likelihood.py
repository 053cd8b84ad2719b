r"""Hyperparameters by maximum marginal likelihood.

With :math:`K_y = K_\sigma + H T H^T` (see `understudy.surrogates.gp_posterior`), up to a constant,

.. math:: -\log p(y) = \tfrac12 y^T K_y^{-1} y + \tfrac12 \log |K_\sigma| + \tfrac12 \log |T| + \tfrac12 \log |A|,

.. math:: -\partial_\theta \log p(y)
    = \tfrac12 \mathrm{tr}\big((K_y^{-1} - \alpha \alpha^T)\, \partial_\theta K_y\big),
    \qquad K_y^{-1} = K_\sigma^{-1} - E^T E, \quad E = A^{-1/2} H^T K_\sigma^{-1} .

The parameters are logarithms of length scale, amplitude, relative noise and, where there is a trend, the standard
deviation of its quadratic weights. Only the length scale needs a second covariance matrix; the other three derivatives
have closed forms in what is known already.

When there are many rows, a random subset of the points decides: hyperparameters need far fewer rows than the fit.
A few points in many dimensions do not tell a short length scale from noise, so a weak prior settles what the
likelihood leaves open: :math:`\log \ell` is normal with mean :math:`\log 2\sqrt d` and standard deviation 0.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri

from understudy.checks import require_positive
from understudy.surrogates.gp_covariance import Kernel
from understudy.surrogates.gp_posterior import Observations, Posterior
from understudy.surrogates.profiles import Profile

#: The noise never falls below this share of the amplitude: exact data, and still a factor in double precision.
NOISE_FLOOR = 1e-5

#: Nor does the standard deviation of trend weights fall below this. The likelihood would go lower, because most entries
#: of a whitened Hessian are small, and then shrink the few that are not.
TREND_FLOOR = 0.3

#: Standard deviation of the logarithm of the length scale, a priori.
LENGTH_PRIOR_SD = 0.7

#: At least this many points decide on hyperparameters, however many rows they have.
MIN_POINTS = 20

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Hyperparameters:
    """What a Gaussian process learns by marginal likelihood.

    Parameters
    ----------
    length : float
        Length scale, in whitened units.
    amplitude : float
        Standard deviation of the function, in units of the potential.
    noise : float
        Standard deviation of the noise relative to the amplitude.
    trend : float
        Standard deviation of the weights of the trend, those that are nearly free aside.

    Examples
    --------
    >>> Hyperparameters(length=2.0, amplitude=1.0).noise
    0.0001
    """

    length: float
    amplitude: float
    noise: float = 1e-4
    trend: float = 1.0

    def __post_init__(self) -> None:
        for name in ("length", "amplitude", "noise", "trend"):
            require_positive(getattr(self, name), name, ())

    def kernel(self, profile: Profile) -> Kernel:
        """Return the kernel with these parameters."""
        return Kernel(profile, self.length, self.amplitude, self.noise)


def negative_log_likelihood(
    log_parameters: np.ndarray, profile: Profile, data: Observations
) -> tuple[float, np.ndarray]:
    """Return the negative log marginal likelihood, and its gradient by the logarithms of the hyperparameters.

    Parameters
    ----------
    log_parameters : ndarray of shape (4,) or, without a trend, (3,)
        Of length, amplitude, relative noise, standard deviation of trend weights.
    profile : Profile
    data : Observations
    """
    parameters = Hyperparameters(*map(float, np.exp(log_parameters)))
    posterior = Posterior.from_observations(parameters.kernel(profile), data, parameters.trend)
    residual, weights, precision = posterior.white_residual, posterior.trend_weights, posterior.precision
    value = 0.5 * float(residual @ residual + weights @ (precision * weights))
    value += float(np.log(np.diag(posterior.factor)).sum())
    value += float(np.log(np.diag(posterior.trend_factor)).sum() - 0.5 * np.log(precision).sum())
    return value, _slopes(posterior, np.isnan(data.precision))[: len(log_parameters)]


def _slopes(posterior: Posterior, learnt: np.ndarray) -> np.ndarray:
    """Return the gradient; `learnt` marks trend weights whose standard deviation is a hyperparameter."""
    kernel, rows, alpha = posterior.kernel, posterior.rows, posterior.row_weights
    inverse = dpotri(posterior.factor, lower=1)[0]  # its lower triangle; the upper is zero
    half = solve_triangular(posterior.factor, posterior.white_design, lower=True, trans="T").T
    explained = solve_triangular(posterior.trend_factor, half, lower=True) if half.size else half
    slope = kernel.length_derivative(rows, rows)
    diagonal = np.diag(inverse) - np.einsum("pr,pr->r", explained, explained) - alpha**2
    length = np.vdot(inverse, slope) - 0.5 * np.diag(inverse) @ np.diag(slope)
    length -= 0.5 * (np.vdot(explained @ slope, explained) + alpha @ slope @ alpha)
    noise = diagonal * kernel.noise_variance(rows)
    length -= noise[rows.n_values :].sum()
    spread = solve_triangular(posterior.trend_factor, np.diag(posterior.precision**0.5), lower=True)
    shrunk = np.einsum("pq,pq->q", spread, spread)  # posterior over prior variance of the trend weights
    size = posterior.precision * posterior.trend_weights**2
    residual = posterior.white_residual
    amplitude = rows.size - len(size) + shrunk.sum() - residual @ residual
    return np.array([length, amplitude, noise.sum(), (1.0 - shrunk - size)[learnt].sum()])


def maximise_likelihood(
    profile: Profile, data: Observations, rng: np.random.Generator, max_rows: int
) -> Hyperparameters:
    """Return the most likely hyperparameters of some of the observations.

    Parameters
    ----------
    profile : Profile
    data : Observations
    rng : numpy.random.Generator
        Chooses points when there are too many.
    max_rows : int
        Points are chosen so that they have about this many rows.
    """
    data = _at_most(data, rng, max_rows)
    scale = float(np.sqrt(np.mean(data.target**2)))
    count = 4 if np.isnan(data.precision).any() else 3
    return climb(
        lambda x: negative_log_likelihood(x, profile, data), data.rows.dim, scale, count, data.rows.size
    )


def climb(objective: Objective, dim: int, scale: float, count: int, n_rows: int) -> Hyperparameters:
    """Minimise an objective of the logarithms of hyperparameters by L-BFGS-B.

    It begins at the most promising of three length scales and, where that is cheap, at the second of them too.

    Parameters
    ----------
    objective : callable
        Returns the negative log-likelihood and its gradient.
    dim : int
        Number of coordinates; typical distances are its root.
    scale : float
        Typical size of the data.
    count : int
        Number of hyperparameters to learn.
    n_rows : int
        Number of rows, which says what is cheap.
    """
    from scipy.optimize import Bounds, minimize  # slow to import, and few need it

    root, scale = np.sqrt(dim), max(scale, 1e-8)
    lengths, sizes = (0.05 * root, 30.0 * root), (1e-4 * scale, 1e4 * scale)
    lower, upper = np.log([lengths, sizes, (NOISE_FLOOR, 1.0), (TREND_FLOOR, 1e2)])[:count].T
    starts = [np.log([length * root, 3.0 * scale, 1e-3, 1.0])[:count] for length in (0.5, 1.5, 5.0)]

    def penalised(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = objective(x)
        away = (x[0] - np.log(2.0 * root)) / LENGTH_PRIOR_SD
        return value + 0.5 * away**2, slope + np.append(away / LENGTH_PRIOR_SD, np.zeros(count - 1))

    promising = np.argsort([penalised(start)[0] for start in starts])[: 2 if n_rows <= 400 else 1]
    runs = [
        minimize(
            penalised,
            starts[i],
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(lower, upper),
            options={"maxiter": 40, "ftol": 1e-6},
        )
        for i in promising
    ]
    best = min(runs, key=lambda run: run.fun)
    return Hyperparameters(*map(float, np.exp(best.x)))


def _at_most(data: Observations, rng: np.random.Generator, max_rows: int) -> Observations:
    n = data.rows.n_values
    n_points = max(MIN_POINTS, int(n * max_rows / data.rows.size))
    return data if n_points >= n else data.choose(np.sort(rng.permutation(n)[:n_points]))
