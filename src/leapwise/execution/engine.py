"""Where calls of the target run: the protocol of engines, and the engine that calls in this process.

An engine is given rows of parameters inside the bounds and yields one `Attempt` for each call of the target, as it
completes. It knows nothing of retries, limits or counts, which belong to the `Evaluator`. It guarantees that the
values of a row depend on the parameters of that row alone, not on other rows, workers or the order of completion; and
that whatever the model does (raise, exit, hang, kill its process) ends as an attempt or as a typed error, never as an
endless wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from leapwise.errors import EngineClosed, EvaluationTimeout, InputError, ModelError, WorkerError
from leapwise.targets.calls import Values
from leapwise.targets.target import AnyTarget


@dataclass(eq=False)
class Attempt:
    """One attempt to evaluate some rows: their values or the error, and the time it took.

    It is also the context manager in which the target is called: it measures the time and keeps what the model raises.
    Ctrl-C in the main thread passes, since it is meant for the run.

    Attributes
    ----------
    rows : ndarray of int
        Which rows of the request these are.
    values : Values or None
        Their values in the order of `rows`, not checked for finiteness. None if the attempt failed.
    error : Exception or None
        What went wrong. An exception raised in another process has its traceback there as a note.
    seconds : float
        Time inside the target, measured where it ran.

    Examples
    --------
    >>> attempt = Attempt(np.arange(1))
    >>> with attempt:
    ...     attempt.values = Values(np.array([1.0 / 0.0]))
    >>> attempt.error
    ZeroDivisionError('float division by zero')
    """

    rows: np.ndarray
    values: Values | None = None
    error: Exception | None = None
    seconds: float = 0.0
    _started: float = field(default=0.0, init=False, repr=False)

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.seconds = time.perf_counter() - self._started
        if error is None:
            return False
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            return False
        if isinstance(error, Exception):
            self.error = error
        else:  # the model called sys.exit, for example
            self.error = ModelError(f"{type(error).__name__}({error})")
            self.error.__cause__ = error
        return True


@dataclass(frozen=True, eq=False)
class FailedRow:
    """A row that failed in its last attempt, with the number of attempts and their time."""

    values: Values | None
    error: Exception | None
    attempts: int
    seconds: float

    @property
    def what(self) -> str:
        """What happened, in a few words."""
        if isinstance(self.error, EvaluationTimeout):
            return str(self.error)
        if self.error is not None:
            return f"raised {type(self.error).__name__}: {self.error}"
        if (output := self._bad_output) is not None:
            assert self.values is not None and self.values.outputs is not None
            return f"returned {self.values.outputs[0, output]} in output {output}"
        if self.values is not None and np.isfinite(self.values.log_density[0]):
            return "returned a gradient that is not finite"
        return (
            f"returned a log-density of {self.values.log_density[0] if self.values is not None else np.nan}"
        )

    def message(
        self, parameters: np.ndarray, *, vectorized: bool = False, outputs: Sequence[str] = ()
    ) -> str:
        """Return one sentence about a row that also failed when it was retried; `outputs` are labels of outputs."""
        if isinstance(self.error, WorkerError):
            words = " ".join(str(self.error).split())
            return f"the target could not be evaluated at parameters {shown(parameters)}: {words}"
        retries = self.attempts - 1
        again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
        timed_out = isinstance(self.error, EvaluationTimeout)
        given = ""
        if vectorized and self.error is not None and not timed_out:
            given = f"; since vectorized=True, it was given positions of shape (n, {len(parameters)})"
        subject, remedy, what = "target", "return -inf where the density is zero, ", self.what
        first = " (the first is 0)"
        if outputs and self.error is not None:  # outputs have no density
            remedy = ""
        if timed_out:
            subject, remedy = "evaluation", "allow more (timeout=), "
        elif (bad := self._bad_output) is not None:
            subject, remedy = "forward model", "let it raise an error that says why, "
            known = bad < len(outputs)
            what = what.replace(
                f"output {bad}", f"its output {outputs[bad]}" if known else f"output {bad}{first}"
            )
        return (
            f"the {subject} {what} at parameters {shown(parameters)}{again}{given}; {remedy}fix the model at "
            "this point, or pass on_failure='reject' to declare such points outside the support"
        )

    @property
    def _bad_output(self) -> int | None:
        """The first output of a forward model that is NaN or infinite; None if there is none."""
        if self.error is not None or self.values is None or self.values.outputs is None:
            return None
        bad = np.flatnonzero(~np.isfinite(self.values.outputs[0]))
        return int(bad[0]) if bad.size and not np.isfinite(self.values.log_density[0]) else None


def shown(parameters: np.ndarray) -> str:
    """Return parameters in one line, the middle ones left out if there are many."""
    return np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)


class Engine(Protocol):
    """A way to evaluate rows. Its methods may be called from several threads at once."""

    def evaluate(
        self, parameters: np.ndarray, *, gradient: bool, one_by_one: bool = False
    ) -> Iterator[Attempt]:
        """Try each row of ``(n, dim)`` once and yield the attempts as they complete, in any order.

        Every row is in exactly one attempt. With `one_by_one` each row is in an attempt of its own. Leaving the
        iteration early cancels calls that have not begun.
        """
        ...

    def close(self) -> None:
        """End: cancel calls that have not begun; threads that wait for one get `EngineClosed`."""
        ...


class InProcess:
    """Evaluate rows in this process: all in one call if the target is vectorised, else one call each.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate.
    timeout : float, optional
        Seconds that one row may take; rows are then evaluated one by one, each in a thread of its own. A call that
        takes longer is abandoned, not stopped: it goes on in its thread, beside later calls.
    threads : BlasThreads, optional
        Given back to linear algebra while the target is called.

    Examples
    --------
    >>> from leapwise import Target
    >>> engine = InProcess(Target(lambda x: -0.5 * x @ x, dim=2))
    >>> [float(attempt.values.log_density[0]) for attempt in engine.evaluate(np.eye(2), gradient=False)]
    [-0.5, -0.5]
    """

    def __init__(
        self, target: AnyTarget, timeout: float | None = None, *, threads: BlasThreads | None = None
    ) -> None:
        self._target = target
        self._timeout = require_timeout(timeout)
        self._threads = threads
        self._closed = False

    def evaluate(
        self, parameters: np.ndarray, *, gradient: bool, one_by_one: bool = False
    ) -> Iterator[Attempt]:
        """Try each row once and yield the attempts in order."""
        together = self._target.vectorized and self._timeout is None and not one_by_one
        size = max(len(parameters), 1) if together else 1
        for start in range(0, len(parameters), size):
            if self._closed:
                raise EngineClosed("this engine has been closed; make a new one")
            rows = np.arange(start, start + size)
            with self._model_threads():
                if self._timeout is not None:
                    attempt = call_target(self._target, parameters[rows], gradient, self._timeout)
                    attempt.rows = rows
                else:  # called right here, not through `call_target`: the user's traceback stays short
                    attempt = Attempt(rows)
                    with attempt:
                        attempt.values = self._target.evaluate(parameters[rows], gradient=gradient)
            yield attempt

    def close(self) -> None:
        """End: no further row is begun."""
        self._closed = True

    def _model_threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self._threads is None else self._threads.for_model()


def call_target(
    target: AnyTarget, parameters: np.ndarray, gradient: bool, timeout: float | None = None
) -> Attempt:
    """Call the target once, and stop waiting after `timeout` seconds.

    Python cannot stop a call: one that takes too long is abandoned in a thread of its own, and goes on there.
    """
    attempt = Attempt(np.arange(len(parameters)))
    if timeout is None:
        with attempt:
            attempt.values = target.evaluate(parameters, gradient=gradient)
        return attempt
    finished: list[Attempt] = []
    started = time.perf_counter()
    thread = threading.Thread(
        target=lambda: finished.append(call_target(target, parameters, gradient)),
        name="leapwise evaluation",
        daemon=True,  # a call that never ends must not keep the process alive
    )
    thread.start()
    thread.join(timeout)
    if finished:
        return finished[0]
    attempt.error = EvaluationTimeout(
        f"took longer than the {timeout:g} s allowed"  # `FailedRow` adds where, and what to do
    )
    attempt.seconds = time.perf_counter() - started
    return attempt


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


class BlasThreads:
    """While this context lasts, linear algebra has one thread in this process; calls of the model get theirs back.

    A surrogate's products have few rows. Divided among the threads of BLAS they take up to five times as long, most
    of it waiting, and how they are divided decides how they round. The model's own products may be large, so it has
    all threads while it is called.

    Examples
    --------
    >>> with BlasThreads() as threads:
    ...     with threads.for_model():
    ...         pass
    """

    def __init__(self) -> None:
        found = ThreadpoolController().select(user_api="blas").lib_controllers
        self._libraries = [(each, each.num_threads) for each in found if each.num_threads > 1]

    def for_model(self) -> AbstractContextManager[None]:
        """Give linear algebra the threads that it had, as long as this context lasts."""
        return self._all() if self._libraries else nullcontext()

    @contextmanager
    def _all(self) -> Iterator[None]:
        self._restore()
        try:
            yield
        finally:
            self._use_one()

    def _restore(self) -> None:
        for library, n in self._libraries:
            library.set_num_threads(n)

    def _use_one(self) -> None:
        for library, _ in self._libraries:
            library.set_num_threads(1)

    def __enter__(self) -> Self:
        self._use_one()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
