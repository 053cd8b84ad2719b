"""The exceptions of the library.

Every message says what is wrong, what was got and what was expected, and what to do about it. All of them
derive from `UnderstudyError`, and also from the built-in exception that a caller would expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class UnderstudyError(Exception):
    """Anything that this library raises on purpose.

    Attributes
    ----------
    run : Run or None
        All draws made before the error, if it ended a call of `sample`.
    """

    run: Any = None


class InputError(UnderstudyError, ValueError):
    """An argument is wrong; nothing has been evaluated."""


class OutputError(UnderstudyError, TypeError):
    """The target returned something that is not a log-density (shape, dtype)."""


class SurrogateError(UnderstudyError, RuntimeError):
    """A surrogate raised, or returned arrays of the wrong shape."""


class StartError(UnderstudyError, ValueError):
    """No chain can start: the log-density is not finite where the chains begin."""


class DataError(UnderstudyError, FileNotFoundError):
    """A data file of a built-in problem is missing or is not the file it should be."""


class MissingExtraError(UnderstudyError, ImportError):
    """An optional dependency is needed for this; the message names the extra that brings it."""


class BudgetError(UnderstudyError, RuntimeError):
    """The exact evaluations allowed are spent, or too few for what is asked."""


class EvaluationError(UnderstudyError, RuntimeError):
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
