"""The adaptation: find, explore, scout, audit, freeze.

It reads like the recipe. Everything here is paid from the warm-up, and nothing that it does is kept as a draw; what it
leaves behind is a frozen kernel, where the chains are, and an account of how well the surrogate did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.coverage import look_beyond, send
from leapwise.adaptation.explore import Explorer, audit, exact_kernel, first_walkers, scouts, tried
from leapwise.adaptation.initialise import Start, find, find_by_outputs, typical_height
from leapwise.adaptation.mode_search import look_elsewhere, look_far
from leapwise.adaptation.modes import Homes, find_jumps, places, spread_out, with_more_starts
from leapwise.adaptation.record import EvaluationRecord, middle
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.stopping import USELESS, Plan
from leapwise.adaptation.tails import HiddenTail, hidden_in_tails, n_tail_probes
from leapwise.adaptation.tune import freeze
from leapwise.errors import BudgetError
from leapwise.kernels import HMC, State, Streams, SurrogateTransition
from leapwise.surrogates import Surrogate, TrainingSet
from leapwise.surrogates.outputs import Forward
from leapwise.warmup.gradient_check import check_density, check_start
from leapwise.warmup.start import find_start

MOST_AUDITS = 3
#: Rounds to learn a basin in that had been abandoned.
N_RECALLED = 6
N_SCOUTS = 4
#: Searches of the prior for other modes, each after one that has found some.
MOST_SEARCHES = 3
#: How often walkers begin anew where the potential has fallen far below what was found.
MOST_RESTARTS = 3
#: How often what has been learnt is tried at moves of the draws.
MOST_PILOTS = 2
#: Rounds without a move after which the frame is made narrower, and after which nothing more is hoped for.
FEW_IDLE, MOST_IDLE = 3, 12
#: How much more must be known than at the last training to train again before a look beyond.
NEWS = 1.05
#: How often tails are learnt that draws would not see; and sd(D) that is good enough after that, or so many times as
#: large as before.
MOST_COVERED, GOOD_ENOUGH, WORSE = 3, 0.1, 1.5
#: A look along tails that costs more than this share of the draws is not taken.
COVER_SHARE = 0.02
#: What is told while it goes on: phase, sd(D), acceptance.
Tell = Callable[[str, float, float], None]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the adaptation leaves behind.

    Attributes
    ----------
    kernel : SurrogateTransition
        Frozen, for the draws.
    exact : HMC or None
        For steps with exact gradients beside it, if the target has a gradient.
    state : State
        Where the chains are.
    playing : str
        Which candidate the surrogate is.
    sd, usual, surprises : float
        sd(D), median of D, and share of surprises at the end.
    training : TrainingSet
        All exact evaluations.
    history : ndarray of shape (rounds, 2)
        Evaluations and sd(D), round by round.
    walled : bool
        Whether the last look beyond the frontier found mass that the surrogate had walled off.
    tail : HiddenTail or None
        The tail of a parameter that draws of the kernel would see least of, if there is one they see too little of.
    """

    kernel: SurrogateTransition
    exact: HMC | None
    state: State
    playing: str
    sd: float
    usual: float
    surprises: float
    training: TrainingSet
    history: np.ndarray
    walled: bool = False
    tail: HiddenTail | None = None


def run_adaptation(
    record: EvaluationRecord,
    streams: Streams,
    init: ArrayLike | None,
    plan: Plan,
    recipe: Surrogate | None = None,
    tell: Tell = lambda phase, sd, accepted: None,
) -> Outcome:
    """Learn the posterior well enough to draw from it at one exact value each."""
    evaluator, target = record.evaluator, record.evaluator.target
    by_outputs = target.emulates_outputs
    candidates = Candidates(target, record, streams.shared, recipe)
    tell("find", np.inf, np.nan)
    # A limit is not to be spent on gradients that only a fall-back would need.
    with_gradient = record.gradient or (target.has_gradient and not plan.is_limited)
    evaluator.limit = record.begun + plan.most_to_find
    first = find_start(evaluator, streams, init, with_gradient)
    if by_outputs:
        _check_densities(target, record)  # type: ignore[arg-type]
    if with_gradient:
        check_start(evaluator, first)
    if by_outputs:
        start = find_by_outputs(record, candidates, first)
    else:
        if (
            init is None
            and not plan.is_limited
            and not record.gradient
            and record.settings.stages.more_starts
        ):
            first = with_more_starts(record, first)
        start = spread_out(find(record, first, streams.shared), streams.n_chains)
    return learn_from(start, candidates, streams, plan.after(len(record)), tell)


