"""One sequence of a ledger as an evaluator uses it: first the recorded evaluations, in order, then new ones.

The program asks for evaluations in a fixed order, so the n-th that it asks for is the n-th of the sequence. Where it
is recorded, its value is used. Its position is used too, because rounding may differ on another machine. A position
that differs by more than rounding means that the program is a different one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leapwise.errors import LedgerMismatch
from leapwise.storage.ledger import Ledger
from leapwise.storage.rows import Failure, Row
from leapwise.targets.calls import Values

#: Positions that differ by no more than this, relative to 1 + |position|, are the same up to rounding, which fits and
#: finite differences amplify. A guess, far above rounding and far below a step of a chain. The recorded position is the
#: one that is used, so its value is right whatever the tolerance.
ROUNDING = 1e-3


class Replay:
    """Replays the evaluations of one sequence, then records new ones.

    Parameters
    ----------
    ledger : Ledger
        Open for writing.
    sequence : int
        Number of the sequence: 0 for warm-up, and for the draws of chains that move together; else 1 + chain.
    chain : int
        Chain of the evaluations, for the record; -1 if several move together.

    Attributes
    ----------
    index : int
        Index of the next evaluation.
    phase : str
        Phase of the run, for the record; so is `step`.
    """

    def __init__(self, ledger: Ledger, sequence: int, chain: int = -1) -> None:
        self.ledger, self.sequence, self.index = ledger, sequence, 0
        self.phase, self.chain, self.step = "warm-up", chain, 0
        self._recorded: Iterator[Row] = iter(ledger.rows(sequence))
        self._next = next(self._recorded, None)

    def recall(self, position: np.ndarray, *, gradient: bool) -> list[Row | None]:
        """Return the recorded evaluations of the next positions ``(n, dim)``; None where nothing is recorded."""
        found: list[Row | None] = []
        for i, point in enumerate(position):
            while self._next is not None and self._next.index < self.index + i:
                self._next = next(self._recorded, None)
            if self._next is None or self._next.index != self.index + i:
                found.append(None)
                continue
            self._require_same(self._next, point, gradient)
            found.append(self._next)
        return found

    def skip_to(self, index: int) -> None:
        """Continue from a later index."""
        self.index = index
        self._recorded = iter(self.ledger.rows(self.sequence, index))
        self._next = next(self._recorded, None)

    def claim(self, n: int) -> int:
        """Move on by n evaluations; return the index of the first of them."""
        first, self.index = self.index, self.index + n
        return first

    def record(
        self,
        index: np.ndarray,
        position: np.ndarray,
        values: Values,
        seconds: float,
        attempts: int,
        message: str = "",
    ) -> None:
        """Record values at indices `index`; the time is divided equally between them."""
        outputs = values.outputs
        self.ledger.append(
            [
                Row(
                    *self._place(int(each)),
                    position=position[i],
                    log_density=float(values.log_density[i]),
                    gradient=None if values.gradient is None else values.gradient[i],
                    outputs=None if outputs is None or np.isnan(outputs[i]).all() else outputs[i],
                    seconds=seconds / len(index),
                    attempts=attempts,
                    message=message,
                )
                for i, each in enumerate(index)
            ]
        )

    def reject(
        self, index: int, position: np.ndarray, gradient: bool, seconds: float, attempts: int, message: str
    ) -> None:
        """Record that every attempt at a position failed, and that it counts as outside the support."""
        self.ledger.append(
            [
                Row(
                    *self._place(index),
                    position=position,
                    log_density=-np.inf,
                    gradient=np.zeros_like(position) if gradient else None,
                    seconds=seconds,
                    status="rejected",
                    attempts=attempts,
                    message=message,
                )
            ]
        )

    def failed(self, index: int, attempt: int, position: np.ndarray, message: str, seconds: float) -> None:
        """Record an attempt that failed."""
        self.ledger.append_failure(Failure(self.sequence, index, attempt, position, message, seconds))

    def _place(self, index: int) -> tuple[int, int, str, int, int]:
        return self.sequence, index, self.phase, self.chain, self.step

    def _require_same(self, row: Row, position: np.ndarray, gradient: bool) -> None:
        where = f"evaluation {row.index} of sequence {row.sequence} ({row.phase}, step {row.step})"
        remedy = (
            "the model, its data, a setting or a library has changed since: use what the ledger was made with, or "
            "start a new ledger, with learn_from= to train on this one"
        )
        if (row.gradient is not None) != gradient:
            kinds = (
                ("value and gradient", "value")
                if row.gradient is not None
                else ("value", "value and gradient")
            )
            raise LedgerMismatch(
                f"the ledger has a {kinds[0]} at {where} where this run asks for a {kinds[1]}; {remedy}"
            )
        difference = np.abs(row.position - position)
        if not (difference <= ROUNDING * (1.0 + np.abs(position))).all():
            raise LedgerMismatch(
                f"the position of {where} is {_shown(row.position)} in the ledger and {_shown(position)} in this run; "
                f"{remedy}"
            )


def _shown(position: np.ndarray) -> str:
    return np.array2string(position, precision=6, threshold=8, separator=", ", max_line_width=1000)
