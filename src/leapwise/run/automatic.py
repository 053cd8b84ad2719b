"""The self-tuned run: adapt a surrogate, judge it, fall back on HMC, retry.

1. *Adapt.* `plan_for` says how many exact evaluations warm-up may spend; `adapt` trains a surrogate within them.
2. *Judge.* `leapwise.adaptation.judge`, which only this module calls, returns the share of exact steps that the draws
   need. If it is 0, the surrogate's kernel makes the draws. If it is less than 1, they are made by a `Mixture` of that
   kernel and HMC. Without a gradient there are no exact steps, and a surrogate that is useless is an error.
3. *Fall back.* If the share is 1, HMC with exact gradients takes over (`Adapted.kernel` is None). Only half of the
   steps are exact, however, if the user has set a limit of evaluations, or if the surrogate is good enough for jumps
   between several modes. If no surrogate can be trained, HMC takes over too; without a gradient, or with a limit of the
   user's, that is an error with its remedies.
4. *Retry.* HMC's own warm-up evaluates many gradients where the mass is. `learn_from_hmc` trains a surrogate on them.
   If `judge` returns a share of 0 for it, and it predicts what HMC has seen, it makes the draws after all.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation import (
    AdaptationPlan,
    AdaptationResult,
    Candidates,
    EvaluationRecord,
    Start,
    Trust,
    check_support,
    is_numerical,
    judge,
    learn_from,
    n_probes,
    refuse_absurd_width,
    refuse_heavy_tails,
    require_use,
    run_adaptation,
)
from leapwise.adaptation.stopping import acceptance
from leapwise.adaptation.surrogate_chains import trace
from leapwise.dynamics import EuclideanMetric
from leapwise.errors import BudgetError, LeapwiseError, SurrogateError
from leapwise.execution import Evaluation
from leapwise.kernels import Kernel, Mixture, State, Streams, SurrogateTransition
from leapwise.kernels.free_moves import FreeMoves, surrogate_part, tune_free_moves
from leapwise.results import SurrogateReport, TargetReport
from leapwise.results.diagnostics import misfit
from leapwise.run.progress import Progress
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.surrogates.base import fingerprint
from leapwise.surrogates.joint import JointPotential
from leapwise.targets import AnyTarget, ForwardTarget
from leapwise.warmup import Auto

_LOG = logging.getLogger("leapwise")

#: Chains that the default length of warm-up is meant for; it grows with more of them. The default of `sample`.
USUAL_CHAINS = 4
#: The look beyond the outermost draws is taken if it costs at most a tenth of warm-up. A guess.
PROBES_TO_WARMUP = 10
#: Limits of warm-up as shares of the exact values that the draws cost. All are guesses: with values alone, while
#: there is more to learn; while mass is found that the surrogate had missed; and while the surrogate is
#: too poor to draw with, but improves.
VALUES_SHARE, MISSED_MASS_SHARE, POOR_SHARE = 0.35, 0.15, 0.35
#: Finding the typical set may cost 20 (dim + 10) gradients, where the user set no limit. With values alone each
#: gradient takes dim + 1 of them. A guess that is generous: it is only spent on posteriors that are hard to find.
FIND_PER_PARAMETER, FIND_EXTRA = 20, 10
#: Share of exact steps where the surrogate is not trusted and HMC cannot take over. A guess: half of the steps is the
#: most that leaves both kernels at least half of their efficiency.
EVEN_SHARE = 0.5
#: A retry trains on this many of HMC's evaluations, and may spend 80 + 4 dim new ones. Guesses: 400 are trained on in
#: seconds, and the new ones are few beside the thousands of gradients that HMC's warm-up costs.
MOST_FROM_HMC, RETRY_EVALUATIONS, RETRY_PER_PARAMETER = 400, 80, 4
#: A retry is refused if 2 % or more of HMC's later evaluations have a discrepancy of 2 or more from the median. Trust
#: is full up to sd(D) = 0.5, of which 2 is four standard deviations: chance alone accounts for almost none of them.
FAR_OFF, FEW_FAR_OFF = 2.0, 0.02
#: Chains on the surrogate, and moves of them, by which correlations of draws are measured. Guesses: the standard error
#: is about 0.03.
N_FREE_CHAINS, N_FREE_MOVES = 128, 10
#: Gradients for one draw of a fall-back from which on its cost is told before the draws. A guess: the trees of a
#: normal posterior in a learned metric have 7 to 15, and those of a fall-back have at most 256.
MANY_GRADIENTS = 60


@dataclass(frozen=True, eq=False)
class Adapted:
    """What the adaptation hands to the draws; `kernel` is None where HMC with exact gradients is to take over."""

    kernel: Kernel | None
    state: State
    report: SurrogateReport
    training: TrainingSet


# Adapt ---------------------------------------------------------------------------------------------------------------


def plan_for(
    target: AnyTarget, n_draws: int, tune: int | None, budget: int | None, n_chains: int = USUAL_CHAINS
) -> AdaptationPlan:
    """Return how many exact evaluations the adaptation may spend.

    By default 150 + 10 dim, more for more chains, since each finds its own way to the posterior, and more for values
    alone, which must determine a quadratic. With `tune` at most that, and of a `budget` at most two thirds.
    """
    dim, informative = target.dim, target.has_gradient or target.emulates_outputs
    most = 150 + 10 * dim
    most += 2 * (_usual_cost(target, max(n_chains, USUAL_CHAINS)) - _usual_cost(target, USUAL_CHAINS))
    if not informative:
        rows = (dim + 1) * (dim + 2)  # twice the coefficients of a quadratic
        most += max(50 + 2 * rows, min(100 + 14 * rows, int(VALUES_SHARE * n_draws)))
    most = most if tune is None else tune
    if budget is not None:
        most = min(most, 2 * budget // 3)
    looks_beyond, more, patience, to_find = most >= PROBES_TO_WARMUP * n_probes(), 0, 0, 0
    if tune is None and budget is None:
        to_find = FIND_PER_PARAMETER * (dim + FIND_EXTRA) * (1 if target.has_gradient else dim + 1)
        more = int(MISSED_MASS_SHARE * n_draws)
        if informative:
            looks_beyond, most = True, most + n_probes()
        patience = int(POOR_SHARE * n_draws)
    return AdaptationPlan(
        dim,
        n_draws,
        most,
        budget,
        is_capped=tune is not None,
        reserve=n_probes() if looks_beyond else 0,
        extra=more,
        patience=patience,
        to_initialise=to_find,
    )


def adapt(
    method: Auto,
    record: EvaluationRecord,
    streams: Streams,
    init: ArrayLike | None,
    plan: AdaptationPlan,
    progress: Progress,
) -> Adapted:
    """Train a surrogate within the plan, and decide what the draws are made with.

    Parameters
    ----------
    method : Auto
    record : EvaluationRecord
        Holds every exact evaluation that is made here, also after an error.
    streams : Streams
    init : array_like, optional
        Parameters to start from.
    plan : AdaptationPlan
    progress : Progress

    Raises
    ------
    BudgetError, SurrogateError
        If the posterior was not learned and there is no falling back on exact gradients.
    """
    evaluator = record.evaluator
    if plan.is_limited and not record.earlier and plan.most < _least_cost(evaluator.target, streams.n_chains):
        raise _not_found(plan, record, streams.n_chains)
    progress.start("warm-up", plan.most)

    def show(phase: str, sd: float, acceptance: float) -> None:
        n_exact = evaluator.counts.n_exact
        progress.reach(n_exact, n_exact, acceptance, _phase_and_quality(phase, sd))

    try:
        outcome = run_adaptation(record, streams, init, plan, method.surrogate, show)
    except (BudgetError, ArithmeticError, ValueError) as error:
        evaluator.observe(None)
        failure = _failure_to_learn(error, plan, record, streams.n_chains)
        if failure is None:
            raise
        if not evaluator.target.has_gradient or plan.is_limited or not record.evaluations:
            raise failure from error
        return _hmc_alone(record, streams, str(failure))
    return _judged(outcome, record, streams, plan)


def _phase_and_quality(phase: str, sd: float) -> str:
    return f"{phase}, sd(D) {sd:.2f}" if np.isfinite(sd) else phase


# Judge ---------------------------------------------------------------------------------------------------------------


def _judged(
    outcome: AdaptationResult, record: EvaluationRecord, streams: Streams, plan: AdaptationPlan
) -> Adapted:
    """Choose the kernel of the draws, by the share of exact steps that they need."""
    evaluator, target = record.evaluator, record.evaluator.target
    left = plan.most - evaluator.counts.n_exact if plan.is_limited else plan.most
    refuse_absurd_width(record, outcome.kernel, left)
    if not np.isfinite(outcome.sd) and plan.is_limited and not target.has_gradient:
        raise _not_found(plan, record, streams.n_chains)
    outcome, outside = check_support(record, outcome, streams.shared, left)
    trust = judge(outcome)
    if trust.reason and outside:
        share = f"{outside:.0%} of its moves ended outside the support, where the log-density is -inf"
        trust = replace(trust, reason=f"{trust.reason}; {share}")
    if not target.has_gradient:
        report = TargetReport.of(target, outcome.training)
        remedies = _remedies(target) if report.fits else _remedies_of_misfit(report)
        require_use(outcome, trust, remedies)
    kernel = _kernel(outcome, trust, is_limited=plan.is_limited)
    if kernel is None:
        refuse_heavy_tails(record, streams.shared)
        _warn_of_fall_back(trust.reason)
        outcome = replace(outcome, state=_first_state(record, streams.n_chains))
    found = _adapted(outcome, trust, kernel, target)
    return replace(found, kernel=_with_free_moves(found.kernel, record, outcome, streams.shared))


def _with_free_moves(
    kernel: Kernel | None, record: EvaluationRecord, outcome: AdaptationResult, rng: np.random.Generator
) -> Kernel | None:
    """Return the kernel, followed by moves of the parameters that the model does not see, if these serve.

    They make successive draws of these parameters nearly independent. So they serve if draws would be positively
    correlated, because of rejections or of a hierarchy. Where draws alternate between the sides of the mean, which is
    worth more than independence, they would undo that. They start with known outputs, or not at all (`FreeMoves` says
    why).
    """
    target = record.evaluator.target
    joint = target.joint if isinstance(target, ForwardTarget) else None
    if joint is None or not isinstance(kernel, SurrogateTransition):
        return kernel
    free = np.setdiff1d(np.arange(target.dim), target.inputs)
    outputs = outcome.state.with_outputs(record.all_evaluations).outputs
    known = outcome.training.select()
    if not free.size or outputs is None or np.isnan(outputs).any() or known.outputs is None:
        return kernel
    if not (_correlations_of_draws(kernel, known.position, outcome.sd, rng)[free] > 0.0).any():
        return kernel
    potential = JointPotential(joint, target.transform)
    step_size, n_steps, scales = tune_free_moves(potential, free, known.position, known.outputs, rng)
    return FreeMoves(kernel, potential, free, step_size, n_steps, scales=scales)


def _correlations_of_draws(
    kernel: SurrogateTransition, position: np.ndarray, sd: float, rng: np.random.Generator
) -> np.ndarray:
    """Return about the correlation of successive draws of each parameter, ``(dim,)``, from chains on the surrogate."""
    start = position[rng.integers(len(position), size=N_FREE_CHAINS)]
    chain = trace(kernel, start, rng, 2 * N_FREE_MOVES)[N_FREE_MOVES:]
    before, after = (part.reshape(-1, part.shape[2]) for part in (chain[:-1], chain[1:]))
    with np.errstate(all="ignore"):
        both = np.mean((before - before.mean(axis=0)) * (after - after.mean(axis=0)), axis=0)
        moved = both / (before.std(axis=0) * after.std(axis=0))
    accepted = acceptance(sd)
    return np.where(np.isfinite(moved), 1.0 - accepted + accepted * moved, 1.0)


def _kernel(outcome: AdaptationResult, trust: Trust, *, is_limited: bool) -> Kernel | None:
    """Return the surrogate's kernel, or a mixture of it with exact steps; None if HMC is to take over."""
    if trust.exact_share == 0.0 or outcome.exact is None:
        return outcome.kernel
    share = trust.exact_share
    if share == 1.0:
        # With several modes the surrogate's jumps are kept: HMC alone would leave each chain in its mode.
        jumps_serve = outcome.kernel.jumps is not None and outcome.is_useful
        if not is_limited and not jumps_serve:
            return None
        share = EVEN_SHARE
    return Mixture((outcome.kernel, outcome.exact), (1.0 - share, share))


