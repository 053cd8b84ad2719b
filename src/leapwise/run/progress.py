"""The progress bar of a run: one line for each phase, on stderr.

Sampling must not wait for the display. `Progress.advance` does a few additions; at most ten times a second it passes
the numbers to rich, whose own thread draws them, so that the clock also runs during a long evaluation.
"""

from __future__ import annotations

import time
from collections import deque
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from leapwise.results.statistics import spread

#: Seconds between updates: more often than a person can read.
UPDATE_SECONDS = 0.1
#: Iterations over which acceptance is averaged, and sd(D), whose estimate needs more of them. Guesses.
ACCEPTANCE_ITERATIONS, DISCREPANCY_ITERATIONS = 50, 500
#: Seconds over which rich averages the speed: one exact evaluation may take minutes.
SPEED_SECONDS = 600.0


class Progress:
    """Shows phase, draws done, exact evaluations, acceptance, time left and sd(D) of a surrogate; or nothing.

    Parameters
    ----------
    enabled : bool, optional
        Whether to show anything; by default if stderr is a terminal, or in a notebook.
    console : rich.console.Console, optional
        Where to show it; stderr by default.

    Examples
    --------
    >>> with Progress(enabled=False) as progress:
    ...     progress.start("warm-up", total=2)
    ...     progress.advance(n_exact=10, acceptance=0.8)
    ...     progress.advance(n_exact=20, acceptance=0.9, note="step size 0.1")
    """

    def __init__(self, enabled: bool | None = None, console: Console | None = None) -> None:
        console = Console(stderr=True) if console is None else console
        self.enabled = _wanted(console) if enabled is None else enabled
        self._rich = RichProgress(
            TextColumn("{task.description:<8}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", justify="right"),
            TextColumn("{task.fields[n_exact]:,} exact", justify="right"),
            TextColumn("accept {task.fields[acceptance]}"),
            _Clock(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            refresh_per_second=5,
            speed_estimate_period=SPEED_SECONDS,
            disable=not self.enabled,
        )
        self._task: TaskID | None = None
        self._done = 0.0
        self._n_exact = 0
        self._acceptance = np.nan
        self._note = ""
        self._discrepancies: deque[np.ndarray] = deque(maxlen=DISCREPANCY_ITERATIONS)
        self._next_update = 0.0

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._update()
        finally:  # restores the cursor
            self._rich.stop()

    def start(self, phase: str, total: int) -> None:
        """Begin a phase of `total` iterations on a new line."""
        if not self.enabled:
            return
        self._update()
        if self._task is not None:
            self._rich.stop_task(self._task)
        self._done, self._acceptance, self._note, self._next_update = 0, np.nan, "", 0.0
        self._discrepancies.clear()
        self._task = self._rich.add_task(phase, total=total, completed=0, **self._fields())

    def advance(
        self, n_exact: int, acceptance: float, note: str = "", discrepancy: np.ndarray | None = None
    ) -> None:
        """Count one iteration of all chains.

        Parameters
        ----------
        n_exact : int
            Exact evaluations so far, of all chains and phases.
        acceptance : float
            Mean acceptance rate of this iteration.
        note : str
            Anything else to show, in a few words.
        discrepancy : ndarray, optional
            Discrepancies at the proposals of this iteration; sd(D) of recent ones is shown.
        """
        self.add(1.0, n_exact, acceptance, note, discrepancy)

    def add(
        self,
        share: float,
        n_exact: int,
        acceptance: float,
        note: str = "",
        discrepancy: np.ndarray | None = None,
    ) -> None:
        """Count one iteration of a share of the chains; the other parameters are those of `advance`."""
        if not self.enabled:
            return
        self._done += share
        if discrepancy is not None:
            self._discrepancies.append(discrepancy)
        before = 0.0 if np.isnan(self._acceptance) else self._acceptance
        self._acceptance = before + (acceptance - before) / min(
            max(self._done / share, 1.0), ACCEPTANCE_ITERATIONS
        )
        self._show(n_exact, note)

    def reach(self, done: int, n_exact: int, acceptance: float, note: str = "") -> None:
        """Set how far a phase is that does not count iterations; an acceptance of NaN is not known yet."""
        if not self.enabled:
            return
        self._done, self._acceptance = done, acceptance
        self._show(n_exact, note)

    def note(self, n_exact: int, note: str) -> None:
        """Show a note without counting an iteration."""
        if self.enabled:
            self._show(n_exact, note)

    def _show(self, n_exact: int, note: str) -> None:
        """Store what to show, and update the display if it is time."""
        self._n_exact, self._note = n_exact, note
        now = time.monotonic()
        if now >= self._next_update:
            self._next_update = now + UPDATE_SECONDS
            self._update()

    def _update(self) -> None:
        if self._task is not None:
            self._rich.update(self._task, completed=self._done, **self._fields())

    def _fields(self) -> dict[str, Any]:
        sd = spread(np.concatenate(self._discrepancies)) if self._discrepancies else np.nan
        notes = [self._note] if np.isnan(sd) else [f"sd(D) {sd:.2g}", self._note]
        return {
            "n_exact": self._n_exact,
            "acceptance": "-" if np.isnan(self._acceptance) else f"{self._acceptance:.2f}",
            "note": ", ".join(note for note in notes if note),
        }


class _Clock(ProgressColumn):
    """Shows the time left of a phase, and the time taken once it has ended."""

    def render(self, task: Task) -> Text:
        if task.finished or task.stop_time is not None:
            return Text(f"{_clock(task.finished_time or task.elapsed)} taken", style="dim")
        return Text(f"{_clock(task.time_remaining)} left", style="cyan")


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-:--"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _wanted(console: Console) -> bool:
    """Whether a person can see it: on a terminal, or in a notebook that can redraw."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
