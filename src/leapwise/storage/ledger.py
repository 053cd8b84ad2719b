"""The ledger: append evaluations, read them back in order, keep snapshots; one writer, any number of readers.

Read rows in order, verified, a few at a time: neither memory nor the writer feels how many there are.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from leapwise.errors import LedgerError
from leapwise.storage.file import (
    MAX_BYTES,
    FileLock,
    Header,
    LedgerWarning,
    close_writer,
    damaged,
    open_reader,
    open_writer,
    our_errors,
    translate,
)
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
    decode_snapshot,
    encode_failure,
    encode_row,
    encode_snapshot,
    place_of,
    require_name,
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


# A power cut may cost this much time in the model: so seldom is the disk asked to write through.
FLUSH_SECONDS = 5.0

_INSERT = f"INSERT INTO evaluation ({ROW_COLUMNS}) VALUES ({', '.join('?' * (ROW_COLUMNS.count(',') + 1))})"
_UPDATE = f"UPDATE evaluation SET {ROW_COLUMNS.replace(',', ' = ?,')} = ? WHERE place = ?"
_SELECT = f"SELECT {ROW_COLUMNS} FROM evaluation WHERE place = ?"
_INSERT_FAILURE = f"INSERT INTO failure ({FAILURE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"


class Ledger:
    """A file of exact evaluations.

    Made by `open`, to write, or by `read`. All methods may be called from several threads.

    Attributes
    ----------
    path : str
        Of the file.
    header : Header
        What it is of: that of the file, which need not be the one given to `open`.

    Examples
    --------
    >>> import tempfile
    >>> header = Header("0.1.0", dim=2, names=("a", "b"), settings={}, seed=1, fingerprint={})
    >>> row = Row(lane=0, index=0, phase="draws", chain=0, step=0, position=np.ones(2), log_density=-1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(folder + "/run.db", header) as ledger:
    ...         ledger.append([row])
    ...     with Ledger.read(folder + "/run.db") as ledger:
    ...         [(row.index, row.log_density) for row in ledger.lane(0)]
    [(0, -1.0)]
    """

    def __init__(
        self, path: str, connection: sqlite3.Connection, header: Header, lock: FileLock | None = None
    ) -> None:
        self.path = path
        self.header = header
        self._connection = connection
        self._file_lock = lock
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        # Time in the model that a power cut would cost now.
        self._unflushed = 0.0

    @classmethod
    def open(cls, path: str | os.PathLike[str], header: Header) -> Ledger:
        """Make a ledger with a header, or open the one that is there; nobody else can write to it meanwhile.

        Parameters
        ----------
        path : path-like
            Of the file.
        header : Header
            Of a new one. That of an existing one stays as it is: compare them.
        """
        real, connection, found, lock = open_writer(path, header)
        return cls(real, connection, found, lock)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger to read it, even while somebody is writing to it."""
        return cls(*open_reader(path))

    def append(self, rows: Sequence[Row]) -> None:
        """Record evaluations in one transaction; when it returns they survive the death of this process.

        A row that is recorded already may be recorded again if it is the same, or if the recorded one is damaged.
        """
        records = [encode_row(row, self.header.dim) for row in rows]
        with self._lock:
            self._require_writer()
            try:
                if len(records) == 1:  # one statement is a transaction of its own
                    self._connection.execute(_INSERT, records[0])
                elif records:
                    with self.transaction():
                        self._connection.executemany(_INSERT, records)
            except sqlite3.IntegrityError:
                with self.transaction(), our_errors(self.path, "written"):
                    for record in records:
                        self._replace(record)
            except sqlite3.Error as error:
                raise translate(error, self.path, "written") from error
            for record in records:
                self._unflushed += record[6]
            if self._unflushed >= FLUSH_SECONDS:
                self._flush()

    def failed(
        self, lane: int, index: int, attempt: int, position: np.ndarray, message: str, seconds: float
    ) -> None:
        """Record an attempt that failed."""
        record = encode_failure(Failure(lane, index, attempt, position, message, seconds), self.header.dim)
        with self._lock, our_errors(self.path, "written"):
            self._require_writer()
            self._connection.execute(_INSERT_FAILURE, record)

    def lane(self, lane: int, start: int = 0) -> Iterator[Row]:
        """Yield the rows of a lane in order, from an index on; a damaged one is left out with a `LedgerWarning`."""
        first, last = place_of(lane, start), place_of(lane, MAX_INDEX - 1)
        return rows_between(self._query, self.path, self.header.dim, first, last)

    def rows(self) -> Iterator[Row]:
        """Yield all rows, lane by lane, in order; a damaged one is left out with a `LedgerWarning`."""
        # From the least to the largest number that SQLite has, so that rows that are nowhere are told of.
        return rows_between(self._query, self.path, self.header.dim, -(2**63), 2**63 - 1)

    def get(self, lane: int, index: int) -> Row | None:
        """Return one row, or None if it is not there; if it is damaged it counts as not there, with a warning."""
        place = place_of(lane, index)
        for record in self._query(_SELECT, (place,)):
            try:
                return decode_row(record, self.header.dim)
            except Bad as error:
                warn_of_rows(self.path, [(place, str(error))])
        return None

    def count(self, *, verify: bool = True) -> list[Tally]:
        """Return how many evaluations there are by phase, kind and status, and their time.

        Parameters
        ----------
        verify : bool
            Whether each row is held against its checksum; several times slower.
        """
        return count_verified(self.rows()) if verify else count_quickly(self._query, self.path)

    def failures(self) -> list[Failure]:
        """Return the attempts that failed, in the order in which they were recorded."""
        return failures(self._query, self.path, self.header.dim)

    def save(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Keep named arrays (float64, int64, bool; in C order) and JSON under a name, instead of what was there."""
        records = encode_snapshot(name, arrays, meta, MAX_BYTES)
        with self.transaction(), our_errors(self.path, "written"):
            self._connection.execute("DELETE FROM snapshot WHERE name = ?", (name,))
            self._connection.executemany(
                "INSERT INTO snapshot (name, part, body, digest) VALUES (?, ?, ?, ?)", records
            )

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return what `save` has kept, or None if there is nothing of that name; `LedgerDamaged` if it is spoilt."""
        require_name(name)
        records = self._query("SELECT part, body, digest FROM snapshot WHERE name = ? ORDER BY part", (name,))
        try:
            return decode_snapshot(name, records) if records else None
        except Bad as error:
            raise damaged(self.path, f"the snapshot {name!r} has {error}") from error

    def discard(self, name: str) -> None:
        """Forget what was kept under a name, if anything."""
        require_name(name)
        with self.transaction(), our_errors(self.path, "written"):
            self._connection.execute("DELETE FROM snapshot WHERE name = ?", (name,))

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all snapshots that begin with a prefix, sorted."""
        found = self._query("SELECT name FROM snapshot WHERE part = 0", ())
        try:
            names = sorted(name.decode() for (name,) in found)
        except (AttributeError, UnicodeDecodeError) as error:
            raise damaged(self.path, "a snapshot has a name that is not text") from error
        return [name for name in names if name.startswith(prefix)]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all that is written inside one commit: all of it or, after an exception, none."""
        with self._lock:
            self._require_writer()
            if self._connection.in_transaction:
                yield
                return
            with our_errors(self.path, "written"):
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                with our_errors(self.path, "written"):
                    self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            if self._unflushed >= FLUSH_SECONDS:
                self._flush()

    def close(self) -> None:
        """Close the file and let others write to it; more calls do nothing."""
        if self._pid != os.getpid():
            return  # a forked child has the file by inheritance, and it is not its own to close
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                with our_errors(self.path, "closed"):
                    if self._file_lock is None:
                        self._connection.close()
                    else:
                        close_writer(self._connection)
            finally:
                if self._file_lock is not None:
                    self._file_lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _query(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._lock, our_errors(self.path, "read"):
            self._require_open()
            return self._connection.execute(statement, values).fetchall()

    def _replace(self, record: tuple[Any, ...]) -> None:
        """Record a row where there may be one: that must be the same, or damaged."""
        for found in self._connection.execute(_SELECT, record[:1]).fetchall():
            try:
                row = decode_row(found, self.header.dim)
            except Bad:
                self._connection.execute(_UPDATE, (*record, record[0]))
                return
            if found[9] == record[9]:
                return
            raise LedgerError(
                f"the evaluation at lane {row.lane}, index {row.index} is already in the ledger {self.path} and is "
                "another one; replay what is recorded before going on"
            )
        self._connection.execute(_INSERT, record)

    def _flush(self) -> None:
        """Have the disk write through: a power cut would cost too much by now."""
        if not self._connection.in_transaction:
            # If it cannot be done now then next time: the rows are safe from everything else.
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._unflushed = 0.0

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _require_open(self) -> None:
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed; open it again")
        if self._pid != os.getpid():
            raise LedgerError(
                f"the ledger {self.path} belongs to the process that opened it; read it anew here"
            )

    def _require_writer(self) -> None:
        self._require_open()
        if self._file_lock is None:
            raise LedgerError(f"the ledger {self.path} was opened to be read; open it to write to it")
