"""Means, standard deviations and quantiles of functions of the posterior, sharpened where that is more precise.

All follow from means of functions of f: a standard deviation from that of squares about the mean, a quantile by
inverting estimated probabilities. The squared standard error of a sharpened mean has five parts: that of the corrected
series, autocorrelation included, and never below that of as many independent draws; that of E_s f, which is known from
independent sets of points; and three for what the draws do not show (`leapwise.estimates.unseen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leapwise.estimates.series import Columns, Part, corrected, monte_carlo_errors
from leapwise.estimates.unseen import Beyond, beyond_draws, regions, tails

#: The estimate is sharpened where that divides its variance by more than this. A guess: below, chance decides.
LEAST_GAIN = 1.1
#: Half of the difference of probabilities by which the density at a quantile is estimated. A guess.
_BETWEEN = 0.02
#: Numbers in the largest arrays; with more, columns are treated in parts.
_MAX_NUMBERS = 1 << 24
#: With fewer draws beyond a quantile its error is not known. A guess.
_FEWEST_BEYOND = 3
#: Steps of Newton's method that invert probabilities. Each leaves a few per cent of the error.
_ROUNDS = 3


class Figure(NamedTuple):
    """An estimate of each function, ``(k,)``.

    Attributes
    ----------
    value, error : ndarray of shape (k,)
        The estimate and its Monte Carlo standard error; sharpened where that is more precise.
    plain, plain_error : ndarray of shape (k,)
        Those of the draws alone.
    effective : ndarray of shape (k,)
        As many independent draws would give the same error.
    """

    value: np.ndarray
    error: np.ndarray
    plain: np.ndarray
    plain_error: np.ndarray
    effective: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """Variance of the plain estimate over that of the estimate; 1 where it is plain."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.square(self.plain_error / self.error)


class Figures(NamedTuple):
    """Means, standard deviations and quantiles of some functions."""

    mean: Figure
    sd: Figure
    quantiles: tuple[Figure, ...]

    def largest_error(self) -> float:
        """Return the largest error of a mean or standard deviation, in standard deviations; inf if it is not known."""
        sd = self.sd.plain
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.array([self.mean.error, self.sd.error]) / sd
        worst = float(np.max(np.where(sd > 0.0, relative, np.inf), initial=0.0))
        return worst if np.isfinite(worst) else np.inf


