r"""Numbers that describe draws: moments, quantiles and convergence of parameters, and discrepancies of a surrogate.

Effective sample sizes, R-hat and Monte Carlo errors are those of arviz-stats (rank-normalised and split, after Vehtari
et al. 2021). Effective draws of squares, about the mean of all chains, say how well standard deviations are known:
chains that jump from side to side know their means long before. What cannot be computed is NaN: R-hat of a single
chain, convergence from fewer than four draws or of a parameter that never changed.

Of the discrepancies at proposals, :math:`D = U - \tilde U`, only differences matter, since a proposal y is accepted
with probability :math:`\min(1, e^{D(x) - D(y)})`. Where the surrogate is too high by g more than usual, chains propose
to go :math:`e^g` times too rarely and, once there, stay about :math:`e^g` draws. So a proposal of weight
:math:`e^{-D}` stands for the share of the posterior that its weight has among all weights, whether or not the chains
have been to the rest of that share.

Here D is measured at the proposals of the draws, after the surrogate was frozen. What D was during the adaptation is
measured by `leapwise.adaptation.record`, and reaches a `Run` as its `SurrogateReport`. The formula of sd(D) is that of
`leapwise.surrogates.quality` in both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from leapwise.surrogates.quality import discrepancy_sd, robust_discrepancy_sd

if TYPE_CHECKING:
    from leapwise.results.run import Run, SurrogateReport

#: With fewer draws arviz-stats returns NaN.
MIN_DRAWS = 4
#: A discrepancy is a surprise if it is more than 6 sd(D) below the usual one, which a normal distribution is once in
#: 10^9 times, and at least 2 below: e^-2 of the mass there is then predicted. The 2 is a guess.
SURPRISE_SDS, LEAST_SURPRISE = 6.0, 2.0


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
        """Return parameter indices, unknown ones first, then by effective draws, fewest first."""
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
    # arviz-stats counts every draw of a constant as effective; its convergence is unknown.
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
    # A chain that never moved divides by zero: its R-hat is infinite, as it should be.
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


def spread(discrepancy: np.ndarray | None) -> float:
    """Return sd(D) at proposals about their median, NaN if there are none.

    Only finite discrepancies count; see `leapwise.surrogates.quality.discrepancy_sd`.
    """
    return discrepancy_sd(finite(discrepancy))


def finite(discrepancy: np.ndarray | None) -> np.ndarray:
    """Return the finite discrepancies, which are those of proposals inside the support."""
    return np.empty(0) if discrepancy is None else discrepancy[np.isfinite(discrepancy)]


def exact_share(run: Run) -> float:
    """Return the share of kept steps that were made with exact gradients; NaN for runs without a surrogate."""
    if run.surrogate is None:
        return np.nan
    part = run.posterior.stats.get("part")
    if part is None or not part.size:
        return run.surrogate.exact_share
    return float((part == 1).mean())


@dataclass(frozen=True)
class Surprises:
    """Proposals where the potential was far below its prediction.

    Attributes
    ----------
    count, n : int
        Number of surprises, and of proposals.
    worst : float
        Largest distance below the usual discrepancy.
    mass : float
        Share of the posterior that the surprises stand for.
    """

    count: int
    n: int
    worst: float
    mass: float


def surprises(discrepancy: np.ndarray | None, report: SurrogateReport | None) -> Surprises:
    """Find discrepancies of the draws that are far below the usual one, in warm-up or among the draws.

    sd(D) is the larger of that of warm-up and that of the middle half of the draws, which surprises do not widen.

    Examples
    --------
    >>> found = surprises(np.append(np.random.default_rng(1).normal(0.0, 0.1, 999), -5.0), None)
    >>> found.count, found.n, round(found.mass, 2)
    (1, 1000, 0.13)
    """
    found = finite(discrepancy)
    if not found.size:
        return Surprises(0, 0, 0.0, 0.0)
    usual, sd = float(np.median(found)), robust_discrepancy_sd(found)
    if report is not None:
        usual = max(usual, report.usual) if np.isfinite(report.usual) else usual
        sd = max(sd, report.sd) if np.isfinite(report.sd) else sd
    below = usual - found
    surprising = below > max(LEAST_SURPRISE, SURPRISE_SDS * sd)
    weights = np.exp(below - below.max())
    return Surprises(
        int(surprising.sum()),
        found.size,
        float(below.max()),
        float(weights[surprising].sum() / weights.sum()),
    )


def longest_stays(draws: np.ndarray) -> np.ndarray:
    """Return for each chain the most draws in a row at one place.

    Examples
    --------
    >>> longest_stays(np.array([[[0.0], [1.0], [1.0], [1.0], [2.0]], [[0.0], [1.0], [2.0], [3.0], [4.0]]]))
    array([3, 1])
    """
    chains, n, _ = draws.shape
    if n == 0:
        return np.zeros(chains, dtype=int)
    new = np.ones((chains, n), dtype=bool)
    new[:, 1:] = (draws[:, 1:] != draws[:, :-1]).any(axis=2)
    since = np.maximum.accumulate(np.where(new, np.arange(n), 0), axis=1)
    return (np.arange(n) - since).max(axis=1) + 1
