"""The engine for what the user asked for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from importlib import import_module

from leapwise.checks import require_whole
from leapwise.errors import InputError, MissingExtraError
from leapwise.execution.answer import Engine
from leapwise.execution.blas import BlasThreads
from leapwise.execution.in_process import InProcess
from leapwise.execution.on_executor import OnExecutor
from leapwise.targets.target import AnyTarget

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
