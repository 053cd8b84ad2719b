"""The ledger: evaluations in order, failed attempts and checkpoints, with one writer and any number of readers.

Rows are read a few at a time, and each is compared with its checksum. So the memory that reading takes does not depend
on the number of rows, and a reader never holds up the writer for long.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage.file import (
    MAX_BYTES,
    FileLock,
    Header,
    LedgerWarning,
    check_kind,
    close_writer,
    connect,
    damaged,
    locate,
    open_reader,
    open_writer,
    our_errors,
    read_header,
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
    decode_checkpoint,
    decode_failure,
    decode_row,
    encode_checkpoint,
    encode_failure,
    encode_row,
    place_of,
    require_name,
)

#: A power cut may cost evaluations of this much time in the model: flushing the disk takes milliseconds, so this makes
#: its share of the time of any model small.
FLUSH_SECONDS = 5.0
#: Rows are read in chunks of about this size: large enough that queries cost little, small in memory.
_CHUNK_BYTES = 4 << 20
_FIRST_CHUNK, _LARGEST_CHUNK = 16, 512  # rows

_INSERT = f"INSERT INTO evaluation ({ROW_COLUMNS}) VALUES ({', '.join('?' * (ROW_COLUMNS.count(',') + 1))})"
_UPDATE = f"UPDATE evaluation SET {ROW_COLUMNS.replace(',', ' = ?,')} = ? WHERE place = ?"
_SELECT = f"SELECT {ROW_COLUMNS} FROM evaluation WHERE place = ?"
_ROWS = f"SELECT {ROW_COLUMNS} FROM evaluation WHERE place >= ? AND place <= ? ORDER BY place LIMIT ?"
_INSERT_FAILURE = f"INSERT INTO failure ({FAILURE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"
_FAILURES = f"SELECT id, {FAILURE_COLUMNS} FROM failure WHERE id > ? ORDER BY id LIMIT 500"
_COUNTS = (
    "SELECT phase, gradient IS NOT NULL, status, count(*), sum(attempts), sum(seconds) FROM evaluation "
    "GROUP BY 1, 2, 3 LIMIT 100"
)


@dataclass(frozen=True)
class Tally:
    """Number of evaluations of one kind.

    Attributes
    ----------
    phase : str
        Phase of the run.
    kind : {"value", "gradient"}
        Whether the gradient was asked for too.
    status : {"ok", "rejected"}
        How they ended.
    n, attempts : int
        Evaluations, and attempts at them.
    seconds : float
        Time inside the model.
    """

    phase: str
    kind: str
    status: str
    n: int
    attempts: int
    seconds: float


class Ledger:
    """A file of exact evaluations.

    Made by `open`, to write, or by `read`. All methods may be called from several threads.

    Attributes
    ----------
    path : str
        Path of the file.
    header : Header
        Header of the file, which may differ from the one given to `open`.

    Examples
    --------
    >>> import tempfile
    >>> header = Header("0.1.0", dim=2, names=("a", "b"), settings={}, seed=1, fingerprint={})
    >>> row = Row(sequence=0, index=0, phase="draws", chain=0, step=0, position=np.ones(2), log_density=-1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(folder + "/run.db", header) as ledger:
    ...         ledger.append([row])
    ...     with Ledger.read(folder + "/run.db") as ledger:
    ...         [(row.index, row.log_density) for row in ledger.rows(0)]
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
        """Open a ledger to write, or make it; no other process can write to it meanwhile.

        Parameters
        ----------
        path : path-like
            Path of the file.
        header : Header
            Header of a new ledger. An existing one keeps its own: compare them.
        """
        real, connection, found, lock = open_writer(path, header)
        return cls(real, connection, found, lock)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """Open a ledger to read, even while a run writes to it."""
        return cls(*open_reader(path))

    def append(self, rows: Sequence[Row]) -> None:
        """Record evaluations in one transaction; when it returns they survive the death of this process.

        A row may be recorded a second time if it is the same, or if the recorded one is damaged.
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

    def append_failure(self, failure: Failure) -> None:
        """Record an attempt that failed."""
        record = encode_failure(failure, self.header.dim)
        with self._lock, our_errors(self.path, "written"):
            self._require_writer()
            self._connection.execute(_INSERT_FAILURE, record)

    def rows(self, sequence: int | None = None, start: int = 0) -> Iterator[Row]:
        """Yield rows in order; a damaged row is left out with a `LedgerWarning`.

        Parameters
        ----------
        sequence : int, optional
            Only the rows of this sequence, from index `start` on; by default all rows, sequence by sequence.
        """
        # All numbers that SQLite has, so that rows at impossible places are reported as damaged.
        first, last = -(2**63), 2**63 - 1
        if sequence is not None:
            first, last = place_of(sequence, start), place_of(sequence, MAX_INDEX - 1)
        n = _FIRST_CHUNK
        while first <= last:
            records = self._query(_ROWS, (first, last, n))
            bad = []
            for record in records:
                if type(record[0]) is not int or not first <= record[0] <= last:
                    raise damaged(self.path, "its rows are not in order")
                first = record[0] + 1
                try:
                    row = decode_row(record, self.header.dim)
                except Bad as error:
                    bad.append((record[0], str(error)))
                else:
                    yield row
            if bad:
                self._warn_of_rows(bad)
            if len(records) < n:
                return
            largest = max(sum(len(value) for value in record if type(value) is bytes) for record in records)
            n = max(1, min(_LARGEST_CHUNK, _CHUNK_BYTES // (largest + 1)))

    def get(self, sequence: int, index: int) -> Row | None:
        """Return one row, or None if it is missing; a damaged row counts as missing, with a warning."""
        place = place_of(sequence, index)
        for record in self._query(_SELECT, (place,)):
            try:
                return decode_row(record, self.header.dim)
            except Bad as error:
                self._warn_of_rows([(place, str(error))])
        return None

    def count(self, *, verify: bool = True) -> list[Tally]:
        """Return the number of evaluations by phase, kind and status, and their time.

        Parameters
        ----------
        verify : bool
            Whether each row is compared with its checksum; several times slower.
        """
        if not verify:
            return self._count_quickly()
        sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
        for row in self.rows():
            key = row.phase, "value" if row.gradient is None else "gradient", row.status
            n, attempts, seconds = sums.get(key, (0, 0, 0.0))
            sums[key] = n + 1, attempts + row.attempts, seconds + row.seconds
        return [Tally(*key, *value) for key, value in sorted(sums.items())]

    def failures(self) -> list[Failure]:
        """Return the attempts that failed, in the order in which they were recorded."""
        found, last, n_bad = [], 0, 0
        while records := self._query(_FAILURES, (last,)):
            for record in records:
                if type(record[0]) is not int or record[0] <= last:
                    raise damaged(self.path, "its failures are not in order")
                last = record[0]
                try:
                    found.append(decode_failure(record[1:], self.header.dim))
                except Bad:
                    n_bad += 1
        if n_bad:
            warnings.warn(
                f"{n_bad} failures in the ledger {self.path} left out as damaged", LedgerWarning, stacklevel=2
            )
        return found

    def save(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Save a checkpoint: named arrays (float64, int64, bool; in C order) and JSON. It replaces one of that name."""
        records = encode_checkpoint(name, arrays, meta, MAX_BYTES)
        with self.transaction(), our_errors(self.path, "written"):
            self._connection.execute("DELETE FROM checkpoint WHERE name = ?", (name,))
            self._connection.executemany(
                "INSERT INTO checkpoint (name, part, body, digest) VALUES (?, ?, ?, ?)", records
            )

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return a checkpoint, or None if there is none of that name; raise `LedgerDamaged` if it is damaged."""
        require_name(name)
        records = self._query(
            "SELECT part, body, digest FROM checkpoint WHERE name = ? ORDER BY part", (name,)
        )
        try:
            return decode_checkpoint(name, records) if records else None
        except Bad as error:
            raise damaged(self.path, f"the checkpoint {name!r} has {error}") from error

    def discard(self, name: str) -> None:
        """Delete a checkpoint, if there is one of that name."""
        require_name(name)
        with self.transaction(), our_errors(self.path, "written"):
            self._connection.execute("DELETE FROM checkpoint WHERE name = ?", (name,))

    def names(self) -> list[str]:
        """Return the names of all checkpoints, sorted."""
        found = self._query("SELECT name FROM checkpoint WHERE part = 0", ())
        try:
            return sorted(name.decode() for (name,) in found)
        except (AttributeError, UnicodeDecodeError) as error:
            raise damaged(self.path, "a checkpoint has a name that is not text") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all or, after an exception, nothing of what is written inside."""
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
        """Close the file and release its lock; further calls do nothing."""
        if self._pid != os.getpid():
            return  # a forked child has inherited the file, and must not close its parent's
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

    def _count_quickly(self) -> list[Tally]:
        """Return tallies from the columns as they are, without comparing checksums."""
        found = []
        for phase, with_gradient, status, n, attempts, seconds in self._query(_COUNTS, ()):
            if not (
                type(phase) is type(status) is bytes
                and status in (b"ok", b"rejected")
                and type(attempts) is int
                and type(seconds) in (int, float)
            ):
                raise damaged(self.path, "a row has values of the wrong type")
            kind = "gradient" if with_gradient else "value"
            found.append(
                Tally(phase.decode("utf-8", "replace"), kind, status.decode(), n, attempts, float(seconds))
            )
        return sorted(found, key=lambda tally: (tally.phase, tally.kind, tally.status))

    def _warn_of_rows(self, bad: list[tuple[int, str]]) -> None:
        place, what = bad[0]
        n = f"{len(bad)} evaluations" if len(bad) > 1 else "1 evaluation"
        warnings.warn(
            f"{n} in the ledger {self.path} left out as damaged, the first in sequence {place >> INDEX_BITS} at index "
            f"{place & (MAX_INDEX - 1)} ({what}); a run that needs them evaluates them again",
            LedgerWarning,
            stacklevel=3,
        )

    def _replace(self, record: tuple[Any, ...]) -> None:
        """Record a row at a place that may have one already: that row must be the same, or damaged."""
        for found in self._connection.execute(_SELECT, record[:1]).fetchall():
            try:
                row = decode_row(found, self.header.dim)
            except Bad:
                self._connection.execute(_UPDATE, (*record, record[0]))
                return
            if found[9] == record[9]:
                return
            raise LedgerError(
                f"the ledger {self.path} already has a different evaluation in sequence {row.sequence} at index "
                f"{row.index}; replay the recorded evaluations before adding new ones"
            )
        self._connection.execute(_INSERT, record)

    def _flush(self) -> None:
        """Flush the rows to disk, so that a power cut does not cost them."""
        if not self._connection.in_transaction:
            # If it fails now it is tried again later: only a power cut could lose the rows meanwhile.
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
                f"the ledger {self.path} belongs to the process that opened it; open it again in this one"
            )

    def _require_writer(self) -> None:
        self._require_open()
        if self._file_lock is None:
            raise LedgerError(f"the ledger {self.path} was opened to be read; open it to write to it")