def _adapted(outcome: AdaptationResult, trust: Trust, kernel: Kernel | None, target: AnyTarget) -> Adapted:
    share = 1.0 if kernel is None else kernel.weights[1] if isinstance(kernel, Mixture) else 0.0
    report = SurrogateReport(
        kind=outcome.surrogate_kind,
        sd=outcome.sd,
        usual=outcome.usual,
        surprises=outcome.surprises,
        exact_share=share,
        reason=trust.reason,
        history=outcome.history,
        fingerprint="" if kernel is None else fingerprint(getattr(surrogate_part(kernel), "surrogate", None)),
        has_gradient=outcome.exact is not None,
        n_modes=1 if outcome.kernel.jumps is None or kernel is None else outcome.kernel.jumps.n_modes,
        tail="" if outcome.tail is None or kernel is None else outcome.tail.described(target.names),
    )
    return Adapted(kernel, outcome.state, report, outcome.training)


def require_frozen(report: SurrogateReport | None, kernel: Kernel | None) -> None:
    """Raise if the surrogate is not the same, to the last bit, as before the first draw."""
    if report is None or not report.fingerprint:
        return
    now = fingerprint(getattr(surrogate_part(kernel), "surrogate", None))
    if now != report.fingerprint:
        raise SurrogateError(
            f"the frozen surrogate changed while draws were made (hash {report.fingerprint} before, {now} after), so "
            "the draws are not exact; let no code write into its arrays"
        )


