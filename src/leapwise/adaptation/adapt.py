"""The adaptation: train a surrogate well enough to draw at one exact value each.

Its stages, in order:

1. *Initialise* (`initialise`): descend to the typical set, measure its width.
2. *Explore* (`explore`): chains move on the surrogate. The exact evaluation at the end of each move first tests the
   surrogate and is then training data. *Select* (`selection`): train several kinds of surrogate, use the one that
   predicts best. This goes on until more learning would not pay, or the plan's limit is reached (`stopping`). If the
   potential falls far below where the chains began, the typical set is found anew (`_Learning._restart`).
3. *Search* for other modes (`modes`), and put chains back into known modes that none of them reaches.
4. *Cover* (`coverage`, `tails`): evaluate beyond the outermost draws, where the surrogate may miss mass.
5. *Stop* (`stopping`): back to 2 if a new mode or missed mass was found, or if the surrogate is poor but gets better,
   within the limits of the plan.
6. *Tune* (`tune`): choose the kernel of the draws, with jumps where there are several modes or bent ones.
7. *Moves* (`explore.sd_at_moves`): by values, test the surrogate at a few moves of this kernel, and learn from them.
8. *Tails* (`tails.hidden_in_tails`): look along the tails of single parameters once more, with draws of this kernel on
   the surrogate, if that costs a small share of the draws.

All of this is warm-up: none of its positions is kept as a draw. It leaves a frozen kernel, the states of the chains,
and measures of how good the surrogate is. From these measures `leapwise.run.automatic`, which called the adaptation,
has `trust.judge` compute the share of exact steps that the draws need beside the surrogate.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.coverage import look_beyond
from leapwise.adaptation.explore import (
    Explorer,
    ExploringChains,
    exact_kernel,
    sd_at_moves,
    uncertain_points,
)
from leapwise.adaptation.hierarchies import find_by_regular_outputs, start_at_prior
from leapwise.adaptation.initialise import Start, find, find_by_outputs
from leapwise.adaptation.modes import KnownModes, find_jumps, search_around, search_prior, separate_places
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings
from leapwise.adaptation.stopping import AdaptationPlan
from leapwise.adaptation.tails import HiddenTail, hidden_in_tails, n_tail_probes
from leapwise.adaptation.tune import tune_kernel
from leapwise.errors import BudgetError
from leapwise.kernels import HMC, State, Streams, SurrogateTransition
from leapwise.kernels.coordinates import coordinates_of
from leapwise.surrogates import Surrogate, TrainingSet
from leapwise.surrogates.joint import JointPotential
from leapwise.surrogates.outputs import Forward
from leapwise.surrogates.quality import median_discrepancy
from leapwise.targets import AnyTarget
from leapwise.targets.forward import PriorAndLikelihood
from leapwise.warmup.gradient_check import check_density, check_start
from leapwise.warmup.start import find_start

#: Progress: the stage, sd(D), and the acceptance of the last round.
Report = Callable[[str, float, float], None]


@dataclass(frozen=True, eq=False)
class AdaptationResult:
    """What the adaptation leaves for the draws.

    Attributes
    ----------
    kernel : SurrogateTransition
        Frozen.
    exact : HMC or None
        For exact steps beside it, if the target has a gradient.
    state : State
        Where the chains are.
    surrogate_kind : str
        Which candidate the surrogate is.
    sd, usual, surprises : float
        sd(D), median of D, and share of surprises at the end.
    training : TrainingSet
        All exact evaluations.
    history : ndarray of shape (rounds, 2)
        Evaluations and sd(D), round by round.
    missed_mass : bool
        Whether the last look beyond the outermost draws found mass that the surrogate misses.
    tail : HiddenTail or None
        The tail that the draws would cut most, if any.
    settings : AdaptationSettings
    """

    kernel: SurrogateTransition
    exact: HMC | None
    state: State
    surrogate_kind: str
    sd: float
    usual: float
    surprises: float
    training: TrainingSet
    history: np.ndarray
    missed_mass: bool = False
    tail: HiddenTail | None = None
    settings: AdaptationSettings = DEFAULT

    @property
    def is_useful(self) -> bool:
        """Whether the surrogate is good enough to draw with."""
        return self.sd < self.settings.stopping.useless


def run_adaptation(
    record: EvaluationRecord,
    streams: Streams,
    init: ArrayLike | None,
    plan: AdaptationPlan,
    recipe: Surrogate | None = None,
    report: Report = lambda stage, sd, accepted: None,
) -> AdaptationResult:
    """Find the posterior from the starts of the chains, and learn it."""
    candidates = Candidates(record.evaluator.target, record, streams.shared, recipe)
    report("initialise", np.inf, np.nan)
    most = record.n_before + plan.most_to_initialise
    with record.evaluator.limited_to(most if plan.is_limited else None):
        # With a limit, nothing is spent on gradients that only a fall-back would need.
        has_gradient = record.evaluator.target.has_gradient
        with_gradient = record.gradient or (has_gradient and not plan.is_limited)
        first = find_start(record.evaluator, streams, init, with_gradient)
    record.start = first
    if not plan.is_limited:  # starts that were drawn again leave as much for the descents
        most += max(len(record) - streams.n_chains, 0)
    with record.evaluator.limited_to(most):
        start = _initialise(record, candidates, streams, first, plan)
        # Inside, since the first training may evaluate starts as well; learning then has a limit of its own.
        n_far = 0
        if not (record.gradient or record.evaluator.target.emulates_outputs):
            # A descent by values takes dim + 1 of them for each gradient, and passes where there is no mass.
            n_far = len(record) - len(record.training().select())
        return learn_from(start, candidates, streams, plan.after_initialise(len(record), n_far), report)


def _initialise(
    record: EvaluationRecord,
    candidates: Candidates,
    streams: Streams,
    first: State,
    plan: AdaptationPlan,
) -> Start:
    """Find the typical set from the first states; check the gradients that are given on the way."""
    evaluator, target = record.evaluator, record.evaluator.target
    if target.emulates_outputs:
        _check_densities(target, record)  # type: ignore[arg-type]
    if first.gradient is not None:
        check_start(evaluator, first)
    if _is_hierarchical(target):
        if isinstance(getattr(target, "joint", None), PriorAndLikelihood):
            return find_by_regular_outputs(record, first, streams.shared)
        return start_at_prior(record, first, streams.shared)
    if target.emulates_outputs:
        return find_by_outputs(record, candidates, first)
    return find(record, first, streams.shared, is_limited=plan.is_limited)


def _is_hierarchical(target: AnyTarget) -> bool:
    """Whether the prior of a variable names another one: then descents would end where the spread of a group is 0."""
    return bool(getattr(target.prior, "is_hierarchical", False))


def _check_densities(target: Forward, record: EvaluationRecord) -> None:
    """Raise if the gradient of likelihood or prior is wrong: trajectories on an emulator would be useless."""
    known = [each for each in record.all_evaluations if each.outputs is not None]
    outputs = np.concatenate([each.outputs for each in known]) if known else None
    if target.joint is not None:
        if outputs is not None:
            position = np.concatenate([each.position for each in known])
            density = _OfBoth(JointPotential(target.joint, target.transform), position.shape[1])
            check_density("likelihood and prior", density, np.concatenate([position, outputs], axis=1))
        return
    if outputs is not None:
        check_density("likelihood", target.likelihood, outputs)
    position = np.concatenate([each.position for each in record.all_evaluations])
    check_density("prior", target.prior, target.transform.to_parameters(position))


@dataclass(frozen=True)
class _OfBoth:
    """A joint log-density as a function of one vector, positions followed by outputs."""

    potentials: JointPotential
    dim: int

    def log_density(self, points: np.ndarray) -> np.ndarray:
        return -self.potentials.value(points[:, : self.dim], points[:, self.dim :])

    def gradient(self, points: np.ndarray) -> np.ndarray:
        by_position, by_outputs = self.potentials.gradient(points[:, : self.dim], points[:, self.dim :])
        return -np.concatenate([by_position, by_outputs], axis=1)


def learn_from(
    start: Start,
    candidates: Candidates,
    streams: Streams,
    plan: AdaptationPlan,
    report: Report = lambda stage, sd, accepted: None,
) -> AdaptationResult:
    """Learn the posterior from where the typical set was found."""
    return _Learning(start, candidates, streams, plan, report).run()


class _Learning:
    """The stages after initialising, which share the explorer, the plan and the known modes."""

    def __init__(
        self, start: Start, candidates: Candidates, streams: Streams, plan: AdaptationPlan, report: Report
    ) -> None:
        self.record, self.candidates = candidates.record, candidates
        self.streams, self._report = streams, report
        self.stages, self.limits = self.record.settings.stages, self.record.settings.stopping
        self.plan = replace(plan, settings=self.limits)
        self.emulates_outputs = self.record.evaluator.target.emulates_outputs
        self.by_values = not (self.record.gradient or self.emulates_outputs)
        #: Whether the density is bounded: otherwise descents and profiles end where a group has no spread.
        self.is_bounded = not _is_hierarchical(self.record.evaluator.target)
        self.explorer = self._explorer(start)
        self.modes = KnownModes.of(self.explorer)
        self.history: list[tuple[int, float]] = []
        self.missed = ""  # what the last look beyond the draws found

    def run(self) -> AdaptationResult:
        """Go through the stages until the plan says stop, then tune the kernel of the draws."""
        record, evaluator = self.record, self.record.evaluator
        with evaluator.limited_to(record.n_before + self.plan.most_in_all):
            with suppress(BudgetError):  # what has been learned by then is used
                self._learn()
            if self.candidates.n_known < len(record):
                self.explorer.train()
            self.modes.restore(self.explorer)
            result = replace(self._result(), missed_mass=bool(self.missed))
        if self.by_values and not self.plan.is_limited and self.stages.moves:
            with evaluator.limited_to(None):  # the limit was for learning, and the user has set none
                result = self._with_moves(result)
        if result.is_useful and self._is_worth_tails() and self.stages.tails and self.is_bounded:
            room = 0 if self.plan.is_limited else evaluator.counts.n_exact + self.plan.reserve
            self.report("tails", result.sd)
            # Tails are looked at once more, and reported by themselves.
            missed_mass = result.missed_mass and self.missed != "tail"
            with evaluator.limited_to(max(record.n_before + self.plan.most_in_all, room)):
                result = self._with_tails(replace(result, missed_mass=missed_mass))
        evaluator.observe(None)
        return result

    def _learn(self) -> None:
        """Explore, search for modes and look beyond the draws, until the plan has enough."""
        n_restarts, n_searches = 0, self._most_searches()
        while True:
            fell = self._explore()
            if (
                fell
                and n_restarts < self.limits.max_restarts
                and self.is_bounded
                and not self.emulates_outputs
            ):
                n_restarts += 1
                self._restart()
                continue
            if n_searches:
                self.report("search for modes")
                if self._found_modes(again=n_searches < self.record.settings.modes.max_searches):
                    n_searches -= 1
                    self.explorer.rounds(self.record.settings.modes.n_rounds)
                    self.plan = self.plan.extended(len(self.record))
                    continue
                n_searches = 0
            if self.modes.restore(self.explorer):
                self.explorer.rounds(self.record.settings.modes.n_rounds)
            self.missed = self._look_beyond() if self.plan.reserve else ""
            if self.missed:
                self.plan = self.plan.extended(len(self.record))
                if len(self.record) + self.plan.reserve < self.plan.most:
                    continue
            # Without a gradient nothing but this surrogate can make the draws.
            insist = not self.record.evaluator.target.has_gradient
            longer = self.plan.extended_while_poor(len(self.record), self.candidates.sd, insist=insist)
            if longer is None or not self.stages.patience:
                return
            self.plan = longer

    def report(self, stage: str, sd: float | None = None) -> None:
        """Report progress."""
        self._report(stage, self.candidates.sd if sd is None else sd, self.explorer.accepted[-1])

    def _explorer(self, start: Start) -> Explorer:
        """Train for the first time, and begin the exploring chains."""
        record, rng = self.record, self.streams.shared
        if not self.candidates.can_train:
            raise BudgetError("there is only one position near the typical set")
        self.candidates.train(start.frame)
        _, known = record.look_up(start.position)
        if not known.all():  # those that were put on the line to the centre have not been evaluated yet
            record.evaluate(start.position[~known])
        found, known = record.look_up(start.position)
        potential = np.where(known, found.potential, np.inf)
        chains = ExploringChains.begin(found.position, potential, rng, record.settings)
        # By values a draw of the frame may have been lower than where any chain is: they are not in the typical set.
        lowest = float(chains.potential.min()) if self.by_values else record.lowest
        return Explorer(record, self.candidates, start.frame, chains, rng, lowest)

    def _explore(self) -> bool:
        """Explore until the plan has enough; return whether the potential fell far below where chains began."""
        record, candidates, explorer = self.record, self.candidates, self.explorer
        idle, fallen = 0, explorer.lowest - record.settings.heights.training(explorer.frame.mean.size)
        while idle < self.limits.max_idle:
            if record.lowest < fallen and self.stages.restart and self.is_bounded:
                return True
            known = len(record)
            explorer.round()
            points = uncertain_points(explorer)
            if len(points):
                record.compare(points, "uncertain", candidates.predict(points))
            idle = idle + 1 if len(record) == known else 0  # no chain moves on this surrogate
            if idle == self.limits.few_idle and self.stages.narrow_frame:
                explorer.narrow_frame()
            self.history.append((len(record), candidates.sd))
            self.report("explore")
            chosen = candidates.chosen
            surprises, rate = record.surprises(chosen), record.rate(chosen)
            if self.plan.is_enough(len(record), candidates.sd, surprises, rate) and self._is_tested():
                break
        return False

    def _is_tested(self) -> bool:
        """Return whether the surrogate in use has been tested often enough to stop, or evaluations run out.

        One that was just trained may look good at a few positions by luck.
        """
        if not self.by_values or self.plan.is_limited:
            return True
        n_tests = len(self.record.discrepancies(self.candidates.chosen))
        return n_tests >= self.limits.fewest_tests or len(self.record) >= self.plan.most - self.plan.reserve

    def _restart(self) -> None:
        """Find the typical set anew from the lowest position: there is no mass where the chains began."""
        record, explorer = self.record, self.explorer
        known = record.training()
        lowest = np.repeat(int(known.potential.argmin()), explorer.chains.cold.sum())
        gradient = None if known.gradient is None else known.gradient[lowest]
        state = State(known.position[lowest], known.potential[lowest], gradient)
        start = find(record, state, explorer.rng, is_limited=self.plan.is_limited)
        record.comparisons.clear()  # they describe surrogates that had no data where the mass is
        self.explorer = self._explorer(start)
        self.modes, self.plan = KnownModes.of(self.explorer), self.plan.extended(len(record))

    def _most_searches(self) -> int:
        """Return how many searches for other modes are allowed."""
        if self.plan.is_limited or not (self.emulates_outputs or self.record.gradient) or not self.is_bounded:
            return 0
        wanted = self.stages.search_outputs if self.emulates_outputs else self.stages.search_density
        return self.record.settings.modes.max_searches if wanted else 0

    def _found_modes(self, *, again: bool) -> bool:
        """Search for other modes, and return whether there are any."""
        if self.record.gradient:
            return search_around(self.explorer, self.modes, self.plan.n_draws)
        return search_prior(self.explorer, self.modes, self.plan.n_draws, again=again)

    def _look_beyond(self) -> str:
        """Look beyond the outermost draws; train on mass that was missed, and return what that was."""
        if not self.stages.beyond:
            return ""
        self.report("look beyond")
        if len(self.record) > self.limits.news * self.candidates.n_known:
            self.explorer.train()
        missed = look_beyond(self.explorer, self.plan.n_draws)
        if missed:
            self.explorer.train()
        elif not self.emulates_outputs:
            # The surrogate that passed is kept: another training might miss other mass. Emulators of outputs hardly
            # do, and get better by what was evaluated beyond the draws.
            self.candidates.n_known = len(self.record)
        return missed

    def _is_worth_tails(self) -> bool:
        """Return whether there are enough draws for a last look along tails."""
        tails = self.record.settings.tails
        return self.plan.reserve > 0 and n_tail_probes(tails) <= tails.share * self.plan.n_draws

    def _with_moves(self, result: AdaptationResult) -> AdaptationResult:
        """Test the surrogate at moves of the draws; where it is far worse than in warm-up, learn from them.

        Exploring chains make shorter moves. So they may not reach a region far from all data where the surrogate is too
        low, but the draws would be proposed there again and again. Returns the result that did best.
        """
        best, best_sd, settings = result, np.inf, self.record.settings.trust
        for _ in range(self.limits.max_tests):
            self.report("moves", result.sd)
            found = sd_at_moves(self.record, result, self.explorer.rng, self.plan.n_draws)
            if np.isnan(found):
                break
            if found < best_sd:
                best, best_sd = result, found
            if found < max(settings.good, self.limits.clearly_worse * result.sd):
                break
            self.explorer.rounds(self.record.settings.modes.n_rounds)
            result = replace(self._result(), missed_mass=result.missed_mass)
        return best

    def _with_tails(self, result: AdaptationResult) -> AdaptationResult:
        """Look along the tails that the final kernel would draw; learn hidden ones if that makes nothing else worse.

        It is the final kernel that is looked at, since the last training may have cut a tail.
        """
        tails = self.record.settings.tails
        try:
            for turn in range(tails.max_turns):
                tail, places, potential = hidden_in_tails(self.explorer, result.kernel)
                result = replace(result, tail=tail)
                if tail is None or turn == tails.max_turns - 1:
                    break
                self.explorer.send_tempered(places, potential)
                self.explorer.train()
                self.explorer.rounds(self.record.settings.modes.n_rounds)
                found = self._result()
                if not found.sd < max(tails.good_enough, tails.worse * result.sd):
                    break
                result = replace(found, missed_mass=result.missed_mass, tail=tail)
        except BudgetError:
            pass  # the last result stands
        return result

    def _result(self) -> AdaptationResult:
        """Tune the kernel of the draws for the surrogate as it is."""
        candidates, record, chains = self.candidates, self.record, self.explorer.chains
        surrogate, frame, rng = candidates.surrogate, self.explorer.frame, self.explorer.rng
        jumps = find_jumps(surrogate, frame, separate_places(self.explorer), rng, record.settings)
        if jumps is not None and not self.stages.jumps:
            jumps = None
        kernel = tune_kernel(
            surrogate,
            frame,
            chains.position,
            candidates.sd,
            rng,
            jumps,
            record.settings,
            coordinates_of(record.evaluator.target),
        )
        exact = exact_kernel(self.explorer) if record.evaluator.target.has_gradient else None
        cold = np.flatnonzero(chains.cold)
        rows = cold[np.arange(self.streams.n_chains) % len(cold)]
        return AdaptationResult(
            kernel=kernel,
            exact=exact,
            state=record.state(chains.position[rows], chains.potential[rows]),
            surrogate_kind=candidates.chosen,
            sd=candidates.sd,
            usual=median_discrepancy(record.discrepancies(candidates.chosen)),
            surprises=record.surprises(candidates.chosen),
            training=record.training(with_untrained=True),
            history=np.array(self.history).reshape(-1, 2),
            settings=record.settings,
        )
