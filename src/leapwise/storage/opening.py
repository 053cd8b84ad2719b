"""Make a ledger, open it to write or to read, and close it so that one plain file is left."""

from __future__ import annotations

import os
import sqlite3
import warnings
from contextlib import closing, suppress

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage.connection import (
    APPLICATION_ID,
    SCHEMA,
    LedgerWarning,
    check_kind,
    connect,
    damaged,
    locate,
    our_errors,
    read_header,
    require_writable,
)
from leapwise.storage.header import FORMAT_VERSION, Header, encode_header
from leapwise.storage.lock import FileLock
from leapwise.storage.pages import PAGE_SIZE
from leapwise.storage.wal import commits_after

# The log is copied into the file, and the disk made to write through, when it is this long: so seldom that it costs
# little, and often enough to keep it short.
LOG_BYTES = 64 << 20
_BESIDE = ("-wal", "-journal")


def open_writer(
    path: str | os.PathLike[str], header: Header
) -> tuple[str, sqlite3.Connection, Header, FileLock]:
    """Make a ledger or open an existing one, alone."""
    real, exists = locate(path)
    require_writable(real, exists)
    lock = FileLock(real)
    try:
        real, exists = locate(real)  # the last holder of the lock may have made it
        if not exists:
            create(real, header)
        elif os.stat(real).st_nlink > 1:
            raise LedgerError(
                f"the ledger {real} has another name too (a hard link), under which somebody else could write to it; "
                "copy it instead"
            )
        with our_errors(real, "opened"):
            connection = connect(real, "rw")
        try:
            with our_errors(real, "opened"):
                check_kind(connection, real)
                found = read_header(connection, real)
                _check_structure(connection, real)
                _start_log(connection, real)
        except BaseException:
            connection.close()
            raise
    except BaseException:
        lock.release()
        raise
    return real, connection, found, lock


def open_reader(path: str | os.PathLike[str]) -> tuple[str, sqlite3.Connection, Header]:
    """Open a ledger to read, whether or not somebody is writing to it."""
    real, exists = locate(path)
    if not exists:
        raise LedgerError(f"there is no ledger {os.fsdecode(path)}; check the path")
    try:
        return _reader(real, "ro")
    except LedgerError as error:
        # After a kill SQLite may have to tidy up first, which it does for those who could write.
        cause = error.__cause__
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_READONLY or not os.access(
            real, os.W_OK
        ):
            raise
    return _reader(real, "rw")


def _reader(real: str, mode: str) -> tuple[str, sqlite3.Connection, Header]:
    with our_errors(real, "opened"):
        connection = connect(real, mode)
    try:
        with our_errors(real, "opened"):
            connection.execute("PRAGMA query_only = ON")
            check_kind(connection, real)
            return real, connection, read_header(connection, real)
    except BaseException:
        connection.close()
        raise


def close_writer(connection: sqlite3.Connection) -> None:
    """Close a connection; without a log if nobody else is reading, so that the file can be read from anywhere."""
    try:
        with suppress(sqlite3.Error):  # a reader keeps the log alive, and then it stays: no harm done
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        connection.close()


def create(path: str, header: Header) -> None:
    """Make a ledger under another name and give it its own when it is whole."""
    for end in _BESIDE:
        if os.path.exists(path + end):
            raise LedgerDamaged(
                f"the ledger {path} is missing but {path + end} is there, which belongs to it; "
                "put it back, or delete that too to start anew"
            )
    body, digest = encode_header(header)
    new = path + ".new"
    try:
        for end in ("", *_BESIDE):
            with suppress(FileNotFoundError):
                os.unlink(new + end)
        with our_errors(path, "made"), closing(connect(new, "rwc")) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA auto_vacuum = NONE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO header (id, body, digest) VALUES (1, ?, ?)", (body, digest))
            connection.execute("COMMIT")
        os.rename(new, path)
        _flush_folder(os.path.dirname(path))
    except OSError as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(
            f"the ledger {path} could not be made: {error.strerror}; choose a folder that can be written"
        ) from error


def _check_structure(connection: sqlite3.Connection, path: str) -> None:
    """Raise if pages do not hang together: writing into such a file could spoil rows that are whole."""
    problems = connection.execute("PRAGMA quick_check(1)").fetchall()
    if problems != [(b"ok",)]:
        said = problems[0][0] if problems and type(problems[0][0]) is bytes else b"no answer"
        raise damaged(path, said.decode("utf-8", "replace").replace("\n", " ")[:200])
    # Rows are numbered without gaps and never deleted.
    ((n_rows, last),) = connection.execute("SELECT count(*), max(id) FROM evaluation").fetchall()
    if n_rows < (last or 0):
        warnings.warn(
            f"{last - n_rows} evaluations are missing from the ledger {path}; they will be evaluated again",
            LedgerWarning,
            stacklevel=5,
        )


def _start_log(connection: sqlite3.Connection, path: str) -> None:
    """Begin to write to a log, and tell what SQLite could not read of one that was left behind."""
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != b"wal":
        raise LedgerError(
            f"the ledger {path} cannot have a write-ahead log here (got {mode!r}); put it on a local disk"
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // PAGE_SIZE}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    connection.execute("SELECT id FROM header").fetchall()  # a change of mode takes hold with the next read
    ((_, n_frames, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    # One transaction that was begun and not finished is how a killed process leaves its log.
    if (lost := commits_after(path + "-wal", n_frames)) > 1:
        warnings.warn(
            f"the log of the ledger {path} is damaged: its last {lost} transactions (of one evaluation or more each) "
            "are left out and will be evaluated again",
            LedgerWarning,
            stacklevel=4,
        )


def _flush_folder(folder: str) -> None:
    """See to it that a new name outlasts a power cut, where folders can be flushed."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
