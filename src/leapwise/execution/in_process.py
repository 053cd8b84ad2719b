"""Rows evaluated by this thread, here and now."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leapwise.errors import EngineClosed
from leapwise.execution.answer import Answer
from leapwise.execution.attempt import attempt, require_timeout
from leapwise.execution.blas import BlasThreads
from leapwise.targets.target import AnyTarget


class InProcess:
    """Evaluate rows in this process: all in one call if the target is vectorised, else one call each.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate.
    timeout : float, optional
        Seconds that one row may take; rows are then evaluated one by one, each in a thread of its own. A call that
        is out of time is abandoned, not stopped: it goes on in its thread, beside later calls.
    one_by_one : bool
        Whether a vectorised target is given its rows one by one as well, as on an executor. The results are then
        those of an executor to the last bit, where a product over a whole batch may round differently.
    threads : BlasThreads, optional
        Given back to linear algebra while the target is called.

    Examples
    --------
    >>> from leapwise import Target
    >>> engine = InProcess(Target(lambda x: -0.5 * x @ x, dim=2))
    >>> [float(answer.raw.log_density[0]) for answer in engine.answers(np.eye(2), gradient=False)]
    [-0.5, -0.5]
    """

    def __init__(
        self,
        target: AnyTarget,
        timeout: float | None = None,
        *,
        one_by_one: bool = False,
        threads: BlasThreads | None = None,
    ) -> None:
        self._target = target
        self._threads = threads if threads is not None and threads.matter else None
        self._timeout = require_timeout(timeout)
        self._together = target.vectorized and timeout is None and not one_by_one
        self._closed = False

    def answers(self, parameters: np.ndarray, *, gradient: bool) -> Iterator[Answer]:
        """Try each row once and yield the answers in order."""
        size = max(len(parameters), 1) if self._together else 1
        for start in range(0, len(parameters), size):
            if self._closed:
                raise EngineClosed("this engine has been closed; make a new one")
            rows = np.arange(start, start + size)
            if self._threads is not None:
                self._threads.widen()
            try:
                found = attempt(self._target, parameters[rows], gradient, self._timeout)
            finally:
                if self._threads is not None:
                    self._threads.narrow()
            yield Answer(rows, found.raw, found.error, found.seconds)

    def close(self) -> None:
        """End: no further row is begun."""
        self._closed = True
