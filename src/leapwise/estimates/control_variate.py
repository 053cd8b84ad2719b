r"""Sharpened expectations: those of the surrogate, corrected by the exact draws.

Let s be the density proportional to :math:`e^{-\tilde U}` for a surrogate that is independent of the draws, D = U - U~,
and :math:`w = e^D`. Then for any f

.. math:: \mathrm{E}_\pi[w\,(f - \mathrm{E}_s f)] \;\propto\; \int e^{-U} e^{U - \tilde U} (f - \mathrm{E}_s f)
    = \int e^{-\tilde U} (f - \mathrm{E}_s f) = 0,

as long as s has no mass where the posterior has none. So for any :math:`\beta` the series

.. math:: z = f - \beta\, w\,(f - \mathrm{E}_s f)

has the posterior mean of f. With w scaled to a mean of 1 and :math:`\beta = 1`, it varies by about sd(D) times what f
varies by, since then :math:`z - \mathrm{E}_s f = (1 - w)(f - \mathrm{E}_s f)`. Here :math:`\beta` minimises the
variance of the mean, the error of :math:`\mathrm{E}_s f` included. That of each chain is estimated from the others, so
that it does not depend on what it multiplies.

The squared standard error has four parts:

- that of the series, autocorrelation included, and never below that of as many independent draws;
- that of :math:`\mathrm{E}_s f`, which is known from independent sets of points;
- for regions that no draw shows, which are 1 / n of the posterior on average: f is taken to be there as far from its
  mean as at the draws whose potential is largest, and its surrogate to be wrong. The share is larger if at more
  proposals than that w was larger than at all draws;
- for tails that no draw has reached yet (`_Beyond`). A surrogate that is too flat has much mass there, with large w.
  The draws then show neither the mean of the series nor its variance. There w is taken to go on as it rises towards the
  outermost draws, and what this adds to the variance and to the mean counts as error. Where w does not rise it adds
  next to nothing.

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
#: The outermost draws, whose mean weight says how w rises with the distance. A guess: fewer would be noisy.
_OUTERMOST = 10


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the chains, with a surrogate that was not trained on them.

    Parameters
    ----------
    chains : ndarray of int
        Which chains.
    discrepancy : ndarray of shape (chains, draws)
        D of the surrogate at these draws.
    predicted : ndarray of shape (chains, draws)
        Its potential there.
    points : SurrogateDraws
        Points of the surrogate.
    surrogate : Fitted, optional
        The surrogate itself, where its emulated outputs are wanted.
    unseen : float
        Share of the surrogate's mass at which the weights are larger than at all draws.
    """

    chains: np.ndarray
    discrepancy: np.ndarray
    predicted: np.ndarray
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
    beyond = _beyond(columns, parts)
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
            np.where(each > 0.0, each / (2.0 * plain), 0.0) for each in (squares.error, squares.plain_error)
        )
    return Figure(value, error, plain, plain_error, squares.effective)


def means(columns: Columns, parts: Sequence[Part], beyond: Sequence[_Beyond] | None = None) -> Figure:
    """Estimate the mean of each column.

    Parameters
    ----------
    columns : Columns
    parts : sequence of Part
    beyond : sequence of _Beyond, optional
        The tails that no draw has reached, if not those of these columns.
    """
    draws = columns.draws
    series, variance, beta = corrected(columns, parts)
    plain, plain_error, own = draws.mean(axis=(0, 1)), monte_carlo_errors(draws), draws.var(axis=(0, 1))
    if not parts:
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(plain_error)))
    beyond = _beyond(columns, parts) if beyond is None else beyond
    sharp = _squared_error(columns, parts, beyond, series, variance, beta)
    better = LEAST_GAIN * sharp < np.square(plain_error)
    error = np.where(better, np.sqrt(sharp), plain_error)
    value = np.where(better, series.mean(axis=(0, 1)), plain)
    return Figure(value, error, plain, plain_error, _per(own, np.square(error)))


def _squared_error(
    columns: Columns,
    parts: Sequence[Part],
    beyond: Sequence[_Beyond],
    series: np.ndarray,
    variance: np.ndarray,
    beta: np.ndarray,
) -> np.ndarray:
    """Return the squared standard error of the mean of the series z, with all of its four parts."""
    n = series.shape[0] * series.shape[1]
    share = max([1.0 / n, *(part.unseen for part in parts)])
    regions = share**2 * np.max([_of_outermost(columns.draws, part) for part in parts], axis=0)
    tails = sum(np.square(bias) + more / n for bias, more in _tails(columns, parts, beyond, beta))
    own = np.square(monte_carlo_errors(series, cautious=True))
    return np.asarray(own + variance + regions + tails)


def _of_outermost(draws: np.ndarray, part: Part) -> np.ndarray:
    """Return the mean squared distance from the mean, of the draws whose potential is largest."""
    away = np.square(draws[part.chains] - draws.mean(axis=(0, 1))).reshape(-1, draws.shape[2])
    outer = min(_OUTERMOST, len(away))
    return np.asarray(away[np.argpartition(part.predicted.ravel(), -outer)[-outer:]].mean(axis=0))


class _Beyond(NamedTuple):
    """Points of a part's surrogate that are farther out than all draws: above, below, or by their potential.

    Attributes
    ----------
    part : int
        Which part.
    direction : int
        0 for above, 1 for below, 2 for the potential.
    where : tuple of ndarray
        Indices of sets, points and columns.
    mass : ndarray
        Probability of each under the surrogate.
    weight : ndarray
        w there, if it goes on as it rises towards the outermost draws.
    """

    part: int
    direction: int
    where: tuple[np.ndarray, ...]
    mass: np.ndarray
    weight: np.ndarray


