"""Rows evaluated on any executor: threads, processes, Dask, MPI.

Lets many tasks be under way at once, or one alone.

When a worker dies, every row under way is lost, and nothing says which of them killed it. A row that keeps being among
the lost is tried alone: if the worker dies then too, it was this row.

One request for rows on an executor, from the first sending to the last answer.

What can happen to a row that was sent, and what is done about it:

* it was evaluated, well or with an error of the model: that is its answer;
* its worker does not have the target: it is sent again, with the target;
* its worker died: not the row's fault, as a rule. It is sent again, and after `_TOGETHER` deaths alone; after `_ALONE`
  more it is answered by `WorkerError`, for then it was this row;
* it was lost on the way, or the worker could not make the target: it is sent again after a pause that grows. After
  `_MOST_LOST` times `WorkerError` is raised, since no row is to blame.

Decides which rows carry the target with them.

A row that meets a worker without the target is sent again with it, but an executor sends it where it likes: with two
workers that take turns, each row would ask one and be served by the other for ever. So when it has been asked for, the
target also goes with the next few rows, twice as many each time, until many rows without it are answered in a row.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from leapwise.checks import require_whole
from leapwise.errors import EngineClosed, InputError, MissingExtraError, WorkerError
from leapwise.execution.engine import (
    Answer,
    BlasThreads,
    Engine,
    InProcess,
    Outcome,
    attempt,
    require_timeout,
)
from leapwise.execution.pool import Pool, broke
from leapwise.execution.worker import Reply, evaluate, pack_target
from leapwise.targets.target import AnyTarget


class Gate:
    """Counts what is under way; whoever wants to be alone waits until it is nothing, and new ones wait meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._loners = 0
        self._taken = False
        self._closed = False

    def enter(self) -> None:
        """Begin a task beside others."""
        with self._changed:
            while self._loners and not self._closed:
                self._changed.wait()
            self._require_open()
            self._inside += 1

    def leave(self) -> None:
        """End a task that had entered."""
        with self._changed:
            self._inside -= 1
            if self._loners:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the gate until nothing else is under way, and while the caller's task is."""
        with self._changed:
            self._loners += 1
            try:
                while (self._inside or self._taken) and not self._closed:
                    self._changed.wait()
                self._require_open()
            except BaseException:
                self._loners -= 1
                self._changed.notify_all()
                raise
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._loners -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Turn everyone away who waits or comes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine was closed before this evaluation could begin")


_TOGETHER, _ALONE, _MOST_LOST = 3, 5, 10
# Dask tries elsewhere by itself; its KilledWorker says that this many workers died.
_DASK_DEATHS = 4
_FIRST_PAUSE, _LONGEST_PAUSE, _LOOK_EVERY = 0.05, 2.0, 5.0

Inbox: TypeAlias = "SimpleQueue[tuple[Sending, Future[Any]] | None]"


@dataclass(eq=False)
class Row:
    """One row on its way, and what has happened to it so far."""

    number: int
    parameters: np.ndarray
    needs_target: bool = False
    carries_target: bool = False
    n_deaths: int = 0
    n_lost: int = 0
    trouble: BaseException | None = None


class Sending:
    """A row in the hands of the executor; it comes back once, by its future or because it is given up."""

    def __init__(self, row: Row, inbox: Inbox, gate: Gate | None) -> None:
        self.row = row
        self.generation = -1
        self.future: Future[Any] | None = None
        self._inbox, self._gate = inbox, gate
        self._first = threading.Lock()

    def come_back(self, future: Future[Any]) -> None:
        """Tell the thread that waits; the second time does nothing."""
        if self._first.acquire(blocking=False):
            if self._gate is not None:
                self._gate.leave()
            self._inbox.put((self, future))


