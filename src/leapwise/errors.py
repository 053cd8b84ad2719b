"""The exceptions of the library.

Every message says in one sentence what is wrong, what was given and what was expected, and what to do about it. All
exceptions derive from `LeapwiseError`, and also from the built-in exception that a caller would expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class LeapwiseError(Exception):
    """Anything that this library raises on purpose.

    Attributes
    ----------
    run : Run or None
        All draws made before the error, if it ended a call of `sample`.
    """

    run: Any = None


class InputError(LeapwiseError, ValueError):
    """An argument is wrong; nothing has been evaluated."""


class OutputError(LeapwiseError, TypeError):
    """The target returned something that is not a log-density (shape, dtype)."""


class SurrogateError(LeapwiseError, RuntimeError):
    """A surrogate raised, or returned arrays of the wrong shape."""


class StartError(LeapwiseError, ValueError):
    """No chain can start: the log-density is not finite where the chains begin."""


class GradientError(LeapwiseError, ValueError):
    """The gradient is not that of the log-density."""


class ImproperError(LeapwiseError, ValueError):
    """The log-density does not decrease as far out as it was evaluated: the posterior may be improper."""


class DataError(LeapwiseError, FileNotFoundError):
    """A data file of a built-in problem is missing or is not the file it should be."""


class MissingExtraError(LeapwiseError, ImportError):
    """An optional dependency is needed for this; the message names the extra that brings it."""


class BudgetError(LeapwiseError, RuntimeError):
    """The exact evaluations allowed are spent, or are too few for this run."""


class EvaluationError(LeapwiseError, RuntimeError):
    """The target raised, or returned NaN, at one position, and again when retried there.

    Attributes
    ----------
    parameters : ndarray of shape (dim,)
        Where it failed, in the target's own coordinates.
    """

    def __init__(self, message: str, parameters: np.ndarray) -> None:
        super().__init__(message)
        self.parameters = parameters

    def __reduce__(self) -> tuple[Any, ...]:
        # The default loses `parameters` when the error is pickled, on its way from another process.
        return type(self), (str(self), self.parameters), {"run": self.run}


class ArchiveError(LeapwiseError, ValueError):
    """An object cannot be stored as arrays, or cannot be read back; replaying the run still works."""


class EvaluationTimeout(LeapwiseError, TimeoutError):
    """One evaluation took longer than `timeout`; it may still be running."""


class ModelError(LeapwiseError, RuntimeError):
    """The model called sys.exit, or raised an exception that cannot be pickled."""


class WorkerError(LeapwiseError, RuntimeError):
    """Workers died, could not be reached or replaced, or cannot build the target."""


class EngineClosed(LeapwiseError, RuntimeError):
    """The engine was closed before or during an evaluation."""


class LedgerError(LeapwiseError, OSError):
    """The ledger cannot be created, read or written: folder, permissions, disk, or the file is not a ledger."""


class LedgerDamaged(LedgerError):
    """The ledger, or a part of it that is needed, does not match its checksums or is malformed."""


class LedgerBusy(LedgerError):
    """Another process, or another run in this one, is writing to the ledger."""


class LedgerMismatch(LedgerError, ValueError):
    """The ledger is intact but belongs to another run: another format, target or settings."""
