"""A row that the target failed at, and the sentence that says so to the user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.errors import EvaluationTimeout, WorkerError
from leapwise.targets.returns import Values


@dataclass(frozen=True, eq=False)
class FailedRow:
    """A row that failed in its last attempt, with the number of attempts and their time."""

    values: Values | None
    error: Exception | None
    attempts: int
    seconds: float

    @property
    def what(self) -> str:
        """What happened, in a few words."""
        if isinstance(self.error, EvaluationTimeout):
            return str(self.error)
        if self.error is not None:
            return f"raised {type(self.error).__name__}: {self.error}"
        if (output := self._bad_output) is not None:
            assert self.values is not None and self.values.outputs is not None
            return f"returned {self.values.outputs[0, output]} in output {output} (the first is 0)"
        if self.values is not None and np.isfinite(self.values.log_density[0]):
            return "returned a gradient that is not finite"
        return (
            f"returned a log-density of {self.values.log_density[0] if self.values is not None else np.nan}"
        )

    def message(self, parameters: np.ndarray, *, vectorized: bool = False) -> str:
        """Return one sentence about a row that also failed when it was retried."""
        if isinstance(self.error, WorkerError):
            words = " ".join(str(self.error).split())
            return f"the target could not be evaluated at parameters {shown(parameters)}: {words}"
        retries = self.attempts - 1
        again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
        timed_out = isinstance(self.error, EvaluationTimeout)
        given = ""
        if vectorized and self.error is not None and not timed_out:
            given = f"; since vectorized=True, it was given positions of shape (n, {len(parameters)})"
        subject, remedy = "target", "return -inf where the density is zero"
        if timed_out:
            subject, remedy = "evaluation", "allow more (timeout=)"
        elif self._bad_output is not None:
            subject, remedy = "forward model", "let it raise an error that says why"
        return (
            f"the {subject} {self.what} at parameters {shown(parameters)}{again}{given}; {remedy}, fix the model at "
            "this point, or pass on_failure='reject' to declare such points outside the support"
        )

    @property
    def _bad_output(self) -> int | None:
        """The first output of a forward model that is NaN or infinite; None if there is none."""
        if self.error is not None or self.values is None or self.values.outputs is None:
            return None
        bad = np.flatnonzero(~np.isfinite(self.values.outputs[0]))
        return int(bad[0]) if bad.size and not np.isfinite(self.values.log_density[0]) else None


def shown(parameters: np.ndarray) -> str:
    """Return parameters in one line, the middle ones left out if there are many."""
    return np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)
