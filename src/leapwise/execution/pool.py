"""An executor that may break, and be made again.

The engine for what the user asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any

from leapwise.errors import EngineClosed, InputError, WorkerError

# Only from Python 3.14 on. It is called a thread pool, and yet shares no objects.
_INTERPRETERS: Any = getattr(futures, "InterpreterPoolExecutor", ())


class Pool:
    """The executor in use, which of them it is (its `generation`), and how to get the next.

    Parameters
    ----------
    executor : Executor or callable
        An executor, which stays the caller's; or a function without arguments that makes one, which is then ours:
        it is shut down at the end, and made again if it breaks.
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
                "give such as ThreadPoolExecutor(8), client.get_executor() of Dask, or cores="
            )

    @property
    def shares_memory(self) -> bool:
        """Whether the workers are threads of this process, which need nothing pickled."""
        return isinstance(self.executor, ThreadPoolExecutor) and not isinstance(self.executor, _INTERPRETERS)

    @property
    def can_be_remade(self) -> bool:
        """Whether there is a function to make another."""
        return self._make is not None

    @property
    def n_breakable(self) -> int | None:
        """How many workers break together when one dies, if they do."""
        return None if self.shares_memory else getattr(self.executor, "_max_workers", None)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> tuple[int, Future[Any]]:
        """Hand a call to the executor; return it with the generation that it was handed to."""
        with self._lock:
            generation, executor = self.generation, self.executor
        # Dask would otherwise hash every argument to see whether it has the result already.
        options = {"pure": False} if _is_dask(executor) else {}
        return generation, executor.submit(function, *arguments, **options)

    def renew(self, generation: int, cause: BaseException) -> None:
        """Replace the executor of a generation that is broken, unless another thread has done so."""
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine was closed while this evaluation was waited for")
            if generation != self.generation:
                return
            if self._make is None:
                raise WorkerError(
                    f"the executor is broken ({type(cause).__name__}: {cause}) and cannot be made again; "
                    "pass a function that makes one, such as executor=lambda: ProcessPoolExecutor(4)"
                ) from cause
            _end(self.executor)
            self.executor = self._made()
            self.generation += 1

    def is_deaf(self) -> bool:
        """Whether the executor will never answer again, as a Dask client does not once it is closed."""
        client = getattr(self.executor, "_client", None)
        return _is_dask(self.executor) and getattr(client, "status", None) in ("closing", "closed")

    def close(self) -> None:
        """End an executor that was made here, with whatever still runs in it."""
        with self._lock:
            self._closed = True
            if self._make is not None:
                _end(self.executor)

    def _made(self) -> Any:
        assert self._make is not None
        try:
            executor = self._make()
        except Exception as error:
            raise WorkerError(
                f"executor() raised {type(error).__name__}: {error}; mend the function that makes the executor"
            ) from error
        if not _is_executor(executor):
            raise InputError(
                f"executor() must return a concurrent.futures.Executor, got {type(executor).__name__}; "
                "return one, newly made"
            )
        return executor


def broke(error: BaseException) -> bool:
    """Whether an exception says that the whole executor is of no more use."""
    return isinstance(error, BrokenExecutor)


def _is_executor(value: object) -> bool:
    return not isinstance(value, type) and (
        isinstance(value, Executor) or callable(getattr(value, "submit", None))
    )


def _is_dask(executor: object) -> bool:
    return type(executor).__module__.partition(".")[0] == "distributed"


def _end(executor: Any) -> None:
    """Shut down without waiting, and end worker processes: what they still do, nobody waits for."""
    if type(executor).__module__.partition(".")[0] == "loky":
        executor.shutdown(wait=True, kill_workers=True)
        return
    processes = list((getattr(executor, "_processes", None) or {}).values())
    try:
        executor.shutdown(wait=False, cancel_futures=True)
    except TypeError:  # executors older than that option, or simpler, such as Dask's
        executor.shutdown(wait=False)
    for process in processes:
        process.terminate()