# Fall back -----------------------------------------------------------------------------------------------------------


def _hmc_alone(record: EvaluationRecord, streams: Streams, reason: str) -> Adapted:
    """Let HMC take over without a surrogate."""
    refuse_heavy_tails(record, streams.shared)
    _warn_of_fall_back(reason)
    report = SurrogateReport("none", np.inf, 0.0, 1.0, 1.0, reason, np.empty((0, 2)))
    return Adapted(None, _first_state(record, streams.n_chains), report, record.training())


def _first_state(record: EvaluationRecord, n_chains: int) -> State:
    """Return where the chains were to start: HMC begins there and finds its way as `HMC()` does.

    Where the adaptation has ended is no better. Its descents may have gone where the density is highest and has no
    mass, as in the neck of a funnel or where the spread of a hierarchy goes to 0, and a surrogate that is not trusted
    may have kept the chains there. No chain comes back from there, and it stops the others, which share its step size.
    """
    if record.start is not None:
        return record.start
    position = np.concatenate([each.position for each in record.evaluations])
    potential = np.concatenate([each.potential for each in record.evaluations])
    rows = np.flatnonzero(np.isfinite(potential))[:n_chains]
    rows = rows[np.arange(n_chains) % len(rows)]
    return record.state(position[rows], potential[rows])


