r"""Sharpened expectations: those of the surrogate, corrected by the exact draws.

Let s be the density proportional to :math:`e^{-\tilde U}` for a surrogate that is independent of the draws, D = U - U~,
and :math:`w = e^D`. Then for any f

.. math:: \mathrm{E}_\pi[w\,(f - \mathrm{E}_s f)] \;\propto\; \int e^{-U} e^{U - \tilde U} (f - \mathrm{E}_s f)
    = \int e^{-\tilde U} (f - \mathrm{E}_s f) = 0,

as long as s has no mass where the posterior has none. So for any :math:`\beta` the series

.. math:: z = f - \beta\, w\,(f - \mathrm{E}_s f)

has the posterior mean of f. With w scaled to a mean of 1 and :math:`\beta = 1`, it varies by about sd(D) times what f
varies by, since then :math:`z - \mathrm{E}_s f = (1 - w)(f - \mathrm{E}_s f)`. Here :math:`\beta` minimises the
variance of the mean, the error of :math:`\mathrm{E}_s f` included. It is estimated from the same draws, which biases
the mean by O(1/n), less than its standard error by a factor of :math:`\sqrt n`.

The standard error has three parts: that of the series (autocorrelation included, and never below that of as many
independent draws); that of :math:`\mathrm{E}_s f`, which is known from independent sets of points; and, for what the
draws do not show, sd(f) times the share of the surrogate's mass where w is larger than at all draws. This share is that
of the proposals, and at least 1 / n.

Figures other than means follow from means of functions of f: a standard deviation from that of squares about the mean,
a quantile by inverting estimated probabilities. Where the control is another function g than f, as an emulated output
for an exact one, :math:`z = f - \beta\, w\,(g - \mathrm{E}_s g)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from leapwise.estimates.surrogate_draws import SurrogateDraws
from leapwise.surrogates import Fitted

#: The estimate is sharpened where that divides its variance by more than this. A guess: below, chance decides.
LEAST_GAIN = 1.1
#: Half of the difference of probabilities by which the density at a quantile is estimated. A guess.
_BETWEEN = 0.02
#: Numbers in the largest arrays; with more, columns are treated in parts.
_MAX_NUMBERS = 1 << 24
#: Steps of Newton's method that invert probabilities. Each leaves a few per cent of the error.
_ROUNDS = 3
#: With fewer draws of each chain there is no standard error.
MIN_DRAWS = 4


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the chains, with a surrogate that was not trained on them.

    Parameters
    ----------
    chains : ndarray of int
        Which chains.
    discrepancy : ndarray of shape (chains, draws)
        D of the surrogate at these draws.
    points : SurrogateDraws
        Points of the surrogate.
    surrogate : Fitted, optional
        The surrogate itself, where its emulated outputs are wanted.
    unseen : float
        Share of the surrogate's mass at which the weights are larger than at all draws.
    """

    chains: np.ndarray
    discrepancy: np.ndarray
    points: SurrogateDraws
    surrogate: Fitted | None = None
    unseen: float = 0.0

    @property
    def weights(self) -> np.ndarray:
        """Weights w at the draws, with a mean of 1."""
        found = np.exp(self.discrepancy - self.discrepancy.max())
        return np.asarray(found / found.mean())


