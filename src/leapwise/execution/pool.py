"""An executor that may break and be replaced, and the pool of worker processes for ``cores=``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from leapwise.checks import require_whole
from leapwise.errors import EngineClosed, InputError, MissingExtraError, WorkerError

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
