"""Lets many tasks be under way at once, or one alone.

When a worker dies, every row under way is lost, and nothing says which of them killed it. A row that keeps being among
the lost is tried alone: if the worker dies then too, it was this row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from leapwise.errors import EngineClosed


class Gate:
    """Counts what is under way; whoever wants to be alone waits until it is nothing, and new ones wait meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._loners = 0
        self._taken = False
        self._closed = False

    def enter(self) -> None:
        """Begin a task beside others."""
        with self._changed:
            while self._loners and not self._closed:
                self._changed.wait()
            self._require_open()
            self._inside += 1

    def leave(self) -> None:
        """End a task that had entered."""
        with self._changed:
            self._inside -= 1
            if self._loners:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the gate until nothing else is under way, and while the caller's task is."""
        with self._changed:
            self._loners += 1
            try:
                while (self._inside or self._taken) and not self._closed:
                    self._changed.wait()
                self._require_open()
            except BaseException:
                self._loners -= 1
                self._changed.notify_all()
                raise
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._loners -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Turn everyone away who waits or comes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("the engine was closed before this evaluation could begin")