def _warn_of_fall_back(reason: str) -> None:
    """Warn at once, while there is time to stop the run."""
    _LOG.warning(
        "The surrogate is not trusted (%s), so HMC with exact gradients takes over, at many gradients for each draw. "
        "Ctrl-C ends the run and returns the draws so far.",
        reason,
    )


def warn_of_cost(per_draw: float, n_draws: int) -> None:
    """Warn before the draws of a fall-back, if they will be expensive."""
    if per_draw > MANY_GRADIENTS:
        _LOG.warning(
            "Each draw of HMC takes about %.0f gradients, so the %s draws will take about %s. A posterior whose scale "
            "varies this much (a funnel, a hierarchy) costs far less when it is reparametrised. Ctrl-C ends the run "
            "and returns the draws so far.",
            per_draw,
            f"{n_draws:,}",
            f"{per_draw * n_draws:,.0f}",
        )


def _failure_to_learn(
    error: Exception, plan: AdaptationPlan, record: EvaluationRecord, n_chains: int
) -> LeapwiseError | None:
    """Return the error to raise where the posterior was not learned; None if `error` means something else."""
    if isinstance(error, BudgetError):
        return _not_found(plan, record, n_chains)
    if not is_numerical(error):
        return None
    return SurrogateError(
        "the posterior could not be learned: its numbers are too large or too small to work with "
        f"({type(error).__name__}: {error}); {_remedies(record.evaluator.target)}"
    )


