"""What runs in a worker: it keeps the targets it has been sent, and evaluates one row at a time.

The whole conversation: a row comes with the key of its target. A worker that does not have it says ``UNKNOWN``, and
the row comes again with the target itself. Nothing that the model does escapes `evaluate` as an exception, since what
executors make of those differs: Dask, for one, would let ``sys.exit`` end the worker.

What travels between processes: the target once for each worker, and what went wrong there.

A target is sent as bytes made by cloudpickle, under a key that is their hash, so that a worker that has it already
need not be sent it again, in this run or the next.

Threads of linear algebra: one for the sampler's own small products, as many as there were for the model.

A surrogate's products have a few rows. Divided among the threads of BLAS they take up to five times as long, most of it
waiting; and how they are divided decides how they round. The model's own products may be large, so that each call of
it has its threads back.
"""

from __future__ import annotations

import os
import pickle
import threading
import traceback
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any, Literal

import numpy as np

from leapwise.errors import EvaluationTimeout, InputError, MissingExtraError, ModelError
from leapwise.execution.engine import attempt
from leapwise.targets.returns import Raw
from leapwise.targets.target import AnyTarget

_MOST_TEXT, _MOST_BYTES = 20_000, 1_000_000


@dataclass(frozen=True, eq=False)
class Parcel:
    """A pickled target and the key that workers know it by."""

    key: str
    payload: bytes


def pack_target(target: AnyTarget) -> Parcel:
    """Return the target as bytes, or say what to do if it cannot be sent."""
    try:
        payload = _cloudpickle().dumps(target)
    except MissingExtraError:
        raise
    except Exception as error:
        raise InputError(
            f"the target cannot be sent to other processes ({type(error).__name__}: {error}); "
            "let each build its own (Target.from_factory), or use threads (ThreadPoolExecutor)"
        ) from error
    return Parcel(blake2b(payload, digest_size=16).hexdigest(), payload)


@dataclass(frozen=True, eq=False)
class Trouble:
    """An exception on its way to another process: itself if it can be pickled, and in words."""

    words: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Describe an exception so that it can be sent."""
        text = "".join(traceback.format_exception(error))[-_MOST_TEXT:]
        pickled: bytes | None = None
        try:
            pickled = _cloudpickle().dumps(error)
        except Exception:  # it holds a lock, a file, a solver: then words must do
            pickled = None
        if pickled is not None and len(pickled) > _MOST_BYTES:
            pickled = None
        try:
            words = f"{type(error).__name__}: {error}"
        except Exception:  # what it says of itself fails, too
            words = type(error).__name__
        return cls(words, text, pickled)

    def error(self) -> Exception:
        """Return the exception as near to what it was as can be, with its traceback as a note."""
        error: Any = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:  # its class is not to be had here, or cannot be made again
                error = None
        if not isinstance(error, Exception):
            error = ModelError(self.words)
        error.add_note(f"In the worker:\n{self.traceback}")
        return error


def _cloudpickle() -> Any:
    try:
        return import_module("cloudpickle")
    except ImportError as error:
        raise MissingExtraError(
            "other processes need cloudpickle, which is not installed; pip install 'leapwise[parallel]'"
        ) from error


# A worker may serve several runs in turn; a target may hold much data.
_MOST_TARGETS = 4
_targets: dict[str, AnyTarget] = {}
_building = threading.Lock()


@dataclass(frozen=True, eq=False)
class Reply:
    """What a worker says about one row.

    ``UNKNOWN``: send the target. ``UNBUILT``: the target cannot be made here. ``INTERRUPTED``: this worker is being
    stopped, and the row is not to blame. ``DONE``: evaluated, with an answer or with trouble.
    """

    status: Literal["DONE", "UNKNOWN", "UNBUILT", "INTERRUPTED"]
    raw: Raw | None = None
    trouble: Trouble | None = None
    seconds: float = 0.0


def evaluate(
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
                return Reply("UNBUILT", trouble=Trouble.of(error))
        found = attempt(target, parameters, gradient, timeout)
    except KeyboardInterrupt:
        return Reply("INTERRUPTED")
    if isinstance(found.error, EvaluationTimeout):
        # The abandoned call goes on with this target: later rows get one that it does not write into.
        _targets.pop(key, None)
    trouble = None if found.error is None else Trouble.of(found.error)
    return Reply("DONE", found.raw, trouble, found.seconds)


def _build(key: str, payload: bytes) -> AnyTarget:
    with _building:  # many threads of one worker may be sent the target at once; one of them builds it
        target = _targets.get(key)
        if target is None:
            target = pickle.loads(payload)
            while len(_targets) >= _MOST_TARGETS:
                _targets.pop(next(iter(_targets)), None)
            _targets[key] = target
        return target


def _after_fork() -> None:
    """A lock that another thread held at the fork would never be released in the child."""
    global _building
    _building = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
