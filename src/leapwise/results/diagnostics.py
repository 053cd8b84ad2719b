r"""Warnings that a user can act on: one sentence says what was seen, the next what to do.

`warnings_for` collects them from three groups.

*The chains*: too few draws, R-hat, effective sample sizes, parameters that never changed, acceptance, divergences.

*The surrogate*: trust that it did not earn, mass that it may not have seen, and chains that stay at one place. With
normal discrepancies of standard deviation s, the lowest of n draws is about :math:`s^2 + s \sqrt{2 \log n}` below the
surrogate's mean, and is left again with probability :math:`e^{D + s^2/2}`. So the longest stay is about
:math:`e^{s^2/2 + s \sqrt{2 \log n}}` draws, which effective sample sizes account for. A stay three times as long shows
a place where the surrogate is wrong in a way that it is nowhere else.

*The target*: a support with hard edges, failures, and a model that does not fit its data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from leapwise.results.statistics import (
    MIN_DRAWS,
    Statistics,
    Surprises,
    exact_share,
    finite,
    longest_stays,
    spread,
    statistics,
    surprises,
)
from leapwise.surrogates.quality import robust_discrepancy_sd

if TYPE_CHECKING:
    from leapwise.results.run import Record, Run, SurrogateReport, TargetReport

#: Limits of R-hat and of effective draws for each chain, after Vehtari et al. (2021).
MAX_RHAT, MIN_ESS_PER_CHAIN = 1.01, 100
#: More than ten chains need no more effective draws than ten: estimates are then precise enough. A guess.
MANY_CHAINS = 10
#: With few effective draws R-hat exceeds 1.01 by chance, and reaches 1.05, or 1 + 8 / n with n draws of each chain.
#: Measured on independent normal draws.
MILD_RHAT, RHAT_OF_FEW = 1.05, 8.0
#: HMC is tuned for 0.8 or more; half of that is a sign of trouble. A guess.
MIN_ACCEPTANCE = 0.5
#: Shares that cost next to nothing: unsolved implicit steps, trajectories outside the support, and proposals where the
#: surrogate is far too low. Guesses.
FEW_UNSOLVED, FEW_OUTSIDE, FEW_TOO_LOW = 0.05, 0.05, 0.01
#: Surprises that stand for less than this share of the posterior are ordinary tails. A guess.
SMALL_MASS = 0.01
#: sd(D) of the draws is suspicious above 0.2 if it is 6 times that of warm-up, and above 1, where hardly a draw is
#: accepted, if it is twice that of warm-up. Guesses.
SMALL_SD, TIMES_WIDER, LARGE_SD, TIMES_LARGER = 0.2, 6.0, 1.0, 2.0
#: A stay of up to 30 draws, or 2 % of a chain, is harmless; one of more than 10 % never is. In between, one that is 3
#: times as long as sd(D) accounts for is not. Guesses.
SHORT_STAY, SMALL_SHARE, LARGE_SHARE, TIMES_LONGER = 30, 0.02, 0.1, 3.0
SMALLER_STEPS = "smaller steps (method=HMC(target_acceptance=0.95))"


def warnings_for(run: Run, found: Statistics | None = None) -> list[str]:
    """List what is or may be wrong with a run; the list is empty if the run can be used as it is.

    Parameters
    ----------
    run : Run
        What `sample` returned.
    found : Statistics, optional
        Of its draws, if they have been computed already.
    """
    n, stats, more = run.draws.shape[1], run.posterior.stats, _more(run)
    of_surrogate = surrogate_warnings(run, more)
    warnings = [] if run.complete else [interrupted(n)]
    if n:
        warnings += convergence(run, statistics(run.draws) if found is None else found, more)
        # Warnings of a surrogate already account for its rejections.
        if "inner_acceptance" not in stats or not of_surrogate:
            warnings += low_acceptance(run)
        warnings += poor_fit(run.target)
        warnings += imprecise(run, more)
    elif run.complete:
        warnings.append(f"All exact evaluations were spent before the first draw. Allow more ({more}).")
    warnings += of_surrogate
    warnings += hard_edge(run.posterior, run.target)
    warnings += divergences(run)
    warnings += unsolved(stats.get("unsolved"), "discrepancy" in stats)
    # With on_failure="raise" a failure has ended the run with an error.
    if run.settings.get("on_failure") != "raise":
        warnings += failures(run.cost.n_failures)
    if not run.exact:
        warnings.append(adaptive(run.n_adaptive, n))
    return warnings


def logged_warnings(run: Run) -> list[str]:
    """List the warnings about the surrogate, which cannot be seen from the draws alone."""
    if run.surrogate is not None and run.surrogate.exact_share == 1.0:  # logged when HMC took over
        return []
    return surrogate_warnings(run, _more(run))


def _more(run: Run) -> str:
    """Return how to get more draws. Where evaluations were limited, `draws` is not the argument to raise.

    A ledger belongs to one limit, so a larger one needs a new run; only the default method can learn from the old one.
    """
    if run.settings.get("max_evaluations") is None:
        return "draws="
    learn = (
        ", and learn_from= the ledger of this one if it has one"
        if run.settings.get("method") == "Auto"
        else ""
    )
    return f"a new run with a larger max_evaluations={learn}"


def takes_gradients(run: Run) -> bool:
    """Whether methods with exact gradients can sample the run's target, as far as is known."""
    known = run.target or run.surrogate
    return known is None or known.has_gradient