def _not_found(plan: AdaptationPlan, record: EvaluationRecord, n_chains: int) -> BudgetError:
    """Return the error of a warm-up that found nothing to train on, because its limit was too low or in spite of it."""
    target = record.evaluator.target
    usual = _usual_cost(target, n_chains)
    if plan.is_limited and plan.most < usual:
        return BudgetError(
            f"{plan.most} evaluations of warm-up are too few to find the posterior of {plan.dim} parameters; allow "
            f"about {usual} (tune=), or {math.ceil(1.5 * usual)} in all (max_evaluations=)"
        )
    return BudgetError(
        f"the posterior of {plan.dim} parameters was not found in {record.evaluator.counts.n_exact} evaluations of "
        f"warm-up; {_remedies(target)}"
    )


def _remedies(target: AnyTarget) -> str:
    """Return what a user of this kind of target can do so that its posterior is found and learned."""
    if target.emulates_outputs:
        adjoint = "" if target.has_gradient else "give a gradient (vjp= or jacobian=), "
        return f"{adjoint}start nearer (init=), take a narrower prior, or allow more warm-up (tune=)"
    both = "give bounds= for parameters that have them, start nearer (init=)"
    if target.has_gradient:
        return f"{both}, or allow more warm-up (tune=)"
    other = "give a gradient (Target(gradient=...)), emulate outputs instead of a scalar (ForwardTarget)"
    return f"{other}, {both}, rescale the parameters, or allow more warm-up (tune=)"


def _remedies_of_misfit(report: TargetReport) -> str:
    """Return what to do if the model does not fit its data: a narrower prior or more evaluations would not help."""
    return (
        f"the model {misfit(report)}; check the errors given to GaussianLikelihood, look at the residuals, start at "
        "another point (init=), or give a gradient (vjp= or jacobian=)"
    )


def _usual_cost(target: AnyTarget, n_chains: int) -> int:
    """Return about how many evaluations it takes to find a posterior and to learn something of it.

    Rough counts: each chain finds its way to the typical set, and then there is enough to train on. With values alone
    a gradient takes dim + 1 of them, and they must determine a quadratic.
    """
    dim = target.dim
    if target.emulates_outputs:
        return 2 * dim + 10 * n_chains + 40
    if target.has_gradient:
        return 3 * dim + 12 * n_chains + 60
    return 20 * (dim + 1) + 3 * (dim + 1) * n_chains + (dim + 1) * (dim + 2) + 60


