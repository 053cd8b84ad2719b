"""Executors and their workers: a pool that may break and be replaced, ``cores=``, and what runs in a worker.

`Pool` holds the executor in use, and `on_cores` makes one of worker processes. `evaluate_row` is what a worker runs. A
target is sent as bytes made by cloudpickle, under a key that is their hash. A worker keeps the targets it was sent
and evaluates one row at a time. A row comes with the key of its target; a worker that does not have that target replies
``UNKNOWN``, and the row comes again with the target itself. So a worker is sent a target once, in this run and later
ones. Nothing that the model does leaves `evaluate_row` as an exception, because executors treat those differently:
Dask, for example, would let ``sys.exit`` end the worker.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal

import numpy as np

from leapwise.checks import require_whole
from leapwise.errors import (
    EngineClosed,
    EvaluationTimeout,
    InputError,
    MissingExtraError,
    ModelError,
    WorkerError,
)
from leapwise.execution.engine import call_target
from leapwise.targets.calls import Values
from leapwise.targets.target import AnyTarget

# Only from Python 3.14 on. It is a subclass of the thread pool, but its workers share no objects.
_INTERPRETERS: Any = getattr(futures, "InterpreterPoolExecutor", ())

#: Each worker has one core to itself; more threads of its linear algebra would compete for the other cores.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

#: Seconds between a worker's checks whether its parent is alive. A guess: it costs nothing, and a worker that outlives
#: its parent by two seconds does no harm.
_CHECK_PARENT_EVERY = 2.0


class Pool:
    """The executor in use, its `generation` (how often it was replaced), and how to get the next one.

    Parameters
    ----------
    executor : Executor or callable
        An executor, which stays the caller's; or a function without arguments that makes one. An executor that was
        made here is shut down at the end and replaced if it breaks.
    """

    def __init__(self, executor: Executor | Callable[[], Executor]) -> None:
        self._lock = threading.Lock()
        self._make: Callable[[], Executor] | None = None
        self._closed = False
        self.generation = 0
        if callable(getattr(executor, "get_executor", None)):  # a Dask client
            executor = executor.get_executor()  # type: ignore[union-attr]
        if _is_executor(executor):
            self.executor: Any = executor
        elif callable(executor) and not isinstance(executor, type):
            self._make = executor
            self.executor = self._made()
        else:
            got = f"the class {executor.__name__}" if isinstance(executor, type) else type(executor).__name__
            raise InputError(
                f"executor must be a concurrent.futures.Executor or a function that makes one, got {got}; "
                "give for example ThreadPoolExecutor(8), client.get_executor() of Dask, or cores="
            )

    @property
    def shares_memory(self) -> bool:
        """Whether the workers are threads of this process, for which nothing need be pickled."""
        return isinstance(self.executor, ThreadPoolExecutor) and not isinstance(self.executor, _INTERPRETERS)

    @property
    def can_be_replaced(self) -> bool:
        """Whether there is a function to make another executor."""
        return self._make is not None

    @property
    def n_breakable(self) -> int | None:
        """How many workers break together when one dies, if they do."""
        return None if self.shares_memory else getattr(self.executor, "_max_workers", None)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> tuple[int, Future[Any]]:
        """Hand a call to the executor; return the executor's generation and the future."""
        with self._lock:
            generation, executor = self.generation, self.executor
        # Without this Dask would hash every argument to look for an earlier result.
        options = {"pure": False} if _is_dask(executor) else {}
        return generation, executor.submit(function, *arguments, **options)

    def replace(self, generation: int, cause: BaseException) -> None:
        """Replace the broken executor of this generation, unless another thread has done so."""
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine was closed during this evaluation")
            if generation != self.generation:
                return
            if self._make is None:
                raise WorkerError(
                    f"the executor is broken ({type(cause).__name__}: {cause}) and cannot be made again; "
                    "pass cores=4, or a function that makes one, such as executor=lambda: ProcessPoolExecutor(4, "
                    'mp_context=multiprocessing.get_context("spawn"))'
                ) from cause
            _shut_down(self.executor)
            self.executor = self._made()
            self.generation += 1

    def is_closed_by_dask(self) -> bool:
        """Whether the executor is of a Dask client that was closed: its tasks will never complete."""
        client = getattr(self.executor, "_client", None)
        return _is_dask(self.executor) and getattr(client, "status", None) in ("closing", "closed")

    def close(self) -> None:
        """Shut down an executor that was made here, with whatever still runs in it."""
        with self._lock:
            self._closed = True
            if self._make is not None:
                _shut_down(self.executor)

    def _made(self) -> Any:
        assert self._make is not None
        try:
            executor = self._make()
        except Exception as error:
            raise WorkerError(
                f"executor() raised {type(error).__name__}: {error}; fix the function that makes the executor"
            ) from error
        if not _is_executor(executor):
            raise InputError(
                f"executor() must return a concurrent.futures.Executor, got {type(executor).__name__}; "
                "return a new one"
            )
        return executor


def is_broken(error: BaseException) -> bool:
    """Whether an exception means that the whole executor is of no more use."""
    return isinstance(error, BrokenExecutor)


