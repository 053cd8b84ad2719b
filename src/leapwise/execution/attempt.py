"""One call of a target that always comes back: with an answer, an error, or out of time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise.errors import EvaluationTimeout, InputError, ModelError
from leapwise.targets.raw import Raw
from leapwise.targets.target import AnyTarget


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
