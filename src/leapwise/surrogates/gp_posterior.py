r"""A Gaussian process with a linear trend: covariances, posterior, and hyperparameters by maximum marginal likelihood.

`Covariance` is that of values and gradients. `Posterior` conditions a process with a trend on observed rows, and can
take further rows. `maximise_likelihood` finds `Hyperparameters`: a search over length scale and noise, with an inner
loop for the amplitude and the trend (`best_scales`). `leapwise.surrogates.gp` makes surrogates of all this.

In this file H holds trend features, one row for each observation, and is neither an energy nor a Hessian; K is a
covariance matrix and no kinetic energy; d is the dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri

from leapwise.checks import require_positive
from leapwise.surrogates.features import RadialProfile
from leapwise.surrogates.training import WhiteSet

#: The noise is at least this share of the amplitude: small enough for exact data, large enough to factorise in double
#: precision.
NOISE_FLOOR = 1e-5
#: The standard deviation of quadratic weights is at least this. The likelihood alone would go lower, because most
#: entries of a whitened Hessian are small, and then shrink the few that are not. A guess.
TREND_FLOOR = 0.3
#: Standard deviation, a priori, of the logarithm of the length scale: a factor of 2 either way. A guess.
LENGTH_PRIOR_SD = 0.7
#: Length scales to start from, in multiples of the typical distance. A guess: short, medium and long.
START_LENGTHS = (0.5, 1.5, 5.0)
#: At least this many points are used for hyperparameters, however many rows they have. A guess.
_MIN_POINTS = 20
#: A search ends when a step improves the log-likelihood by less than this, which does not matter. A guess.
_MIN_GAIN = 0.02
#: The inner loop ends after so many steps, or when no logarithm changes by more than the accuracy. It takes a few.
_MAX_STEPS, _ACCURACY = 30, 1e-3

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True, eq=False)
class ObservedRows:
    """Which rows are observed: the values at all points, then the gradients at some of them.

    Parameters
    ----------
    points : ndarray of shape (n, dim)
        In whitened coordinates.
    has_gradient : ndarray of int, shape (k,)
        Numbers of the points whose gradient is observed.
    """

    points: np.ndarray
    has_gradient: np.ndarray

    @classmethod
    def values(cls, points: np.ndarray) -> ObservedRows:
        """Return rows of values alone."""
        return cls(points, np.zeros(0, dtype=int))

    @classmethod
    def of(cls, white: WhiteSet, use_gradients: bool) -> ObservedRows:
        """Return the rows of a training set."""
        return cls(white.position, white.has_gradient) if use_gradients else cls.values(white.position)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.points.shape[1])

    @property
    def n_values(self) -> int:
        """Number of value rows."""
        return len(self.points)

    @property
    def size(self) -> int:
        """Number of rows in all."""
        return self.n_values + len(self.has_gradient) * self.dim

    @property
    def gradient_points(self) -> np.ndarray:
        """Points with gradients, ``(k, dim)``."""
        return np.asarray(self.points[self.has_gradient])

    def join(self, other: ObservedRows) -> ObservedRows:
        """Return the rows of both."""
        return ObservedRows(
            np.concatenate([self.points, other.points]),
            np.concatenate([self.has_gradient, other.has_gradient + self.n_values]),
        )


@dataclass(frozen=True)
class Covariance:
    r"""The covariance function of a process, with its noise.

    With amplitude a, length scale :math:`\ell` and relative noise s, the kernel is stationary,
    :math:`k(z, c) = a^2 \varphi(\rho)` with :math:`\rho = \|z - c\|^2 / 2\ell^2`. With :math:`r = z - c`,
    :math:`k_0 = a^2\varphi`, :math:`k_1 = a^2\varphi'/\ell^2` and :math:`k_2 = a^2\varphi''/\ell^4`,

    .. math::
        \mathrm{cov}(f(z), f(c)) = k_0, \qquad
        \mathrm{cov}(f(z), \nabla f(c)) = -k_1 r, \qquad
        \mathrm{cov}(\nabla f(z), \nabla f(c)) = -k_1 I - k_2\, r r^T.

    Derivatives by :math:`\log \ell` have the same form with other radial parts, because
    :math:`\partial\rho/\partial\log\ell = -2\rho`. The noise has variance :math:`a^2 s^2` on values and
    :math:`a^2 s^2/\ell^2` on gradients: the same share of the variance that the kernel expects of each.

    Parameters
    ----------
    profile : RadialProfile
    length, amplitude : float
        The length scale, and the standard deviation of the function.
    noise : float
        Standard deviation of the noise, relative to the amplitude.

    Examples
    --------
    >>> from leapwise.surrogates.features import SquaredExponential
    >>> covariance = Covariance(SquaredExponential(), 1.0, 2.0, 0.1)
    >>> here = ObservedRows(np.zeros((1, 2)), np.array([0]))
    >>> np.abs(covariance.between(here, here)).tolist()
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """

    profile: RadialProfile
    length: float
    amplitude: float
    noise: float

    def between(self, left: ObservedRows, right: ObservedRows) -> np.ndarray:
        """Return the covariances ``(left.size, right.size)``, without noise."""
        order = 2 if len(left.has_gradient) and len(right.has_gradient) else 1
        return _assemble(left, right, self._scaled(self.profile.derivatives(self._rho(left, right), order)))

    def length_derivative(self, left: ObservedRows, right: ObservedRows) -> np.ndarray:
        """Return the derivative of `between` by the logarithm of the length scale."""
        rho = self._rho(left, right)
        order = 2 if len(left.has_gradient) and len(right.has_gradient) else 1
        phi = self.profile.derivatives(rho, order + 1)
        parts = tuple(-2.0 * (rho * phi[k + 1] + k * phi[k]) for k in range(order + 1))
        return _assemble(left, right, self._scaled(parts))

    def noise_variance(self, rows: ObservedRows) -> np.ndarray:
        """Return the variance of the noise on all rows, ``(rows.size,)``."""
        variance = np.full(rows.size, (self.amplitude * self.noise) ** 2)
        variance[rows.n_values :] /= self.length**2
        return variance

    def _scaled(self, parts: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return tuple(part * (self.amplitude**2 / self.length ** (2 * k)) for k, part in enumerate(parts))

    def _rho(self, left: ObservedRows, right: ObservedRows) -> np.ndarray:
        # Points are centred on their mean, so that points far from the origin lose no digits in the differences.
        centre = right.points.mean(axis=0)
        x, y = left.points - centre, right.points - centre
        squares = np.einsum("nd,nd->n", x, x)[:, None] + np.einsum("nd,nd->n", y, y) - 2.0 * x @ y.T
        rho = np.maximum(squares, 0.0) / (2.0 * self.length**2)
        if left is right:
            np.fill_diagonal(rho, 0.0)
        return rho


def _assemble(left: ObservedRows, right: ObservedRows, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Build the covariance from the radial parts k_0, k_1 and k_2, each ``(n_values, n_values)``."""
    n, m, dim = left.n_values, right.n_values, left.dim
    i, j = left.has_gradient, right.has_gradient
    matrix = np.empty((left.size, right.size))
    matrix[:n, :m] = parts[0]
    if j.size:
        apart = left.points[:, None] - right.points[j]
        apart *= -parts[1][:, j, None]
        matrix[:n, m:] = apart.reshape(n, -1)
    if i.size:
        apart = left.points[i].T[:, :, None] - right.points.T[:, None, :]  # (dim, k, m)
        apart *= parts[1][i]
        matrix[n:, :m] = apart.transpose(1, 0, 2).reshape(-1, m)
    if i.size and j.size:
        first, second = parts[1][np.ix_(i, j)], parts[2][np.ix_(i, j)]
        # Covariances of gradients are most of the memory, so they are written in place, into a view.
        block = matrix[n:, m:].reshape(i.size, dim, j.size, dim)
        apart = left.points[i][:, None] - right.points[j]
        scaled = apart * -second[:, :, None]
        np.multiply(np.swapaxes(apart, 1, 2)[:, :, :, None], scaled[:, None], out=block)
        np.einsum("kiji->kij", block)[...] -= first[:, None, :]
    return matrix