def _beyond(columns: Columns, parts: Sequence[Part]) -> list[_Beyond]:
    """Return the points in tails that no draw has reached; log w is taken to be linear in the distance there."""
    found, k = [], columns.draws.shape[2]
    controls = columns.draws if columns.controls is None else columns.controls
    centre = controls.mean(axis=(0, 1))
    for which, (part, points) in enumerate(zip(parts, columns.points, strict=True)):
        here = controls[part.chains].reshape(-1, k) - centre
        middle = part.predicted.mean()
        distances = (
            (here, points - centre),
            (-here, centre - points),
            (part.predicted.reshape(-1, 1) - middle, (part.points.potential - middle)[:, :, None]),
        )
        log_weight = np.log(part.weights).ravel()
        usual, outer = log_weight.mean(), min(_OUTERMOST, len(here))
        for direction, (draws, others) in enumerate(distances):
            is_beyond = (others > draws.max(axis=0)) & (part.points.weights > 0.0)[:, :, None]
            where = np.nonzero(np.broadcast_to(is_beyond, (*is_beyond.shape[:2], k)))
            outermost = np.argpartition(draws, -outer, axis=0)[-outer:]
            with np.errstate(all="ignore"):
                rise = (log_weight[outermost].mean(axis=0) - usual) / np.take_along_axis(
                    draws, outermost, axis=0
                ).mean(axis=0)
                column = where[2] if draws.shape[1] == k else np.zeros_like(where[2])
                weight = np.exp(usual + rise[column] * others[where[0], where[1], column])
            found.append(_Beyond(which, direction, where, part.points.weights[where[:2]], weight))
    return found


def _tails(
    columns: Columns, parts: Sequence[Part], beyond: Sequence[_Beyond], beta: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each direction what the tails add to the mean of the series z, and to its variance.

    The posterior's density is that of the surrogate over w there, and z - E f = (f - E f) (1 - beta w).
    """
    n_chains, _, k = columns.draws.shape
    centre = (columns.draws if columns.controls is None else columns.controls).mean(axis=(0, 1))
    found = [(np.zeros(k), np.zeros(k)) for _ in range(3)]
    for each in beyond:
        part, column = parts[each.part], each.where[2]
        share = len(part.chains) / n_chains
        away = columns.points[each.part][each.where] - centre[column]
        with np.errstate(all="ignore"):
            lost = away * (1.0 - beta[part.chains].mean(axis=0)[column] * each.weight)
            mass = share * each.mass / each.weight
            bias, more = found[each.direction]
            bias += np.bincount(column, mass * lost, k)
            more += np.bincount(column, mass * np.square(lost), k)
    return found


def _per(variance: np.ndarray, squared_error: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0.0, variance / squared_error, np.nan)


def corrected(columns: Columns, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the series z ``(chains, draws, k)``, the variance of its mean that comes from E_s, and beta.

    The beta of each chain, ``(chains, k)``, is that of the other chains: then it does not depend on what it multiplies,
    and the mean of the series has no bias. A single chain has its own, with a bias of O(1/n).
    """
    values = columns.draws
    n_chains, n_draws, k = values.shape
    if not parts:
        return values, np.zeros(k), np.zeros((n_chains, k))
    controls = values if columns.controls is None else columns.controls
    residual, spreads = np.empty_like(controls), []
    for part, points in zip(parts, columns.points, strict=True):
        expected, spread = part.points.expectation(points)
        residual[part.chains] = part.weights[:, :, None] * (controls[part.chains] - expected)
        spreads.append(spread)
    shares = [len(part.chains) / n_chains for part in parts]
    variance = sum(share**2 * spread for share, spread in zip(shares, spreads, strict=True))
    away = values - values.mean(axis=(0, 1))
    both, own = (_of_others(np.mean(each * residual, axis=1)) for each in (away, residual))
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = both / (own + n_chains * n_draws * variance)
    beta = np.where(np.isfinite(beta), beta, 0.0)
    pairs = zip(parts, shares, spreads, strict=True)
    passed_on = sum(
        np.square(share * beta[part.chains].mean(axis=0)) * spread for part, share, spread in pairs
    )
    return values - beta[:, None] * residual, np.asarray(passed_on), beta


def _of_others(means: np.ndarray) -> np.ndarray:
    """Return for each chain the mean of the others' means ``(chains, k)``; those of a single chain as they are."""
    n = len(means)
    return means if n == 1 else (means.sum(axis=0) - means) / (n - 1)


def _quantile(
    columns: Columns, parts: Sequence[Part], probability: float, beyond: Sequence[_Beyond]
) -> Figure:
    """Estimate a quantile of each column by inverting estimated probabilities."""
    draws = columns.draws
    low, high = max(probability - _BETWEEN, 0.0), min(probability + _BETWEEN, 1.0)
    below, plain, above = np.quantile(draws, (low, probability, high), axis=(0, 1))
    slope = (above - below) / (high - low)  # of the quantile by the probability: one over the density
    at_plain = _below(columns, plain)
    error, own = monte_carlo_errors(at_plain.draws), at_plain.draws.var(axis=(0, 1))
    if not parts:
        plain_error = slope * error
        return Figure(plain, plain_error, plain, plain_error, _per(own, np.square(error)))
    series, variance, beta = corrected(at_plain, parts)
    sharp = _squared_error(at_plain, parts, beyond, series, variance, beta)
    between = _mass_between(columns, parts, below, above)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(between > 0.0, (above - below) / between, slope)
    value = plain
    for _ in range(_ROUNDS):
        value = value - slope * (_mass(columns, parts, value, beta) - probability)
    better = (LEAST_GAIN * sharp < np.square(error)) & np.isfinite(value)
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
