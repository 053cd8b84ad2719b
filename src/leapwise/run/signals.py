"""SIGTERM ends a run as Ctrl-C does: with what has been drawn by then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Take SIGTERM for an interrupt; batch systems send it before they kill.

    Only the main thread may say what becomes of signals, and somebody else's handler stays in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