def learn_from(
    start: Start,
    candidates: Candidates,
    streams: Streams,
    plan: Plan,
    tell: Tell = lambda phase, sd, accepted: None,
) -> Outcome:
    """Learn the posterior from where the typical set was found."""
    record, rng = candidates.record, streams.shared
    evaluator, stages, by_outputs = (
        record.evaluator,
        record.settings.stages,
        record.evaluator.target.emulates_outputs,
    )
    explorer = _explorer(record, candidates, start, rng)
    history: list[tuple[int, float]] = []
    homes = Homes.of(explorer)
    audits, walled, restarts = 0, "", 0
    searches = 0
    if (by_outputs or record.gradient) and not plan.is_limited:
        wanted = stages.search_outputs if by_outputs else stages.search_density
        searches = MOST_SEARCHES if wanted else 0
    evaluator.limit = record.begun + plan.most_in_all
    try:
        while True:
            if _explore(explorer, plan, history, tell) and restarts < MOST_RESTARTS and not by_outputs:
                restarts += 1
                explorer = _begin_again(explorer)
                homes, plan = Homes.of(explorer), plan.longer(len(record))
                continue
            if searches:
                tell("look elsewhere", candidates.sd, explorer.accepted[-1])
                if _is_elsewhere(explorer, homes, plan.n_draws, again=searches < MOST_SEARCHES):
                    searches -= 1
                    explorer.rounds(N_RECALLED)
                    plan = plan.longer(len(record))
                    continue
                searches = 0
            if homes.call_back(explorer):
                explorer.rounds(N_RECALLED)
            walled = _is_walled(explorer, plan.n_draws, tell) if plan.reserve else ""
            if not walled:
                audits += 1
                enough = audits > MOST_AUDITS or not _is_surprised(explorer, plan, tell)
            else:
                plan, enough = plan.longer(len(record)), False
            if enough or len(record) + plan.reserve >= plan.most:
                longer = plan.while_poor(len(record), candidates.sd)
                if longer is None or not stages.patience:
                    break
                plan = longer
            else:
                plan = plan.longer(len(record))
    except BudgetError:
        pass
    if candidates.n_known < len(record):
        explorer.learn()
    homes.call_back(explorer)
    outcome = replace(_outcome(explorer, streams, history), walled=bool(walled))
    if record.gradient and not plan.is_limited and stages.trial_moves:
        outcome = _piloted(explorer, streams, history, outcome, plan.n_draws, tell)
    if outcome.sd < USELESS and _is_worth_covering(plan) and stages.tails:
        room = 0 if plan.is_limited else evaluator.counts.n_exact + plan.reserve
        evaluator.limit = max(record.begun + plan.most_in_all, room)
        tell("look along tails", outcome.sd, explorer.accepted[-1])
        # Tails are looked at once more, and said of by themselves.
        outcome = _covered(
            explorer, streams, history, replace(outcome, walled=outcome.walled and walled != "tail")
        )
    evaluator.observer = None
    return outcome


def _is_elsewhere(explorer: Explorer, homes: Homes, n_draws: int, *, again: bool) -> bool:
    """Look for mass far from what is known, and return whether there is any."""
    if explorer.record.gradient:
        return look_far(explorer, homes, n_draws)
    return look_elsewhere(explorer, homes, n_draws, again=again)


def _begin_again(explorer: Explorer) -> Explorer:
    """Find the typical set anew from the lowest position: there is no mass where the walkers began."""
    record, candidates, rng = explorer.record, explorer.candidates, explorer.rng
    known = record.training()
    lowest = np.repeat(int(known.potential.argmin()), explorer.walkers.cold.sum())
    gradient = None if known.gradient is None else known.gradient[lowest]
    start = find(record, State(known.position[lowest], known.potential[lowest], gradient), rng)
    record.trials.clear()  # they tell of surrogates that had never seen the mass
    return _explorer(record, candidates, start, rng)


def _check_densities(target: Forward, record: EvaluationRecord) -> None:
    """Raise if likelihood or prior has a gradient that is not its own: trajectories on an emulator would be lost."""
    seen = [each.outputs for each in record.everything if each.outputs is not None]
    if seen:
        check_density("likelihood", target.likelihood, np.concatenate(seen))
    position = np.concatenate([each.position for each in record.everything])
    check_density("prior", target.prior, target.transform.to_parameters(position))


def _explorer(
    record: EvaluationRecord, candidates: Candidates, start: Start, rng: np.random.Generator
) -> Explorer:
    """Train for the first time, and set the walkers out."""
    if not candidates.can_train:
        raise BudgetError("nothing but one position is anywhere near the typical set")
    candidates.train(start.frame)
    _, known = record.recall(start.position)
    if not known.all():  # those that were put on the line have not been evaluated yet
        record.evaluate(start.position[~known])
    row, known = record.recall(start.position)
    potential = np.where(known, record.potentials[row], np.inf)
    stages, n_warm = record.settings.stages, record.settings.explore.n_tempered
    walkers = first_walkers(start.position, potential, rng, n_warm if stages.tempered else 0)
    return Explorer(record, candidates, start.frame, walkers, rng, record.lowest)


def _explore(explorer: Explorer, plan: Plan, history: list[tuple[int, float]], tell: Tell) -> bool:
    """Walk and scout until the plan has enough; return whether the potential fell far below where walkers began."""
    record, candidates = explorer.record, explorer.candidates
    idle, fallen = 0, explorer.lowest - typical_height(explorer.frame.mean.size)
    while idle < MOST_IDLE:
        if record.lowest < fallen and record.settings.stages.restart:
            return True
        known = len(record)
        explorer.round()
        places = scouts(explorer, N_SCOUTS)
        if len(places):
            record.try_out(places, "scout", candidates.predict(places))
        idle = idle + 1 if len(record) == known else 0  # on a surrogate that lets nobody move
        if idle == FEW_IDLE and record.settings.stages.narrow_frame:
            explorer.narrow_frame()
        history.append((len(record), candidates.sd))
        tell("explore", candidates.sd, explorer.accepted[-1])
        playing = candidates.playing
        if plan.enough(len(record), candidates.sd, record.surprises(playing), record.rate(playing)):
            break
    return False


