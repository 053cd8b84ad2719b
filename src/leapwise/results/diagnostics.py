r"""Warnings that a user can act on: each says what was seen, and what to do about it.

Warnings about surrogates: chains held up, mass that may not have been seen, trust that was not earned.

*Held up.* With normal discrepancies of standard deviation s, the lowest of n draws is about
:math:`s^2 + s \sqrt{2 \log n}` below the surrogate's mean, and is left again with probability :math:`e^{D + s^2/2}`.
So the longest stay is about :math:`e^{s^2/2 + s \sqrt{2 \log n}}` draws, which effective sample sizes account for. A
stay three times as long tells of a place where the surrogate is wrong as it is nowhere else.

Warnings about the target: a support with hard edges, and a model that does not fit its data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leapwise.results.statistics import (
    Surprises,
    exact_share,
    finite,
    longest_stays,
    spread,
    surprises,
)
from leapwise.surrogates.quality import robust_discrepancy_sd

if TYPE_CHECKING:
    from leapwise.results.run import Run, SurrogateReport
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leapwise.results.run import Record, TargetReport
from typing import TYPE_CHECKING

from leapwise.results.statistics import MIN_DRAWS, Statistics, statistics

if TYPE_CHECKING:
    from leapwise.results.run import Run

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
        inside <= longest_tolerable(n, robust_discrepancy_sd(finite(discrepancy))) or longest == n
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


#: Share of trajectories outside the support that costs next to nothing.
FEW_OUTSIDE = 0.05


def outside(stats: dict[str, np.ndarray]) -> np.ndarray:
    """Return which trajectories ended outside the support, or were given up there; all False if that is not known.

    Examples
    --------
    >>> outside({"diverging": np.array([True, True]), "discrepancy": np.array([np.inf, 2000.0])})
    array([ True, False])
    """
    diverging = stats.get("diverging", np.zeros((0, 0), dtype=bool))
    discrepancy, left = stats.get("discrepancy"), stats.get("left")
    found = np.zeros(diverging.shape, dtype=bool)
    if discrepancy is not None:
        found |= np.isposinf(discrepancy)
    # Where a surrogate led all the way, `left` tells of its own edges, which are not those of the support.
    if left is not None and (discrepancy is None or "part" in stats):
        found |= left
    return found


def n_outside(record: Record) -> int:
    """Count trajectories that ended outside the support; failures, taken as rejections, are counted elsewhere."""
    return max(int(outside(record.stats).sum()) - record.cost.n_failures, 0)


def hard_edge(record: Record, target: TargetReport | None) -> list[str]:
    """Say what rejections at the edge of the support cost, and what spares them."""
    count, size = n_outside(record), record.stats.get("diverging", np.empty(0)).size
    if not count or count <= FEW_OUTSIDE * size:
        return []
    return [
        f"{count} of {size} trajectories ended outside the support, where the log-density is -inf: rejecting them "
        f"biases nothing, but costs effective draws; {_inside_bounds(target)}"
    ]


def _inside_bounds(target: TargetReport | None) -> str:
    """Say how a target of this kind keeps trajectories inside."""
    if target is not None and target.is_bounded:
        return "reparametrise the model so that edges other than its bounds are bounds too"
    if target is not None and target.is_forward:
        return "give the prior's limits as bounds=, or take a prior that has them (UniformPrior)"
    return "give bounds= for parameters that have them, or reparametrise the model"


def poor_fit(target: TargetReport | None) -> list[str]:
    """Say that a forward model is further from its data than their errors account for."""
    if target is None or target.fits:
        return []
    return [
        f"the model does not fit the data within its errors (chi^2 of {target.misfit:,.0f} for {target.n_outputs} "
        "outputs): the noise is understated, the model is wrong, or a better mode was missed; check the errors given "
        "to GaussianLikelihood, look at the residuals, or start elsewhere (init=)"
    ]


MAX_RHAT = 1.01
#: With few effective draws, R-hat is as high as this for chains that do agree.
MILD_RHAT = 1.05
MIN_ESS_PER_CHAIN = 100
#: More chains than this need no more effective draws.
MANY_CHAINS = 10
#: With n draws of each chain, R-hat is as large as 1 + FEW / n by chance.
FEW = 8.0
MIN_ACCEPTANCE = 0.5
MAX_UNSOLVED = 0.05
SMALLER_STEPS = "smaller steps (method=HMC(target_acceptance=0.95))"
#: Share of proposals in places where a surrogate is far too low that costs next to nothing.
FEW_TOO_LOW = 0.01


def warnings_for(run: Run, found: Statistics | None = None) -> list[str]:
    """List what is wrong with a run, or may be; nothing if it can be used as it is.

    Parameters
    ----------
    run : Run
        What `sample` returned.
    found : Statistics, optional
        Of its draws, if they have been computed already.
    """
    n, stats, more = run.draws.shape[1], run.posterior.stats, _more(run)
    about_surrogate = surrogate_warnings(run, more)
    warnings = [] if run.complete else [interrupted(n)]
    if n:
        warnings += convergence(run, statistics(run.draws) if found is None else found, more)
        # What is said of a surrogate accounts for rejections already.
        if "inner_acceptance" not in stats or not about_surrogate:
            warnings += low_acceptance(*_inside(run), how_to_accept(run))
        warnings += poor_fit(run.target)
    elif run.complete:
        warnings.append(f"all exact evaluations were spent before the first draw: allow more ({more})")
    warnings += about_surrogate
    warnings += hard_edge(run.posterior, run.target)
    warnings += divergences(
        harmful(stats), "discrepancy" in stats, compare_with(run), run.surrogate is not None
    )
    warnings += unsolved(stats.get("unsolved"), "discrepancy" in stats)
    # With on_failure="raise" a failure has stopped the run, and its error has said so.
    if run.settings.get("on_failure") != "raise":
        warnings += failures(run.cost.n_failures)
    if not run.exact:
        warnings.append(adaptive(run.n_adaptive, n))
    return warnings


def logged_warnings(run: Run) -> list[str]:
    """List the warnings that the draws themselves, in other hands, would not give away: those about the surrogate."""
    if run.surrogate is not None and run.surrogate.exact_share == 1.0:  # said when it was decided
        return []
    return surrogate_warnings(run, _more(run))


def _more(run: Run) -> str:
    """Return what to raise for more draws: where exact evaluations were limited, asking for draws brings none."""
    return "draws=" if run.settings.get("max_evaluations") is None else "max_evaluations="


def convergence(run: Run, found: Statistics, more: str) -> list[str]:
    """Judge whether the chains agree and are long enough; what did not move at all is not judged any further."""
    chains, n, _ = run.draws.shape
    names, still = run.parameter_names, stuck(run.draws)
    rhat, ess = (np.where(still.any(axis=0), np.nan, each) for each in (found.rhat, found.ess))
    said = few_draws(chains, n, more) + never_moved(still, names, takes_gradients(run))
    # Chains that disagree have few effective draws, and the remedy is the same.
    return said + (high_rhat(rhat, ess, names, chains, n, more) or low_ess(ess, names, chains, more))


def adaptive(n_adaptive: int, n_draws: int) -> str:
    """Say that the kernel changed while draws were kept."""
    if n_adaptive < n_draws:
        return (
            f"adaptive: the surrogate was still learning during the first {n_adaptive} of {n_draws} draws, which are "
            "exact only in the limit; run.exact_draws has the others"
        )
    return (
        "adaptive: the surrogate was still learning while these draws were made, so they are exact only in the limit; "
        "use freeze_after=, or RNSHMC"
    )


def interrupted(n_draws: int) -> str:
    """Say that the run was stopped early, and what there is."""
    if n_draws:
        return f"interrupted, with fewer draws than asked for: {n_draws} of each chain"
    return "interrupted during warm-up: there are no draws yet; run it again, or with a smaller tune="


def few_draws(chains: int, n_draws: int, more: str = "draws=") -> list[str]:
    """Say what cannot be judged for want of chains or draws."""
    if n_draws < MIN_DRAWS:
        return [f"too few draws to judge: {n_draws} of each chain; draw at least {MIN_DRAWS} ({more})"]
    if chains == 1:
        return ["one chain cannot show that it has converged (no R-hat); run four (chains=4)"]
    return []


def stuck(draws: np.ndarray) -> np.ndarray:
    """Return which parameters kept one value throughout, ``(chains, dim)``; none if there is a single draw."""
    still: np.ndarray = (draws == draws[:, :1]).all(axis=1)
    return still if draws.shape[1] > 1 else np.zeros_like(still)


def never_moved(still: np.ndarray, names: tuple[str, ...], gradients: bool = True) -> list[str]:
    """Name parameters that kept one value throughout, in any chain."""
    if not still.any():
        return []
    chains = np.flatnonzero(still.any(axis=1))
    smaller = f", or take {SMALLER_STEPS}" if gradients else ""
    return [
        f"{_of(np.flatnonzero(still.any(axis=0)), names)} never changed in {_chains(chains, len(still))}; start "
        f"elsewhere (init=), tune longer (tune=){smaller}"
    ]


def high_rhat(
    rhat: np.ndarray, ess: np.ndarray, names: tuple[str, ...], chains: int, n_draws: int, more: str = "draws="
) -> list[str]:
    """Compare R-hat with its limit; NaN is unknown, not high."""
    high = np.flatnonzero(rhat > MAX_RHAT)
    if not high.size:
        return []
    worst = high[np.argmax(rhat[high])]
    said = (
        f"R-hat is above {MAX_RHAT} for {_of(high, names, worst)}, at worst {rhat[worst]:.4f} with {ess[worst]:.0f} "
        "effective draws"
    )
    mild = max(MILD_RHAT, 1.0 + FEW / n_draws)
    if rhat[worst] < mild and ess[worst] < wanted_ess(chains):
        return [f"{said}, too few to tell whether the chains agree; draw more ({more})"]
    return [
        f"{said}: the chains disagree; draw more ({more}), warm up longer, or look for separate modes (other "
        "random_seed=, init= spread wide)"
    ]


def wanted_ess(chains: int) -> int:
    """Return how many effective draws estimates, and R-hat of so many chains, need."""
    return MIN_ESS_PER_CHAIN * min(chains, MANY_CHAINS)


def low_ess(ess: np.ndarray, names: tuple[str, ...], chains: int, more: str = "draws=") -> list[str]:
    """Compare effective sample sizes with what estimates need."""
    wanted = wanted_ess(chains)
    low = np.flatnonzero(ess < wanted)
    if not low.size:
        return []
    worst = low[np.argmin(ess[low])]
    return [
        f"fewer than {wanted} effective draws of {_of(low, names, worst)}, "
        f"at worst {ess[worst]:.0f}; draw more ({more})"
    ]


def low_acceptance(rate: np.ndarray | None, inside: np.ndarray, remedy: str) -> list[str]:
    """Compare the mean acceptance rate of each chain, among proposals inside the support, with what makes sense."""
    if rate is None or not rate.size:
        return []
    each = np.where(inside, rate, 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    low = (each < MIN_ACCEPTANCE) & inside.any(axis=1)
    if not low.any():
        return []
    where = "" if low.all() else f" in {_chains(np.flatnonzero(low), len(low))}"
    return [f"acceptance is {each[low].mean():.2f}{where}, below {MIN_ACCEPTANCE}; {remedy}"]


def how_to_accept(run: Run) -> str:
    """Say what raises the acceptance of a run's method."""
    stats = run.posterior.stats
    if "inner_acceptance" in stats:  # the size of inner steps makes no difference to it
        return "tune longer (tune=), or train another kind of surrogate (method=Auto(...))"
    if "discrepancy" in stats:
        return "train a better surrogate (another kind, more units, a longer tune=), or take smaller steps"
    return f"tune longer (tune=), or take {SMALLER_STEPS}; if that does not help, check the gradient"


