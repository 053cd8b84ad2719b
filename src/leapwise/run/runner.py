"""One run: warm-up, then draws, then the result.

`Runner.run` makes these calls in order:

1. `RunStore.recheck`: with a ledger, one recorded position is evaluated again, to see that the target is the same.
2. `_warm_up` finds the kernel of the draws:

   - `_restore_warm_up`: if the ledger has the end of warm-up, it is taken from there, and the rest of 2 is left out;
   - `_adapt`: the default method `Auto` trains a surrogate (`automatic.plan_for`, `automatic.adapt`);
   - `find_start`: other methods find positions to start from;
   - `_tune`: if there is no kernel yet, one is tuned by its own steps. That is so for other methods, and for HMC where
     the surrogate is not trusted. Then `_retry` trains a surrogate on HMC's evaluations (`automatic.learn_from_hmc`);
   - `_save_warm_up` writes the end of warm-up to the ledger.
3. `_chain_groups` makes the chain groups of the draws, continued from their checkpoints if there are some.
4. `_draw` makes the draws, by `draw`, or by `draw_in_threads` on an executor (`production`). If a precision was asked
   for, it makes them in stages, and stops after the first stage that is precise enough (`PrecisionCheck`).
5. `require_frozen` checks that the surrogate has not changed since before the first draw.
6. `_result` collects everything. It is also called after an interrupt, which then returns what there is so far, and
   after an error, which has it as its attribute ``run``.
"""

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
from leapwise.results.estimating import PrecisionCheck
from leapwise.run.automatic import Adapted, adapt, learn_from_hmc, plan_for, require_frozen, warn_of_cost
from leapwise.run.ledgers import starts
from leapwise.run.production import ChainGroup, draw, draw_in_threads, showing
from leapwise.run.progress import Progress
from leapwise.run.recorder import Block, Recorder, beside, in_parameters, keep_every
from leapwise.run.request import DEFAULT_TUNE, Request, describe, needs_gradient, versions
from leapwise.run.store import RunStore, one_chain
from leapwise.surrogates import TrainingSet
from leapwise.targets import ForwardTarget
from leapwise.warmup import Auto, NoWarmup, Training, Warmup, find_start, tuner_for, warmup_for

#: After these steps of HMC's own warm-up a surrogate is trained on what HMC has seen. They are ends of its windows,
#: where the metric has just been learned.
RETRY_STEPS = (130, 450)
#: The last steps of HMC's warm-up, by which the cost of its draws is foreseen: they come after the last retry.
LAST_STEPS = 50


