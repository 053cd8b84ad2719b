"""The engine that evaluates rows on any executor: threads, processes, Dask, MPI.

Each row is a task of its own. What can happen to it, and what is done:

* it was evaluated, with values or an error of the model: that is its attempt;
* its worker does not have the target: it is sent again, with the target;
* its worker died: usually not the fault of the row. A death loses every row under way and nothing says which of them
  caused it. The row is sent again with others, and after `_DEATHS_TOGETHER` deaths alone, while nothing else is under
  way. After `_DEATHS_ALONE` more it was this row: its attempt is a `WorkerError`;
* it was lost on the way, or the worker could not build the target: it is sent again after a pause that grows. After
  `_MOST_LOST` times `WorkerError` is raised, since it is not the fault of a row.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from leapwise.errors import EngineClosed, InputError, WorkerError
from leapwise.execution.engine import Attempt, BlasThreads, Engine, InProcess, call_target, require_timeout
from leapwise.execution.workers import PackedTarget, Pool, Reply, evaluate_row, is_broken, on_cores
from leapwise.targets.target import AnyTarget

#: How many deaths of workers a row survives among others, then alone, and how often it may be lost on the way. Guesses:
#: enough for workers that are stopped or restarted by a cluster, few enough to end within minutes.
_DEATHS_TOGETHER, _DEATHS_ALONE, _MOST_LOST = 3, 5, 10

#: Deaths that one KilledWorker of Dask stands for: Dask retries by itself, on three more workers by default.
_DASK_DEATHS = 4

#: Seconds of the first and the longest pause before a lost row is sent again, and between checks for a closed Dask
#: client. Guesses: short beside an expensive evaluation, long enough for a connection to recover.
_FIRST_PAUSE, _LONGEST_PAUSE, _CHECK_EVERY = 0.05, 2.0, 5.0

#: The most rows that the target is attached to because one worker lacked it: more than most pools have workers.
_MOST_ATTACHED = 64
#: So many rows evaluated without it mean, as far as one can see, that every worker has the target. A guess.
_MANY_WITHOUT = 200

Inbox: TypeAlias = "SimpleQueue[tuple[SentRow, Future[Any]] | None]"


class OnExecutor:
    """Evaluate rows on an executor, each alone, whichever worker takes it and in whatever order they complete.

    Worker processes are sent the target once each (by cloudpickle) and then only parameters; threads share it. A
    worker that dies costs its rows only time: they are sent again, on a new pool if the old one broke and there is a
    function to make one. A row whose workers die every time, in the end when it is alone, has a `WorkerError`.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate. With threads, or several threads for each worker, it must be safe to call from several.
    executor : Executor or callable
        An executor, which is left running at the end; or a function without arguments that makes one. That one is
        shut down at the end, and replaced if it breaks.
    timeout : float, optional
        Seconds that one row may take where it runs; waiting for a worker does not count. A call that takes longer is
        abandoned, not stopped: it goes on in a thread of its worker, beside later calls.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from leapwise import Target
    >>> with ThreadPoolExecutor(2) as executor:
    ...     engine = OnExecutor(Target(lambda x: -0.5 * x @ x, dim=2), executor)
    ...     sorted(int(attempt.rows[0]) for attempt in engine.evaluate(np.eye(2), gradient=False))
    [0, 1]
    """

    def __init__(
        self,
        target: AnyTarget,
        executor: Executor | Callable[[], Executor],
        timeout: float | None = None,
    ) -> None:
        self._target = target
        self._timeout = require_timeout(timeout)
        self.tasks, self.attachment = TaskLock(), TargetAttachment()
        self.pool = Pool(executor)
        self.closing = threading.Event()
        self._serials = itertools.count()
        self._batches: set[RowsOnExecutor] = set()
        self._lock = threading.Lock()
        try:
            self._packed = None if self.pool.shares_memory else PackedTarget.of(target)
        except BaseException:
            self.pool.close()
            raise

    def evaluate(
        self, parameters: np.ndarray, *, gradient: bool, one_by_one: bool = True
    ) -> Iterator[Attempt]:
        """Try each row once, always one by one, and yield the attempts as they complete."""
        batch = RowsOnExecutor(self, parameters, gradient)
        with self._lock:
            self.require_open()
            self._batches.add(batch)
        try:
            yield from batch.attempts()
        finally:
            with self._lock:
                self._batches.discard(batch)
            batch.cancel()

    def submit(self, row: RowTask, gradient: bool) -> tuple[int, Future[Any]]:
        """Hand one row to the executor; return the executor's generation and the future."""
        if self._packed is None:
            return self.pool.submit(call_target, self._target, row.parameters, gradient, self._timeout)
        row.has_target = row.needs_target or self.attachment.take_one()
        payload = self._packed.payload if row.has_target else None
        return self.pool.submit(
            evaluate_row,
            self._packed.key,
            payload,
            row.parameters,
            gradient,
            self._timeout,
            next(self._serials),
        )

    def require_open(self) -> None:
        """Raise `EngineClosed` after `close`."""
        if self.closing.is_set():
            raise EngineClosed("this engine has been closed; make a new one")

    def close(self) -> None:
        """End: cancel what has not begun, shut down an executor made here, and wake every thread that waits."""
        with self._lock:
            already = self.closing.is_set()
            self.closing.set()
            batches = list(self._batches)
        self.tasks.close()
        for batch in batches:
            batch.wake()
            batch.cancel()
        if not already:
            self.pool.close()


