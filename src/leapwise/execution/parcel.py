"""What travels between processes: the target once for each worker, and what went wrong there.

A target is sent as bytes made by cloudpickle, under a key that is their hash, so that a worker that has it already
need not be sent it again, in this run or the next.
"""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any

from leapwise.errors import InputError, MissingExtraError, ModelError
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