@dataclass(frozen=True, eq=False)
class Columns:
    """Functions whose figures are wanted, ``k`` of them.

    Parameters
    ----------
    draws : ndarray of shape (chains, draws, k)
        Their values at the draws.
    points : list of ndarray of shape (sets, n, k)
        For each `Part`, the values of the controls at its points; empty for plain figures.
    controls : ndarray of shape (chains, draws, k), optional
        The values of the controls at the draws; by default those of the functions.
    """

    draws: np.ndarray
    points: list[np.ndarray]
    controls: np.ndarray | None = None

    def some(self, which: slice) -> Columns:
        """Return some of the columns."""
        return Columns(
            self.draws[..., which],
            [each[..., which] for each in self.points],
            None if self.controls is None else self.controls[..., which],
        )


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

    >>> rng = np.random.default_rng(1)
    >>> x, y = rng.normal(size=(4, 500, 1)), rng.normal(0.1, 1.0, size=(8, 20000, 1))
    >>> points = SurrogateDraws(y, np.zeros((8, 20000)), 0.5 * (y[..., 0] - 0.1) ** 2, np.zeros(8))
    >>> part = Part(np.arange(4), 0.5 * x[..., 0] ** 2 - 0.5 * (x[..., 0] - 0.1) ** 2, points)
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
    mean = means(columns, parts)
    centre = mean.value

    def squared(values: np.ndarray) -> np.ndarray:
        return np.square(values - centre)

    squares = means(
        Columns(
            squared(draws),
            [squared(each) for each in points],
            None if controls is None else squared(controls),
        ),
        parts,
    )
    return Figures(
        mean,
        _root(squares, draws),
        tuple(_quantile(columns, parts, probability) for probability in probabilities),
    )


def _root(squares: Figure, draws: np.ndarray) -> Figure:
    """Return standard deviations from mean squares about the mean."""
    n = draws.shape[0] * draws.shape[1]
    plain = draws.std(axis=(0, 1), ddof=1) if n > 1 else np.full(draws.shape[2], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        sharp = np.sqrt(np.maximum(squares.value, 0.0))
        value = np.where(squares.value == squares.plain, plain, sharp)
        error, plain_error = (
            np.where(each > 0.0, each / (2.0 * plain), 0.0) for each in (squares.error, squares.plain_error)
        )
    return Figure(value, error, plain, plain_error, squares.effective)


def means(columns: Columns, parts: Sequence[Part]) -> Figure:
    """Estimate the mean of each column."""
    draws = columns.draws
    series, variance, _ = corrected(columns, parts)
    plain, plain_error, own = draws.mean(axis=(0, 1)), monte_carlo_errors(draws), draws.var(axis=(0, 1))
    if not parts:
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(plain_error)))
    sharp = np.square(monte_carlo_errors(series, cautious=True)) + variance + _unseen(draws, own, parts)
    better = LEAST_GAIN * sharp < np.square(plain_error)
    error = np.where(better, np.sqrt(sharp), plain_error)
    value = np.where(better, series.mean(axis=(0, 1)), plain)
    return Figure(value, error, plain, plain_error, _per(own, np.square(error)))


def _unseen(draws: np.ndarray, variance: np.ndarray, parts: Sequence[Part]) -> np.ndarray:
    """Return the variance that stands for what n draws do not show: a share, at least 1 / n, where w is another."""
    share = max([1.0 / (draws.shape[0] * draws.shape[1]), *(part.unseen for part in parts)])
    return variance * share**2


def _per(variance: np.ndarray, squared_error: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0.0, variance / squared_error, np.nan)