class RowsOnExecutor:
    """The rows of one call of `OnExecutor.evaluate`, used by one thread; others may call `wake` and `cancel`."""

    def __init__(self, engine: OnExecutor, parameters: np.ndarray, gradient: bool) -> None:
        self._engine = engine
        self._gradient = gradient
        self._rows = [RowTask(i, parameters[i : i + 1].copy()) for i in range(len(parameters))]
        self._inbox: Inbox = SimpleQueue()
        self._under_way: set[SentRow] = set()

    def attempts(self) -> Iterator[Attempt]:
        """Send the rows and yield an attempt for each."""
        todo, suspects = deque(self._rows), deque[RowTask]()
        # Where one death loses every row under way, only so many are sent that the workers stay busy.
        workers = self._engine.pool.n_breakable
        most = len(todo) if workers is None else 2 * workers
        while todo or self._under_way:
            while todo and len(self._under_way) < most:
                self._send(todo.popleft())
            row, attempt = self._received(*self._next())
            if attempt is not None:
                yield attempt
            elif row.n_deaths < _DEATHS_TOGETHER:
                todo.appendleft(row)
            else:
                suspects.append(row)
        for row in suspects:
            yield self._try_alone(row)

    def wake(self) -> None:
        """Make the thread that waits for a row raise `EngineClosed`."""
        self._inbox.put(None)

    def cancel(self) -> None:
        """Cancel what has not begun."""
        for sent in list(self._under_way):
            if sent.future is not None:
                with suppress(Exception):  # a Dask client that is closed cannot even cancel
                    sent.future.cancel()

    def _try_alone(self, row: RowTask) -> Attempt:
        row.n_deaths = 0
        with self._engine.tasks.alone():
            while row.n_deaths < _DEATHS_ALONE:
                self._send(row, alone=True)
                _, attempt = self._received(*self._next())
                if attempt is not None:
                    return attempt
        error = WorkerError(
            f"the worker died each time, also when it had nothing else to do (the last time {_words(row.trouble)}); "
            "look for a crash, or for too little memory, at these parameters"
        )
        error.__cause__ = row.trouble
        return Attempt(np.array([row.number]), error=error)

    def _send(self, row: RowTask, *, alone: bool = False) -> None:
        """Hand a row to the executor, which may have to be replaced first."""
        pool, tasks = self._engine.pool, None if alone else self._engine.tasks
        sent = SentRow(row, self._inbox, tasks)
        while sent.future is None:
            if tasks is not None:
                tasks.begin()
            generation = pool.generation
            try:
                sent.generation, sent.future = self._engine.submit(row, self._gradient)
            except BaseException as error:
                if tasks is not None:
                    tasks.end()
                if not isinstance(error, Exception):
                    raise
                self._engine.require_open()
                if is_broken(error) or pool.can_be_replaced or pool.is_closed_by_dask():
                    pool.replace(generation, error)
                self._lost(row, error)
        self._under_way.add(sent)
        sent.future.add_done_callback(sent.come_back)

    def _next(self) -> tuple[SentRow, Future[Any]]:
        """Wait for the next row that comes back."""
        while True:
            try:
                found = self._inbox.get(timeout=_CHECK_EVERY)
            except Empty:
                if self._engine.pool.is_closed_by_dask():
                    self._take_back()
                continue
            if found is None:
                raise EngineClosed("the engine was closed during this evaluation")
            self._under_way.discard(found[0])
            # A future and its callback refer to each other. When a worker dies, Dask computes every result again
            # that is still referred to.
            found[0].future = None
            return found

    def _take_back(self) -> None:
        """Take back rows that the executor will never complete, as if it had broken."""
        for sent in self._under_way:
            broken: Future[Any] = Future()
            broken.set_exception(BrokenExecutor("it was closed while rows were under way"))
            sent.come_back(broken)

    def _received(self, sent: SentRow, future: Future[Any]) -> tuple[RowTask, Attempt | None]:
        """Return a row that came back, with its attempt, or None if it must be sent again."""
        row = sent.row
        error = CancelledError("the task was cancelled") if future.cancelled() else future.exception()
        if error is not None:
            if is_broken(error):
                row.n_deaths, row.trouble = row.n_deaths + 1, error
                self._engine.require_open()
                self._engine.pool.replace(sent.generation, error)
            elif type(error).__name__ == "KilledWorker":
                row.n_deaths, row.trouble = row.n_deaths + _DASK_DEATHS, error
            else:
                self._lost(row, error)
            return row, None
        found: Attempt | Reply = future.result()
        if isinstance(found, Attempt):
            found.rows = np.array([row.number])
            return row, found
        return row, self._replied(row, found)

    def _replied(self, row: RowTask, reply: Reply) -> Attempt | None:
        """Return the attempt that a worker process replied with, or None if the row must be sent again."""
        if reply.status == "DONE":
            if not row.has_target:
                self._engine.attachment.was_there()
            error = None if reply.error is None else reply.error.unpack()
            return Attempt(np.array([row.number]), reply.values, error, reply.seconds)
        if reply.status == "UNKNOWN":
            row.needs_target = True
            self._engine.attachment.was_missing()
        elif reply.status == "INTERRUPTED":
            row.n_deaths, row.trouble = row.n_deaths + 1, KeyboardInterrupt("the worker was interrupted")
        else:
            assert reply.error is not None
            self._lost(row, reply.error.unpack(), unbuilt=True)
        return None

    def _lost(self, row: RowTask, error: BaseException, *, unbuilt: bool = False) -> None:
        """Count a row that was lost on the way, and pause, since the cause may pass."""
        row.n_lost += 2 if unbuilt else 1
        if row.n_lost >= _MOST_LOST:
            if unbuilt:
                raise WorkerError(
                    f"the workers cannot build the target ({_words(error)}); install there what it needs, "
                    "or build it there (Target.from_factory)"
                ) from error
            raise WorkerError(
                f"the executor lost the same row {row.n_lost} times (the last time {_words(error)}); "
                "check that its workers are running, and have this version of leapwise"
            ) from error
        if self._engine.closing.wait(min(_FIRST_PAUSE * 2**row.n_lost, _LONGEST_PAUSE)):
            raise EngineClosed("the engine was closed during this evaluation")


