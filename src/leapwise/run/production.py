"""Production: all groups to their end, one after another or each in a thread of its own.

Threads serve waiting only. One *baton* goes round: whoever computes has it, and lays it down while an evaluation is
under way elsewhere. So everything but the model runs as if there were one thread, and yet no chain waits for another's
evaluation. What a chain does depends on its own streams and answers alone, hence on the seed, not on who came first.

Keeps what each step of a phase leaves behind.

A group of production: some chains that move in step, what they have drawn, and where they can be taken up again.

All chains of a run make one group if they move together in this process. On an executor each is a group of its own,
so that none waits for another. A group has one lane of the ledger, and its evaluations are numbered in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from leapwise.errors import BudgetError, EngineClosed
from leapwise.execution import Counts, Engine, Evaluator
from leapwise.kernels import Info, State, Streams
from leapwise.run.progress import Progress
from leapwise.run.recorder import Block, Recorder, joined
from leapwise.run.store import Keeper, Kept
from leapwise.warmup import KernelTuner

#: Steps, or seconds, after which what a group has drawn goes to disk, with the state from which it can be taken up.
STEPS_A_BLOCK, SECONDS_A_BLOCK = 1000, 10.0


@dataclass(eq=False)
class ChainGroup:
    """Some chains on their way.

    Parameters
    ----------
    lane : int
        Its number, and that of its lane.
    learner : KernelTuner
        Moves the chains; most do not learn any more.
    streams, state, evaluator
        Of these chains alone.
    n_steps : int
        How many steps are asked for.
    keeper : Keeper, optional
        Keeps blocks and states on disk; without one all is kept in memory.

    Attributes
    ----------
    n_done : int
        Steps made, those of earlier runs included.
    seconds : float
        Time that earlier runs took for them.
    """

    lane: int
    learner: KernelTuner
    streams: Streams
    state: State
    evaluator: Evaluator
    n_steps: int
    keeper: Keeper | None = None
    n_done: int = 0
    seconds: float = 0.0
    begun: Counts = field(default_factory=Counts)
    budget_spent: bool = False

    def __post_init__(self) -> None:
        self._started: float | None = None
        self._last_kept = 0.0
        self._between_steps = True
        room = self.n_steps if self.keeper is None else min(self.n_steps, STEPS_A_BLOCK)
        self._recorder = Recorder(len(self.state.position), room, self.state.position.shape[1])

    @property
    def spent(self) -> Counts:
        """What these steps have cost."""
        return self.evaluator.counts.since(self.begun)

    @property
    def total_seconds(self) -> float:
        """Time that these steps have taken, in earlier runs and in this one."""
        return self.seconds + (0.0 if self._started is None else time.perf_counter() - self._started)

    @property
    def is_full(self) -> bool:
        """Whether all steps are made."""
        return self.n_done >= self.n_steps

    def restore(self, kept: Kept) -> None:
        """Go on from where a group was kept."""
        self.state, self.streams = kept.state, kept.streams
        self.evaluator.restore(kept.counts, kept.failures, kept.proven, kept.index)
        self.n_done, self.seconds = kept.n_done, kept.seconds

    def steps(self) -> Iterator[Info]:
        """Make the steps that are missing, one by one."""
        self._started = self._last_kept = time.perf_counter()
        while not self.is_full:
            if self.evaluator.journal is not None:
                self.evaluator.journal.step = self.n_done
            before, self._between_steps = self.state, False
            after, info = self.learner.kernel.step(self.streams, before, self.evaluator)
            self.learner.learn(before, after, info)
            self.state = after
            self._recorder.add(after, info)
            self.n_done += 1
            self._between_steps = True
            if self._recorder.is_full or time.perf_counter() - self._last_kept > SECONDS_A_BLOCK:
                self.keep()
            yield info

    def keep(self) -> None:
        """Put what was drawn since the last time on disk, and the state with it.

        In the middle of a step that did not end, random numbers are used up already: nothing is kept then, and the
        evaluations since the last time are replayed.
        """
        if self.keeper is None or not self._recorder.n_filled or not self._between_steps:
            return
        journal = self.evaluator.journal
        assert journal is not None
        first = self.n_done - self._recorder.n_filled
        kept = Kept(
            state=self.state,
            streams=self.streams,
            counts=self.evaluator.counts,
            n_done=self.n_done,
            index=journal.index,
            seconds=self.total_seconds,
            failures=self.evaluator.failures,
            proven=self.evaluator.proven,
        )
        self.keeper.keep(self.lane, first, self._recorder.block(), kept)
        self._recorder.empty()
        self._last_kept = time.perf_counter()

    @property
    def n_in_memory(self) -> int:
        """Steps that are not on disk."""
        return self._recorder.n_filled

    def block(self) -> Block:
        """Return all that was drawn, at most what was asked for."""
        here = self._recorder.block()
        if self.keeper is not None:
            first = self.n_done - here.n_steps
            here = joined([*self.keeper.blocks(self.lane, first), here])
        return Block(
            here.positions[:, : self.n_steps], {k: v[:, : self.n_steps] for k, v in here.stats.items()}
        )


#: Seconds between looks at whether somebody wants to stop.
_LOOK = 0.2


def draw(groups: list[ChainGroup], engine: Engine | None, progress: Progress) -> None:
    """Bring all groups to their end; side by side if there is an engine that evaluates elsewhere."""
    tell = _teller(groups, progress)
    try:
        if engine is None or len(groups) == 1:
            _in_turns(groups, tell)
        else:
            _side_by_side(groups, engine, tell)
    finally:
        for group in groups:
            group.keep()


def _in_turns(groups: list[ChainGroup], tell: Callable[[ChainGroup, Info], None]) -> None:
    """Make one step of each group after the other, so that all are as far when something ends the run."""
    under_way = {group: group.steps() for group in groups}
    while under_way:
        for group, steps in list(under_way.items()):
            try:
                tell(group, next(steps))
            except StopIteration:
                del under_way[group]
            except BudgetError:
                group.budget_spent = True
                del under_way[group]


def _advance(group: ChainGroup, tell: Callable[[ChainGroup, Info], None], stop: Callable[[], bool]) -> None:
    try:
        for info in group.steps():
            tell(group, info)
            if stop():
                return
    except BudgetError:
        group.budget_spent = True


def _side_by_side(groups: list[ChainGroup], engine: Engine, tell: Callable[[ChainGroup, Info], None]) -> None:
    """Run each group in a thread of its own; the first error stops the others at their next step."""
    baton, stopped = threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def run(group: ChainGroup) -> None:
        with baton, group.evaluator.releasing(baton):
            try:
                _advance(group, tell, stopped.is_set)
            except BaseException as error:
                if not (isinstance(error, EngineClosed) and stopped.is_set()):
                    failures.append(error)
                stopped.set()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK)
    except BaseException:  # an interrupt: nobody wants to wait for what is under way
        stopped.set()
        engine.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]


def _teller(groups: list[ChainGroup], progress: Progress) -> Callable[[ChainGroup, Info], None]:
    """Return what tells the display of one step of a group."""
    if len(groups) == 1:

        def together(group: ChainGroup, info: Info) -> None:
            progress.advance(
                group.evaluator.counts.n_exact,
                float(info.acceptance_rate.mean()),
                discrepancy=info.discrepancy,
            )

        return together

    def apart(group: ChainGroup, info: Info) -> None:
        progress.add(
            1.0 / len(groups),
            sum(each.evaluator.counts.n_exact for each in groups),
            float(info.acceptance_rate.mean()),
            discrepancy=info.discrepancy,
        )

    return apart
