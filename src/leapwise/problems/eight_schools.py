r"""Eight schools, the standard small hierarchical model (Rubin 1981), in its non-centred form.

Coaching in school j raised scores by :math:`y_j`, with standard error :math:`\sigma_j`:

.. math::
    y_j \sim N(\mu + \tau \eta_j,\, \sigma_j^2), \qquad \eta_j \sim N(0, 1), \quad \mu \sim N(0, 5^2), \quad
    \tau \sim \text{half-Cauchy}(5).

The parameters are :math:`(\mu, \log \tau, \eta_1, \ldots, \eta_8)`. Given :math:`\tau` the data are linear in
:math:`\beta = (\mu, \eta)`, with design :math:`X = (1, \tau I)`, so that

.. math::
    \beta \mid \tau, y &\sim N(P^{-1} X^T S^{-1} y,\; P^{-1}), \qquad
    P = X^T S^{-1} X + \operatorname{diag}(1/25, 1, \ldots, 1), \\
    y \mid \tau &\sim N(0,\; S + \tau^2 I + 25\, 1 1^T).

What is left is an integral over :math:`\log \tau` alone; the moments are exact, and so are the draws.
"""

from __future__ import annotations

import numpy as np

from leapwise.problems.problem import Problem
from leapwise.targets import Target

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
MEAN_SD = 5.0
SCALE = 5.0
NAMES = ("mu", "log_tau", *(f"eta[{j}]" for j in range(8)))


def eight_schools() -> Problem:
    """Make the eight schools: a mean, the log-spread between schools, and eight standardised effects.

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
    mean, covariance = _moments()
    return Problem(
        name="eight-schools",
        description="eight schools, non-centred: a mean, a log-spread, eight standardised effects",
        target=Target(
            _log_density, dim=10, names=NAMES, vectorized=True, value_and_gradient=_value_and_gradient
        ),
        mean=mean,
        covariance=covariance,
        draw=_draw,
    )


def _log_density(position: np.ndarray) -> np.ndarray:
    return _value_and_gradient(position)[0]


def _value_and_gradient(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    # tau has overflowed against an effect of zero: there is no mass.
    value[np.isnan(value) & np.isfinite(position).all(axis=1)] = -np.inf
    return value, slope


def _log_prior_of_log_tau(log_tau: np.ndarray) -> np.ndarray:
    """Return the half-Cauchy's log-density of log tau, up to a constant."""
    x = log_tau - np.log(SCALE)
    return np.asarray(x - np.logaddexp(0.0, 2.0 * x))


def _given_tau(log_tau: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights of a grid of log tau, and means ``(n, 9)`` and covariances ``(n, 9, 9)`` of (mu, eta) there."""
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


def _moments() -> tuple[np.ndarray, np.ndarray]:
    """Integrate over log tau; the trapezoidal rule is spectrally accurate, and the tails fall like exp(-|x|)."""
    log_tau = np.linspace(-30.0, 12.0, 1001)
    weight, mean, covariance = _given_tau(log_tau)
    means = np.insert(mean, 1, log_tau, axis=1)
    inner = np.zeros((len(log_tau), 10, 10))
    others = np.array([0, *range(2, 10)])
    inner[:, others[:, None], others] = covariance
    overall = weight @ means
    apart = means - overall
    return overall, np.einsum("k,kij->ij", weight, inner) + (apart * weight[:, None]).T @ apart


def _draw(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw log tau from a fine grid, blurred by its spacing, and the rest given it."""
    grid = np.linspace(-30.0, 12.0, 8401)
    weight, _, _ = _given_tau(grid)
    log_tau = rng.choice(grid, size=n, p=weight) + (grid[1] - grid[0]) * (rng.random(n) - 0.5)
    _, mean, covariance = _given_tau(log_tau)
    normal = (np.linalg.cholesky(covariance) @ rng.standard_normal((n, 9, 1)))[:, :, 0]
    return np.insert(mean + normal, 1, log_tau, axis=1)