def _is_walled(explorer: Explorer, n_draws: int, tell: Tell) -> str:
    """Look beyond the frontier; learn from what was found there if it calls for more, and return what that was."""
    record, candidates = explorer.record, explorer.candidates
    if not record.settings.stages.beyond:
        return ""
    tell("look beyond", candidates.sd, explorer.accepted[-1])
    if len(record) > NEWS * candidates.n_known:
        explorer.learn()
    walled = look_beyond(explorer, n_draws)
    if walled:
        explorer.learn()
    elif not record.evaluator.target.emulates_outputs:
        # What has stood the test is what draws: another training might build other walls. Emulated outputs
        # hardly do, and are truer for what was seen beyond the frontier.
        candidates.n_known = len(record)
    return walled


def _is_surprised(explorer: Explorer, plan: Plan, tell: Tell) -> bool:
    """Follow exact trajectories, if there are gradients, learn from them, and return whether they saw surprises."""
    record, candidates = explorer.record, explorer.candidates
    if not record.evaluator.target.has_gradient or plan.budget is not None:
        return False
    if not record.settings.stages.exact_trajectories:
        return False
    tell("audit", candidates.sd, explorer.accepted[-1])
    surprised = audit(explorer) > plan.few_surprises
    if surprised or (_is_worth_covering(plan) and record.settings.stages.tails):
        explorer.learn()
    else:  # nobody would try what another training makes of it
        candidates.n_known = len(record)
    return surprised


def _is_worth_covering(plan: Plan) -> bool:
    """Whether there are draws enough for a last look along tails."""
    return plan.reserve > 0 and n_tail_probes() <= COVER_SHARE * plan.n_draws


def _piloted(
    explorer: Explorer,
    streams: Streams,
    history: list[tuple[int, float]],
    outcome: Outcome,
    n_draws: int,
    tell: Tell,
) -> Outcome:
    """Try a surrogate at moves of the draws; one that fails there learns on before it is tried for the last time."""
    explorer.record.evaluator.limit = None  # that was for learning, and nothing is limited here
    for again in range(MOST_PILOTS):
        if not outcome.sd < USELESS:  # known to be of no use
            break
        tell("pilot", outcome.sd, explorer.accepted[-1])
        found = tried(explorer.record, outcome, explorer.rng, n_draws)
        if found is outcome or again == MOST_PILOTS - 1:
            return found
        explorer.rounds(N_RECALLED)
        walled = _is_walled(explorer, n_draws, tell)
        outcome = replace(_outcome(explorer, streams, history), walled=walled == "wall")
    return outcome


def _covered(
    explorer: Explorer, streams: Streams, history: list[tuple[int, float]], outcome: Outcome
) -> Outcome:
    """Look along the tails of what would draw; learn those that it hides, as far as that makes it no worse elsewhere.

    It is what draws that is looked at, since the last training, after the last look beyond, may have cut a tail.
    """
    try:
        for again in range(MOST_COVERED):
            tail, places, potential = hidden_in_tails(explorer, outcome.kernel)
            outcome = replace(outcome, tail=tail)
            if tail is None or again == MOST_COVERED - 1:
                break
            send(explorer, places, potential)
            explorer.learn()
            explorer.rounds(N_RECALLED)
            found = _outcome(explorer, streams, history)
            if not found.sd < max(GOOD_ENOUGH, WORSE * outcome.sd):
                break
            outcome = replace(found, walled=outcome.walled, tail=tail)
    except BudgetError:
        pass
    return outcome


def _outcome(explorer: Explorer, streams: Streams, history: list[tuple[int, float]]) -> Outcome:
    candidates, record, walkers = explorer.candidates, explorer.record, explorer.walkers
    surrogate, frame, rng = candidates.surrogate, explorer.frame, explorer.rng
    jumps = find_jumps(surrogate, frame, places(explorer), rng)
    if jumps is not None and not record.settings.stages.jumps:
        jumps = None
    kernel = freeze(surrogate, frame, walkers.position, candidates.sd, rng, jumps, record.settings)
    exact = None
    if record.evaluator.target.has_gradient:
        exact = exact_kernel(explorer)
    cold = np.flatnonzero(walkers.cold)
    rows = cold[np.arange(streams.n_chains) % len(cold)]
    return Outcome(
        kernel=kernel,
        exact=exact,
        state=record.state(walkers.position[rows], walkers.potential[rows]),
        playing=candidates.playing,
        sd=candidates.sd,
        usual=middle(record.discrepancies(candidates.playing)),
        surprises=record.surprises(candidates.playing),
        training=record.training(with_aside=True),
        history=np.array(history).reshape(-1, 2),
    )