def on_cores(cores: int) -> Callable[[], Executor]:
    """Return a function that makes a pool of this many worker processes, by loky.

    Linear algebra has one thread in each worker, unless the environment says otherwise (``OMP_NUM_THREADS`` and the
    like).

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
    environment = {name: os.environ.get(name, "1") for name in _THREAD_VARIABLES}
    return partial(
        loky.ProcessPoolExecutor,
        int(cores),
        env=environment,
        initializer=_end_with,
        initargs=(os.getpid(),),
    )


def _end_with(parent: int) -> None:
    """Make this worker end when the process that started it is gone, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_PARENT_EVERY)
        os._exit(1)

    threading.Thread(target=watch, name="leapwise watch", daemon=True).start()


def _is_executor(value: object) -> bool:
    return not isinstance(value, type) and (
        isinstance(value, Executor) or callable(getattr(value, "submit", None))
    )


def _is_dask(executor: object) -> bool:
    return type(executor).__module__.partition(".")[0] == "distributed"


def _shut_down(executor: Any) -> None:
    """Shut down without waiting for results, and end the worker processes."""
    if type(executor).__module__.partition(".")[0] == "loky":
        executor.shutdown(wait=True, kill_workers=True)
        return
    processes = list((getattr(executor, "_processes", None) or {}).values())
    try:
        executor.shutdown(wait=False, cancel_futures=True)
    except TypeError:  # executors without that option, such as Dask's
        executor.shutdown(wait=False)
    for process in processes:
        process.terminate()


#: The most characters of a traceback and bytes of an exception that are sent back. Guesses: far more than anyone reads,
#: and little enough that an exception which holds a mesh does not clog the connection.
_MOST_TEXT, _MOST_BYTES = 20_000, 1_000_000

#: How many targets a worker keeps. A guess: a worker may serve several runs in turn, and a target may hold much data.
_MOST_TARGETS = 4
_targets: dict[str, AnyTarget] = {}
_building = threading.Lock()


@dataclass(frozen=True, eq=False)
class PackedTarget:
    """A pickled target and the key that workers know it by."""

    key: str
    payload: bytes

    @classmethod
    def of(cls, target: AnyTarget) -> PackedTarget:
        """Pickle a target, or raise with what to do if it cannot be sent."""
        try:
            payload = _cloudpickle().dumps(target)
        except MissingExtraError:
            raise
        except Exception as error:
            raise InputError(
                f"the target cannot be sent to other processes ({type(error).__name__}: {error}); "
                "let each build its own (Target.from_factory), or use threads (ThreadPoolExecutor)"
            ) from error
        return cls(blake2b(payload, digest_size=16).hexdigest(), payload)


@dataclass(frozen=True, eq=False)
class PackedError:
    """An exception that is sent to another process: pickled if it can be, and in words."""

    words: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        """Describe an exception so that it can be sent."""
        text = "".join(traceback.format_exception(error))[-_MOST_TEXT:]
        pickled: bytes | None = None
        try:
            pickled = _cloudpickle().dumps(error)
        except Exception:  # it holds a lock, a file or a solver
            pickled = None
        if pickled is not None and len(pickled) > _MOST_BYTES:
            pickled = None
        try:
            words = f"{type(error).__name__}: {error}"
        except Exception:  # its __str__ fails, too
            words = type(error).__name__
        return cls(words, text, pickled)

    def unpack(self) -> Exception:
        """Return the exception, or a `ModelError` with its words; its traceback is a note."""
        error: Any = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:  # its class cannot be imported here, or not be made again
                error = None
        if not isinstance(error, Exception):
            error = ModelError(self.words)
        error.add_note(f"In the worker:\n{self.traceback}")
        return error


@dataclass(frozen=True, eq=False)
class Reply:
    """What a worker replies about one row.

    ``UNKNOWN``: send the target. ``UNBUILT``: the target cannot be built here. ``INTERRUPTED``: this worker is being
    stopped, which is not the fault of the row. ``DONE``: the target was called, with values or an error.
    """

    status: Literal["DONE", "UNKNOWN", "UNBUILT", "INTERRUPTED"]
    values: Values | None = None
    error: PackedError | None = None
    seconds: float = 0.0


def evaluate_row(
    key: str,
    payload: bytes | None,
    parameters: np.ndarray,
    gradient: bool,
    timeout: float | None,
    serial: int,
) -> Reply:
    """Evaluate one row. `serial` differs at each sending, so that no executor takes two for the same task."""
    try:
        target = _targets.get(key)
        if target is None:
            if payload is None:
                return Reply("UNKNOWN")
            try:
                target = _build(key, payload)
            except (Exception, SystemExit) as error:
                return Reply("UNBUILT", error=PackedError.of(error))
        attempt = call_target(target, parameters, gradient, timeout)
    except KeyboardInterrupt:
        return Reply("INTERRUPTED")
    if isinstance(attempt.error, EvaluationTimeout):
        # The abandoned call may still write into this target: later rows get a new one.
        _targets.pop(key, None)
    packed = None if attempt.error is None else PackedError.of(attempt.error)
    return Reply("DONE", attempt.values, packed, attempt.seconds)


def _build(key: str, payload: bytes) -> AnyTarget:
    with _building:  # several threads of one worker may be sent the target at once; one of them builds it
        target = _targets.get(key)
        if target is None:
            target = pickle.loads(payload)
            while len(_targets) >= _MOST_TARGETS:
                _targets.pop(next(iter(_targets)), None)
            _targets[key] = target
        return target


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise MissingExtraError(
            "other processes need cloudpickle, which is not installed; pip install 'leapwise[parallel]'"
        ) from error


def _after_fork() -> None:
    """Make a new lock: one that another thread held at the fork would never be released in the child."""
    global _building
    _building = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
