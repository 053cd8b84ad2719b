"""Read rows in order, verified, a few at a time: neither memory nor the writer feels how many there are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from leapwise.storage.connection import LedgerWarning, damaged
from leapwise.storage.rows import (
    FAILURE_COLUMNS,
    INDEX_BITS,
    MAX_INDEX,
    ROW_COLUMNS,
    Bad,
    Failure,
    Row,
    decode_failure,
    decode_row,
)

# Runs one query and returns all it finds, with errors in our words.
Query = Callable[..., list[tuple[Any, ...]]]

_ROWS = f"SELECT {ROW_COLUMNS} FROM evaluation WHERE place >= ? AND place <= ? ORDER BY place LIMIT ?"
_FAILURES = f"SELECT id, {FAILURE_COLUMNS} FROM failure WHERE id > ? ORDER BY id LIMIT 500"
_COUNTS = (
    "SELECT phase, gradient IS NOT NULL, status, count(*), sum(attempts), sum(seconds) FROM evaluation "
    "GROUP BY 1, 2, 3 LIMIT 100"
)
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Tally:
    """How many evaluations of a kind there are.

    Attributes
    ----------
    phase : str
        Of the run.
    kind : {"value", "gradient"}
        Whether the gradient was asked for too.
    status : {"ok", "rejected"}
        How they ended.
    n, attempts : int
        Evaluations, and attempts at them.
    seconds : float
        Inside the model.
    """

    phase: str
    kind: str
    status: str
    n: int
    attempts: int
    seconds: float


def rows_between(query: Query, path: str, dim: int, first: int, last: int) -> Iterator[Row]:
    """Yield the rows whose places are from `first` to `last`; damaged ones are left out with a warning."""
    n = 16
    while first <= last:
        records = query(_ROWS, (first, last, n))
        bad = []
        for record in records:
            if type(record[0]) is not int or not first <= record[0] <= last:
                raise damaged(path, "its rows are not in order")
            first = record[0] + 1
            try:
                row = decode_row(record, dim)
            except Bad as error:
                bad.append((record[0], str(error)))
            else:
                yield row
        if bad:
            warn_of_rows(path, bad)
        if len(records) < n:
            return
        largest = max(sum(len(value) for value in record if type(value) is bytes) for record in records)
        n = max(1, min(512, _CHUNK_BYTES // (largest + 1)))


def warn_of_rows(path: str, bad: list[tuple[int, str]]) -> None:
    """Tell that rows were left out."""
    place, what = bad[0]
    n = f"{len(bad)} evaluations" if len(bad) > 1 else "1 evaluation"
    warnings.warn(
        f"{n} in the ledger {path} left out as damaged, the first at lane {place >> INDEX_BITS}, "
        f"index {place & (MAX_INDEX - 1)} ({what}); what is missing is evaluated again",
        LedgerWarning,
        stacklevel=3,
    )


def failures(query: Query, path: str, dim: int) -> list[Failure]:
    """Return all failed attempts, in the order in which they happened; damaged ones are left out with a warning."""
    found, last, n_bad = [], 0, 0
    while records := query(_FAILURES, (last,)):
        for record in records:
            if type(record[0]) is not int or record[0] <= last:
                raise damaged(path, "its failures are not in order")
            last = record[0]
            try:
                found.append(decode_failure(record[1:], dim))
            except Bad:
                n_bad += 1
    if n_bad:
        warnings.warn(
            f"{n_bad} failures in the ledger {path} left out as damaged", LedgerWarning, stacklevel=3
        )
    return found


def count_verified(rows: Iterator[Row]) -> list[Tally]:
    """Return how many rows there are of each kind."""
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for row in rows:
        key = row.phase, "value" if row.gradient is None else "gradient", row.status
        n, attempts, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = n + 1, attempts + row.attempts, seconds + row.seconds
    return [Tally(*key, *value) for key, value in sorted(sums.items())]


def count_quickly(query: Query, path: str) -> list[Tally]:
    """Return the same from columns as they stand, without looking at checksums."""
    found = []
    for phase, with_gradient, status, n, attempts, seconds in query(_COUNTS, ()):
        if not (
            type(phase) is type(status) is bytes
            and status in (b"ok", b"rejected")
            and type(attempts) is int
            and type(seconds) in (int, float)
        ):
            raise damaged(path, "a row has values of the wrong type")
        kind = "gradient" if with_gradient else "value"
        found.append(
            Tally(phase.decode("utf-8", "replace"), kind, status.decode(), n, attempts, float(seconds))
        )
    return sorted(found, key=lambda tally: (tally.phase, tally.kind, tally.status))
