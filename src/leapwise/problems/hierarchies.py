r"""Two hierarchical posteriors: eight schools, and counts on a latent Gaussian process.

**Eight schools** (Rubin 1981), the standard small hierarchical model, in its non-centred form. Coaching in school j
raised scores by :math:`y_j`, with standard error :math:`\sigma_j`:

.. math::
    y_j \sim N(\mu + \tau \eta_j,\, \sigma_j^2), \qquad \eta_j \sim N(0, 1), \quad \mu \sim N(0, 5^2), \quad
    \tau \sim \text{half-Cauchy}(5).

The parameters are :math:`(\mu, \log \tau, \eta_1, \ldots, \eta_8)`. Given :math:`\tau` the data are linear in
:math:`\beta = (\mu, \eta)`, with design :math:`X = (1, \tau I)`, so that

.. math::
    \beta \mid \tau, y &\sim N(P^{-1} X^T S^{-1} y,\; P^{-1}), \qquad
    P = X^T S^{-1} X + \operatorname{diag}(1/25, 1, \ldots, 1), \\
    y \mid \tau &\sim N(0,\; S + \tau^2 I + 25\, 1 1^T).

Only an integral over :math:`\log \tau` remains, so moments and draws are exact.

**Counts on a line**: a Poisson regression on a latent Gaussian process whose scales are unknown too. At 20 points
:math:`t_i` of [0, 1] there are counts :math:`y_i \sim \text{Poisson}(e^{f_i})`, with

.. math::
    f = \log 3 + \alpha L(\ell)\, z, \qquad L L^T = R(\ell), \quad z \sim N(0, I), \qquad
    R_{ij} = (1 + r) e^{-r}, \quad r = \sqrt 3\, |t_i - t_j| / \ell

(Matern 3/2). The parameters are :math:`(\log \alpha, \log \ell, z_1, \ldots, z_{20})`. The gradient by
:math:`\log \ell` differentiates the Cholesky factor (Murray 2016): with :math:`\Phi` the lower triangle, its diagonal
halved,

.. math:: dL = L\, \Phi\big(L^{-1}\, dR\, L^{-T}\big), \qquad dR_{ij} / d \log \ell = r^2 e^{-r}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from leapwise.problems.registry import Problem
from leapwise.targets import Target

#: Rubin's data: the estimated effect in each school and its standard error.
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
#: Prior standard deviation of mu, and scale of the half-Cauchy prior of tau: those of Stan's and PyMC's examples.
MEAN_SD = 5.0
SCALE = 5.0
_SCHOOLS_NAMES = ("mu", "log_tau", *(f"eta[{j}]" for j in range(8)))
#: The grid of log tau for the integrals; both tails fall like exp(-|x|), so nothing is lost at its ends.
_LOG_TAU_LIMITS = (-30.0, 12.0)

#: The Poisson regression: number of points, and rate where the process is zero.
N_POINTS = 20
BASE_RATE = 3.0
#: Prior mean and standard deviation of the log-amplitude and of the log-length.
LOG_AMPLITUDE, LOG_LENGTH = (-0.5, 0.7), (-1.2, 0.6)
#: The log-length is held within these limits, more than ten prior standard deviations from its mean.
LENGTH_LIMITS = (-9.0, 6.0)
_POISSON_NAMES = ("log_amplitude", "log_length", *(f"z[{i}]" for i in range(N_POINTS)))
#: Measured with 400,000 draws of NUTS, with standard errors below 0.002; there is no closed form.
LONG_RUN_MEAN = np.array(
    [
        [-0.848, -1.082, 0.695, -0.259, -0.155, -0.313, -0.363, -0.270, -0.400, -0.249, -0.077],
        [-0.025, -0.153, -0.209, -0.097, -0.256, -0.272, -0.341, -0.339, -0.359, -0.361, -0.175],
    ]
).ravel()
LONG_RUN_SD = np.array(
    [
        [0.515, 0.562, 0.607, 0.902, 0.943, 0.937, 0.932, 0.941, 0.942, 0.944, 0.943],
        [0.947, 0.941, 0.941, 0.945, 0.939, 0.943, 0.948, 0.956, 0.970, 0.996, 0.998],
    ]
).ravel()
_NUGGET = 1e-8  # keeps the correlation matrix positive definite for the longest length scales
_DATA_SEED = 20160223
_TRUE_SCALES = (np.log(0.8), np.log(0.2))


def eight_schools() -> Problem:
    """Make the eight-schools posterior: a mean, the log-spread between schools, and eight standardised effects.

    Returns
    -------
    Problem
        With mean and covariance by quadrature, accurate to about 1e-10, and exact draws.

    Examples
    --------
    >>> problem = eight_schools()
    >>> problem.target
    Target(dim=10, gradient=True, vectorized=True)
    >>> problem.mean[:2].round(1)  # of mu and log tau
    array([4.4, 0.8])
    """
    mean, covariance = _schools_moments()
    return Problem(
        name="eight-schools",
        description="eight schools, non-centred: a mean, a log-spread, eight standardised effects",
        target=Target(
            _schools_log_density,
            dim=10,
            names=_SCHOOLS_NAMES,
            vectorized=True,
            value_and_gradient=_schools_value_and_gradient,
        ),
        mean=mean,
        covariance=covariance,
        draw=_draw_schools,
    )


def _schools_log_density(position: np.ndarray) -> np.ndarray:
    return _schools_value_and_gradient(position)[0]


def _schools_value_and_gradient(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mu, log_tau, eta = position[:, 0], position[:, 1], position[:, 2:]
    with np.errstate(over="ignore", invalid="ignore"):
        tau = np.exp(log_tau)
        residual = (EFFECTS - mu[:, None] - tau[:, None] * eta) / ERRORS
        pull = residual / ERRORS
        value = -0.5 * ((residual**2).sum(axis=1) + (eta**2).sum(axis=1) + (mu / MEAN_SD) ** 2)
        value += _log_prior_of_log_tau(log_tau)
        # d/dx of x - log(1 + e^2x) is -tanh(x)
        by_log_tau = tau * (pull * eta).sum(axis=1) - np.tanh(log_tau - np.log(SCALE))
        slope = np.column_stack([pull.sum(axis=1) - mu / MEAN_SD**2, by_log_tau, tau[:, None] * pull - eta])
    # tau has overflowed and meets an effect of zero: there is no mass here.
    value[np.isnan(value) & np.isfinite(position).all(axis=1)] = -np.inf
    return value, slope


def _log_prior_of_log_tau(log_tau: np.ndarray) -> np.ndarray:
    """Return the half-Cauchy's log-density of log tau, up to a constant."""
    x = log_tau - np.log(SCALE)
    return np.asarray(x - np.logaddexp(0.0, 2.0 * x))


