"""Decides which rows carry the target with them.

A row that meets a worker without the target is sent again with it, but an executor sends it where it likes: with two
workers that take turns, each row would ask one and be served by the other for ever. So when it has been asked for, the
target also goes with the next few rows, twice as many each time, until many rows without it are answered in a row.
"""

from __future__ import annotations

import threading

_MOST_EXTRA = 64
_MANY = 200  # answered without it: then every worker has it, as far as one can tell


class Courier:
    """Keeps count of how many of the next rows are to carry the target.

    Examples
    --------
    >>> courier = Courier()
    >>> courier.carries()
    False
    >>> courier.was_asked()
    >>> courier.carries(), courier.carries()
    (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._extra = 0
        self._next = 1
        self._calm = 0

    def carries(self) -> bool:
        """Whether the row about to be sent carries the target."""
        if not self._extra:
            return False
        with self._lock:
            carries = self._extra > 0
            self._extra -= carries
            return carries

    def was_asked(self) -> None:
        """Take note that a worker did not have the target."""
        with self._lock:
            self._calm = 0
            self._extra = max(self._extra, self._next)
            self._next = min(2 * self._next, _MOST_EXTRA)

    def was_not_asked(self) -> None:
        """Take note that a worker had it."""
        if self._next == 1:
            return
        with self._lock:
            self._calm += 1
            if self._calm >= _MANY:
                self._next = 1
