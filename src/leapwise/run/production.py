"""The draws to keep: chain groups, and the loop that steps them.

A chain group is some chains that step together, with one evaluator and one sequence of the ledger. All chains of a run
make one group when they are evaluated in this process. On an executor each chain is a group of its own, in a thread of
its own, so that no chain waits for the evaluation of another.

A single lock serialises everything except calls of the model, so the threads never compute at the same time: they only
wait at the same time. What a chain does depends on its own random numbers and its own evaluations, hence on the seed
alone, not on which evaluation ends first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from leapwise.errors import BudgetError, EngineClosed
from leapwise.execution import Counts, Engine, Evaluator
from leapwise.kernels import Info, State, Streams
from leapwise.run.progress import Progress
from leapwise.run.recorder import Block, Recorder, joined
from leapwise.run.store import Checkpoint, RunStore
from leapwise.warmup import KernelTuner

#: Draws and the state of a group are written to disk after this many steps, or this many seconds, whichever comes
#: first. Ten seconds is what a killed run replays at most; a thousand steps keep a block to a few megabytes.
STEPS_PER_BLOCK, SECONDS_PER_BLOCK = 1000, 10.0
#: Seconds between checks for an interrupt while threads run. A person does not notice a fifth of a second.
POLL_SECONDS = 0.2


@dataclass(eq=False)
class ChainGroup:
    """Some chains that step together.

    Parameters
    ----------
    sequence : int
        Number of the group, and of its sequence of evaluations in the ledger.
    tuner : KernelTuner
        Holds the kernel; that of most methods no longer changes.
    streams, state, evaluator
        Of these chains alone.
    n_steps : int
        Number of steps to make.
    store : RunStore, optional
        Writes draws and states to disk; without it everything stays in memory.
    every : int
        Outputs of every so many draws are kept; 0 for none.

    Attributes
    ----------
    n_done : int
        Steps made, including those of earlier calls of a resumed run.
    seconds : float
        Time that the earlier calls took for them.
    counts_before : Counts
        The evaluator's counts before the first step.
    budget_spent : bool
        Whether the limit of exact evaluations ended the group.
    """

    sequence: int
    tuner: KernelTuner
    streams: Streams
    state: State
    evaluator: Evaluator
    n_steps: int
    store: RunStore | None = None
    every: int = 0
    n_done: int = 0
    seconds: float = 0.0
    counts_before: Counts = field(default_factory=Counts)
    budget_spent: bool = False

    def __post_init__(self) -> None:
        self._started: float | None = None
        self._last_saved = 0.0
        self._between_steps = True
        room = self.n_steps if self.store is None else min(self.n_steps, STEPS_PER_BLOCK)
        self._recorder = Recorder(len(self.state.position), room, self.state.position.shape[1], self.every)

    @property
    def counts(self) -> Counts:
        """What these steps have cost."""
        return self.evaluator.counts.since(self.counts_before)

    @property
    def total_seconds(self) -> float:
        """Time that these steps have taken, earlier calls included."""
        return self.seconds + (0.0 if self._started is None else time.perf_counter() - self._started)

    @property
    def is_done(self) -> bool:
        """Whether all steps are made, or no evaluation is left to make them with."""
        return self.n_done >= self.n_steps or self.budget_spent

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        self.state, self.streams = checkpoint.state, checkpoint.streams
        self.evaluator.restore(checkpoint.counts, checkpoint.failures, checkpoint.proven, checkpoint.index)
        self.n_done, self.seconds = checkpoint.n_done, checkpoint.seconds
        self._recorder.n_before = self.n_done

    def begin_step(self) -> None:
        """Prepare for a step; random numbers may be used from now on."""
        if self._started is None:
            self._started = self._last_saved = time.perf_counter()
        if self.evaluator.replay is not None:
            self.evaluator.replay.step = self.n_done
        if self.every:
            self.evaluator.recent = []
        self._between_steps = False

    def end_step(self, after: State, info: Info) -> None:
        """Record a step; save if it is time to."""
        self.tuner.learn(self.state, after, info)
        if self.evaluator.recent is not None:
            after = after.with_outputs(self.evaluator.recent, self.state)
        self.state = after
        self._recorder.add(after, info)
        self.n_done += 1
        self._between_steps = True
        if self._recorder.is_full or time.perf_counter() - self._last_saved > SECONDS_PER_BLOCK:
            self.save()

    def save(self) -> None:
        """Write the draws since the last time to disk, together with the state after them.

        Nothing is written in the middle of a step that did not end, because some of its random numbers are used up. A
        resumed run then replays the evaluations since the last time.
        """
        if self.store is None or not self._recorder.n_filled or not self._between_steps:
            return
        replay = self.evaluator.replay
        assert replay is not None
        checkpoint = Checkpoint(
            state=self.state,
            streams=self.streams,
            counts=self.evaluator.counts,
            n_done=self.n_done,
            index=replay.index,
            seconds=self.total_seconds,
            failures=self.evaluator.failures,
            proven=self.evaluator.proven,
        )
        first = self.n_done - self._recorder.n_filled
        self.store.save_draws(self.sequence, first, self._recorder.block(), checkpoint)
        self._recorder.empty()
        self._last_saved = time.perf_counter()

    @property
    def n_in_memory(self) -> int:
        """Steps that are not on disk."""
        return self._recorder.n_filled

    def block(self) -> Block:
        """Return all draws, at most as many as were asked for."""
        here = self._recorder.block()
        if self.store is not None:
            first = self.n_done - here.n_steps
            here = joined([*self.store.blocks(self.sequence, first), here])
        return here.first(self.n_steps, max(self.every, 1))


def draw(
    groups: list[ChainGroup],
    show: Callable[[Info], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Step all groups to their end in this thread.

    The groups take turns, one step each, so that all have equally many draws if the run ends early.

    Parameters
    ----------
    groups : list of ChainGroup
    show : callable
        Called after each step of a group; see `showing`.
    is_stopped : callable
        Asked after each step whether to stop early.
    """
    try:
        while unfinished := [group for group in groups if not group.is_done]:
            for group in unfinished:
                group.begin_step()
                try:
                    after, info = group.tuner.kernel.step(group.streams, group.state, group.evaluator)
                    group.end_step(after, info)
                except BudgetError:
                    group.budget_spent = True
                    continue
                show(info)
                if is_stopped():
                    return
    finally:
        for group in groups:
            group.save()


def draw_in_threads(groups: list[ChainGroup], engine: Engine, show: Callable[[Info], None]) -> None:
    """Step each group to its end in a thread of its own; the first error stops the others at their next step."""
    lock, stopped = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def run(group: ChainGroup) -> None:
        with lock, group.evaluator.releasing(lock):
            try:
                draw([group], show, stopped.is_set)
            except BaseException as error:
                if not (isinstance(error, EngineClosed) and stopped.is_set()):
                    errors.append(error)
                stopped.set()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_SECONDS)
    except BaseException:  # an interrupt: do not wait for evaluations that are still running
        stopped.set()
        engine.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if errors:
        raise errors[0]


def showing(progress: Progress, groups: list[ChainGroup]) -> Callable[[Info], None]:
    """Return a function that shows one step of one of the groups on the progress bar."""

    def show(info: Info) -> None:
        progress.add(
            1.0 / len(groups),
            sum(group.evaluator.counts.n_exact for group in groups),
            float(info.acceptance_rate.mean()),
            discrepancy=info.discrepancy,
        )

    return show