@dataclass(frozen=True, eq=False)
class Observations:
    """Observed rows with their targets and trend features.

    Parameters
    ----------
    rows : ObservedRows
    target : ndarray of shape (rows.size,)
        Values, then gradients, less the prior mean.
    design : ndarray of shape (rows.size, p)
        Trend features H of the same rows; p may be 0.
    precision : ndarray of shape (p,)
        Prior precisions of the trend weights; NaN where the precision is a hyperparameter.
    """

    rows: ObservedRows
    target: np.ndarray
    design: np.ndarray
    precision: np.ndarray

    def choose(self, points: np.ndarray) -> Observations:
        """Return the observations at some of the points."""
        rows = self.rows
        places = np.full(rows.n_values, -1)
        places[points] = np.arange(len(points))
        owners = places[rows.has_gradient]
        slopes = np.repeat(owners >= 0, rows.dim)
        index = np.concatenate([points, rows.n_values + np.flatnonzero(slopes)])
        chosen = ObservedRows(rows.points[points], owners[owners >= 0])
        return Observations(chosen, self.target[index], self.design[index], self.precision)


@dataclass(frozen=True, eq=False)
class Posterior:
    r"""A process conditioned on observations.

    Observed rows are :math:`y = H \beta + f + \text{noise}` with :math:`f \sim N(0, K)` and trend weights
    :math:`\beta \sim N(0, T)`, T diagonal. From the Cholesky factor L of :math:`K_\sigma = K + \text{noise}`, with
    :math:`\tilde H = L^{-1} H` and :math:`\tilde y = L^{-1} y`,

    .. math::
        A = \tilde H^T \tilde H + T^{-1}, \qquad \hat\beta = A^{-1} \tilde H^T \tilde y, \qquad
        \alpha = L^{-T} (\tilde y - \tilde H \hat\beta).

    This is generalised least squares if T is large, and it also works with fewer rows than trend features. The
    predictive variance at a point with covariances k and trend features h is

    .. math:: k_{**} - \|L^{-1} k\|^2 + e^T A^{-1} e, \qquad e = h - \tilde H^T L^{-1} k.

    Without a trend these are the predictions of section 3.3 of the paper. Further rows extend L by a block, so earlier
    rows are never factorised again.

    Attributes
    ----------
    covariance : Covariance
    rows : ObservedRows
    precision : ndarray of shape (p,)
        Prior precisions of the trend weights, the diagonal of 1 / T.
    place : ndarray of int, shape (rows.size,)
        For each row its row of the factor: rows that were added later are at its end.
    factor : ndarray of shape (rows.size, rows.size)
        L, lower triangular.
    white_target, white_design : ndarray of shape (rows.size,) and (rows.size, p)
        Target and design, multiplied by the inverse of L.
    """

    covariance: Covariance
    rows: ObservedRows
    precision: np.ndarray
    place: np.ndarray
    factor: np.ndarray
    white_target: np.ndarray
    white_design: np.ndarray

    @classmethod
    def from_observations(cls, covariance: Covariance, data: Observations, trend_sd: float) -> Posterior:
        """Condition on observations; `trend_sd` is the standard deviation of trend weights with unknown precision."""
        precision = np.where(np.isnan(data.precision), trend_sd**-2.0, data.precision)
        matrix = covariance.between(data.rows, data.rows)
        np.einsum("ii->i", matrix)[...] += covariance.noise_variance(data.rows)
        factor = safe_cholesky(matrix)
        place = np.arange(data.rows.size)
        both = solve_lower(factor, np.column_stack([data.target, data.design]))
        return cls(covariance, data.rows, precision, place, factor, both[:, 0], both[:, 1:])

    def append(self, data: Observations) -> Posterior:
        """Condition on further observations, with the same covariance function."""
        old, new = self.rows.size, data.rows.size
        cross = np.empty((old, new))
        cross[self.place] = self.covariance.between(self.rows, data.rows)
        cross = solve_lower(self.factor, cross)
        corner = self.covariance.between(data.rows, data.rows) - cross.T @ cross
        np.einsum("ii->i", corner)[...] += self.covariance.noise_variance(data.rows)
        corner = safe_cholesky(corner)
        factor = np.zeros((old + new, old + new))
        factor[:old, :old], factor[old:, :old], factor[old:, old:] = self.factor, cross.T, corner
        n, m = self.rows.n_values, data.rows.n_values
        later = old + np.arange(new)
        place = np.concatenate([self.place[:n], later[:m], self.place[n:], later[m:]])
        target = solve_lower(corner, data.target - cross.T @ self.white_target)
        design = solve_lower(corner, data.design - cross.T @ self.white_design)
        return replace(
            self,
            rows=self.rows.join(data.rows),
            place=place,
            factor=factor,
            white_target=np.concatenate([self.white_target, target]),
            white_design=np.concatenate([self.white_design, design]),
        )

    def hold(self, columns: np.ndarray, weights: np.ndarray) -> Posterior:
        """Condition on the weights of some trend features, given as a mask; the other features remain."""
        target = self.white_target - self.white_design[:, columns] @ weights
        return replace(
            self,
            precision=self.precision[~columns],
            white_target=target,
            white_design=self.white_design[:, ~columns],
        )

    @cached_property
    def trend_factor(self) -> np.ndarray:
        """The Cholesky factor of A, ``(p, p)``."""
        return safe_cholesky(self.white_design.T @ self.white_design + np.diag(self.precision))

    @cached_property
    def trend_weights(self) -> np.ndarray:
        """The trend weights, ``(p,)``."""
        moment = solve_lower(self.trend_factor, self.white_design.T @ self.white_target)
        return solve_lower(self.trend_factor, moment, transposed=True)

    @cached_property
    def white_residual(self) -> np.ndarray:
        """The target less the trend, multiplied by the inverse of L."""
        return np.asarray(self.white_target - self.white_design @ self.trend_weights)

    @cached_property
    def row_weights(self) -> np.ndarray:
        """The weights alpha of all rows in the predictive mean, ``(rows.size,)``."""
        return np.asarray(solve_lower(self.factor, self.white_residual, transposed=True)[self.place])

    def variance(self, white: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the variance ``(n,)`` of the function, without noise, at points with these trend features."""
        here = ObservedRows.values(white)
        cross = np.empty((self.rows.size, len(white)))
        cross[self.place] = self.covariance.between(self.rows, here)
        cross = solve_lower(self.factor, cross)
        unknown = solve_lower(self.trend_factor, features.T - self.white_design.T @ cross)
        known = np.einsum("rn,rn->n", cross, cross) - np.einsum("pn,pn->n", unknown, unknown)
        return np.maximum(self.covariance.amplitude**2 - known, 0.0)


def safe_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a symmetric matrix that is positive definite up to rounding.

    If it is not positive definite, the diagonal is raised, relative to itself, by as little as is needed.
    """
    if not len(matrix):
        return matrix
    diagonal = np.maximum(np.diag(matrix), np.finfo(float).tiny)
    for jitter in (0.0, *10.0 ** np.arange(-14, 1)):
        raised = matrix + np.diag(jitter * diagonal) if jitter else matrix
        # The transpose has the layout of LAPACK, so it is simply copied; `scipy.linalg.cholesky` would transpose it.
        factor, failed = dpotrf(raised.T, lower=1)
        if not failed:
            return np.asarray(factor)
    return np.diag(np.sqrt(diagonal * len(matrix)))  # dominates any covariance with this diagonal


def solve_lower(factor: np.ndarray, right: np.ndarray, transposed: bool = False) -> np.ndarray:
    """Solve with a lower triangular factor, or its transpose."""
    if not right.size:
        return np.zeros(right.shape)
    return np.asarray(
        solve_triangular(factor, right, lower=True, trans="T" if transposed else "N", check_finite=False)
    )


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of a Gaussian process.

    Parameters
    ----------
    length : float
        Length scale, in whitened coordinates.
    amplitude : float
        Standard deviation of the function, in units of the potential.
    noise : float
        Standard deviation of the noise relative to the amplitude.
    trend : float
        Standard deviation of the quadratic weights of the trend; linear and radial weights are nearly free.

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

    def covariance(self, profile: RadialProfile) -> Covariance:
        """Return the covariance function with these parameters."""
        return Covariance(profile, self.length, self.amplitude, self.noise)


def negative_log_likelihood(posterior: Posterior) -> float:
    r"""Return the negative log marginal likelihood of the observations of a posterior, up to a constant.

    .. math:: -\log p(y) = \tfrac12 y^T K_y^{-1} y + \tfrac12 \log |K_\sigma| + \tfrac12 \log |T| + \tfrac12 \log |A|,
        \qquad K_y = K_\sigma + H T H^T.
    """
    residual, weights, precision = posterior.white_residual, posterior.trend_weights, posterior.precision
    value = 0.5 * float(residual @ residual + weights @ (precision * weights))
    value += float(np.log(np.diag(posterior.factor)).sum())
    return value + float(np.log(np.diag(posterior.trend_factor)).sum() - 0.5 * np.log(precision).sum())


def negative_log_likelihood_gradient(posterior: Posterior, learned: np.ndarray) -> np.ndarray:
    r"""Return its gradient by the logarithms of length, amplitude, noise and standard deviation of trend weights.

    The mask `learned` says which trend weights have this standard deviation. Only the length scale needs a second
    covariance matrix.

    .. math:: -\partial_\theta \log p(y)
        = \tfrac12 \mathrm{tr}\big((K_y^{-1} - \alpha \alpha^T)\, \partial_\theta K_y\big),
        \qquad K_y^{-1} = K_\sigma^{-1} - E^T E, \quad E = A^{-1/2} H^T K_\sigma^{-1} .
    """
    covariance, rows, alpha = posterior.covariance, posterior.rows, posterior.row_weights
    inverse = dpotri(posterior.factor, lower=1)[0]  # its lower triangle; the upper is zero
    half = solve_triangular(posterior.factor, posterior.white_design, lower=True, trans="T").T
    explained = solve_triangular(posterior.trend_factor, half, lower=True) if half.size else half  # E
    slope = covariance.length_derivative(rows, rows)
    diagonal = np.diag(inverse) - np.einsum("pr,pr->r", explained, explained) - alpha**2
    length = np.vdot(inverse, slope) - 0.5 * np.diag(inverse) @ np.diag(slope)
    length -= 0.5 * (np.vdot(explained @ slope, explained) + alpha @ slope @ alpha)
    noise = diagonal * covariance.noise_variance(rows)
    length -= noise[rows.n_values :].sum()
    spread = solve_triangular(posterior.trend_factor, np.diag(posterior.precision**0.5), lower=True)
    shrunk = np.einsum("pq,pq->q", spread, spread)  # posterior over prior variance of the trend weights
    size = posterior.precision * posterior.trend_weights**2
    residual = posterior.white_residual
    amplitude = rows.size - len(size) + shrunk.sum() - residual @ residual
    return np.array([length, amplitude, noise.sum(), (1.0 - shrunk - size)[learned].sum()])


@dataclass(frozen=True, eq=False)
class Scales:
    """An amplitude and a standard deviation of trend weights."""

    amplitude: float
    trend: float

    def posterior(self, unit: Posterior, learned: np.ndarray) -> Posterior:
        """Return the posterior with these scales, from that with amplitude 1; `learned` marks weights of `trend`."""
        return replace(
            unit,
            covariance=replace(unit.covariance, amplitude=self.amplitude),
            precision=np.where(learned, self.trend**-2.0, unit.precision),
            factor=self.amplitude * unit.factor,
            white_target=unit.white_target / self.amplitude,
            white_design=unit.white_design / self.amplitude,
        )


def best_scales(
    unit: Posterior,
    learned: np.ndarray,
    start: Scales,
    amplitudes: tuple[float, float],
    trends: tuple[float, float],
) -> Scales:
    r"""Return the most likely scales, amplitude a and standard deviation t of quadratic weights, by MacKay's rule.

    With amplitude 1, one factor L serves all a and t; then :math:`A = \tilde H^T \tilde H / a^2 + T^{-1}`, and the
    derivatives of the likelihood by a and t are zero where

    .. math::
        a^2 = \frac{\|\tilde y - \tilde H \hat\beta\|^2}{N - \sum_i \gamma_i}, \qquad
        t^2 = \frac{\sum_{i \in Q} \hat\beta_i^2}{\sum_{i \in Q} \gamma_i}, \qquad
        \gamma_i = 1 - T_{ii}^{-1} (A^{-1})_{ii},

    with Q the quadratic weights. Iterating these two formulas takes a few steps of :math:`O(p^3)` for p trend weights.

    Parameters
    ----------
    unit : Posterior
        With amplitude 1.
    learned : ndarray of bool, shape (p,)
        Trend weights whose standard deviation is to be found.
    start : Scales
        Where to start.
    amplitudes, trends : tuple of float
        Bounds.
    """
    gram, moment = unit.white_design.T @ unit.white_design, unit.white_design.T @ unit.white_target
    square, n_rows, scales = float(unit.white_target @ unit.white_target), unit.rows.size, start
    for _ in range(_MAX_STEPS):
        before, level = scales, scales.amplitude**2
        precision = np.where(learned, before.trend**-2.0, unit.precision)
        factor = safe_cholesky(gram / level + np.diag(precision))
        weights = solve_lower(factor, solve_lower(factor, moment / level), transposed=True)
        decided = (
            1.0 - precision * np.diag(dpotri(factor, lower=1)[0]) if len(factor) else np.zeros(0)
        )  # gamma
        left = max(square - 2.0 * float(weights @ moment) + float(weights @ gram @ weights), 0.0)
        amplitude = np.sqrt(left / max(n_rows - decided.sum(), 1.0))
        trend = before.trend
        if learned.any():
            trend = np.sqrt(np.square(weights[learned]).sum() / max(float(decided[learned].sum()), 1e-12))
        scales = Scales(float(np.clip(amplitude, *amplitudes)), float(np.clip(trend, *trends)))
        moved = abs(np.log(scales.amplitude / before.amplitude)), abs(np.log(scales.trend / before.trend))
        if max(moved) < _ACCURACY:
            break
    return scales


def maximise_likelihood(
    profile: RadialProfile, data: Observations, rng: np.random.Generator, max_rows: int
) -> Hyperparameters:
    r"""Return the most likely hyperparameters, weak prior of the length scale included.

    With many rows a random subset of the points is used: hyperparameters need far fewer rows than the fit. A few points
    in many dimensions cannot tell a short length scale from noise, so there is a weak prior: :math:`\log \ell` is
    normal with mean :math:`\log 2\sqrt d` and standard deviation 0.7.

    Parameters
    ----------
    profile : RadialProfile
    data : Observations
    rng : numpy.random.Generator
        Chooses points when there are too many.
    max_rows : int
        Points are chosen so that they have about this many rows.
    """
    data = _at_most(data, rng, max_rows)
    learned, root = np.isnan(data.precision), float(np.sqrt(data.rows.dim))
    size = max(float(np.sqrt(np.mean(data.target**2))), 1e-8)
    limits = (1e-4 * size, 1e4 * size), (TREND_FLOOR, 1e2)
    tried: list[tuple[float, np.ndarray, Scales]] = [(np.inf, np.zeros(2), Scales(size, 1.0))]

    def best(x: np.ndarray) -> tuple[float, Posterior]:
        length, noise = map(float, np.exp(x))
        unit = Posterior.from_observations(Covariance(profile, length, 1.0, noise), data, 1.0)
        scales = best_scales(unit, learned, tried[-1][2], *limits)
        posterior = scales.posterior(unit, learned)
        tried.append((negative_log_likelihood(posterior) + length_prior(x, root)[0], x, scales))
        return tried[-1][0], posterior

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, posterior = best(x)
        slope = negative_log_likelihood_gradient(posterior, learned)[[0, 2]]
        return value, slope + length_prior(x, root)[1]

    starts = [np.log([length * root, 1e-3]) for length in START_LENGTHS]
    start = starts[int(np.argmin([best(start)[0] for start in starts]))]
    minimise(objective, start, np.log([(0.05 * root, 30.0 * root), (NOISE_FLOOR, 1.0)]))
    _, x, scales = min(tried, key=lambda entry: entry[0])
    length, noise = map(float, np.exp(x))
    return Hyperparameters(length, scales.amplitude, noise, scales.trend)


def length_prior(x: np.ndarray, root: float) -> tuple[float, np.ndarray]:
    """Return minus the log prior of the length scale, whose logarithm is first in `x`, and its gradient."""
    away, slope = (x[0] - np.log(2.0 * root)) / LENGTH_PRIOR_SD, np.zeros(len(x))
    slope[0] = away / LENGTH_PRIOR_SD
    return 0.5 * float(away**2), slope


def minimise(objective: Objective, start: np.ndarray, bounds: np.ndarray) -> tuple[float, np.ndarray]:
    """Minimise by L-BFGS-B within `bounds` ``(count, 2)``; return the smallest value and where it is.

    Ends with the first step that gains less than `_MIN_GAIN`, to not follow the flat valley of small noises.
    """
    from scipy.optimize import Bounds, OptimizeResult, minimize  # slow to import, and rarely needed

    values: list[float] = [np.inf]

    def watch(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        if values[-2] - values[-1] < _MIN_GAIN:
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
    n_points = max(_MIN_POINTS, int(n * max_rows / data.rows.size))
    return data if n_points >= n else data.choose(np.sort(rng.permutation(n)[:n_points]))