def salvage(path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> int:
    """Copy all evaluations that SQLite can still read and that match their checksums to a new ledger.

    Checkpoints are not copied: a resumed run makes them again while it replays its evaluations.

    Parameters
    ----------
    path : path-like
        Path of the damaged ledger. Its rows are not changed.
    new_path : path-like
        Path of the new ledger; no file may be there.

    Returns
    -------
    int
        Number of evaluations that were copied.

    Examples
    --------
    >>> import tempfile
    >>> row = Row(sequence=0, index=0, phase="draws", chain=0, step=0, position=np.ones(1), log_density=-1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(folder + "/run.db", Header("0.1.0", 1, ("a",), {}, 1, {})) as ledger:
    ...         ledger.append([row])
    ...     salvage(folder + "/run.db", folder + "/new.db")
    1
    """
    real, exists = locate(path)
    if not exists:
        raise LedgerError(f"there is no ledger {os.fsdecode(path)}; check the path")
    if locate(new_path)[1]:
        raise LedgerError(f"there is a file {os.fsdecode(new_path)} already; give the path of a new one")
    lock = FileLock(real)
    try:
        with our_errors(real, "opened"), closing(connect(real, "rw")) as connection:
            check_kind(connection, real)
            try:
                header = read_header(connection, real)
            except (LedgerDamaged, sqlite3.Error) as error:
                raise LedgerDamaged(
                    f"the header of the ledger {real} is lost, and nothing can be copied without it; "
                    "go back to a backup"
                ) from error
            with Ledger.open(new_path, header) as ledger:
                n_rows = 0
                for row in _readable(connection, real, header.dim):
                    with suppress(LedgerError):  # a forged copy of a row that was copied already
                        ledger.append([row])
                        n_rows += 1
                return n_rows
    finally:
        lock.release()


def _readable(connection: sqlite3.Connection, path: str, dim: int) -> Iterator[Row]:
    """Yield rows one by one, so that a damaged page costs the rows on it and no others."""
    # The number of the last row cannot be asked for if its page is damaged. Every row takes more than 64 bytes.
    n_bytes = sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end))
    for number in range(1, n_bytes // 64):
        try:
            records = connection.execute(
                f"SELECT {ROW_COLUMNS} FROM evaluation WHERE id = ?", (number,)
            ).fetchall()
            yield from (decode_row(record, dim) for record in records)
        except (sqlite3.Error, Bad):
            continue
