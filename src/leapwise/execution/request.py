"""One request for rows on an executor, from the first sending to the last answer.

What can happen to a row that was sent, and what is done about it:

* it was evaluated, well or with an error of the model: that is its answer;
* its worker does not have the target: it is sent again, with the target;
* its worker died: not the row's fault, as a rule. It is sent again, and after `_TOGETHER` deaths alone; after `_ALONE`
  more it is answered by `WorkerError`, for then it was this row;
* it was lost on the way, or the worker could not make the target: it is sent again after a pause that grows. After
  `_MOST_LOST` times `WorkerError` is raised, since no row is to blame.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from leapwise.errors import EngineClosed, WorkerError
from leapwise.execution.answer import Answer
from leapwise.execution.attempt import Outcome
from leapwise.execution.gate import Gate
from leapwise.execution.pool import broke
from leapwise.execution.worker import Reply

if TYPE_CHECKING:
    from leapwise.execution.on_executor import OnExecutor

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