def _least_cost(target: AnyTarget, n_chains: int) -> int:
    """Return the fewest evaluations that anything is learned from: with fewer, not even a normal posterior is."""
    dim = target.dim
    if target.emulates_outputs:
        return 18 + dim + n_chains
    if target.has_gradient:
        return 1 + dim + 2 * n_chains
    return 18 + (dim + 1) * (dim + 2)


# Retry ---------------------------------------------------------------------------------------------------------------


def learn_from_hmc(
    method: Auto,
    record: EvaluationRecord,
    streams: Streams,
    metric: EuclideanMetric,
    state: State,
    n_draws: int,
    progress: Progress,
) -> Adapted | None:
    """Train a surrogate on what HMC has evaluated in its warm-up; return None unless the draws need no exact steps.

    Parameters
    ----------
    method : Auto
    record : EvaluationRecord
        Holds all evaluations of HMC.
    streams : Streams
    metric : EuclideanMetric
        As HMC has learned it so far; its inverse is the covariance of the first frame.
    state : State
        Where HMC's chains are.
    n_draws : int
        Exact values that the draws would cost.
    progress : Progress
    """
    evaluator = record.evaluator
    seen = record.training()
    later_half = seen.rows(np.arange(len(seen) // 2, len(seen)))
    chosen = _chosen_from_hmc(seen, state)
    known = Evaluation(chosen.position, chosen.potential, chosen.gradient, chosen.outputs)
    own = EvaluationRecord(evaluator, record.gradient, [known], settings=record.settings)
    most = RETRY_EVALUATIONS + RETRY_PER_PARAMETER * chosen.dim + n_probes()
    plan = AdaptationPlan(evaluator.target.dim, n_draws, most, reserve=n_probes())
    covariance = metric.velocity(np.eye(chosen.dim))
    start = Start(state.position, Whitening(chosen.position.mean(axis=0), np.linalg.cholesky(covariance)))
    candidates = Candidates(evaluator.target, own, streams.shared, method.surrogate)

    def show(phase: str, sd: float, acceptance: float) -> None:
        progress.note(
            evaluator.counts.n_exact, f"training a surrogate on it: {_phase_and_quality(phase, sd)}"
        )

    try:
        outcome = learn_from(start, candidates, streams, plan, show)
    except (BudgetError, ArithmeticError, ValueError) as error:
        if not isinstance(error, BudgetError) and not is_numerical(error):
            raise
        return None
    finally:
        evaluator.observe(record.evaluations.append)
        record.evaluations += own.evaluations
    trust = judge(outcome)
    if trust.exact_share > 0.0 or not _predicts(outcome.kernel, later_half, outcome.state):
        return None
    return _adapted(outcome, trust, outcome.kernel, evaluator.target)


def _chosen_from_hmc(seen: TrainingSet, state: State) -> TrainingSet:
    """Return evaluations to train on: those near the typical set, evenly from the later half, and the chains' own."""
    seen = seen.select()
    here = np.flatnonzero((seen.position[:, None] == state.position).all(axis=2).any(axis=1))
    later = np.linspace(len(seen) // 2, len(seen) - 1, MOST_FROM_HMC).astype(int)
    return seen.rows(np.union1d(here, later))


def _predicts(kernel: SurrogateTransition, seen: TrainingSet, state: State) -> bool:
    """Whether the surrogate predicts what HMC has seen, high potentials too: it may know one region of it only.

    It must predict the states of the chains, too. A chain that starts where the surrogate is far too high accepts
    hardly any move.
    """
    with np.errstate(all="ignore"):
        predicted = kernel.surrogate.potential  # type: ignore[union-attr]
        discrepancy = seen.potential - predicted(seen.position)
        usual = np.median(discrepancy)
        off = np.abs(discrepancy - usual)
        off_here = np.abs(state.potential - predicted(state.position) - usual)
    return bool(np.mean(~(off < FAR_OFF)) < FEW_FAR_OFF and (off_here < FAR_OFF).all())
