"""The self-tuned run: adapt, judge, and choose what the draws are made with."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation import (
    USELESS,
    Candidates,
    EvaluationRecord,
    Outcome,
    Plan,
    Start,
    Trust,
    is_beyond_numbers,
    judge,
    learn_from,
    n_probes,
    pilot,
    refuse_absurd_width,
    require_use,
    run_adaptation,
)
from leapwise.dynamics import EuclideanMetric
from leapwise.errors import BudgetError, LeapwiseError, SurrogateError
from leapwise.execution import Evaluation
from leapwise.kernels import Kernel, Mixture, State, Streams, SurrogateTransition
from leapwise.results import SurrogateReport
from leapwise.run.progress import Progress
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.surrogates.base import fingerprint
from leapwise.targets import AnyTarget
from leapwise.warmup import Auto

_LOG = logging.getLogger("leapwise")

#: Evaluations of a fall-back that are learnt from, and further ones that trying again may cost, for each parameter too.
MOST_SEEN, _AGAIN, _AGAIN_EACH = 400, 80, 4
#: Discrepancies of what a fall-back has seen of late that are far off, and the share of them that is few.
FAR_OFF, FEW_OFF = 2.0, 0.02
#: Share of exact steps where trust is lost but nothing more may be spent on tuning HMC.
MIXED = 0.5
#: Chains that the length of a warm-up is meant for; it grows with more of them.
USUAL_CHAINS = 4
#: A warm-up that is not so many times longer than a look beyond the frontier goes without.
LOOK_FROM = 10
#: Where there are only values, warm-up may take as many as this share of the draws while there is more to learn.
VALUES_SHARE = 0.35
#: With gradients, what may be added to warm-up while it finds mass that was walled off, as a share of the draws.
MORE_SHARE = 0.15
#: The same while the surrogate is too poor to draw with but gets better.
POOR_SHARE = 0.35
#: What it may take to find the typical set where nobody has set a limit: so many gradients for each parameter and some
#: more; with values alone each is as many differences as there are parameters, and one.
FIND, FIND_ELSE = 20, 10


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the adaptation leaves for the draws; `kernel` is None where exact HMC is to take over."""

    kernel: Kernel | None
    state: State
    report: SurrogateReport
    training: TrainingSet


def prepare(
    method: Auto,
    record: EvaluationRecord,
    streams: Streams,
    init: ArrayLike | None,
    plan: Plan,
    progress: Progress,
) -> Prepared:
    """Adapt within the plan, and judge what came of it; the record has all that was paid for, whatever happens."""
    evaluator = record.evaluator
    is_limited = plan.is_limited
    if is_limited and not record.known and plan.most < _least(evaluator.target, streams.n_chains):
        raise _too_few(plan, record, streams.n_chains, is_limited)
    limit = evaluator.limit
    progress.start("warm-up", plan.most)

    def tell(phase: str, sd: float, accepted: float) -> None:
        note = phase if not np.isfinite(sd) else f"{phase}, sd(D) {sd:.2f}"
        progress.reach(evaluator.counts.n_exact, evaluator.counts.n_exact, accepted, note)

    try:
        outcome = run_adaptation(record, streams, init, plan, method.surrogate, tell)
    except (BudgetError, ArithmeticError, ValueError) as error:
        evaluator.limit, evaluator.observer = limit, None
        known = _known_error(error, plan, record, streams.n_chains)
        if known is None:
            raise
        if not evaluator.target.has_gradient or is_limited or not record.heard:
            raise known from error
        return _without_surrogate(record, streams.n_chains, str(known))
    evaluator.limit = limit
    left = plan.most - evaluator.counts.n_exact if is_limited else plan.most
    refuse_absurd_width(record, outcome.kernel, left)
    if not np.isfinite(outcome.sd) and is_limited and not evaluator.target.has_gradient:
        raise _too_few(plan, record, streams.n_chains, is_limited)
    outcome, outside = pilot(record, outcome, streams.shared, left)
    trust = _told(judge(outcome), outside)
    if not evaluator.target.has_gradient:
        require_use(outcome, trust, _remedies(evaluator.target))
    kernel = _kernel(outcome, trust, limited=is_limited)
    if kernel is None:
        _warn_of_fall_back(trust.reason)
    report = _report(outcome, trust, kernel, evaluator.target)
    return Prepared(kernel, outcome.state, report, outcome.training)


