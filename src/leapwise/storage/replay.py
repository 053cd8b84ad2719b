"""One lane of a ledger as an evaluator sees it: first what is recorded there, in order, then blank pages.

The program asks for evaluations in a fixed order, so the n-th that it asks for is the n-th of the lane. Where one is
recorded, its answer is taken and, since rounding may differ on another machine, its position too; a position that
differs by more than rounding means that the program is another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from leapwise.errors import LedgerMismatch
from leapwise.storage import Ledger, Row
from leapwise.targets.returns import Values

#: Positions that differ by no more than this, relative to 1 + |position|, are the same but for rounding, which fits and
#: finite differences have amplified. Since the recorded position is used, the answer is right whatever the tolerance.
ROUNDING = 1e-3


class Journal:
    """The next places of one lane.

    Parameters
    ----------
    ledger : Ledger
        Open for writing.
    lane : int
        Which lane.
    index : int
        The first place: what lies before it is not looked at.

    Attributes
    ----------
    index : int
        The next place.
    phase : str
        Of the run, for the record; also `chain` (-1 if several move together) and `step`.
    """

    def __init__(self, ledger: Ledger, lane: int, index: int = 0, chain: int = -1) -> None:
        self.ledger, self.lane, self.index = ledger, lane, index
        self.phase, self.chain, self.step = "warm-up", chain, 0
        self._recorded: Iterator[Row] = iter(ledger.lane(lane, index))
        self._next = next(self._recorded, None)

    def recall(self, position: np.ndarray, *, gradient: bool) -> list[Row | None]:
        """Return what is recorded of the next places, of positions ``(n, dim)``; None where nothing is."""
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
        """Go on from a later place."""
        self.index = index
        self._recorded = iter(self.ledger.lane(self.lane, index))
        self._next = next(self._recorded, None)

    def claim(self, n: int) -> int:
        """Move on by n places; return the first of them."""
        first, self.index = self.index, self.index + n
        return first

    def record(
        self,
        index: np.ndarray,
        position: np.ndarray,
        raw: Values,
        seconds: float,
        attempts: int,
        message: str = "",
    ) -> None:
        """Write settled answers at places `index`; the time is divided between them."""
        outputs = raw.outputs
        self.ledger.append(
            [
                self._row(
                    int(place),
                    position[i],
                    float(raw.log_density[i]),
                    None if raw.gradient is None else raw.gradient[i],
                    None if outputs is None or np.isnan(outputs[i]).all() else outputs[i],
                    seconds / len(index),
                    attempts,
                    message,
                )
                for i, place in enumerate(index)
            ]
        )

    def reject(
        self, index: int, position: np.ndarray, gradient: bool, seconds: float, attempts: int, message: str
    ) -> None:
        """Write that a position failed for good, and counts as outside the support."""
        slope = np.zeros_like(position) if gradient else None
        row = self._row(index, position, -np.inf, slope, None, seconds, attempts, message, status="rejected")
        self.ledger.append([row])

    def failed(self, index: int, attempt: int, position: np.ndarray, message: str, seconds: float) -> None:
        """Write down an attempt that failed."""
        self.ledger.failed(self.lane, index, attempt, position, message, seconds)

    def _row(
        self,
        index: int,
        position: np.ndarray,
        log_density: float,
        gradient: np.ndarray | None,
        outputs: np.ndarray | None,
        seconds: float,
        attempts: int,
        message: str,
        status: str = "ok",
    ) -> Row:
        return Row(
            lane=self.lane,
            index=index,
            phase=self.phase,
            chain=self.chain,
            step=self.step,
            position=position,
            log_density=log_density,
            gradient=gradient,
            outputs=outputs,
            seconds=seconds,
            status=status,
            attempts=attempts,
            message=message,
        )

    def _require_same(self, row: Row, position: np.ndarray, gradient: bool) -> None:
        where = f"evaluation {row.index} of lane {row.lane} ({row.phase}, step {row.step})"
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
        apart = np.abs(row.position - position)
        if not (apart <= ROUNDING * (1.0 + np.abs(position))).all():
            raise LedgerMismatch(
                f"the position of {where} is {_shown(row.position)} in the ledger and {_shown(position)} in this run; "
                f"{remedy}"
            )


def _shown(position: np.ndarray) -> str:
    return np.array2string(position, precision=6, threshold=8, separator=", ", max_line_width=1000)