def compare_with(run: Run) -> str:
    """Name a run to compare the draws with: of another method where there is a gradient, or else of another seed."""
    return "those of method=HMC()" if takes_gradients(run) else "those of another random_seed="


# The chains ----------------------------------------------------------------------------------------------------------


def interrupted(n_draws: int) -> str:
    """Warn that the run was stopped early."""
    rest = "The same call with the same ledger= makes the rest; without a ledger it begins anew."
    if n_draws:
        return f"The run was interrupted after {n_draws} draws of each chain. {rest}"
    return f"The run was interrupted during warm-up, before the first draw. {rest}"


def adaptive(n_adaptive: int, n_draws: int) -> str:
    """Warn that the kernel changed while draws were kept."""
    if n_adaptive < n_draws:
        return (
            f"The surrogate was still learning during the first {n_adaptive} of {n_draws} draws (adaptive), which are "
            "exact only in the limit. Use run.exact_draws, which has the others."
        )
    return (
        "The surrogate was still learning while these draws were made (adaptive), so they are exact only in the limit. "
        "Use freeze_after=, or RNSHMC."
    )


def convergence(run: Run, found: Statistics, more: str) -> list[str]:
    """Check whether the chains agree and are long enough; parameters that never changed have their own warning."""
    chains, n, _ = run.draws.shape
    names, still = run.parameter_names, stuck(run.draws)
    rhat, ess = (np.where(still.any(axis=0), np.nan, each) for each in (found.rhat, found.ess))
    warnings = few_draws(chains, n, more) + never_moved(still, names, takes_gradients(run))
    if run.precision is not None and run.precision.is_reached:
        return warnings  # the errors are as small as was asked for, and R-hat is no larger than it may be by chance
    # Chains that disagree have few effective draws too, and the remedy is the same.
    return warnings + (high_rhat(rhat, ess, names, chains, n, more) or low_ess(ess, names, chains, more))


def few_draws(chains: int, n_draws: int, more: str) -> list[str]:
    """Warn that convergence cannot be checked with so few chains or draws."""
    if n_draws < MIN_DRAWS:
        return [
            f"{n_draws} draws of each chain are too few to check convergence. Draw at least {MIN_DRAWS} ({more})."
        ]
    if chains == 1:
        return ["One chain cannot show whether it has converged: there is no R-hat. Run four (chains=4)."]
    return []


def imprecise(run: Run, more: str) -> list[str]:
    """Warn that the precision which was asked for was not reached."""
    found = run.precision
    if found is None or found.is_reached or not run.complete:
        return []
    seen = (
        f"errors are up to {found.reached:.2g} sd" if np.isfinite(found.reached) else "errors are not known"
    )
    return [f"The precision {found.asked:g} was not reached: {seen}. Draw more ({more})."]


def stuck(draws: np.ndarray) -> np.ndarray:
    """Return which parameters kept one value in all draws, ``(chains, dim)``; none if there is a single draw."""
    still: np.ndarray = (draws == draws[:, :1]).all(axis=1)
    return still if draws.shape[1] > 1 else np.zeros_like(still)


