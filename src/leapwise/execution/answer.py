"""What an engine yields, and what an engine is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.targets.raw import Raw


@dataclass(frozen=True, eq=False)
class Answer:
    """The outcome of one attempt at some rows of a request.

    Attributes
    ----------
    rows : ndarray of int
        Which rows of the request these are.
    raw : Raw or None
        Their answers, stacked in the order of `rows`; not checked for finiteness. None if the attempt failed.
    error : Exception or None
        What went wrong. An exception that was raised in another process has its traceback there as a note.
    seconds : float
        Time inside the target, measured where it ran.
    """

    rows: np.ndarray
    raw: Raw | None
    error: Exception | None
    seconds: float


class Engine(Protocol):
    """A way to evaluate rows. Its methods may be called from several threads at once."""

    def answers(self, parameters: np.ndarray, *, gradient: bool) -> Iterator[Answer]:
        """Try each row of ``(n, dim)`` once and yield the answers as they complete, in any order.

        Every row is in exactly one answer. Leaving the iteration early cancels what has not begun.
        """
        ...

    def close(self) -> None:
        """End: cancel what has not begun; threads that wait for an answer get `EngineClosed`."""
        ...
