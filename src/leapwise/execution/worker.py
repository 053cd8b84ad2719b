"""What runs in a worker: it keeps the targets it has been sent, and evaluates one row at a time.

The whole conversation: a row comes with the key of its target. A worker that does not have it says ``UNKNOWN``, and
the row comes again with the target itself. Nothing that the model does escapes `evaluate` as an exception, since what
executors make of those differs: Dask, for one, would let ``sys.exit`` end the worker.
"""

from __future__ import annotations

import os
import pickle
import threading
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leapwise.errors import EvaluationTimeout
from leapwise.execution.attempt import attempt
from leapwise.execution.parcel import Trouble
from leapwise.targets.raw import Raw
from leapwise.targets.target import AnyTarget

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
