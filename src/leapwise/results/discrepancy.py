r"""What the discrepancies at proposals, :math:`D = U - \tilde U`, say of a surrogate.

Only differences of D matter, since acceptance is :math:`\min(1, e^{D(x) - D(y)})`. Where the surrogate is too high by g
more than usual, chains propose to go :math:`e^g` times too rarely and, once there, stay about :math:`e^g` draws. So a
proposal with weight :math:`e^{-D}` stands for the share of the posterior that its weight has among all weights, whether
the chains have been to the rest of it or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from leapwise.adaptation.record import CLIP

if TYPE_CHECKING:
    from leapwise.results.run import Run
    from leapwise.results.surrogate_report import SurrogateReport

#: How far below the usual, at least, and in units of sd(D), a discrepancy is a surprise.
LEAST_GAP, SDS = 2.0, 6.0
#: Of a normal distribution, half of the values are within so many standard deviations of the median.
PROBABLE_ERROR = 0.6745


def spread(discrepancy: np.ndarray | None) -> float:
    """Return sd(D) at proposals about their median, NaN if there are none.

    As in warm-up, each counts as at most 4 from the median: a proposal beyond that is as lost as can be, and one that
    is off by a hundred would make a good surrogate look useless.

    Examples
    --------
    >>> round(spread(np.append(np.random.default_rng(1).normal(5.0, 0.3, 4000), 1e6)), 1)
    0.3
    """
    found = finite(discrepancy)
    if not found.size:
        return np.nan
    return float(np.sqrt(np.mean(np.clip(found - np.median(found), -CLIP, CLIP) ** 2)))


def finite(discrepancy: np.ndarray | None) -> np.ndarray:
    """Return the discrepancies at proposals that there were, inside the support."""
    return np.empty(0) if discrepancy is None else discrepancy[np.isfinite(discrepancy)]


def middle_spread(discrepancy: np.ndarray) -> float:
    """Return sd(D) as the middle half of the discrepancies tells it, which the odd ones do not widen; 0 if none."""
    found = finite(discrepancy)
    if not found.size:
        return 0.0
    return float(np.median(np.abs(found - np.median(found)))) / PROBABLE_ERROR


def exact_share(run: Run) -> float:
    """Return the share of kept steps that were made with exact gradients beside a surrogate; NaN if it had no part."""
    if run.surrogate is None:
        return np.nan
    part = run.posterior.stats.get("part")
    if part is None or not part.size:
        return run.surrogate.exact_share
    return float((part == 1).mean())


@dataclass(frozen=True)
class Surprises:
    """Proposals where the potential was far below what was predicted.

    Attributes
    ----------
    count, n : int
        How many, of how many proposals.
    worst : float
        How far below the usual at most.
    mass : float
        The share of the posterior that they stand for.
    """

    count: int
    n: int
    worst: float
    mass: float


def surprises(discrepancy: np.ndarray | None, report: SurrogateReport | None) -> Surprises:
    """Compare the discrepancies of the draws with what was usual in warm-up, and among themselves.

    A normal distribution is more than 6 sd below its median once in 10^9 times. The sd is the larger of that of warm-up
    and of the middle half of the draws, which surprises themselves do not widen.

    Examples
    --------
    >>> found = surprises(np.append(np.random.default_rng(1).normal(0.0, 0.1, 999), -5.0), None)
    >>> found.count, found.n, round(found.mass, 2)
    (1, 1000, 0.13)
    """
    found = finite(discrepancy)
    if not found.size:
        return Surprises(0, 0, 0.0, 0.0)
    usual, sd = float(np.median(found)), middle_spread(found)
    if report is not None:
        usual = max(usual, report.usual) if np.isfinite(report.usual) else usual
        sd = max(sd, report.sd) if np.isfinite(report.sd) else sd
    below = usual - found
    surprising = below > max(LEAST_GAP, SDS * sd)
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