def corrected(columns: Columns, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the series z ``(chains, draws, k)``, the variance of its mean that comes from E_s, and beta."""
    values = columns.draws
    if not parts:
        return values, np.zeros(values.shape[2]), np.zeros(values.shape[2])
    controls = values if columns.controls is None else columns.controls
    n_chains, n_draws, _ = values.shape
    residual, variance = np.empty_like(controls), 0.0
    for part, points in zip(parts, columns.points, strict=True):
        expected, spread = part.points.expectation(points)
        residual[part.chains] = part.weights[:, :, None] * (controls[part.chains] - expected)
        variance = variance + np.square(len(part.chains) / n_chains) * spread
    away = values - values.mean(axis=(0, 1))
    both, own = (np.mean(each * residual, axis=(0, 1)) for each in (away, residual))
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = both / (own + n_chains * n_draws * variance)
    beta = np.where(np.isfinite(beta), beta, 0.0)
    return values - beta * residual, np.square(beta) * variance, beta


def _quantile(columns: Columns, parts: Sequence[Part], probability: float) -> Figure:
    """Estimate a quantile of each column by inverting estimated probabilities."""
    draws = columns.draws
    low, high = max(probability - _BETWEEN, 0.0), min(probability + _BETWEEN, 1.0)
    below, plain, above = np.quantile(draws, (low, probability, high), axis=(0, 1))
    slope = (above - below) / (high - low)  # of the quantile by the probability: one over the density
    at_plain = _below(columns, plain)
    error, own = monte_carlo_errors(at_plain.draws), at_plain.draws.var(axis=(0, 1))
    plain_error = slope * error
    if not parts:
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(error)))
    series, variance, beta = corrected(at_plain, parts)
    sharp = np.square(monte_carlo_errors(series, cautious=True)) + variance + _unseen(draws, own, parts)
    rise = _surrogate_mass(columns, parts, plain + plain_error)
    rise -= _surrogate_mass(columns, parts, plain - plain_error)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(rise > 0.0, 2.0 * plain_error / rise, slope)
    value = plain
    for _ in range(_ROUNDS):
        mass = _own_mass(columns, parts, value, beta) + beta * _surrogate_mass(columns, parts, value)
        value = value - slope * (mass - probability)
    better = (LEAST_GAIN * sharp < np.square(error)) & np.isfinite(value)
    final = np.where(better, np.sqrt(sharp), error)
    return Figure(
        np.where(better, value, plain),
        np.where(better, slope * final, plain_error),
        plain,
        np.where(better, slope * error, plain_error),
        _per(own, np.square(final)),
    )


def _below(columns: Columns, limit: np.ndarray) -> Columns:
    """Return the indicators of values up to a limit."""
    return Columns(
        (columns.draws <= limit).astype(float),
        [each <= limit for each in columns.points],
        None if columns.controls is None else (columns.controls <= limit).astype(float),
    )


def _surrogate_mass(columns: Columns, parts: Sequence[Part], limit: np.ndarray) -> np.ndarray:
    """Return the probability of values up to a limit under the surrogates, ``(k,)``."""
    found = np.zeros(len(limit))
    for part, points in zip(parts, columns.points, strict=True):
        share = len(part.chains) / len(columns.draws)
        found += share * part.points.expectation(points <= limit)[0]
    return found


def _own_mass(columns: Columns, parts: Sequence[Part], limit: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Return the means of f - beta w g over the draws, ``(k,)``, for indicators f and g of values up to a limit."""
    controls = columns.draws if columns.controls is None else columns.controls
    found = (columns.draws <= limit).mean(axis=(0, 1))
    for part in parts:
        share = len(part.chains) / len(columns.draws)
        below = controls[part.chains] <= limit
        found -= share * beta * np.mean(part.weights[:, :, None] * below, axis=(0, 1))
    return np.asarray(found)


def monte_carlo_errors(series: np.ndarray, *, cautious: bool = False) -> np.ndarray:
    """Return standard errors of the means of series ``(chains, draws, k)``.

    Parameters
    ----------
    series : ndarray
    cautious : bool
        Whether the error is at least that of as many independent draws. Series that alternate between the sides of
        their mean have a smaller error, but an estimate of it from few draws may be far too small.
    """
    from arviz_stats.base import array_stats  # takes a second to import, and only results need it

    n_chains, n_draws, k = series.shape
    found = np.full(k, np.nan)
    if n_draws < MIN_DRAWS:
        return found
    moving = np.ptp(series, axis=(0, 1)) > 0
    found[~moving] = 0.0
    if moving.any():
        some = series[..., moving]
        with np.errstate(divide="ignore", invalid="ignore"):
            found[moving] = array_stats.mcse(some, method="mean", chain_axis=0, draw_axis=1)
        if cautious:
            independent = some.std(axis=(0, 1), ddof=1) / np.sqrt(n_chains * n_draws)
            found[moving] = np.maximum(found[moving], independent)
    return found