class Runner:
    """Runs a method on a target.

    Parameters
    ----------
    request : Request
    evaluator : Evaluator
        For warm-up, and for all draws if the chains step together.
    engine : Engine, optional
        Evaluates on an executor; each chain is then a chain group of its own.
    store : RunStore, optional
        The ledger of the run.
    known : list of Evaluation, optional
        Evaluations of earlier runs to learn from.
    keep_outputs : bool or int, optional
        As for `sample`.
    """

    def __init__(
        self,
        request: Request,
        evaluator: Evaluator,
        engine: Engine | None = None,
        store: RunStore | None = None,
        known: list[Evaluation] | None = None,
        keep_outputs: bool | int | None = None,
    ) -> None:
        self.request, self.evaluator, self.engine, self.store = request, evaluator, engine, store
        self.known, self.keep_outputs = known or [], keep_outputs
        #: Outputs of every so many draws are kept; 0 for none.
        self.every = 0
        self.streams = Streams(request.seed, request.chains)
        self.method = request.method
        #: Recorded steps of warm-up; the adaptation of a surrogate makes none.
        self.n_tune = 0 if isinstance(request.method, Auto) else request.n_tune
        self.state: State | None = None
        self.kernel: Kernel | None = None
        self.report: SurrogateReport | None = None
        self.training: TrainingSet | None = None
        self.groups: list[ChainGroup] = []
        self._warmup: Warmup | None = None
        self._adaptation: EvaluationRecord | None = None
        self._recorder: Recorder | None = None
        self._warmup_done: Record | None = None
        self._n_metrics = 0
        self._started = time.perf_counter()
        self.precision_check = None if request.precision is None else PrecisionCheck(request.precision)

    def run(self, progressbar: bool | None) -> Run:
        """Warm up and draw. An interrupt returns the draws so far; an error has them as its attribute ``run``."""
        error: Exception | None = None
        try:
            if self.store is not None:
                self.store.recheck(self.evaluator)
            with Progress(progressbar) as progress:
                self._warm_up(progress)
                progress.start("draws", self.request.draws)
                self.groups = self._chain_groups()
                self._draw(progress)
                require_frozen(self.report, self.kernel)
        except KeyboardInterrupt:
            pass
        except Exception as caught:  # of the target, of a metric: raised once the draws so far are saved
            error = caught
        result = self._result()
        if error is not None:
            error.run = result  # type: ignore[attr-defined]
            raise error
        return result

    @property
    def _is_apart(self) -> bool:
        """Whether each chain is a group of its own: as the ledger says, or if there is an executor."""
        return self.engine is not None if self.store is None else self.store.apart

    @property
    def _n_draws(self) -> int:
        """Draws of all chains that warm-up plans for: those of the call that began the run."""
        draws = self.request.planned_draws if self.store is None else self.store.planned_draws
        return draws * self.streams.n_chains

    # Warm-up ---------------------------------------------------------------------------------------------------------

    def _warm_up(self, progress: Progress) -> None:
        """Find a kernel and the state that the draws start from."""
        if self.store is not None and self._restore_warm_up(self.store):
            return
        if isinstance(self.method, Auto):
            self._adapt(self.method, progress)
        else:
            self.evaluator.recent = [] if self.request.target.emulates_outputs else None
            self.state = find_start(
                self.evaluator, self.streams, self.request.init, needs_gradient(self.method)
            )
        if self.kernel is None:
            self._tune(progress)
        assert self.state is not None
        if self._adaptation is not None:
            self.state = self.state.with_outputs(self._adaptation.all_evaluations)
        self.evaluator.observe(None)
        self.evaluator.recent = None
        self._warmup_done = self._warmup_record()
        if self.store is not None:
            self._save_warm_up(self.store)

    def _adapt(self, method: Auto, progress: Progress) -> None:
        """Train a surrogate; without trust in it, HMC with exact gradients is what `_tune` tunes."""
        request, streams, evaluator = self.request, self.streams, self.evaluator
        plan = plan_for(
            request.target, self._n_draws, request.tune, request.max_evaluations, streams.n_chains
        )
        self._adaptation = EvaluationRecord.of(evaluator, self.known, method.settings)
        init = request.init
        if init is None and self.known:
            init = starts(self.known, request.chains, request.target, request.seed)
        self._take(adapt(method, self._adaptation, streams, init, plan, progress))
        if self.kernel is None:
            assert self.state is not None
            self.method, self.n_tune = HMC(), DEFAULT_TUNE
            evaluator.observe(self._adaptation.evaluations.append)
            self.state = ExactForce(evaluator).begin(self.state)[0]

    def _take(self, found: Adapted) -> None:
        self.kernel, self.state = found.kernel, found.state
        self.report, self.training = found.report, found.training

    def _tune(self, progress: Progress) -> None:
        """Tune a kernel by steps of its own."""
        evaluator, streams = self.evaluator, self.streams
        assert self.state is not None and not isinstance(self.method, Auto)
        self._warmup = warmup_for(self.method, self.n_tune, evaluator, streams, self.state)
        if self._warmup.start is not None:
            self.state = self._warmup.start
        self._carry_outputs(None)
        self._n_metrics = self._warmup.n_metrics
        progress.start("warm-up" if self.report is None else "fall-back", self.n_tune)
        self._recorder = Recorder(streams.n_chains, self.n_tune, self.request.target.dim)
        n_before = 0
        for step in range(self.n_tune):
            if step == self.n_tune - LAST_STEPS:
                n_before = evaluator.counts.n_exact
            if evaluator.replay is not None:
                evaluator.replay.step = step
            before = self.state
            self.state, info = self._warmup.kernel.step(streams, before, evaluator)
            self._carry_outputs(before)
            self._warmup.learn(before, self.state, info)
            self._recorder.add(self.state, info)
            progress.advance(evaluator.counts.n_exact, float(info.acceptance_rate.mean()))
            if self._adaptation is not None and step + 1 in RETRY_STEPS and self._retry(progress):
                self.n_tune = step + 1
                return
        if isinstance(self.method, Training):
            progress.start("training", 1)
        if self._adaptation is not None:
            n_last = evaluator.counts.n_exact - n_before
            warn_of_cost(n_last / (LAST_STEPS * streams.n_chains), self._n_draws)
        self.kernel = self._warmup.freeze()
        self._n_metrics = self._warmup.n_metrics
        if (training := getattr(self._warmup, "training", None)) is not None:
            self.training = training

    def _carry_outputs(self, before: State | None) -> None:
        """Give the state the outputs of its positions, if there are any."""
        if self.evaluator.recent is not None and self.state is not None:
            self.state = self.state.with_outputs(self.evaluator.recent, before)
            self.evaluator.recent.clear()

    def _retry(self, progress: Progress) -> bool:
        """Train a surrogate on what HMC has seen so far; return whether it is trusted to draw after all."""
        method = self.request.method
        assert isinstance(method, Auto) and self._adaptation is not None and self.state is not None
        metric: Any = self._warmup.kernel.metric  # type: ignore[union-attr]
        found = learn_from_hmc(
            method, self._adaptation, self.streams, metric, self.state, self._n_draws, progress
        )
        if found is None:
            return False
        self.method = method
        self._take(found)
        return True

    def _restore_warm_up(self, store: RunStore) -> bool:
        """Take the end of warm-up from the ledger, if it is there."""
        parts = store.warm_up()
        if parts is None:
            return False
        self.kernel, self.state, self.streams = parts["kernel"], parts["state"], parts["streams"]
        self.report, self.training, self._warmup_done = parts["report"], parts["training"], parts["record"]
        self.n_tune = parts["n_tune"]
        self.evaluator.restore(parts["counts"], parts["failures"], parts["proven"], parts["index"])
        if parts["fell_back"]:
            self.method = HMC()
        return True

    def _save_warm_up(self, store: RunStore) -> None:
        """Write the end of warm-up to the ledger."""
        assert self.evaluator.replay is not None
        store.save_warm_up(
            {
                "kernel": self.kernel,
                "state": self.state,
                "streams": self.streams,
                "report": self.report,
                "training": self.training,
                "record": self._warmup_done,
                "counts": self.evaluator.counts,
                "n_tune": self.n_tune,
                "fell_back": self.method is not self.request.method,
                "index": self.evaluator.replay.index,
                "failures": list(self.evaluator.failures),
                "proven": self.evaluator.proven,
            }
        )

    # Draws -----------------------------------------------------------------------------------------------------------

    def _chain_groups(self) -> list[ChainGroup]:
        """Return the chain groups of the draws, continued from their checkpoints if there are some."""
        assert self.kernel is not None and self.state is not None
        evaluator, streams, store = self.evaluator, self.streams, self.store
        if self.state.outputs is not None:
            self.every = keep_every(self.keep_outputs, self._n_draws, self.state.outputs.shape[1])
            self.every = self.every if store is None else store.outputs_every(self.every)
        tuner = tuner_for(self.method, self.kernel, evaluator, streams)
        is_frozen = isinstance(tuner, NoWarmup)  # otherwise the kernel still learns, from all chains together
        if store is not None and not (store.saves_states and is_frozen):
            store = None
        if self._is_apart and is_frozen:
            groups = [
                ChainGroup(
                    chain + 1,
                    tuner,
                    streams.for_chain(chain),
                    one_chain(self.state, chain),
                    self._evaluator_of(chain),
                    self.request.draws,
                    store,
                    self.every,
                )
                for chain in range(streams.n_chains)
            ]
        else:
            if evaluator.replay is not None:
                evaluator.replay.phase = "draws"
            groups = [
                ChainGroup(0, tuner, streams, self.state, evaluator, self.request.draws, store, self.every)
            ]
            groups[0].counts_before = evaluator.counts.copy()
        for group in groups:
            if store is not None and (checkpoint := store.checkpoint(group.sequence)) is not None:
                group.restore(checkpoint)
        return groups

    def _evaluator_of(self, chain: int) -> Evaluator:
        """Return an evaluator for one chain, with an equal share of the budget: the speed of others must not matter."""
        shared, limit = self.evaluator, self.evaluator.limit
        own = Evaluator(
            self.request.target,
            shared.on_failure,
            shared.retries,
            limit=None if limit is None else (limit - shared.counts.n_exact) // self.streams.n_chains,
            engine=self.engine,
            replay=None if self.store is None else self.store.replay(chain + 1, chain),
            threads=shared.threads,
        )
        own.trust_shapes()
        return own

    def _draw(self, progress: Progress) -> None:
        """Make the draws: all, or stage by stage until they are precise enough.

        Stages begin and end at numbers of draws that depend on the draws alone, so a resumed run stops where an
        uninterrupted one does.
        """
        request, groups, check = self.request, self.groups, self.precision_check
        show = showing(progress, groups)
        n_steps = request.draws if check is None else check.first(request.chains, request.draws)
        while True:
            for group in groups:
                group.n_steps = n_steps
            if self._is_apart and self.engine is not None and len(groups) > 1:
                draw_in_threads(groups, self.engine, show)
            else:
                draw(groups, show)
            if check is None:
                return
            n_done = min(group.n_done for group in groups)
            if n_done:
                error = check(self._result())
                n_exact = sum(group.evaluator.counts.n_exact for group in groups)
                progress.note(n_exact, f"errors up to {error:.3f} sd")
            if check.is_reached or n_done < n_steps or n_steps == request.draws:
                break
            n_steps = min(check.following(n_steps), request.draws)
            check.forget()
        if check.is_reached and self.store is not None:
            self.store.save_end(min(group.n_done for group in groups))

    # Result ----------------------------------------------------------------------------------------------------------

    def _result(self) -> Run:
        """Return everything that there is so far."""
        request = self.request
        tuner = self.groups[0].tuner if self.groups else None
        kernel = self.kernel if tuner is None else tuner.kernel
        return Run(
            names=request.target.names,
            transform=request.target.transform,
            precision=None if self.precision_check is None else self.precision_check.result,
            known_sharpening=None if self.precision_check is None else self.precision_check.sharpening,
            variables=request.target.variables,
            coords=request.target.coords,
            model=request.target if isinstance(request.target, ForwardTarget) else None,
            posterior=self._draws_record(),
            warmup=self._warmup_record() if self._warmup_done is None else self._warmup_done,
            settings=self._settings(kernel),
            seed=request.seed,
            versions=versions(),
            complete=bool(self.groups) and all(group.is_done for group in self.groups),
            n_adaptive=0 if tuner is None else tuner.n_adaptive,
            kernel=kernel,
            training=self._training_set(),
            surrogate=self.report,
            failures=self._failures(),
            target=TargetReport.of(request.target, self.training, *(group.state for group in self.groups)),
        )

    def _settings(self, kernel: Kernel | None) -> dict[str, Any]:
        request, found = self.request, dict[str, Any]()
        found["tune"] = (self.n_tune or None) if request.tune is None else int(request.tune)
        found["on_failure"] = self.evaluator.on_failure
        found["retries"] = int(self.evaluator.retries)
        if request.max_evaluations is not None:
            found["max_evaluations"] = int(request.max_evaluations)
        if request.precision is not None:
            found["precision"] = float(request.precision)
        return found | describe(request.method, kernel)

    def _failures(self) -> np.ndarray:
        """Return parameters at which the target failed, all retries included."""
        evaluators = [self.evaluator]
        evaluators += [group.evaluator for group in self.groups if group.evaluator is not self.evaluator]
        rows = [row for each in evaluators for row in each.failures]
        return np.array(rows).reshape(-1, self.request.target.dim)

    def _draws_record(self) -> Record:
        if not self.groups:
            return self._record(Recorder(self.request.chains, 0, self.request.target.dim).block(), Cost())
        counts = [group.counts for group in self.groups]
        total = {each.name: sum(getattr(one, each.name) for one in counts) for each in fields(Counts)}
        in_parallel = self._is_apart or self.engine is not None
        cost = Cost(
            seconds=max(group.total_seconds for group in self.groups), in_parallel=in_parallel, **total
        )
        if self.store is not None and not any(group.n_in_memory for group in self.groups):
            n_steps = min(min(group.n_done, group.n_steps) for group in self.groups)
            sequences = [group.sequence for group in self.groups]
            lazy = self.store.lazy_record(sequences, self.request.chains, n_steps, cost, self.every)
            if lazy is not None:
                return lazy
        return self._record(beside([group.block() for group in self.groups], max(self.every, 1)), cost)

    def _warmup_record(self) -> Record:
        seconds = time.perf_counter() - self._started
        cost = Cost(
            n_metrics=self._n_metrics,
            seconds=seconds,
            in_parallel=self._is_apart or self.engine is not None,
            **vars(self.evaluator.counts),
        )
        recorder = self._recorder or Recorder(self.request.chains, 0, self.request.target.dim)
        return self._record(recorder.block(), cost)

    def _record(self, block: Block, cost: Cost) -> Record:
        """Return a block in the user's coordinates."""
        if "n_metrics" in block.stats:
            cost = cost + Cost(n_metrics=int(block.stats["n_metrics"].sum()))
        return Record(
            in_parameters(block.positions, self.request.target), block.stats, cost, block.outputs, self.every
        )

    def _training_set(self) -> TrainingSet | None:
        """Return the surrogate's training set, or what it would have been if warm-up did not end."""
        if self.training is not None:
            return self.training
        if self._adaptation is not None and self._adaptation.evaluations:
            return self._adaptation.training()
        return getattr(self._warmup, "training", None)
