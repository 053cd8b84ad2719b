r"""The corrected series: a function of the draws, less a control variate that the surrogate gives.

Let s be the density proportional to :math:`e^{-\tilde U}` for a surrogate that is independent of the draws, D = U - U~,
and :math:`w = e^D`. Then for any f

.. math:: \mathrm{E}_\pi[w\,(f - \mathrm{E}_s f)] \;\propto\; \int e^{-U} e^{U - \tilde U} (f - \mathrm{E}_s f)
    = \int e^{-\tilde U} (f - \mathrm{E}_s f) = 0,

as long as s has no mass where the posterior has none. So for any :math:`\beta` the series

.. math:: z = f - \beta\, w\,(f - \mathrm{E}_s f)

has the posterior mean of f. With w scaled to a mean of 1 and :math:`\beta = 1`, it varies by about sd(D) times what f
varies by, since then :math:`z - \mathrm{E}_s f = (1 - w)(f - \mathrm{E}_s f)`. Here :math:`\beta` minimises the
variance of the mean, the error of :math:`\mathrm{E}_s f` included. That of each chain is estimated from the others, so
that it hardly depends on what it multiplies. The control may also be another function g than f, as an emulated output
for an exact one: then :math:`z = f - \beta\, w\,(g - \mathrm{E}_s g)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leapwise.estimates.surrogate_draws import SurrogateDraws, variance_of_sets
from leapwise.surrogates import Fitted

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
    predicted : ndarray of shape (chains, draws)
        Its potential there.
    points : SurrogateDraws
        Points of the surrogate.
    surrogate : Fitted, optional
        The surrogate itself, which may be trained again.
    unseen : float
        Share of the surrogate's mass where the weights are larger than at all draws: of the proposals, or beyond all
        draws.
    """

    chains: np.ndarray
    discrepancy: np.ndarray
    predicted: np.ndarray
    points: SurrogateDraws
    surrogate: Fitted | None = None
    unseen: float = 0.0

    @property
    def log_weights(self) -> np.ndarray:
        """Logarithms of the weights at the draws."""
        away = self.discrepancy - self.discrepancy.max()
        return np.asarray(away - np.log(np.mean(np.exp(away))))

    @property
    def weights(self) -> np.ndarray:
        """Weights w at the draws, with a mean of 1."""
        return np.asarray(np.exp(self.log_weights))


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


def corrected(columns: Columns, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the series z ``(chains, draws, k)``, the variance of its mean that comes from E_s, and beta.

    The beta of each chain, ``(chains, k)``, is that of the other chains: then it hardly depends on what it multiplies.
    A single chain has its own, with a bias of O(1/n).
    """
    values = columns.draws
    n_chains, n_draws, k = values.shape
    if not parts:
        return values, np.zeros(k), np.zeros((n_chains, k))
    controls = values if columns.controls is None else columns.controls
    residual, deviations = np.empty_like(controls), []
    for part, points in zip(parts, columns.points, strict=True):
        expected, away = part.points.deviations(points)
        residual[part.chains] = part.weights[:, :, None] * (controls[part.chains] - expected)
        deviations.append(len(part.chains) / n_chains * away)
    variance = variance_of_sets(np.sum(deviations, axis=0))  # parts have the same points
    away = values - values.mean(axis=(0, 1))
    both, own = (_of_others(np.mean(each * residual, axis=1)) for each in (away, residual))
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = both / (own + n_chains * n_draws * variance)
    beta = np.where(np.isfinite(beta), beta, 0.0)
    passed_on = [beta[part.chains].mean(axis=0) * away for part, away in zip(parts, deviations, strict=True)]
    return values - beta[:, None] * residual, variance_of_sets(np.sum(passed_on, axis=0)), beta


def _of_others(means: np.ndarray) -> np.ndarray:
    """Return for each chain the mean of the others' means ``(chains, k)``; those of a single chain as they are."""
    n = len(means)
    return means if n == 1 else (means.sum(axis=0) - means) / (n - 1)


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