def never_moved(still: np.ndarray, names: tuple[str, ...], gradients: bool) -> list[str]:
    """Name parameters that kept one value in all draws of any chain."""
    if not still.any():
        return []
    chains = np.flatnonzero(still.any(axis=1))
    smaller = f", or take {SMALLER_STEPS}" if gradients else ""
    return [
        f"{_of(np.flatnonzero(still.any(axis=0)), names)} never changed in {_chains(chains, len(still))}. Start at "
        f"another point (init=), tune longer (tune=){smaller}."
    ]


def high_rhat(
    rhat: np.ndarray, ess: np.ndarray, names: tuple[str, ...], chains: int, n_draws: int, more: str
) -> list[str]:
    """Compare R-hat with its limit; NaN is unknown, not high."""
    high = np.flatnonzero(rhat > MAX_RHAT)
    if not high.size:
        return []
    worst = high[np.argmax(rhat[high])]
    seen = (
        f"R-hat is above {MAX_RHAT} for {_of(high, names, worst)}, at worst {rhat[worst]:.4f} with {ess[worst]:.0f} "
        "effective draws"
    )
    mild = max(MILD_RHAT, 1.0 + RHAT_OF_FEW / n_draws)
    if rhat[worst] < mild and ess[worst] < wanted_ess(chains):
        return [f"{seen}, too few to say whether the chains agree. Draw more ({more})."]
    return [
        f"{seen}: the chains disagree. Draw more ({more}), warm up longer, or look for separate modes (another "
        "random_seed=, a wide init=)."
    ]


def wanted_ess(chains: int) -> int:
    """Return how many effective draws estimates, and R-hat of so many chains, need."""
    return MIN_ESS_PER_CHAIN * min(chains, MANY_CHAINS)


def low_ess(ess: np.ndarray, names: tuple[str, ...], chains: int, more: str) -> list[str]:
    """Compare effective sample sizes with what estimates need."""
    wanted = wanted_ess(chains)
    low = np.flatnonzero(ess < wanted)
    if not low.size:
        return []
    worst = low[np.argmin(ess[low])]
    return [
        f"There are fewer than {wanted} effective draws of {_of(low, names, worst)}, at worst {ess[worst]:.0f}. "
        f"Draw more ({more})."
    ]


def low_acceptance(run: Run) -> list[str]:
    """Compare each chain's mean acceptance rate, among proposals inside the support, with its limit."""
    stats = run.posterior.stats
    rate = stats.get("acceptance_rate")
    if rate is None or not rate.size:
        return []
    inside = ~outside(stats) if "diverging" in stats else np.ones(rate.shape, dtype=bool)
    inside = inside & ~stuck(run.draws).all(
        axis=1, keepdims=True
    )  # chains that never moved have their own warning
    each = np.where(inside, rate, 0.0).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
    low = (each < MIN_ACCEPTANCE) & inside.any(axis=1)
    if not low.any():
        return []
    where = "" if low.all() else f" in {_chains(np.flatnonzero(low), len(low))}"
    if "inner_acceptance" in stats:  # the size of inner steps makes no difference to it
        remedy = "Tune longer (tune=), or train another kind of surrogate (method=Auto(...))"
    elif "discrepancy" in stats:
        remedy = "Train a better surrogate (another kind, more units, a longer tune=), or take smaller steps"
    else:
        remedy = f"Tune longer (tune=), or take {SMALLER_STEPS}; if that does not help, check the gradient"
    return [f"Acceptance is {each[low].mean():.2f}{where}, below {MIN_ACCEPTANCE}. {remedy}."]


def divergences(run: Run) -> list[str]:
    """Count trajectories that diverged inside the support.

    A surrogate transition rejects proposals where the surrogate is far too low, and misses nothing; a few of them are
    not counted.
    """
    stats = run.posterior.stats
    if "diverging" not in stats:
        return []
    diverging = stats["diverging"] & ~outside(stats)
    if "inner_acceptance" in stats:
        too_low = diverging & (stats["discrepancy"] > 0) & np.isfinite(stats["discrepancy"])
        if too_low.mean() <= FEW_TOO_LOW:
            diverging = diverging & ~too_low
    if not diverging.any():
        return []
    count = f"{int(diverging.sum())} of {diverging.size}"
    if "discrepancy" not in stats:
        return [
            f"{count} trajectories diverged: regions there may be missed. Take {SMALLER_STEPS}, or reparametrise the "
            "model."
        ]
    remedy = "Train it on a wider set, take smaller steps"
    if run.surrogate is not None:  # the run has chosen the steps itself
        remedy = "Tune longer (tune=), start chains further apart (init=)"
    return [
        f"{count} surrogate trajectories diverged, or went where the surrogate is far too low or not finite: regions "
        f"there may be missed. {remedy}, or compare the draws with {compare_with(run)}."
    ]


