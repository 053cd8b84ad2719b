"""The exceptions of the library.

Every message says what is wrong, what was got and what was expected, and what to do about it. All of them
derive from `LeapwiseError`, and also from the built-in exception that a caller would expect.
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
    """The log-density does not fall off, as far as one has looked: the posterior may be improper."""


class DataError(LeapwiseError, FileNotFoundError):
    """A data file of a built-in problem is missing or is not the file it should be."""


class MissingExtraError(LeapwiseError, ImportError):
    """An optional dependency is needed for this; the message names the extra that brings it."""


class BudgetError(LeapwiseError, RuntimeError):
    """The exact evaluations allowed are spent, or too few for what is asked."""


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
        # So that it survives the way back from another process, which the default would break.
        return type(self), (str(self), self.parameters), {"run": self.run}


class ArchiveError(LeapwiseError, ValueError):
    """Something cannot be stored as arrays, or what was stored cannot be read back; replaying the run still works."""


class EvaluationTimeout(LeapwiseError, TimeoutError):
    """One evaluation took longer than it may; it may be running still."""


class ModelError(LeapwiseError, RuntimeError):
    """The model did what cannot be handed on as it is: it called sys.exit, or raised what cannot be pickled."""


class WorkerError(LeapwiseError, RuntimeError):
    """Workers died, or could not be reached or replaced, or cannot make the target."""


class EngineClosed(LeapwiseError, RuntimeError):
    """An evaluation was asked for, or waited for, when its engine was closed."""


class LedgerError(LeapwiseError, OSError):
    """The ledger cannot be made, read or written: folder, permissions, disk, or not a ledger at all."""


class LedgerDamaged(LedgerError):
    """The ledger, or a part of it that is needed, does not match its checksums or is not well formed."""


class LedgerBusy(LedgerError):
    """Another process, or another run in this one, is writing to the ledger."""


class LedgerMismatch(LedgerError, ValueError):
    """The ledger is sound but is not of this run: another format, target or settings."""
