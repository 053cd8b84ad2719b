r"""Warnings about surrogates: chains held up, mass that may not have been seen, trust that was not earned.

*Held up.* With normal discrepancies of standard deviation s, the lowest of n draws is about
:math:`s^2 + s \sqrt{2 \log n}` below the surrogate's mean, and is left again with probability :math:`e^{D + s^2/2}`.
So the longest stay is about :math:`e^{s^2/2 + s \sqrt{2 \log n}}` draws, which effective sample sizes account for. A
stay three times as long tells of a place where the surrogate is wrong as it is nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leapwise.results.discrepancy import (
    Surprises,
    exact_share,
    longest_stays,
    middle_spread,
    spread,
    surprises,
)

if TYPE_CHECKING:
    from leapwise.results.run import Run
    from leapwise.results.surrogate_report import SurrogateReport

#: A stay of no more draws, or of no larger share of a chain, is no trouble; one of a larger share always is.
SHORT_STAY, SMALL_SHARE, LARGE_SHARE = 30, 0.02, 0.1
TIMES_LONGER = 3.0
#: Surprises that stand for a smaller share of the posterior are what tails are like.
SMALL_MASS = 0.01
#: sd(D) of the draws that is no trouble, and how many times that of warm-up it may be.
SMALL_SD, TIMES_WIDER = 0.2, 6.0
#: sd(D) of the draws at which hardly any is accepted, and how many times that of warm-up it may be.
LARGE_SD, TIMES_LARGER = 1.0, 2.0


def surrogate_warnings(run: Run, more: str = "draws=") -> list[str]:
    """List what is wrong with the surrogate of a run, or may be; nothing if it had none."""
    stats = run.posterior.stats
    # Of a limited number of evaluations, a longer warm-up would leave fewer for draws.
    longer = "tune=" if more == "draws=" else more
    warnings = fall_back(run.surrogate, exact_share(run), longer)
    warnings += cut_tail(run.surrogate, compare_with(run), longer)
    if "discrepancy" in stats and run.draws.shape[1]:
        if "inner_acceptance" in stats:  # proposals of a surrogate transition come from the surrogate itself
            warnings += unseen_mass(surprises(stats["discrepancy"], run.surrogate), compare_with(run))
            warnings += unlike_warmup(stats["discrepancy"], run.surrogate, compare_with(run))
        warnings += held_up(run.draws, stats["discrepancy"], compare_with(run), more)
    return warnings


def fall_back(report: SurrogateReport | None, share: float, longer: str = "tune=") -> list[str]:
    """Say how far the surrogate was trusted, if not fully, and why."""
    if report is None or not report.reason:
        return []
    if report.exact_share == 1.0:
        return [
            f"fell back on HMC, with exact gradients all the way, since the surrogate was of no use: {report.reason}; "
            f"method=HMC() saves its warm-up, a longer one ({longer}) or a reparametrised model may do better"
        ]
    if report.exact_share > 0.0:
        return [
            f"{share:.0%} of the steps were made with exact gradients, since the surrogate did not earn full trust: "
            f"{report.reason}; a longer warm-up ({longer}) or a reparametrised model may do better"
        ]
    return [
        f"the surrogate did not earn full trust: {report.reason}; there is no gradient for exact steps beside it, so "
        f"chains may miss what it has not seen: tune longer ({longer}), or give a gradient"
    ]


def cut_tail(report: SurrogateReport | None, other: str = "method=HMC()", longer: str = "tune=") -> list[str]:
    """Say which tail of a parameter the draws see too little of, if warm-up has found one that it could not learn."""
    if report is None or not report.tail:
        return []
    return [
        f"the surrogate cuts {report.tail}: draws hardly come there, and that parameter's sd and outer quantiles are "
        f"too small; reparametrise so that the tail is shorter (the logarithm, say), tune longer ({longer}), or hold "
        f"the draws against {other}"
    ]


def compare_with(run: Run) -> str:
    """Name what draws can be held against: another method where there is a gradient, or other seeds."""
    known = run.target or run.surrogate
    return "method=HMC()" if known is None or known.has_gradient else "those of another random_seed="


def unseen_mass(found: Surprises, other: str = "method=HMC()") -> list[str]:
    """Say where the potential was far below what was predicted."""
    if found.mass < SMALL_MASS:
        return []
    return [
        f"the potential was far below what the surrogate predicted at {found.count} of {found.n:,} proposals, by "
        f"{found.worst:.1f} at worst: there may be mass it has not seen; tune longer (tune=), start chains further "
        f"apart (init=), or hold the draws against {other}"
    ]


def unlike_warmup(
    discrepancy: np.ndarray, report: SurrogateReport | None, other: str = "method=HMC()"
) -> list[str]:
    """Say that draws were where the surrogate had not been tested, if sd(D) is far above that of warm-up."""
    sd = spread(discrepancy)
    if report is None or not np.isfinite(report.sd):
        return []
    if not (sd > max(SMALL_SD, TIMES_WIDER * report.sd) or sd > max(LARGE_SD, TIMES_LARGER * report.sd)):
        return []
    return [
        f"sd(D) of the surrogate is {sd:.2g} at the draws and was {report.sd:.2g} in warm-up: chains came to places "
        f"unlike those it was tested at, and may miss others; start chains further apart (init=), or hold the draws "
        f"against {other}"
    ]


def held_up(
    draws: np.ndarray, discrepancy: np.ndarray, other: str = "method=HMC()", more: str = "draws="
) -> list[str]:
    """Name the chain that stayed at one place for longer than sd(D) accounts for, if there is one."""
    n, stays = draws.shape[1], longest_stays(draws)
    longest = int(stays.max())
    # Proposals outside the support prolong stays for no fault of the surrogate's.
    inside = longest * float(1.0 - np.isposinf(discrepancy).mean())
    if (
        inside <= longest_tolerable(n, middle_spread(discrepancy)) or longest == n
    ):  # which has its own warning
        return []
    return [
        f"chain {int(stays.argmax())} stayed at one place for {longest} draws in a row: the surrogate is too high "
        f"there, and chains come too rarely; tune longer (tune=), draw more ({more}), or hold the draws against "
        f"{other}"
    ]


def longest_tolerable(n_draws: int, sd: float) -> float:
    """Return the longest stay, in draws, that calls for no warning.

    Examples
    --------
    >>> [round(longest_tolerable(1000, sd)) for sd in (0.1, 0.5, 0.8, 2.0)]
    [30, 30, 81, 100]
    """
    usual = np.exp(min(0.5 * sd**2 + sd * np.sqrt(2.0 * np.log(max(n_draws, 2))), 700.0))
    least = max(SHORT_STAY, SMALL_SHARE * n_draws)
    return float(np.clip(TIMES_LONGER * usual, least, max(least, LARGE_SHARE * n_draws)))