def try_again(
    method: Auto,
    record: EvaluationRecord,
    streams: Streams,
    metric: EuclideanMetric,
    state: State,
    n_draws: int,
    progress: Progress,
) -> Prepared | None:
    """Learn from what exact HMC has seen in its warm-up; None if the surrogate has not earned full trust even so.

    Parameters
    ----------
    method : Auto
    record : EvaluationRecord
        Has heard all that HMC has evaluated.
    streams : Streams
    metric : EuclideanMetric
        As HMC has learnt it by then: it tells the coordinates.
    state : State
        Where the chains of HMC are.
    n_draws : int
        Exact values that the draws would cost.
    progress : Progress
    """
    evaluator = record.evaluator
    seen = record.training()
    held = seen.rows(np.arange(len(seen) // 2, len(seen)))
    seen = seen.select()
    here = np.flatnonzero((seen.position[:, None] == state.position).all(axis=2).any(axis=1))
    some = np.linspace(len(seen) // 2, len(seen) - 1, MOST_SEEN).astype(int)
    seen = seen.rows(np.union1d(here, some))
    known = Evaluation(seen.position, seen.potential, seen.gradient, seen.outputs)
    own = EvaluationRecord(evaluator, record.gradient, [known], settings=record.settings)
    plan = Plan(
        record.evaluator.target.dim, n_draws, _AGAIN + _AGAIN_EACH * seen.dim + n_probes(), reserve=n_probes()
    )
    covariance = metric.velocity(np.eye(seen.dim))
    start = Start(state.position, Whitening(seen.position.mean(axis=0), np.linalg.cholesky(covariance)))
    candidates = Candidates(evaluator.target, own, streams.shared, method.surrogate)
    limit = evaluator.limit

    def tell(phase: str, sd: float, accepted: float) -> None:
        quality = f", sd(D) {sd:.2f}" if np.isfinite(sd) else ""
        progress.note(evaluator.counts.n_exact, f"learning from it: {phase}{quality}")

    try:
        outcome = learn_from(start, candidates, streams, plan, tell)
    except (BudgetError, ArithmeticError, ValueError) as error:
        if not isinstance(error, BudgetError) and not is_beyond_numbers(error):
            raise
        return None
    finally:
        evaluator.limit, evaluator.observer = limit, record.heard.append
        record.heard += own.heard
    trust = judge(outcome)
    if trust.exact_share > 0.0 or not _predicts(outcome.kernel, held):
        return None
    report = _report(outcome, trust, outcome.kernel, evaluator.target)
    return Prepared(outcome.kernel, outcome.state, report, outcome.training)


def _predicts(kernel: SurrogateTransition, held: TrainingSet) -> bool:
    """Whether a surrogate predicts what HMC has seen of late, at any height: it may have learnt one part of it only."""
    with np.errstate(all="ignore"):
        discrepancy = held.potential - kernel.surrogate.potential(held.position)  # type: ignore[union-attr]
        off = np.abs(discrepancy - np.median(discrepancy))
    return bool(np.mean(~(off < FAR_OFF)) < FEW_OFF)


def _known_error(
    error: Exception, plan: Plan, record: EvaluationRecord, n_chains: int
) -> LeapwiseError | None:
    """Return what to say of an error that means the posterior was not learnt; None of any other."""
    if isinstance(error, BudgetError):
        return _too_few(plan, record, n_chains, plan.is_limited)
    if not is_beyond_numbers(error):
        return None
    return SurrogateError(
        "the posterior could not be learnt: its numbers are too large or too small to work with "
        f"({type(error).__name__}: {error}); {_remedies(record.evaluator.target)}"
    )


def _without_surrogate(record: EvaluationRecord, n_chains: int, reason: str) -> Prepared:
    """Let exact HMC take over."""
    report = SurrogateReport("none", np.inf, 0.0, 1.0, 1.0, reason, np.empty((0, 2)))
    _warn_of_fall_back(reason)
    return Prepared(None, _first_starts(record, n_chains), report, record.training())


def _first_starts(record: EvaluationRecord, n_chains: int) -> State:
    """Return where the chains were to start: from there exact HMC finds its own way, as `HMC()` does.

    Descents may have ended where a density has no bound, as that of a hierarchy whose spread goes to 0, and no chain
    comes back from there.
    """
    position = np.concatenate([each.position for each in record.heard])
    potential = np.concatenate([each.potential for each in record.heard])
    rows = np.flatnonzero(np.isfinite(potential))[:n_chains]
    rows = rows[np.arange(n_chains) % len(rows)]
    return record.state(position[rows], potential[rows])


def _warn_of_fall_back(reason: str) -> None:
    """Say it while there is time to stop it."""
    _LOG.warning(
        "the surrogate has not earned trust (%s): exact HMC takes over, at many gradients for each draw; "
        "Ctrl-C ends the run with the draws made by then",
        reason,
    )


def plan_for(
    target: AnyTarget, n_draws: int, tune: int | None, budget: int | None, n_chains: int = USUAL_CHAINS
) -> Plan:
    """Return how much may be learnt: within `tune`, and two thirds of the budget.

    Values alone must determine a quadratic; a gradient, or the outputs of a model, say more. Every chain has its own
    way to where the posterior is.
    """
    dim = target.dim
    most = 150 + 10 * dim
    most += 2 * (_needed(target, max(n_chains, USUAL_CHAINS)) - _needed(target, USUAL_CHAINS))
    if not target.has_gradient and not target.emulates_outputs:
        rows = (dim + 1) * (dim + 2)
        most += max(50 + 2 * rows, min(100 + 14 * rows, int(VALUES_SHARE * n_draws)))
    most = most if tune is None else tune
    if budget is not None:
        most = min(most, 2 * budget // 3)
    looks, more, patience, to_find = most >= LOOK_FROM * n_probes(), 0, 0, 0
    if tune is None and budget is None:
        to_find = FIND * (dim + FIND_ELSE) * (1 if target.has_gradient else dim + 1)
        if target.has_gradient or target.emulates_outputs:
            looks, most, more = True, most + n_probes(), int(MORE_SHARE * n_draws)
        if not target.emulates_outputs:
            patience = int(POOR_SHARE * n_draws)
    return Plan(
        dim,
        n_draws,
        most,
        budget,
        is_capped=tune is not None,
        reserve=n_probes() if looks else 0,
        more=more,
        patience=patience,
        to_find=to_find,
    )


def _too_few(plan: Plan, record: EvaluationRecord, n_chains: int, is_limited: bool) -> BudgetError:
    """Return the error of a warm-up that has found nothing to train on: the limit was too low, or it is not that."""
    target, spent = record.evaluator.target, record.evaluator.counts.n_exact
    needed = _needed(target, n_chains)
    if is_limited and plan.most < needed:
        return BudgetError(
            f"{plan.most} evaluations of warm-up are too few to find the posterior of {plan.dim} parameters; allow "
            f"about {needed} (tune=), or one and a half times as many in all (max_evaluations=)"
        )
    return BudgetError(
        f"the posterior of {plan.dim} parameters was not found in {spent} evaluations of warm-up; "
        f"{_remedies(target)}"
    )


def _remedies(target: AnyTarget) -> str:
    """Return what a user can do, with this kind of target, so that its posterior is found and learnt."""
    if target.emulates_outputs:
        adjoint = "" if target.has_gradient else "give a gradient (vjp= or jacobian=), "
        return f"{adjoint}start nearer (init=), take a narrower prior, or allow more warm-up (tune=)"
    both = "give bounds= for parameters that have them, start nearer (init=)"
    if target.has_gradient:
        return f"{both}, or allow more warm-up (tune=)"
    other = "give a gradient (Target(gradient=...)), emulate outputs instead of a scalar (ForwardTarget)"
    return f"{other}, {both}, rescale the parameters, or allow more warm-up (tune=)"


def _told(trust: Trust, outside: float) -> Trust:
    """Return trust with a word on proposals outside the support, if they are why it was lost."""
    if not trust.reason or not outside:
        return trust
    return replace(
        trust,
        reason=f"{trust.reason}; {outside:.0%} of its moves ended outside the support, where the log-density is -inf",
    )


def _needed(target: AnyTarget, n_chains: int) -> int:
    """Return about how many evaluations it takes to find a posterior and to learn something of it."""
    dim = target.dim
    if target.emulates_outputs:
        return 2 * dim + 10 * n_chains + 40
    if target.has_gradient:
        return 3 * dim + 12 * n_chains + 60
    return 20 * (dim + 1) + 3 * (dim + 1) * n_chains + (dim + 1) * (dim + 2) + 60


def _least(target: AnyTarget, n_chains: int) -> int:
    """Return how many evaluations it takes at the very least: with fewer, not even a normal posterior is learnt."""
    dim = target.dim
    if target.emulates_outputs:
        return 18 + dim + n_chains
    if target.has_gradient:
        return 1 + dim + 2 * n_chains
    return 18 + (dim + 1) * (dim + 2)


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
        # Exact HMC alone would keep chains in the modes where they are.
        if not limited and (outcome.kernel.jumps is None or not outcome.sd < USELESS):
            return None
        share = MIXED
    return Mixture((outcome.kernel, outcome.exact), (1.0 - share, share))


def _report(outcome: Outcome, trust: Trust, kernel: Kernel | None, target: AnyTarget) -> SurrogateReport:
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
        n_modes=1 if outcome.kernel.jumps is None or kernel is None else outcome.kernel.jumps.n_modes,
        tail="" if outcome.tail is None or kernel is None else outcome.tail.told(target.names),
    )


def _surrogate(kernel: Kernel | None) -> object:
    if isinstance(kernel, Mixture):
        kernel = kernel.kernels[0]
    return kernel.surrogate if isinstance(kernel, SurrogateTransition) else None