def figures(columns: Columns, parts: Sequence[Part], probabilities: Sequence[float]) -> Figures:
    """Estimate mean, sd and quantiles of each column.

    Examples
    --------
    A normal posterior, and a surrogate that is shifted by 0.1:

    >>> from leapwise.estimates.surrogate_draws import SurrogateDraws
    >>> rng = np.random.default_rng(1)
    >>> x, y = rng.normal(size=(4, 500, 1)), rng.normal(0.1, 1.0, size=(8, 20000, 1))
    >>> points = SurrogateDraws(y, np.zeros((8, 20000)), 0.5 * (y[..., 0] - 0.1) ** 2, np.zeros(8))
    >>> predicted = 0.5 * (x[..., 0] - 0.1) ** 2
    >>> part = Part(np.arange(4), 0.5 * x[..., 0] ** 2 - predicted, predicted, points)
    >>> found = figures(Columns(x, [y]), [part], (0.05, 0.5, 0.95))
    >>> bool(abs(found.mean.value[0]) < 3 * found.mean.error[0] < 0.03), bool(found.mean.gain[0] > 10)
    (True, True)
    """
    widest = max([columns.draws[..., 0].size, *(each[..., 0].size for each in columns.points)])
    step = max(1, _MAX_NUMBERS // widest)
    n_columns = columns.draws.shape[2]
    found = [
        _figures(columns.some(slice(first, first + step)), parts, probabilities)
        for first in range(0, n_columns, step)
    ]
    return Figures(
        _beside([each.mean for each in found]),
        _beside([each.sd for each in found]),
        tuple(_beside([each.quantiles[i] for each in found]) for i in range(len(probabilities))),
    )


def _beside(parts: list[Figure]) -> Figure:
    return Figure(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _figures(columns: Columns, parts: Sequence[Part], probabilities: Sequence[float]) -> Figures:
    draws, points, controls = columns.draws, columns.points, columns.controls
    beyond = beyond_draws(columns, parts)
    mean = means(columns, parts, beyond)
    centre = mean.value

    def squared(values: np.ndarray) -> np.ndarray:
        return np.square(values - centre)

    squares = Columns(
        squared(draws), [squared(each) for each in points], None if controls is None else squared(controls)
    )
    return Figures(
        mean,
        _root(means(squares, parts, beyond), draws),
        tuple(_quantile(columns, parts, probability, beyond) for probability in probabilities),
    )


def _root(squares: Figure, draws: np.ndarray) -> Figure:
    """Return standard deviations from mean squares about the mean."""
    n = draws.shape[0] * draws.shape[1]
    plain = draws.std(axis=(0, 1), ddof=1) if n > 1 else np.full(draws.shape[2], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        sharp = np.sqrt(np.maximum(squares.value, 0.0))
        value = np.where(squares.value == squares.plain, plain, sharp)
        error, plain_error = (
            np.where(each == 0.0, 0.0, each / (2.0 * plain)) for each in (squares.error, squares.plain_error)
        )
    return Figure(value, error, plain, plain_error, squares.effective)


def means(columns: Columns, parts: Sequence[Part], beyond: Sequence[Beyond] | None = None) -> Figure:
    """Estimate the mean of each column.

    Parameters
    ----------
    columns : Columns
    parts : sequence of Part
    beyond : sequence of Beyond, optional
        The tails that no draw has reached, if not those of these columns.
    """
    draws = columns.draws
    series, variance, beta = corrected(columns, parts)
    plain, plain_error, own = draws.mean(axis=(0, 1)), monte_carlo_errors(draws), draws.var(axis=(0, 1))
    if not parts:
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(plain_error)))
    beyond = beyond_draws(columns, parts) if beyond is None else beyond
    sharp = _squared_error(columns, parts, beyond, series, variance, beta)
    better = LEAST_GAIN * sharp < np.square(plain_error)
    error = np.where(better, np.sqrt(sharp), plain_error)
    varies = np.any([np.ptp(points, axis=(0, 1)) > 0.0 for points in columns.points], axis=0)
    error[(own == 0.0) & varies] = np.nan  # rare values, which no draw has
    value = np.where(better, series.mean(axis=(0, 1)), plain)
    return Figure(value, error, plain, plain_error, _per(own, np.square(error)))


def _squared_error(
    columns: Columns,
    parts: Sequence[Part],
    beyond: Sequence[Beyond],
    series: np.ndarray,
    variance: np.ndarray,
    beta: np.ndarray,
) -> np.ndarray:
    """Return the squared standard error of the mean of the series z, with all of its parts."""
    own = np.square(monte_carlo_errors(series, cautious=True))
    return np.asarray(own + variance + regions(columns, parts) + tails(columns, parts, beyond, beta))


def _per(variance: np.ndarray, squared_error: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0.0, variance / squared_error, np.nan)


def _quantile(
    columns: Columns, parts: Sequence[Part], probability: float, beyond: Sequence[Beyond]
) -> Figure:
    """Estimate a quantile of each column by inverting estimated probabilities."""
    draws = columns.draws
    low, high = max(probability - _BETWEEN, 0.0), min(probability + _BETWEEN, 1.0)
    below, plain, above = np.quantile(draws, (low, probability, high), axis=(0, 1))
    slope = (above - below) / (high - low)  # of the quantile by the probability: one over the density
    at_plain = _below(columns, plain)
    error, own = monte_carlo_errors(at_plain.draws), at_plain.draws.var(axis=(0, 1))
    n = draws.shape[0] * draws.shape[1]
    if n * min(probability, 1.0 - probability) < _FEWEST_BEYOND:
        unknown = np.full(len(plain), np.nan)
        return Figure(plain, unknown, plain, unknown, unknown)
    if not parts:
        plain_error = slope * error
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(error)))
    series, variance, beta = corrected(at_plain, parts)
    sharp = _squared_error(at_plain, parts, beyond, series, variance, beta)
    between = _mass_between(columns, parts, below, above)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(between > 0.0, (above - below) / between, slope)
    value, off = plain, _mass(columns, parts, plain, beta) - probability
    for _ in range(_ROUNDS):
        value = value - slope * off
        off = _mass(columns, parts, value, beta) - probability
    is_continuous = np.mean(draws == plain, axis=(0, 1)) < _BETWEEN
    found = is_continuous & (np.square(off) <= sharp) & np.isfinite(value)
    better = found & (LEAST_GAIN * sharp < np.square(error))
    final = np.where(better, np.sqrt(sharp), error)
    return Figure(
        np.where(better, value, plain), slope * final, plain, slope * error, _per(own, np.square(final))
    )


def _below(columns: Columns, limit: np.ndarray) -> Columns:
    """Return the indicators of values up to a limit."""
    return Columns(
        (columns.draws <= limit).astype(float),
        [each <= limit for each in columns.points],
        None if columns.controls is None else (columns.controls <= limit).astype(float),
    )


def _mass_between(
    columns: Columns, parts: Sequence[Part], below: np.ndarray, above: np.ndarray
) -> np.ndarray:
    """Return the probability of values between two limits ``(k,)``: the surrogate's, divided by w there.

    The surrogate's is known well, and w hardly varies, so this is more precise than the share of the draws.
    """
    controls = columns.draws if columns.controls is None else columns.controls
    found = np.zeros(len(below))
    for part, points in zip(parts, columns.points, strict=True):
        share = len(part.chains) / len(columns.draws)
        own = controls[part.chains]
        inside = (own > below) & (own <= above)
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.sum(part.weights[:, :, None] * inside, axis=(0, 1)) / inside.sum(axis=(0, 1))
        found += share * part.points.expectation((points > below) & (points <= above))[0] / weight
    return found


def _mass(columns: Columns, parts: Sequence[Part], limit: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return the probability of values up to a limit ``(k,)``: the mean of the series z of the indicators."""
    at_limit = _below(columns, limit)
    controls = at_limit.draws if at_limit.controls is None else at_limit.controls
    found = at_limit.draws.mean(axis=(0, 1))
    for part, points in zip(parts, at_limit.points, strict=True):
        away = controls[part.chains] - part.points.expectation(points)[0]
        lost = np.mean(part.weights[:, :, None] * away, axis=1)
        found -= np.sum(beta[part.chains] * lost, axis=0) / len(columns.draws)
    return np.asarray(found)
