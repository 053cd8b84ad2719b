"""Warnings that a user can act on: each says what was seen, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from understudy.results.statistics import MIN_DRAWS, Statistics, statistics
from understudy.results.surrogate_diagnostics import compare_with, surrogate_warnings

if TYPE_CHECKING:
    from understudy.results.run import Run

MAX_RHAT = 1.01
MIN_ESS_PER_CHAIN = 100
MIN_ACCEPTANCE = 0.5
MAX_UNSOLVED = 0.05
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
    chains, n, _ = run.draws.shape
    stats, names = run.posterior.stats, run.parameter_names
    # Where exact evaluations were limited, asking for more draws would bring none.
    more = "draws=" if run.settings.get("max_evaluations") is None else "max_evaluations="
    warnings = [] if run.complete else [interrupted(n)]
    if n:
        found = statistics(run.draws) if found is None else found
        warnings += few_draws(chains, n, more)
        warnings += never_moved(run.draws, names)
        warnings += high_rhat(found.rhat, names, more)
        warnings += low_ess(found.ess, names, chains, more)
        warnings += low_acceptance(stats.get("acceptance_rate"), "discrepancy" in stats)
    elif run.complete:
        warnings.append(f"all exact evaluations were spent before the first draw: allow more ({more})")
    warnings += surrogate_warnings(run)
    warnings += divergences(harmful(stats), "discrepancy" in stats, compare_with(run))
    warnings += unsolved(stats.get("unsolved"), "discrepancy" in stats)
    # With on_failure="raise" a failure has stopped the run, and its error has said so.
    if run.settings.get("on_failure") != "raise":
        warnings += failures(run.cost.n_failures)
    if not run.exact:
        warnings.append(adaptive(run.n_adaptive, n))
    return warnings


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


def never_moved(draws: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Name parameters that kept one value throughout, in any chain."""
    still = (
        np.flatnonzero((draws == draws[:, :1]).all(axis=1).any(axis=0))
        if draws.shape[1] > 1
        else np.array([])
    )
    if not still.size:
        return []
    return [
        f"{_of(still, names)} never changed in some chain; start elsewhere (init=), tune longer (tune=), or take "
        "smaller steps (method=HMC(target_acceptance=0.95))"
    ]


def high_rhat(rhat: np.ndarray, names: tuple[str, ...], more: str = "draws=") -> list[str]:
    """Compare R-hat with its limit; NaN is unknown, not high."""
    high = np.flatnonzero(rhat > MAX_RHAT)
    if not high.size:
        return []
    worst = high[np.argmax(rhat[high])]
    return [
        f"R-hat is above {MAX_RHAT} for {_of(high, names, worst)}, at worst {rhat[worst]:.4f}: the chains "
        f"disagree; draw more ({more}), tune longer (tune=), or look for separate modes"
    ]


def low_ess(ess: np.ndarray, names: tuple[str, ...], chains: int, more: str = "draws=") -> list[str]:
    """Compare effective sample sizes with what estimates need."""
    wanted = MIN_ESS_PER_CHAIN * chains
    low = np.flatnonzero(ess < wanted)
    if not low.size:
        return []
    worst = low[np.argmin(ess[low])]
    return [
        f"fewer than {wanted} effective draws ({MIN_ESS_PER_CHAIN} for each chain) of {_of(low, names, worst)}, "
        f"at worst {ess[worst]:.0f}; draw more ({more})"
    ]


def low_acceptance(rate: np.ndarray | None, surrogate: bool = False) -> list[str]:
    """Compare the mean acceptance rate of each chain with what makes sense."""
    if rate is None or not rate.size:
        return []
    each = rate.mean(axis=1)
    low = np.flatnonzero(each < MIN_ACCEPTANCE)
    if not low.size:
        return []
    where = "" if low.size == len(each) else f" in chain {', '.join(map(str, low))}"
    said = f"acceptance is {each[low].mean():.2f}{where}, below {MIN_ACCEPTANCE}; "
    if surrogate:
        return [
            f"{said}train a better surrogate (another kind, more units, a longer tune=), or take smaller steps"
        ]
    return [
        f"{said}tune longer (tune=), or take smaller steps (method=HMC(target_acceptance=0.95)); if that does not "
        "help, check the gradient"
    ]


def harmful(stats: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return which trajectories count as diverging.

    Proposals of a surrogate transition that led to where the surrogate is far too low are rejected, and miss nothing;
    a few of them count for nothing.
    """
    diverging = stats.get("diverging")
    if diverging is None or "inner_acceptance" not in stats:
        return diverging
    too_low = diverging & (stats["discrepancy"] > 0) & np.isfinite(stats["discrepancy"])
    return diverging & ~too_low if too_low.mean() <= FEW_TOO_LOW else diverging


def divergences(
    diverging: np.ndarray | None, surrogate: bool = False, other: str = "method=HMC()"
) -> list[str]:
    """Count trajectories whose energy was lost."""
    if diverging is None or not diverging.any():
        return []
    if surrogate:
        return [
            f"{int(diverging.sum())} of {diverging.size} surrogate trajectories diverged, left the support, or went "
            "where the surrogate is not finite: regions there may be missed; train it on a wider set, take smaller "
            f"steps, or hold the draws against {other}"
        ]
    return [
        f"{int(diverging.sum())} of {diverging.size} trajectories diverged, or left the support: regions there may be "
        "missed; take smaller steps (method=HMC(target_acceptance=0.95)), give bounds= for parameters that have them, "
        "or reparametrise the model"
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


def _of(which: np.ndarray, names: tuple[str, ...], worst: int | None = None) -> str:
    """Name one parameter, or count many and name the worst."""
    named = names[which[0] if worst is None else worst]
    return named if which.size == 1 else f"{which.size} of {len(names)} parameters ({named} and others)"
