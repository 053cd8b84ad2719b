"""What runs in a worker process, and what travels between it and the run.

A target is sent as bytes made by cloudpickle, under a key that is their hash. A worker keeps the targets it was sent
and evaluates one row at a time. A row comes with the key of its target; a worker that does not have that target replies
``UNKNOWN``, and the row comes again with the target itself. So a worker is sent a target once, in this run and later
ones. Nothing that the model does leaves `evaluate_row` as an exception, because executors treat those differently:
Dask, for example, would let ``sys.exit`` end the worker.
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
from leapwise.execution.engine import call_target
from leapwise.targets.returns import Values
from leapwise.targets.target import AnyTarget

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
