"""One run: what has been learnt and drawn so far, whatever becomes of the rest."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

import numpy as np

from leapwise.adaptation import EvaluationRecord
from leapwise.execution import Counts, Engine, Evaluation, Evaluator
from leapwise.kernels import HMC, Kernel, State, Streams
from leapwise.kernels.trajectory import ExactForce
from leapwise.results import Cost, Record, Run, SurrogateReport, TargetReport
from leapwise.run.automatic import check_unchanged, plan_for, prepare, try_again
from leapwise.run.production import ChainGroup, draw
from leapwise.run.progress import Progress
from leapwise.run.recorder import Block, Recorder, beside, in_parameters
from leapwise.run.request import DEFAULT_TUNE, Method, Request, describe, needs_gradient, versions
from leapwise.run.reuse import starts
from leapwise.run.store import Book, one_row
from leapwise.surrogates import TrainingSet
from leapwise.warmup import Auto, KernelTuner, Training, Warmup, find_start, tuner_for, warmup_for
from leapwise.warmup.schedule import NoWarmup

#: Steps of the warm-up of a fall-back after which a surrogate is trained on what it has seen: at ends of its windows.
TRY_AGAIN = (130, 450)


class Job:
    """Warms up, draws, and hands over what there is.

    Parameters
    ----------
    request : Request
    evaluator : Evaluator
        Of the shared program: warm-up, and all draws if the chains move together.
    engine : Engine, optional
        Evaluates elsewhere: each chain then goes its own way when draws are made.
    book : Book, optional
        The ledger side of the run.
    known : list of Evaluation, optional
        What is known from earlier runs.
    """

    def __init__(
        self,
        request: Request,
        evaluator: Evaluator,
        engine: Engine | None = None,
        book: Book | None = None,
        known: list[Evaluation] | None = None,
    ) -> None:
        self.known = known or []
        self.request, self.evaluator, self.engine, self.book = request, evaluator, engine, book
        self.streams = Streams(request.seed, request.chains)
        self.method = request.method
        self.n_tune = _steps(request.method, request.tune)
        self.state: State | None = None
        self.kernel: Kernel | None = None
        self.report: SurrogateReport | None = None
        self.training: TrainingSet | None = None
        self.groups: list[ChainGroup] = []
        self._warmup: Warmup | None = None
        self._seen: EvaluationRecord | None = None
        self._recorder: Recorder | None = None
        self._warmed: Record | None = None
        self._n_metrics = 0
        self._started = time.perf_counter()

    @property
    def apart(self) -> bool:
        """Whether each chain goes its own way: as the ledger says, or if there are workers to go to."""
        if self.book is not None:
            return self.book.apart
        return self.engine is not None

    def recheck(self) -> None:
        """See that the target is still the one that the ledger is of, even if it holds all that is asked for."""
        if self.book is not None:
            self.book.recheck(self.evaluator)

    def warm_up(self, progress: Progress) -> None:
        """Learn whatever the method needs; leave a kernel and the state of the chains."""
        if self.book is not None and self._take_up():
            return
        evaluator, streams, request = self.evaluator, self.streams, self.request
        if isinstance(self.method, Auto):
            budget = request.max_evaluations
            n_draws = self._planned * streams.n_chains
            plan = plan_for(request.target, n_draws, request.tune, budget, streams.n_chains)
            self._seen = EvaluationRecord.of(evaluator, self.known, self.method.settings)
            init = request.init
            if init is None and self.known:
                init = starts(self.known, request.chains, request.target, request.seed)
            found = prepare(self.method, self._seen, streams, init, plan, progress)
            self.state, self.report, self.training = found.state, found.report, found.training
            self.kernel = found.kernel
            if self.kernel is None:
                self.method, self.n_tune = HMC(), DEFAULT_TUNE  # the surrogate has not earned any trust
                evaluator.observer = self._seen.heard.append
                self.state = ExactForce(evaluator).begin(self.state)[0]
        else:
            self.state = find_start(evaluator, streams, request.init, needs_gradient(self.method))
        if self.kernel is None:
            self._tune(progress)
        evaluator.observer = None
        self._close_warmup()

    def _tune(self, progress: Progress) -> None:
        """Tune a kernel by steps of its own."""
        evaluator, streams = self.evaluator, self.streams
        assert self.state is not None and not isinstance(self.method, Auto)
        self._warmup = warmup_for(self.method, self.n_tune, evaluator, streams, self.state)
        if self._warmup.start is not None:
            self.state = self._warmup.start
        self._n_metrics = self._warmup.n_metrics
        progress.start("warm-up" if self.report is None else "fall-back", self.n_tune)
        self._recorder = Recorder(streams.n_chains, self.n_tune, self.request.target.dim)
        for step in range(self.n_tune):
            if evaluator.journal is not None:
                evaluator.journal.step = step
            before = self.state
            self.state, info = self._warmup.kernel.step(streams, before, evaluator)
            self._warmup.learn(before, self.state, info)
            self._recorder.add(self.state, info)
            progress.advance(evaluator.counts.n_exact, float(info.acceptance_rate.mean()))
            if self._seen is not None and step + 1 in TRY_AGAIN and self._hand_over(progress):
                self.n_tune = step + 1
                return
        if isinstance(self.method, Training):
            progress.start("training", 1)
        self.kernel = self._warmup.freeze()
        self._n_metrics = self._warmup.n_metrics
        if (training := getattr(self._warmup, "training", None)) is not None:
            self.training = training

    def _hand_over(self, progress: Progress) -> bool:
        """Learn from what a fall-back has seen so far; return whether a surrogate draws after all."""
        assert isinstance(self.request.method, Auto) and self._seen is not None and self.state is not None
        metric: Any = self._warmup.kernel.metric  # type: ignore[union-attr]
        n_draws = self._planned * self.streams.n_chains
        found = try_again(
            self.request.method, self._seen, self.streams, metric, self.state, n_draws, progress
        )
        if found is None:
            return False
        self.method = self.request.method
        self.kernel, self.state, self.report, self.training = (
            found.kernel,
            found.state,
            found.report,
            found.training,
        )
        return True

    def draw(self, progress: Progress) -> None:
        """Make the draws to keep."""
        assert self.kernel is not None and self.state is not None
        progress.start("draws", self.request.draws)
        self.groups = self._groups()
        draw(self.groups, self.engine if self.apart else None, progress)
        check_unchanged(self.report, self.kernel)

    def _groups(self) -> list[ChainGroup]:
        """Return the groups of production, each taken up where it was kept."""
        assert self.kernel is not None and self.state is not None
        evaluator, streams, book = self.evaluator, self.streams, self.book
        learner = tuner_for(self.method, self.kernel, evaluator, streams)
        keeper = None if book is None or not book.can_keep or _learns(learner) else book.keeper
        if not self.apart or _learns(learner):
            if evaluator.journal is not None:
                evaluator.journal.phase = "draws"
            groups = [ChainGroup(0, learner, streams, self.state, evaluator, self.request.draws, keeper)]
            groups[0].begun = evaluator.counts.copy()
        else:
            groups = []
            for chain in range(streams.n_chains):
                own = Evaluator(
                    self.request.target,
                    evaluator.on_failure,
                    evaluator.retries,
                    limit=self._share(),
                    engine=self.engine,
                    journal=None if book is None else book.journal(chain + 1, chain),
                    threads=evaluator.threads,
                )
                own.trust_shapes()
                alone = streams.for_chain(chain), one_row(self.state, chain)
                groups.append(ChainGroup(chain + 1, learner, *alone, own, self.request.draws, keeper))
        for group in groups:
            if keeper is not None and (kept := keeper.kept(group.lane)) is not None:
                group.restore(kept)
        return groups

    def _share(self) -> int | None:
        """Return what one chain may spend of the budget: how fast the others are must not matter."""
        if self.evaluator.limit is None:
            return None
        return (self.evaluator.limit - self.evaluator.counts.n_exact) // self.streams.n_chains

    @property
    def _planned(self) -> int:
        """Draws that warm-up reckons with: those first asked for, were they more or fewer since."""
        return self.request.draws if self.book is None else self.book.planned_draws

    def _take_up(self) -> bool:
        """Take the end of warm-up from the ledger, if it was kept there."""
        assert self.book is not None
        parts = self.book.warmed()
        if parts is None:
            return False
        self.kernel, self.state, self.streams = parts["kernel"], parts["state"], parts["streams"]
        self.report, self.training, self._warmed = parts["report"], parts["training"], parts["record"]
        self.n_tune = parts["n_tune"]
        self.evaluator.restore(parts["counts"], parts["failures"], parts["proven"], parts["index"])
        if parts["fell_back"]:
            self.method = HMC()
        return True

    def _close_warmup(self) -> None:
        """Keep what warm-up has come to."""
        self._warmed = self._warmup_record()
        if self.book is None or self.evaluator.journal is None:
            return
        self.book.keep_warmed(
            {
                "kernel": self.kernel,
                "state": self.state,
                "streams": self.streams,
                "report": self.report,
                "training": self.training,
                "record": self._warmed,
                "counts": self.evaluator.counts,
                "n_tune": self.n_tune,
                "fell_back": self.method is not self.request.method,
                "index": self.evaluator.journal.index,
                "failures": list(self.evaluator.failures),
                "proven": self.evaluator.proven,
            }
        )

    def result(self) -> Run:
        """Return everything there is by now."""
        request = self.request
        settings: dict[str, Any] = {
            "on_failure": self.evaluator.on_failure,
            "retries": int(self.evaluator.retries),
        }
        learner = self.groups[0].learner if self.groups else None
        last = self.kernel if learner is None else learner.kernel
        if request.max_evaluations is not None:
            settings = settings | {"max_evaluations": int(request.max_evaluations)}
        warmup = self._warmup_record() if self._warmed is None else self._warmed
        return Run(
            names=request.target.names,
            posterior=self._posterior(),
            warmup=warmup,
            settings={
                "tune": (self.n_tune or None) if request.tune is None else int(request.tune),
                **settings,
                **describe(request.method, last),
            },
            seed=request.seed,
            versions=versions(),
            complete=bool(self.groups) and all(each.is_full or each.budget_spent for each in self.groups),
            n_adaptive=0 if learner is None else learner.n_adaptive,
            kernel=last,
            training=self._trained_on(),
            surrogate=self.report,
            failures=self._failures(),
            target=TargetReport.of(request.target, self.training, *(each.state for each in self.groups)),
        )

    def _failures(self) -> np.ndarray:
        """Return parameters at which the target failed for good."""
        others = [each.evaluator.failures for each in self.groups if each.evaluator is not self.evaluator]
        found = [*self.evaluator.failures, *(row for rows in others for row in rows)]
        return np.array(found).reshape(-1, self.request.target.dim)

    def _posterior(self) -> Record:
        if not self.groups:
            return self._record(Recorder(self.request.chains, 0, self.request.target.dim).block(), Cost())
        spent = [each.spent for each in self.groups]
        total = {each.name: sum(getattr(one, each.name) for one in spent) for each in fields(Counts)}
        cost = Cost(seconds=max(each.total_seconds for each in self.groups), **total)
        if self.book is not None and (lazy := self.book.lazily(self.groups, cost)) is not None:
            return lazy
        return self._record(beside([each.block() for each in self.groups]), cost)

    def _warmup_record(self) -> Record:
        seconds = time.perf_counter() - self._started
        cost = Cost(n_metrics=self._n_metrics, seconds=seconds, **vars(self.evaluator.counts))
        recorder = self._recorder or Recorder(self.request.chains, 0, self.request.target.dim)
        return self._record(recorder.block(), cost)

    def _record(self, block: Block, cost: Cost) -> Record:
        """Return a block in the user's coordinates."""
        if "n_metrics" in block.stats:
            cost = cost + Cost(n_metrics=int(block.stats["n_metrics"].sum()))
        return Record(in_parameters(block.positions, self.request.target), block.stats, cost)

    def _trained_on(self) -> TrainingSet | None:
        """Return what the surrogate was trained on, or was to be."""
        if self.training is None and self._seen is not None and self._seen.heard:
            return self._seen.training()
        return self.training if self.training is not None else getattr(self._warmup, "training", None)


def _steps(method: Method, tune: int | None) -> int:
    """Return the steps of warm-up that are recorded: the adaptation makes none."""
    if isinstance(method, Auto):
        return 0
    return DEFAULT_TUNE if tune is None else int(tune)


def _learns(learner: KernelTuner) -> bool:
    """Whether something still changes while draws are made, from all chains together."""
    return not isinstance(learner, NoWarmup)
