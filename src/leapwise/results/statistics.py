"""Moments, quantiles and convergence of each parameter, from draws alone.

The effective sample sizes, R-hat and Monte-Carlo errors are those of arviz-stats (rank-normalised and split,
after Vehtari et al. 2021). Those of squares, about the mean of all chains, tell how well spreads are known: chains that
jump from side to side know their means long before. What cannot be known is NaN: R-hat of a single chain, convergence
from fewer than four draws, convergence of a parameter that never changed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

MIN_DRAWS = 4  # arviz-stats answers NaN below this


@dataclass(frozen=True, eq=False)
class Statistics:
    """One entry for each parameter in every array; the order of fields is that of the table."""

    mean: np.ndarray
    sd: np.ndarray
    q5: np.ndarray
    q50: np.ndarray
    q95: np.ndarray
    mcse: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    ess_squares: np.ndarray
    rhat: np.ndarray

    @property
    def ess(self) -> np.ndarray:
        """The smaller effective sample size, bulk or tail; NaN if unknown."""
        return np.minimum(self.ess_bulk, self.ess_tail)

    def worst_first(self) -> np.ndarray:
        """Return parameter indices, fewest effective draws first, unknown ones before all."""
        return np.argsort(np.nan_to_num(self.ess, nan=-1.0), kind="stable")


def statistics(draws: np.ndarray) -> Statistics:
    """Describe draws ``(chains, draws, dim)``.

    Examples
    --------
    >>> found = statistics(np.random.default_rng(1).normal(3.0, 1.0, size=(4, 1000, 2)))
    >>> found.mean.round(1), found.rhat.round(1)
    (array([3., 3.]), array([1., 1.]))
    """
    chains, n, dim = draws.shape
    unknown = np.full(dim, np.nan)
    if chains * n == 0:
        return Statistics(*([unknown] * len(fields(Statistics))))
    moving = np.ptp(draws, axis=(0, 1)) > 0
    # arviz-stats counts every draw of a constant as effective; nothing is known of it.
    convergence = np.full((5, dim), np.nan)  # in the order of the fields
    if n >= MIN_DRAWS and moving.any():
        convergence[:, moving] = _convergence(draws[:, :, moving])
    return Statistics(
        draws.mean(axis=(0, 1)),
        np.where(moving, draws.std(axis=(0, 1), ddof=1), 0.0) if chains * n > 1 else unknown,
        *np.quantile(draws, (0.05, 0.5, 0.95), axis=(0, 1)),
        *convergence,
    )


def _convergence(draws: np.ndarray) -> np.ndarray:
    from arviz_stats.base import array_stats  # takes a second to import, and only results need it

    axes = {"chain_axis": 0, "draw_axis": 1}
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    # A chain that never moved divides by zero inside: its R-hat is infinite, as it should be.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack(
            [
                array_stats.mcse(draws, method="mean", **axes),
                array_stats.ess(draws, method="bulk", **axes),
                array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **axes),
                array_stats.ess(squares, method="bulk", **axes),
                array_stats.rhat(draws, method="rank", **axes),
            ]
        )