def unsolved(rejected: np.ndarray | None, surrogate: bool) -> list[str]:
    """Compare the share of proposals lost to implicit equations with its limit."""
    if rejected is None or not rejected.size or rejected.mean() <= FEW_UNSOLVED:
        return []
    seen = (
        f"{rejected.mean():.0%} of proposals were rejected because their implicit equations were not solved."
    )
    if surrogate:
        return [
            f"{seen} Take smaller steps (step_size=); a metric that is the full Hessian never enters regions where it "
            "is not positive definite: use form='softabs'."
        ]
    return [f"{seen} Take smaller steps (step_size=, or target_acceptance=)."]


# The surrogate -------------------------------------------------------------------------------------------------------


def surrogate_warnings(run: Run, more: str) -> list[str]:
    """List what is or may be wrong with the surrogate of a run; nothing if it had none."""
    stats, other = run.posterior.stats, compare_with(run)
    # Where evaluations are limited, a longer warm-up would leave fewer for draws.
    longer = "tune=" if more == "draws=" else more
    warnings = partial_trust(run.surrogate, exact_share(run), longer)
    warnings += cut_tail(run.surrogate, other, longer)
    if "discrepancy" in stats and run.draws.shape[1]:
        if "inner_acceptance" in stats:  # proposals of a surrogate transition are draws of the surrogate
            warnings += unseen_mass(surprises(stats["discrepancy"], run.surrogate), other)
            warnings += unlike_warmup(stats["discrepancy"], run.surrogate, other)
        warnings += long_stay(run.draws, stats["discrepancy"], other, more)
    return warnings


def partial_trust(report: SurrogateReport | None, share: float, longer: str) -> list[str]:
    """Say how far the surrogate was trusted, if not fully, and why."""
    if report is None or not report.reason:
        return []
    if report.exact_share == 1.0:
        return [
            f"The run fell back on HMC with exact gradients, since the surrogate was not trusted: {report.reason}. "
            f"Avoid its warm-up with method=HMC(), or try a longer one ({longer}) or reparametrise the model."
        ]
    if report.exact_share > 0.0:
        return [
            f"{share:.0%} of the steps were made with exact gradients, since the surrogate was not fully trusted: "
            f"{report.reason}. Try a longer warm-up ({longer}) or a reparametrised model."
        ]
    return [
        f"The surrogate was not fully trusted: {report.reason}; without a gradient there are no exact steps beside it, "
        f"so chains may miss what it has not seen. Tune longer ({longer}), or give a gradient."
    ]


def cut_tail(report: SurrogateReport | None, other: str, longer: str) -> list[str]:
    """Name the tail of a parameter that warm-up found but could not learn, if there is one."""
    if report is None or not report.tail:
        return []
    return [
        f"The surrogate cuts {report.tail}: draws rarely go there, and that parameter's sd and outer quantiles are too "
        f"small. Reparametrise so that the tail is shorter (for example by a logarithm), tune longer ({longer}), or "
        f"compare the draws with {other}."
    ]


def unseen_mass(found: Surprises, other: str) -> list[str]:
    """Warn where the potential was far below its prediction."""
    if found.mass < SMALL_MASS:
        return []
    return [
        f"The potential was far below its prediction at {found.count} of {found.n:,} proposals, by {found.worst:.1f} "
        "at worst: there may be mass that the surrogate has not seen. Tune longer (tune=), start chains further apart "
        f"(init=), or compare the draws with {other}."
    ]


def unlike_warmup(discrepancy: np.ndarray, report: SurrogateReport | None, other: str) -> list[str]:
    """Warn that sd(D) is far above that of warm-up: the draws were where the surrogate had not been tested."""
    sd = spread(discrepancy)
    if report is None or not np.isfinite(report.sd):
        return []
    if not (sd > max(SMALL_SD, TIMES_WIDER * report.sd) or sd > max(LARGE_SD, TIMES_LARGER * report.sd)):
        return []
    return [
        f"sd(D) of the surrogate is {sd:.2g} at the draws and was {report.sd:.2g} in warm-up: chains went to places "
        "unlike those it was tested at, and may miss others. Start chains further apart (init=), or compare the draws "
        f"with {other}."
    ]


