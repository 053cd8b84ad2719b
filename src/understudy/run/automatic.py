"""The self-tuned run: rehearse, judge, and choose what the draws are made with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from understudy.errors import BudgetError, SurrogateError
from understudy.kernels import Kernel, Mixture, State, Streams, SurrogateTransition
from understudy.results import SurrogateReport
from understudy.run.progress import Progress
from understudy.surrogates import TrainingSet
from understudy.surrogates.fingerprint import fingerprint
from understudy.targets import AnyTarget
from understudy.warmup import Auto
from understudy.warmup.rehearsal import Diary, Outcome, Plan, Trust, judge, n_probes, rehearse, require_use

#: Share of exact steps where trust is lost but nothing more may be spent on tuning HMC.
MIXED = 0.5
#: A warm-up that is not so many times longer than a look beyond the frontier goes without.
LOOK_FROM = 10
#: Where there are only values, warm-up may take as many as this share of the draws while there is more to learn.
VALUES_SHARE = 0.35


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a rehearsal leaves for the draws; `kernel` is None where exact HMC is to take over."""

    kernel: Kernel | None
    state: State
    report: SurrogateReport
    training: TrainingSet


def prepare(
    method: Auto,
    diary: Diary,
    streams: Streams,
    init: ArrayLike | None,
    plan: Plan,
    progress: Progress,
) -> Prepared:
    """Rehearse within the plan, and judge what came of it; the diary has all that was paid for, whatever happens."""
    evaluator = diary.evaluator
    limit, evaluator.limit = evaluator.limit, plan.most
    progress.start("warm-up", plan.most)

    def tell(phase: str, sd: float, accepted: float) -> None:
        note = phase if not np.isfinite(sd) else f"{phase}, sd(D) {sd:.2f}"
        progress.reach(evaluator.counts.n_exact, evaluator.counts.n_exact, accepted, note)

    is_limited = limit is not None or plan.is_capped
    too_few = _too_few(plan, _needed(evaluator.target, streams.n_chains), is_limited)
    try:
        outcome = rehearse(diary, streams, init, plan, method.surrogate, tell)
    except BudgetError as error:
        raise too_few from error
    evaluator.limit = limit
    trust = judge(outcome)
    if not evaluator.target.has_gradient:
        if not np.isfinite(outcome.sd) and is_limited:
            raise too_few
        require_use(outcome, trust)
    kernel = _kernel(outcome, trust, limited=is_limited)
    return Prepared(kernel, outcome.state, _report(outcome, trust, kernel), outcome.training)


def plan_for(target: AnyTarget, n_draws: int, tune: int | None, budget: int | None) -> Plan:
    """Return how much may be learnt: within `tune`, and two thirds of the budget.

    Values alone must determine a quadratic; a gradient, or the outputs of a model, say more.
    """
    dim = target.dim
    most = 150 + 10 * dim
    if not target.has_gradient and not hasattr(target, "likelihood"):
        rows = (dim + 1) * (dim + 2)
        most += max(50 + 2 * rows, min(100 + 14 * rows, int(VALUES_SHARE * n_draws)))
    most = most if tune is None else tune
    if budget is not None:
        most = min(most, 2 * budget // 3)
    looks = not target.has_gradient and most >= LOOK_FROM * n_probes()
    return Plan(dim, n_draws, most, budget, is_capped=tune is not None, reserve=n_probes() if looks else 0)


def _too_few(plan: Plan, needed: int, is_limited: bool) -> BudgetError:
    """Return the error of a warm-up that has found nothing to train on: the limit was too low, or it is not that."""
    if is_limited and plan.most < needed:
        return BudgetError(
            f"{plan.most} evaluations of warm-up are too few to find the posterior of {plan.dim} parameters; allow "
            f"about {needed} (tune=), or one and a half times as many in all (max_evaluations=)"
        )
    return BudgetError(
        f"the posterior of {plan.dim} parameters was not found in {plan.most} evaluations of warm-up; start nearer "
        "(init=), give bounds= or a gradient, rescale the parameters, or allow more (tune=)"
    )


def _needed(target: AnyTarget, n_chains: int) -> int:
    """Return about how many evaluations it takes to find a posterior and to learn something of it."""
    dim = target.dim
    if hasattr(target, "likelihood"):
        return 2 * dim + 10 * n_chains + 40
    if target.has_gradient:
        return 3 * dim + 12 * n_chains + 60
    return 20 * (dim + 1) + 3 * (dim + 1) * n_chains + (dim + 1) * (dim + 2) + 60


def check_unchanged(report: SurrogateReport | None, kernel: Kernel | None) -> None:
    """Raise if a frozen surrogate is not what it was before the first draw."""
    if report is None or not report.fingerprint:
        return
    now = fingerprint(_surrogate(kernel))
    if now != report.fingerprint:
        raise SurrogateError(
            f"the frozen surrogate changed while draws were kept (hash {report.fingerprint} before, {now} after), so "
            "they are not exact; let nothing write into it"
        )


def _kernel(outcome: Outcome, trust: Trust, *, limited: bool) -> Kernel | None:
    """Return the surrogate's kernel, mixed with exact steps as far as trust is missing, or None without any."""
    if trust.exact_share == 0.0 or outcome.exact is None:
        return outcome.kernel
    share = trust.exact_share
    if share == 1.0:
        if not limited:
            return None
        share = MIXED
    return Mixture((outcome.kernel, outcome.exact), (1.0 - share, share))


def _report(outcome: Outcome, trust: Trust, kernel: Kernel | None) -> SurrogateReport:
    share = 1.0 if kernel is None else kernel.weights[1] if isinstance(kernel, Mixture) else 0.0
    return SurrogateReport(
        kind=outcome.playing,
        sd=outcome.sd,
        usual=outcome.usual,
        surprises=outcome.surprises,
        exact_share=share,
        reason=trust.reason,
        history=outcome.history,
        fingerprint="" if kernel is None else fingerprint(_surrogate(kernel)),
        has_gradient=outcome.exact is not None,
    )


def _surrogate(kernel: Kernel | None) -> object:
    if isinstance(kernel, Mixture):
        kernel = kernel.kernels[0]
    return kernel.surrogate if isinstance(kernel, SurrogateTransition) else None
