r"""Hyperparameters by maximum marginal likelihood.

With :math:`K_y = K_\sigma + H T H^T` (see `leapwise.surrogates.gp_likelihood`), up to a constant,

.. math:: -\log p(y) = \tfrac12 y^T K_y^{-1} y + \tfrac12 \log |K_\sigma| + \tfrac12 \log |T| + \tfrac12 \log |A|,

.. math:: -\partial_\theta \log p(y)
    = \tfrac12 \mathrm{tr}\big((K_y^{-1} - \alpha \alpha^T)\, \partial_\theta K_y\big),
    \qquad K_y^{-1} = K_\sigma^{-1} - E^T E, \quad E = A^{-1/2} H^T K_\sigma^{-1} .

The parameters are logarithms of length scale, amplitude, relative noise and, where there is a trend, the standard
deviation of its quadratic weights. Only the length scale needs a second covariance matrix; the other three derivatives
have closed forms in what is known already. Amplitude and trend are found in an inner loop that needs no second factor
(`leapwise.surrogates.gp_likelihood`), so the search is one of two variables.

When there are many rows, a random subset of the points decides: hyperparameters need far fewer rows than the fit.
A few points in many dimensions do not tell a short length scale from noise, so a weak prior settles what the
likelihood leaves open: :math:`\log \ell` is normal with mean :math:`\log 2\sqrt d` and standard deviation 0.7.

The algebra of a Gaussian process with a linear trend.

Observed rows are :math:`y = H \beta + f + \text{noise}` with :math:`f \sim N(0, K)`, and trend weights
:math:`\beta \sim N(0, T)`, T diagonal. Kept is the Cholesky factor L of :math:`K_\sigma = K + \text{noise}`; everything
else follows from :math:`\tilde H = L^{-1} H`, :math:`\tilde y = L^{-1} y`:

.. math::
    A = \tilde H^T \tilde H + T^{-1}, \qquad \hat\beta = A^{-1} \tilde H^T \tilde y, \qquad
    \alpha = L^{-T} (\tilde y - \tilde H \hat\beta),

which is generalised least squares when T is large and stays sound with fewer rows than trend terms. The predictive
variance at a point with covariances k and trend features h is

.. math:: k_{**} - \|L^{-1} k\|^2 + e^T A^{-1} e, \qquad e = h - \tilde H^T L^{-1} k.

Further rows extend L by a block, so what came before is never factorised again.

The likelihood of a length scale and a noise, with the best amplitude and trend for them.

With amplitude 1, one factor :math:`K_\sigma = L L^T` serves all amplitudes a and all standard deviations t of trend
weights. In :math:`\tilde H = L^{-1} H` and :math:`\tilde y = L^{-1} y` the likelihood asks for p by p matrices only,

.. math:: A = \tilde H^T \tilde H / a^2 + T^{-1}, \qquad \hat\beta = A^{-1} \tilde H^T \tilde y / a^2,

and where its derivatives by a and t are zero,

.. math::
    a^2 = \frac{\|\tilde y - \tilde H \hat\beta\|^2}{N - \sum_i \gamma_i}, \qquad
    t^2 = \frac{\sum_{i \in Q} \hat\beta_i^2}{\sum_{i \in Q} \gamma_i}, \qquad
    \gamma_i = 1 - T_{ii}^{-1} (A^{-1})_{ii},

with Q the quadratic weights. Iterating these two (MacKay's rule) takes a few steps of :math:`O(p^3)`. What is left is a
function of two variables, whose gradient is that of the likelihood at the best a and t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri

from leapwise.checks import require_positive
from leapwise.surrogates.bases import Profile
from leapwise.surrogates.gp_posterior import Kernel, Observations, Posterior, safe_cholesky, solve_lower

_MAX_STEPS = 30
_ACCURACY = 1e-3


@dataclass(frozen=True, eq=False)
class Scales:
    """The best amplitude and trend for one factor.

    Attributes
    ----------
    amplitude, trend : float
    """

    amplitude: float
    trend: float

    def posterior(self, unit: Posterior, learnt: np.ndarray) -> Posterior:
        """Return the posterior with these, from the one with amplitude 1; `learnt` marks weights that `trend` is of."""
        return replace(
            unit,
            kernel=replace(unit.kernel, amplitude=self.amplitude),
            precision=np.where(learnt, self.trend**-2.0, unit.precision),
            factor=self.amplitude * unit.factor,
            white_target=unit.white_target / self.amplitude,
            white_design=unit.white_design / self.amplitude,
        )


def unit_posterior(profile: Profile, length: float, noise: float, data: Observations) -> Posterior:
    """Return the posterior for amplitude 1."""
    return Posterior.from_observations(Kernel(profile, length, 1.0, noise), data, 1.0)


def best_scales(
    unit: Posterior,
    learnt: np.ndarray,
    start: Scales,
    amplitudes: tuple[float, float],
    trends: tuple[float, float],
) -> Scales:
    """Return the most likely scales, between the given bounds.

    Parameters
    ----------
    unit : Posterior
        For amplitude 1.
    learnt : ndarray of bool, shape (p,)
        Trend weights whose standard deviation is to be found.
    start : Scales
        Where to begin.
    amplitudes, trends : tuple of float
        Bounds.
    """
    gram, moment = unit.white_design.T @ unit.white_design, unit.white_design.T @ unit.white_target
    square, n_rows, scales = float(unit.white_target @ unit.white_target), unit.rows.size, start
    for _ in range(_MAX_STEPS):
        before, level = scales, scales.amplitude**2
        precision = np.where(learnt, before.trend**-2.0, unit.precision)
        factor = safe_cholesky(gram / level + np.diag(precision))
        weights = solve_lower(factor, solve_lower(factor, moment / level), transposed=True)
        decided = 1.0 - precision * np.diag(dpotri(factor, lower=1)[0]) if len(factor) else np.zeros(0)
        left = max(square - 2.0 * float(weights @ moment) + float(weights @ gram @ weights), 0.0)
        amplitude = np.sqrt(left / max(n_rows - decided.sum(), 1.0))
        trend = before.trend
        if learnt.any():
            trend = np.sqrt(np.square(weights[learnt]).sum() / max(float(decided[learnt].sum()), 1e-12))
        scales = Scales(float(np.clip(amplitude, *amplitudes)), float(np.clip(trend, *trends)))
        moved = abs(np.log(scales.amplitude / before.amplitude)), abs(np.log(scales.trend / before.trend))
        if max(moved) < _ACCURACY:
            break
    return scales


#: The noise never falls below this share of the amplitude: exact data, and still a factor in double precision.
NOISE_FLOOR = 1e-5

#: Nor does the standard deviation of trend weights fall below this. The likelihood would go lower, because most entries
#: of a whitened Hessian are small, and then shrink the few that are not.
TREND_FLOOR = 0.3

#: Standard deviation of the logarithm of the length scale, a priori.
LENGTH_PRIOR_SD = 0.7

#: At least this many points decide on hyperparameters, however many rows they have.
MIN_POINTS = 20

#: Differences of log-likelihoods below this do not matter.
MIN_GAIN = 0.02

#: Length scales to begin with, in typical distances.
START_LENGTHS = (0.5, 1.5, 5.0)

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
    learnt = np.isnan(data.precision)
    return _height(posterior), _slopes(posterior, learnt)[: len(log_parameters)]


def _height(posterior: Posterior) -> float:
    """Return the negative log-likelihood of what a posterior has seen."""
    residual, weights, precision = posterior.white_residual, posterior.trend_weights, posterior.precision
    value = 0.5 * float(residual @ residual + weights @ (precision * weights))
    value += float(np.log(np.diag(posterior.factor)).sum())
    return value + float(np.log(np.diag(posterior.trend_factor)).sum() - 0.5 * np.log(precision).sum())


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
    learnt, root = np.isnan(data.precision), float(np.sqrt(data.rows.dim))
    size = max(float(np.sqrt(np.mean(data.target**2))), 1e-8)
    limits = (1e-4 * size, 1e4 * size), (TREND_FLOOR, 1e2)
    known: list[tuple[float, np.ndarray, Scales]] = [(np.inf, np.zeros(2), Scales(size, 1.0))]

    def best(x: np.ndarray) -> tuple[float, Posterior]:
        length, noise = map(float, np.exp(x))
        unit = unit_posterior(profile, length, noise, data)
        scales = best_scales(unit, learnt, known[-1][2], *limits)
        posterior = scales.posterior(unit, learnt)
        known.append((_height(posterior) + length_prior(x, root)[0], x, scales))
        return known[-1][0], posterior

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, posterior = best(x)
        return value, _slopes(posterior, learnt)[[0, 2]] + length_prior(x, root)[1]

    starts = [np.log([length * root, 1e-3]) for length in START_LENGTHS]
    start = starts[int(np.argmin([best(start)[0] for start in starts]))]
    descend(objective, start, np.log([(0.05 * root, 30.0 * root), (NOISE_FLOOR, 1.0)]))
    _, x, scales = min(known, key=lambda entry: entry[0])
    length, noise = map(float, np.exp(x))
    return Hyperparameters(length, scales.amplitude, noise, scales.trend)


def climb(objective: Objective, dim: int, scale: float, n_rows: int) -> Hyperparameters:
    """Minimise an objective of the logarithms of length, amplitude and noise.

    It begins at the most promising of three length scales and, where that is cheap, at the second of them too.

    Parameters
    ----------
    objective : callable
        Returns the negative log-likelihood and its gradient.
    dim : int
        Number of coordinates; typical distances are its root.
    scale : float
        Typical size of the data.
    n_rows : int
        Number of rows, which says what is cheap.
    """
    root, scale = float(np.sqrt(dim)), max(scale, 1e-8)
    bounds = np.log([(0.05 * root, 30.0 * root), (1e-4 * scale, 1e4 * scale), (NOISE_FLOOR, 1.0)])
    starts = [np.log([length * root, 3.0 * scale, 1e-3]) for length in START_LENGTHS]

    def penalised(x: np.ndarray) -> tuple[float, np.ndarray]:
        (value, slope), (more, steeper) = objective(x), length_prior(x, root)
        return value + more, slope + steeper

    promising = np.argsort([penalised(start)[0] for start in starts])[: 2 if n_rows <= 400 else 1]
    runs = [descend(penalised, starts[i], bounds) for i in promising]
    _, best = min(runs, key=lambda run: run[0])
    return Hyperparameters(*map(float, np.exp(best)))


def length_prior(x: np.ndarray, root: float) -> tuple[float, np.ndarray]:
    """Return what the prior of the length scale, whose logarithm is first in `x`, adds; and its gradient."""
    away, slope = (x[0] - np.log(2.0 * root)) / LENGTH_PRIOR_SD, np.zeros(len(x))
    slope[0] = away / LENGTH_PRIOR_SD
    return 0.5 * float(away**2), slope


def descend(objective: Objective, start: np.ndarray, bounds: np.ndarray) -> tuple[float, np.ndarray]:
    """Minimise by L-BFGS-B between `bounds` ``(count, 2)``; return the smallest value and where it is.

    It ends with the first step that gains less than `MIN_GAIN`, lest it follow the flat valley of small noises.
    """
    from scipy.optimize import Bounds, OptimizeResult, minimize  # slow to import, and few need it

    values: list[float] = [np.inf]

    def watch(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        if values[-2] - values[-1] < MIN_GAIN:
            raise StopIteration

    run = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=Bounds(*bounds.T),
        callback=watch,
        options={"maxiter": 40, "ftol": 0.0},
    )
    return float(run.fun), np.asarray(run.x)


def _at_most(data: Observations, rng: np.random.Generator, max_rows: int) -> Observations:
    n = data.rows.n_values
    n_points = max(MIN_POINTS, int(n * max_rows / data.rows.size))
    return data if n_points >= n else data.choose(np.sort(rng.permutation(n)[:n_points]))