def long_stay(draws: np.ndarray, discrepancy: np.ndarray, other: str, more: str) -> list[str]:
    """Name the chain that stayed at one place for longer than sd(D) accounts for, if there is one."""
    n, stays = draws.shape[1], longest_stays(draws)
    longest = int(stays.max())
    # Proposals outside the support prolong stays too, and are not the surrogate's fault.
    inside = longest * float(1.0 - np.isposinf(discrepancy).mean())
    harmless = longest_tolerable(n, robust_discrepancy_sd(finite(discrepancy)))
    if inside <= harmless or longest == n:  # a chain that never moved has its own warning
        return []
    return [
        f"Chain {int(stays.argmax())} stayed at one place for {longest} draws in a row: the surrogate is too high "
        f"there, and chains go there too rarely. Tune longer (tune=), draw more ({more}), or compare the draws with "
        f"{other}."
    ]


def longest_tolerable(n_draws: int, sd: float) -> float:
    """Return the longest stay, in draws, that needs no warning.

    Examples
    --------
    >>> [round(longest_tolerable(1000, sd)) for sd in (0.1, 0.5, 0.8, 2.0)]
    [30, 30, 81, 100]
    """
    usual = np.exp(min(0.5 * sd**2 + sd * np.sqrt(2.0 * np.log(max(n_draws, 2))), 700.0))
    least = max(SHORT_STAY, SMALL_SHARE * n_draws)
    return float(np.clip(TIMES_LONGER * usual, least, max(least, LARGE_SHARE * n_draws)))


# The target ----------------------------------------------------------------------------------------------------------


def outside(stats: dict[str, np.ndarray]) -> np.ndarray:
    """Return which trajectories ended, or were stopped, outside the support; all False if that is not known.

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
    # On a surrogate alone, `left` means that the surrogate is not finite, which is not the edge of the support.
    if left is not None and (discrepancy is None or "part" in stats):
        found |= left
    return found


def n_outside(record: Record) -> int:
    """Count trajectories that ended outside the support; failures that were rejected are counted separately."""
    return max(int(outside(record.stats).sum()) - record.cost.n_failures, 0)


def hard_edge(record: Record, target: TargetReport | None) -> list[str]:
    """Warn of many rejections at the edge of the support."""
    count, size = n_outside(record), record.stats.get("diverging", np.empty(0)).size
    if not count or count <= FEW_OUTSIDE * size:
        return []
    remedy = "Give bounds= for parameters that have them, or reparametrise the model"
    if target is not None and target.is_bounded:
        remedy = "Reparametrise the model so that edges other than its bounds are bounds too"
    elif target is not None and target.is_forward:
        remedy = "Give the prior's limits as bounds=, or take a prior that has them (UniformPrior)"
    return [
        f"{count} of {size} trajectories ended outside the support, where the log-density is -inf: rejecting them "
        f"causes no bias, but costs effective draws. {remedy}."
    ]


def poor_fit(target: TargetReport | None) -> list[str]:
    """Warn that a forward model is further from its data than their errors explain."""
    if target is None or target.fits:
        return []
    return [
        f"The model {misfit(target)}. Check the errors given to GaussianLikelihood, look at the residuals, or start at "
        "another point (init=)."
    ]


def misfit(target: TargetReport) -> str:
    """Say how far a forward model is from its data, and what that may mean."""
    return (
        f"does not fit the data within its errors (chi^2 of {target.misfit:,.0f} for {target.n_outputs} outputs): the "
        "errors are understated, the model is wrong, or a better mode was missed"
    )


def failures(count: int) -> list[str]:
    """Count failures of the target that were rejected."""
    if not count:
        return []
    return [
        f"The target failed at {count} {'position' if count == 1 else 'positions'}, which were rejected "
        "(on_failure='reject'). Check that there is no mass at run.failures: only then are the draws exact."
    ]


def _chains(which: np.ndarray, n: int) -> str:
    """Name some of `n` chains."""
    if which.size == n > 1:
        return "all chains"
    return f"chain{'s' * (which.size > 1)} {', '.join(map(str, which))}"


def _of(which: np.ndarray, names: tuple[str, ...], worst: int | None = None) -> str:
    """Name one parameter, or count many and name the worst."""
    named = names[which[0] if worst is None else worst]
    return named if which.size == 1 else f"{which.size} of {len(names)} parameters ({named} and others)"
