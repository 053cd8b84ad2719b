"""The ledger: append evaluations, read them back in order, keep snapshots; one writer, any number of readers."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import numpy as np

from leapwise.errors import LedgerError
from leapwise.storage.connection import MAX_BYTES, damaged, our_errors, translate
from leapwise.storage.header import Header
from leapwise.storage.lock import FileLock
from leapwise.storage.opening import close_writer, open_reader, open_writer
from leapwise.storage.reading import (
    Tally,
    count_quickly,
    count_verified,
    failures,
    rows_between,
    warn_of_rows,
)
from leapwise.storage.rows import (
    FAILURE_COLUMNS,
    MAX_INDEX,
    ROW_COLUMNS,
    Bad,
    Failure,
    Row,
    decode_row,
    encode_failure,
    encode_row,
    place_of,
)
from leapwise.storage.snapshots import decode_snapshot, encode_snapshot, require_name

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
