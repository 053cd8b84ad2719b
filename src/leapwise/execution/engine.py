"""What an engine yields, and what an engine is.

One call of a target that always comes back: with an answer, an error, or out of time.

Rows evaluated by this thread, here and now.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from leapwise.errors import EngineClosed, EvaluationTimeout, InputError, ModelError
from leapwise.targets.returns import Raw
from leapwise.targets.target import AnyTarget


@dataclass(frozen=True, eq=False)
class Answer:
    """The outcome of one attempt at some rows of a request.

    Attributes
    ----------
    rows : ndarray of int
        Which rows of the request these are.
    raw : Raw or None
        Their answers, stacked in the order of `rows`; not checked for finiteness. None if the attempt failed.
    error : Exception or None
        What went wrong. An exception that was raised in another process has its traceback there as a note.
    seconds : float
        Time inside the target, measured where it ran.
    """

    rows: np.ndarray
    raw: Raw | None
    error: Exception | None
    seconds: float


class Engine(Protocol):
    """A way to evaluate rows. Its methods may be called from several threads at once."""

    def answers(self, parameters: np.ndarray, *, gradient: bool) -> Iterator[Answer]:
        """Try each row of ``(n, dim)`` once and yield the answers as they complete, in any order.

        Every row is in exactly one answer. Leaving the iteration early cancels what has not begun.
        """
        ...

    def close(self) -> None:
        """End: cancel what has not begun; threads that wait for an answer get `EngineClosed`."""
        ...


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one call of a target came to: an answer, or what it raised, and the seconds it took."""

    raw: Raw | None
    error: Exception | None
    seconds: float


def attempt(
    target: AnyTarget, parameters: np.ndarray, gradient: bool, timeout: float | None = None
) -> Outcome:
    """Call the target once; give up waiting after `timeout` seconds.

    Python cannot stop a call: one that is out of time is abandoned in a thread of its own, and goes on there.
    """
    if timeout is None:
        return _call(target, parameters, gradient)
    outcomes: list[Outcome] = []
    started = time.perf_counter()
    thread = threading.Thread(
        target=lambda: outcomes.append(_call(target, parameters, gradient)),
        name="leapwise evaluation",
        daemon=True,  # one that never ends must not keep the process alive
    )
    thread.start()
    thread.join(timeout)
    if outcomes:
        return outcomes[0]
    error = EvaluationTimeout(
        f"the evaluation took longer than the {timeout:g} s allowed; allow more (timeout=), or mend the model"
    )
    return Outcome(None, error, time.perf_counter() - started)


def require_timeout(timeout: Any) -> float | None:
    """Return `timeout` if it is None or a positive number of seconds."""
    if timeout is None:
        return None
    number = isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < math.inf:
        raise InputError(f"timeout must be a positive number of seconds, got {timeout!r}; None sets no limit")
    if timeout > threading.TIMEOUT_MAX:
        return None  # centuries
    return float(timeout)


def _call(target: AnyTarget, parameters: np.ndarray, gradient: bool) -> Outcome:
    started = time.perf_counter()
    raw: Raw | None = None
    error: Exception | None = None
    try:
        raw = target.evaluate(parameters, gradient=gradient)
    except Exception as caught:
        error = caught
    except BaseException as caught:
        # Ctrl-C arrives in the main thread and is for the run; anything else, such as sys.exit, is the model's doing.
        if isinstance(caught, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        error = ModelError(f"{type(caught).__name__}({caught})")
        error.__cause__ = caught
    return Outcome(raw, error, time.perf_counter() - started)


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


class BlasThreads:
    """While this context lasts, linear algebra in this process has one thread, but in `widen` ... `narrow`.

    Examples
    --------
    >>> with BlasThreads() as threads:
    ...     threads.widen()
    ...     threads.narrow()
    """

    def __init__(self) -> None:
        found = ThreadpoolController().select(user_api="blas").lib_controllers
        self._libraries = [(each, each.num_threads) for each in found if each.num_threads > 1]

    @property
    def matter(self) -> bool:
        """Whether there is more than one thread to speak of."""
        return bool(self._libraries)

    def widen(self) -> None:
        """Give linear algebra the threads that it had."""
        for library, n in self._libraries:
            library.set_num_threads(n)

    def narrow(self) -> None:
        """Leave it one thread."""
        for library, _ in self._libraries:
            library.set_num_threads(1)

    def __enter__(self) -> Self:
        self.narrow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.widen()
