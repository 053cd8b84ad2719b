"""Is the target still the one that a ledger is of?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leapwise.errors import EvaluationError, LedgerMismatch
from leapwise.execution.evaluator import Evaluator
from leapwise.storage import Row

#: How near a log-density must come to the recorded one, relative to its size, if it is above 1.
_NEAR = 1e-6


def middling(rows: Sequence[Row]) -> Row:
    """Return the row to look at: neither a mode, where changes may cancel, nor far out, where they drown."""
    return sorted(rows, key=lambda row: row.log_density)[len(rows) // 2]


def require_unchanged(row: Row, evaluator: Evaluator, path: str) -> None:
    """Evaluate a recorded position again, and raise if its log-density has changed, or if it fails."""
    parameters = evaluator.target.transform.to_parameters(row.position[None])
    alone = Evaluator(evaluator.target, "raise", evaluator.retries, engine=evaluator.engine)
    try:
        potential = float(alone.value(row.position[None]).potential[0])
    except EvaluationError as error:
        raise EvaluationError(
            f"a position recorded in {path} was evaluated again, to see that the target is the same, and {error}; the "
            "ledger is as it was",
            error.parameters,
        ) from error
    found = -potential - float(evaluator.target.transform.log_jacobian(row.position[None])[0])
    if found == row.log_density or abs(found - row.log_density) <= _NEAR * max(1.0, abs(row.log_density)):
        return
    raise LedgerMismatch(
        f"the log-density at a position recorded in {path} was {row.log_density:.9g} and is now {found:.9g} "
        f"(parameters {np.array2string(parameters[0], precision=6, threshold=8, separator=', ')}); "
        "the model, its data or the prior has changed (or the model gives another answer each time): use the target "
        "that the ledger is of, or start a new ledger"
    )