class Request:
    """The rows of one call of `OnExecutor.answers`, used by one thread; `wake` and `cancel` may come from others."""

    def __init__(self, engine: OnExecutor, parameters: np.ndarray, gradient: bool) -> None:
        self._engine = engine
        self._gradient = gradient
        self._rows = [Row(i, parameters[i : i + 1].copy()) for i in range(len(parameters))]
        self._inbox: Inbox = SimpleQueue()
        self._under_way: set[Sending] = set()

    def answers(self) -> Iterator[Answer]:
        """Send the rows and yield an answer for each."""
        todo, suspects = deque(self._rows), deque[Row]()
        # Where one death loses every row under way, only as many are that the workers stay busy.
        workers = self._engine.pool.n_breakable
        most = len(todo) if workers is None else 2 * workers
        while todo or self._under_way:
            while todo and len(self._under_way) < most:
                self._send(todo.popleft())
            row, answer = self._judge(*self._next())
            if answer is not None:
                yield answer
            elif row.n_deaths < _TOGETHER:
                todo.appendleft(row)
            else:
                suspects.append(row)
        for row in suspects:
            yield self._try_alone(row)

    def wake(self) -> None:
        """Make the thread that waits for an answer raise `EngineClosed`."""
        self._inbox.put(None)

    def cancel(self) -> None:
        """Cancel what has not begun."""
        for sending in list(self._under_way):
            if sending.future is not None:
                with suppress(Exception):  # a Dask client that is closed cannot even cancel
                    sending.future.cancel()

    def _try_alone(self, row: Row) -> Answer:
        row.n_deaths = 0
        with self._engine.gate.alone():
            while row.n_deaths < _ALONE:
                self._send(row, alone=True)
                _, answer = self._judge(*self._next())
                if answer is not None:
                    return answer
        error = WorkerError(
            f"the worker died each time, also when it had nothing else to do (at last {_words(row.trouble)}); "
            "look for a crash, or for too little memory, at these parameters"
        )
        error.__cause__ = row.trouble
        return Answer(np.array([row.number]), None, error, 0.0)

    def _send(self, row: Row, *, alone: bool = False) -> None:
        """Hand a row to the executor, which may have to be made again first."""
        pool, gate = self._engine.pool, None if alone else self._engine.gate
        sending = Sending(row, self._inbox, gate)
        while sending.future is None:
            if gate is not None:
                gate.enter()
            generation = pool.generation
            try:
                sending.generation, sending.future = self._engine.submit(row, self._gradient)
            except BaseException as error:
                if gate is not None:
                    gate.leave()
                if not isinstance(error, Exception):
                    raise
                self._engine.require_open()
                if broke(error) or pool.can_be_remade or pool.is_deaf():
                    pool.renew(generation, error)
                self._lose(row, error)
        self._under_way.add(sending)
        sending.future.add_done_callback(sending.come_back)

    def _next(self) -> tuple[Sending, Future[Any]]:
        """Wait for whatever comes back next."""
        while True:
            try:
                found = self._inbox.get(timeout=_LOOK_EVERY)
            except Empty:
                if self._engine.pool.is_deaf():
                    self._give_up()
                continue
            if found is None:
                raise EngineClosed("the engine was closed while this evaluation was waited for")
            self._under_way.discard(found[0])
            # A future and its callback hold each other: Dask would compute again what is still held when a worker dies.
            found[0].future = None
            return found

    def _give_up(self) -> None:
        """Take back rows that the executor will never answer, as if it had broken."""
        for sending in self._under_way:
            broken: Future[Any] = Future()
            broken.set_exception(BrokenExecutor("it was closed while rows were under way"))
            sending.come_back(broken)

    def _judge(self, sending: Sending, future: Future[Any]) -> tuple[Row, Answer | None]:
        """Say what became of a row: its answer, or None if it must be sent again."""
        row = sending.row
        error = CancelledError("the task was cancelled") if future.cancelled() else future.exception()
        if error is not None:
            if broke(error):
                row.n_deaths, row.trouble = row.n_deaths + 1, error
                self._engine.require_open()
                self._engine.pool.renew(sending.generation, error)
            elif type(error).__name__ == "KilledWorker":
                row.n_deaths, row.trouble = row.n_deaths + _DASK_DEATHS, error
            else:
                self._lose(row, error)
            return row, None
        found: Outcome | Reply = future.result()
        if isinstance(found, Outcome):
            return row, Answer(np.array([row.number]), found.raw, found.error, found.seconds)
        if found.status == "DONE":
            if not row.carries_target:
                self._engine.courier.was_not_asked()
            problem = None if found.trouble is None else found.trouble.error()
            return row, Answer(np.array([row.number]), found.raw, problem, found.seconds)
        if found.status == "UNKNOWN":
            row.needs_target = True
            self._engine.courier.was_asked()
        elif found.status == "INTERRUPTED":
            row.n_deaths, row.trouble = row.n_deaths + 1, KeyboardInterrupt("the worker was interrupted")
        else:
            assert found.trouble is not None
            self._lose(row, found.trouble.error(), unbuilt=True)
        return row, None

    def _lose(self, row: Row, error: BaseException, *, unbuilt: bool = False) -> None:
        """Count a row that was lost on the way, and pause, since what lost it may pass."""
        row.n_lost += 2 if unbuilt else 1
        if row.n_lost >= _MOST_LOST:
            if unbuilt:
                raise WorkerError(
                    f"the workers cannot make the target ({_words(error)}); install there what it needs, "
                    "or build it there (Target.from_factory)"
                ) from error
            raise WorkerError(
                f"the executor lost the same row {row.n_lost} times (at last {_words(error)}); "
                "see that its workers are there, and have this version of leapwise"
            ) from error
        if self._engine.closing.wait(min(_FIRST_PAUSE * 2**row.n_lost, _LONGEST_PAUSE)):
            raise EngineClosed("the engine was closed while this evaluation was waited for")


def _words(error: BaseException | None) -> str:
    return "for reasons unknown" if error is None else f"{type(error).__name__}: {error}"


_MOST_EXTRA = 64
_MANY = 200  # answered without it: then every worker has it, as far as one can tell


