"""One request on its way: which rows are settled, and which have to be tried again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from leapwise.errors import WorkerError
from leapwise.execution.answer import Answer
from leapwise.targets.raw import Raw, stack

#: Seconds to wait before the second retry of a failing row; twice as long before each further one.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


@dataclass(frozen=True, eq=False)
class Failed:
    """A row that failed in its last attempt: what came of it, how often it was tried, and the time that took."""

    raw: Raw | None
    error: Exception | None
    attempts: int
    seconds: float

    @property
    def what(self) -> str:
        """What happened, in a few words."""
        if self.error is not None:
            return f"raised {type(self.error).__name__}: {self.error}"
        if self.raw is not None and np.isfinite(self.raw.log_density[0]):
            return "returned a gradient that is not finite"
        return f"returned a log-density of {self.raw.log_density[0] if self.raw is not None else np.nan}"


@dataclass(eq=False)
class Settling:
    """Rows of one request: answers of those that are settled, and the last failure of those that ever failed."""

    n_rows: int
    parts: dict[int, Raw] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)

    @property
    def unsettled(self) -> list[int]:
        """The rows that have failed up to now."""
        return sorted(self.failed.keys() - self.parts.keys())

    def take(self, answer: Answer) -> np.ndarray:
        """Note an answer; return which of *its* rows are settled by it."""
        n, raw = len(answer.rows), answer.raw
        good = np.zeros(n, dtype=bool) if raw is None else ~raw.failures()
        for i in np.flatnonzero(~good):
            row = int(answer.rows[i])
            before = self.failed.get(row)
            self.failed[row] = Failed(
                None if raw is None else raw.row(int(i)),
                answer.error,
                1 + (0 if before is None else before.attempts),
                answer.seconds / n + (0.0 if before is None else before.seconds),
            )
        if raw is not None:
            for i in np.flatnonzero(good):
                self.parts[int(answer.rows[i])] = raw.row(int(i))
        return good

    @property
    def raw(self) -> Raw:
        """All answers, in order; every row must be settled."""
        return stack([self.parts[row] for row in range(self.n_rows)])


def pause(retry: int) -> None:
    """Wait before a retry, the first being number 1: that one is at once, and further ones ever later."""
    if retry > 1:
        time.sleep(min(FIRST_PAUSE * 2.0 ** (retry - 2), LONGEST_PAUSE))


def failure_message(parameters: np.ndarray, failed: Failed) -> str:
    """Return one sentence about a row that failed for good."""
    if isinstance(failed.error, WorkerError):
        words = " ".join(str(failed.error).split())
        return f"the target could not be evaluated at parameters {shown(parameters)}: {words}"
    retries = failed.attempts - 1
    again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
    return (
        f"the target {failed.what} at parameters {shown(parameters)}{again}; return -inf where the density is zero, "
        "mend the model there, or pass on_failure='reject' to declare such points outside the support"
    )


def shown(parameters: np.ndarray) -> str:
    """Return parameters as people read them."""
    return np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)