@dataclass(eq=False)
class RowTask:
    """One row to be evaluated on the executor, and what has happened to it so far."""

    number: int
    parameters: np.ndarray
    needs_target: bool = False
    has_target: bool = False
    n_deaths: int = 0
    n_lost: int = 0
    trouble: BaseException | None = None


class SentRow:
    """A row that the executor has; it comes back once, by its future or because it is taken back."""

    def __init__(self, row: RowTask, inbox: Inbox, tasks: TaskLock | None) -> None:
        self.row = row
        self.generation = -1
        self.future: Future[Any] | None = None
        self._inbox, self._tasks = inbox, tasks
        self._first = threading.Lock()

    def come_back(self, future: Future[Any]) -> None:
        """Tell the thread that waits; the second time does nothing."""
        if self._first.acquire(blocking=False):
            if self._tasks is not None:
                self._tasks.end()
            self._inbox.put((self, future))


class TaskLock:
    """A lock that many tasks share, or that one task has alone; new tasks wait for those that want it alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_shared = 0
        self._n_wanting_alone = 0
        self._is_alone = False
        self._closed = False

    def begin(self) -> None:
        """Begin a task beside others."""
        with self._changed:
            while self._n_wanting_alone and not self._closed:
                self._changed.wait()
            self._require_open()
            self._n_shared += 1

    def end(self) -> None:
        """End a task that was begun."""
        with self._changed:
            self._n_shared -= 1
            if self._n_wanting_alone:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other task is under way, and let none begin as long as this context lasts."""
        with self._changed:
            self._n_wanting_alone += 1
            try:
                while (self._n_shared or self._is_alone) and not self._closed:
                    self._changed.wait()
                self._require_open()
            except BaseException:
                self._n_wanting_alone -= 1
                self._changed.notify_all()
                raise
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._n_wanting_alone -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Make every task that waits, or that comes later, raise `EngineClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine was closed before this evaluation could begin")


class TargetAttachment:
    """Counts to how many of the next rows the target is attached.

    A row that reaches a worker without the target is sent again with it, but the executor chooses the worker: with two
    workers that take turns, each row could ask one and be evaluated by the other for ever. So when a worker lacked the
    target, it is attached to the next few rows as well, twice as many each time, until many rows in sequence were
    evaluated without it.

    Examples
    --------
    >>> attachment = TargetAttachment()
    >>> attachment.take_one()
    False
    >>> attachment.was_missing()
    >>> attachment.take_one(), attachment.take_one()
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._next = 1
        self._n_without = 0

    def take_one(self) -> bool:
        """Return whether the target is attached to the row about to be sent."""
        if not self._left:
            return False
        with self._lock:
            attached = self._left > 0
            self._left -= attached
            return attached

    def was_missing(self) -> None:
        """Note that a worker did not have the target."""
        with self._lock:
            self._n_without = 0
            self._left = max(self._left, self._next)
            self._next = min(2 * self._next, _MOST_ATTACHED)

    def was_there(self) -> None:
        """Note that a worker had the target."""
        if self._next == 1:
            return
        with self._lock:
            self._n_without += 1
            if self._n_without >= _MANY_WITHOUT:
                self._next = 1


def engine_for(
    target: AnyTarget,
    *,
    executor: Executor | Callable[[], Executor] | None = None,
    cores: int | None = None,
    timeout: float | None = None,
    threads: BlasThreads | None = None,
) -> Engine:
    """Return the engine that evaluates in this process, on an executor, or on this machine's cores.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate.
    executor : Executor or callable, optional
        Where to evaluate; see `OnExecutor`.
    cores : int, optional
        How many worker processes on this machine to evaluate in; needs the extra ``parallel``.
    timeout : float, optional
        Seconds that one evaluation may take.
    threads : BlasThreads, optional
        Given back to linear algebra while the target is called in this process.

    Examples
    --------
    >>> from leapwise import Target
    >>> type(engine_for(Target(lambda x: -0.5 * x @ x, dim=2))).__name__
    'InProcess'
    """
    if executor is not None and cores is not None:
        raise InputError("executor= and cores= were both given; give one of them")
    if cores is not None:
        return OnExecutor(target, on_cores(cores), timeout)
    if executor is None:
        return InProcess(target, timeout, threads=threads)
    return OnExecutor(target, executor, timeout)


def _words(error: BaseException | None) -> str:
    return "for an unknown reason" if error is None else f"{type(error).__name__}: {error}"
