"""Rows evaluated on any executor: threads, processes, Dask, MPI."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from leapwise.errors import EngineClosed
from leapwise.execution.answer import Answer
from leapwise.execution.attempt import attempt, require_timeout
from leapwise.execution.courier import Courier
from leapwise.execution.gate import Gate
from leapwise.execution.parcel import pack_target
from leapwise.execution.pool import Pool
from leapwise.execution.request import Request, Row
from leapwise.execution.worker import evaluate
from leapwise.targets.target import AnyTarget


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