class Courier:
    """Keeps count of how many of the next rows are to carry the target.

    Examples
    --------
    >>> courier = Courier()
    >>> courier.carries()
    False
    >>> courier.was_asked()
    >>> courier.carries(), courier.carries()
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._extra = 0
        self._next = 1
        self._calm = 0

    def carries(self) -> bool:
        """Whether the row about to be sent carries the target."""
        if not self._extra:
            return False
        with self._lock:
            carries = self._extra > 0
            self._extra -= carries
            return carries

    def was_asked(self) -> None:
        """Take note that a worker did not have the target."""
        with self._lock:
            self._calm = 0
            self._extra = max(self._extra, self._next)
            self._next = min(2 * self._next, _MOST_EXTRA)

    def was_not_asked(self) -> None:
        """Take note that a worker had it."""
        if self._next == 1:
            return
        with self._lock:
            self._calm += 1
            if self._calm >= _MANY:
                self._next = 1


class OnExecutor:
    """Evaluate rows on an executor, each alone, whichever worker takes it and in whatever order they complete.

    Worker processes are sent the target once each (by cloudpickle) and then only parameters; threads share it. A
    worker that dies costs its rows only time: they are sent again, on a new pool if the old one broke and there is a
    function to make one. A row whose workers die every time, at last when it is alone, is answered by `WorkerError`.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate. With threads, or several threads for each worker, it must be safe to call from several.
    executor : Executor or callable
        An executor, which is left running at the end; or a function without arguments that makes one. That one is
        shut down at the end, and made again if it breaks.
    timeout : float, optional
        Seconds that one row may take where it runs; waiting for a worker does not count. A call that is out of time
        is abandoned, not stopped: it goes on in a thread of its worker, beside later calls.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from leapwise import Target
    >>> with ThreadPoolExecutor(2) as executor:
    ...     engine = OnExecutor(Target(lambda x: -0.5 * x @ x, dim=2), executor)
    ...     sorted(int(answer.rows[0]) for answer in engine.answers(np.eye(2), gradient=False))
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
        self.gate, self.courier = Gate(), Courier()
        self.pool = Pool(executor)
        self.closing = threading.Event()
        self._serials = itertools.count()
        self._requests: set[Request] = set()
        self._lock = threading.Lock()
        try:
            self._parcel = None if self.pool.shares_memory else pack_target(target)
        except BaseException:
            self.pool.close()
            raise

    def answers(self, parameters: np.ndarray, *, gradient: bool) -> Iterator[Answer]:
        """Try each row once, alone, and yield the answers as they complete."""
        request = Request(self, parameters, gradient)
        with self._lock:
            self.require_open()
            self._requests.add(request)
        try:
            yield from request.answers()
        finally:
            with self._lock:
                self._requests.discard(request)
            request.cancel()

    def submit(self, row: Row, gradient: bool) -> tuple[int, Future[Any]]:
        """Hand one row to the executor; return its generation and the future."""
        if self._parcel is None:
            return self.pool.submit(attempt, self._target, row.parameters, gradient, self._timeout)
        row.carries_target = row.needs_target or self.courier.carries()
        payload = self._parcel.payload if row.carries_target else None
        return self.pool.submit(
            evaluate, self._parcel.key, payload, row.parameters, gradient, self._timeout, next(self._serials)
        )

    def require_open(self) -> None:
        """Raise `EngineClosed` after `close`."""
        if self.closing.is_set():
            raise EngineClosed("this engine has been closed; make a new one")

    def close(self) -> None:
        """End: cancel what has not begun, and the executor if it was made here; wake every thread that waits."""
        with self._lock:
            already = self.closing.is_set()
            self.closing.set()
            requests = list(self._requests)
        self.gate.close()
        for request in requests:
            request.wake()
            request.cancel()
        if not already:
            self.pool.close()


# Each worker has one core to itself; threads of its linear algebra would only fight over the others.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


#: Seconds between looks at whether the parent of a worker is alive.
_LOOK = 2.0


def engine_for(
    target: AnyTarget,
    *,
    executor: Executor | Callable[[], Executor] | None = None,
    cores: int | None = None,
    timeout: float | None = None,
    threads: BlasThreads | None = None,
) -> Engine:
    """Return the engine that evaluates here, on an executor, or on this machine's cores.

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
        Given back to linear algebra while a target is called here.

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


def on_cores(cores: int) -> Callable[[], Executor]:
    """Return a function that makes a pool of this many worker processes, by loky.

    In the workers linear algebra has one thread each, unless the environment says otherwise (``OMP_NUM_THREADS`` and
    its like).

    Examples
    --------
    >>> on_cores(0)
    Traceback (most recent call last):
    leapwise.errors.InputError: cores must be a whole number of at least 1, got 0
    """
    require_whole("cores", cores, 1)
    try:
        import_module("cloudpickle")
        loky = import_module("loky")
    except ImportError as error:
        raise MissingExtraError(
            f"cores= needs loky and cloudpickle, and {error.name} is not installed; "
            "pip install 'leapwise[parallel]'"
        ) from error
    environment = {name: os.environ.get(name, "1") for name in _THREADS}
    return partial(
        loky.ProcessPoolExecutor,
        int(cores),
        env=environment,
        initializer=_end_with,
        initargs=(os.getpid(),),
    )


def _end_with(parent: int) -> None:
    """See to it, in a worker, that it ends when the process that made it is gone, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="leapwise watch", daemon=True).start()