def takes_gradients(run: Run) -> bool:
    """Whether methods with exact gradients are open to a run's target, as far as is known."""
    if run.target is not None:
        return run.target.has_gradient
    return run.surrogate is None or run.surrogate.has_gradient


def harmful(stats: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return which trajectories count as diverging, of those that ended inside the support.

    Proposals of a surrogate transition that led to where the surrogate is far too low are rejected, and miss nothing;
    a few of them count for nothing.
    """
    diverging = stats.get("diverging")
    if diverging is None:
        return None
    diverging = diverging & ~outside(stats)
    if "inner_acceptance" not in stats:
        return diverging
    too_low = diverging & (stats["discrepancy"] > 0) & np.isfinite(stats["discrepancy"])
    return diverging & ~too_low if too_low.mean() <= FEW_TOO_LOW else diverging


def divergences(
    diverging: np.ndarray | None, surrogate: bool = False, other: str = "method=HMC()", tuned: bool = False
) -> list[str]:
    """Count trajectories whose energy was lost; `tuned` if the surrogate and its steps were chosen by the run."""
    if diverging is None or not diverging.any():
        return []
    said = f"{int(diverging.sum())} of {diverging.size}"
    if surrogate:
        mend = "tune longer (tune=), start chains further apart (init=)"
        mend = mend if tuned else "train it on a wider set, take smaller steps"
        return [
            f"{said} surrogate trajectories diverged, or went where the surrogate is far too low or not finite: "
            f"regions there may be missed; {mend}, or hold the draws against {other}"
        ]
    return [
        f"{said} trajectories diverged: regions there may be missed; take {SMALLER_STEPS}, or reparametrise the model"
    ]


def unsolved(rejected: np.ndarray | None, surrogate: bool = False) -> list[str]:
    """Compare the share of proposals lost to implicit equations with what is tolerable."""
    if rejected is None or not rejected.size or rejected.mean() <= MAX_UNSOLVED:
        return []
    said = (
        f"{rejected.mean():.0%} of proposals were rejected because their implicit equations were not solved; "
    )
    if surrogate:
        return [
            f"{said}take smaller steps (step_size=); if the metric is the full Hessian, regions where it is not "
            "positive definite are never entered: use form='softabs'"
        ]
    return [f"{said}take smaller steps (step_size=, or target_acceptance=)"]


def failures(count: int) -> list[str]:
    """Count failures of the target that were taken as rejections."""
    if not count:
        return []
    return [
        f"the target failed at {count} {'position' if count == 1 else 'positions'}, counted as rejections "
        "(on_failure='reject'); the draws are exact only if there is no mass there"
    ]


def _inside(run: Run) -> tuple[np.ndarray | None, np.ndarray]:
    """Return acceptance rates, and which of them are of proposals inside the support of chains that ever moved."""
    stats = run.posterior.stats
    rate = stats.get("acceptance_rate")
    if rate is None:
        return None, np.empty(0)
    beyond = outside(stats) if "diverging" in stats else np.zeros(rate.shape, dtype=bool)
    moved = ~stuck(run.draws).all(axis=1, keepdims=True)
    return rate, ~beyond & moved


def _chains(which: np.ndarray, n: int) -> str:
    """Name some of `n` chains."""
    if which.size == n > 1:
        return "all chains"
    return f"chain{'s' * (which.size > 1)} {', '.join(map(str, which))}"


def _of(which: np.ndarray, names: tuple[str, ...], worst: int | None = None) -> str:
    """Name one parameter, or count many and name the worst."""
    named = names[which[0] if worst is None else worst]
    return named if which.size == 1 else f"{which.size} of {len(names)} parameters ({named} and others)"