def _given_tau(log_tau: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights of values of log tau, and means ``(n, 9)`` and covariances ``(n, 9, 9)`` of (mu, eta) there."""
    n, tau = len(log_tau), np.exp(log_tau)
    design = np.zeros((n, 8, 9))
    design[:, :, 0] = 1.0
    design[:, :, 1:] = tau[:, None, None] * np.eye(8)
    scaled = design / ERRORS[:, None]
    prior = np.diag([MEAN_SD**-2.0] + 8 * [1.0])
    covariance = np.linalg.inv(scaled.transpose(0, 2, 1) @ scaled + prior)
    mean = (covariance @ scaled.transpose(0, 2, 1)) @ (EFFECTS / ERRORS)
    spread = np.diag(ERRORS**2) + MEAN_SD**2 + tau[:, None, None] ** 2 * np.eye(8)
    log_weight = _log_prior_of_log_tau(log_tau) - 0.5 * np.linalg.slogdet(spread)[1]
    log_weight -= (
        0.5 * np.linalg.solve(spread, np.broadcast_to(EFFECTS[:, None], (n, 8, 1)))[:, :, 0] @ EFFECTS
    )
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum(), mean, covariance


def _schools_moments() -> tuple[np.ndarray, np.ndarray]:
    """Integrate over log tau by the trapezoidal rule, which is spectrally accurate here."""
    log_tau = np.linspace(*_LOG_TAU_LIMITS, 1001)
    weight, mean, covariance = _given_tau(log_tau)
    means = np.insert(mean, 1, log_tau, axis=1)
    inner = np.zeros((len(log_tau), 10, 10))
    others = np.array([0, *range(2, 10)])
    inner[:, others[:, None], others] = covariance
    overall = weight @ means
    apart = means - overall
    return overall, np.einsum("k,kij->ij", weight, inner) + (apart * weight[:, None]).T @ apart


def _draw_schools(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw log tau from a fine grid, blurred by its spacing, and the other parameters given it."""
    grid = np.linspace(*_LOG_TAU_LIMITS, 8401)
    weight, _, _ = _given_tau(grid)
    log_tau = rng.choice(grid, size=n, p=weight) + (grid[1] - grid[0]) * (rng.random(n) - 0.5)
    _, mean, covariance = _given_tau(log_tau)
    normal = (np.linalg.cholesky(covariance) @ rng.standard_normal((n, 9, 1)))[:, :, 0]
    return np.insert(mean + normal, 1, log_tau, axis=1)


def poisson_gp() -> Problem:
    """Make a Poisson regression with a latent Gaussian process, of unknown amplitude and length scale.

    The counts are simulated from a fixed seed, with amplitude 0.8 and length scale 0.2. The logarithms of both have
    normal priors.

    Returns
    -------
    Problem
        It has no exact moments; ``LONG_RUN_MEAN`` and ``LONG_RUN_SD`` of this module are those of a long run.

    Examples
    --------
    >>> poisson_gp().target
    Target(dim=22, gradient=True, vectorized=True)
    """
    rng = np.random.default_rng(_DATA_SEED)
    points = np.linspace(0.0, 1.0, N_POINTS)
    truth = np.concatenate([_TRUE_SCALES, rng.standard_normal(N_POINTS)])
    model = _PoissonProcess(np.abs(np.subtract.outer(points, points)), np.zeros(N_POINTS))
    model = _PoissonProcess(model.distances, rng.poisson(np.exp(model.latent(truth[None])[0])).astype(float))
    return Problem(
        name="poisson-gp",
        description="20 counts on a latent Gaussian process; its amplitude and length scale are sampled too",
        target=Target(
            model.log_density,
            dim=N_POINTS + 2,
            names=_POISSON_NAMES,
            vectorized=True,
            value_and_gradient=model.value_and_gradient,
        ),
        true_parameters=truth,
    )


@dataclass(frozen=True, eq=False)
class _PoissonProcess:
    distances: np.ndarray  # between the points
    counts: np.ndarray

    def latent(self, position: np.ndarray) -> np.ndarray:
        """Return f ``(n, 20)``."""
        factor, _ = self._factor(position[:, 1])
        return np.log(BASE_RATE) + np.exp(position[:, :1]) * _times(factor, position[:, 2:])

    def log_density(self, position: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self._log_density(position, self.latent(position))

    def value_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            amplitude, z = np.exp(position[:, :1]), position[:, 2:]
            factor, by_length = self._factor(position[:, 1])
            shape = _times(factor, z)
            latent = np.log(BASE_RATE) + amplitude * shape
            pull = amplitude * (self.counts - np.exp(latent))
            half = np.linalg.solve(factor, np.linalg.solve(factor, by_length).transpose(0, 2, 1))
            triangle = np.tril(half) - 0.5 * half * np.eye(N_POINTS)
            bend = _times(factor, _times(triangle, z))  # dL z
            slope = np.column_stack(
                [
                    (pull * shape).sum(axis=1) - _standard(position[:, 0], LOG_AMPLITUDE) / LOG_AMPLITUDE[1],
                    (pull * bend).sum(axis=1) - _standard(position[:, 1], LOG_LENGTH) / LOG_LENGTH[1],
                    _times(factor.transpose(0, 2, 1), pull) - z,
                ]
            )
            return self._log_density(position, latent), slope

    def _log_density(self, position: np.ndarray, latent: np.ndarray) -> np.ndarray:
        value = (self.counts * latent - np.exp(latent) - gammaln(self.counts + 1.0)).sum(axis=1)
        value -= 0.5 * (position[:, 2:] ** 2).sum(axis=1)
        value -= 0.5 * _standard(position[:, 0], LOG_AMPLITUDE) ** 2
        value -= 0.5 * _standard(position[:, 1], LOG_LENGTH) ** 2
        # Rates have overflowed, against each other or against a prior: there is no mass here.
        value[np.isnan(value) & np.isfinite(position).all(axis=1)] = -np.inf
        return np.asarray(value)

    def _factor(self, log_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the Cholesky factors of the correlations, and the derivatives of the correlations by log length."""
        held = np.clip(log_length, *LENGTH_LIMITS)
        r = np.sqrt(3.0) * self.distances / np.exp(held)[:, None, None]
        decay = np.exp(-r)
        free = (held == log_length)[:, None, None]
        return np.linalg.cholesky((1.0 + r) * decay + _NUGGET * np.eye(N_POINTS)), free * r**2 * decay


def _times(matrices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray((matrices @ rows[:, :, None])[:, :, 0])


def _standard(x: np.ndarray, prior: tuple[float, float]) -> np.ndarray:
    return np.asarray((x - prior[0]) / prior[1])
