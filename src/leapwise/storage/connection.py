"""How a ledger's file is opened: its schema, the settings of SQLite, and its errors in our words."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from urllib.parse import quote

from leapwise.errors import LedgerBusy, LedgerDamaged, LedgerError, LedgerMismatch
from leapwise.storage.header import FORMAT_VERSION, Header, decode_header
from leapwise.storage.rows import Bad

# "undr": tells our files from those of other applications of SQLite.
APPLICATION_ID = 0x756E6472
# The longest string or array that is read or written; SQLite holds us to it.
MAX_BYTES = 1 << 28
# Columns without a type keep every bit of a float; a REAL one would lose the sign of -0.0.
SCHEMA = (
    "CREATE TABLE header (id INTEGER PRIMARY KEY, body TEXT NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE evaluation (id INTEGER PRIMARY KEY, place INTEGER NOT NULL UNIQUE, phase TEXT NOT NULL, "
    "chain INTEGER NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL, log_density NOT NULL, "
    "seconds NOT NULL, attempts INTEGER NOT NULL, message TEXT NOT NULL, digest BLOB NOT NULL, "
    "position BLOB NOT NULL, gradient BLOB, outputs BLOB)",
    "CREATE TABLE failure (id INTEGER PRIMARY KEY, place INTEGER NOT NULL, attempt INTEGER NOT NULL, "
    "message TEXT NOT NULL, seconds NOT NULL, digest BLOB NOT NULL, position BLOB NOT NULL)",
    "CREATE TABLE snapshot (id INTEGER PRIMARY KEY, name TEXT NOT NULL, part INTEGER NOT NULL, "
    "body BLOB NOT NULL, digest BLOB NOT NULL, UNIQUE (name, part))",
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_RIGHTS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


class LedgerWarning(UserWarning):
    """Something of a ledger was left out because it is damaged; it will be evaluated again."""


def locate(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """Return a path without symbolic links, and whether there is a file; raise if it is something else."""
    try:
        given = os.fsdecode(path)
        real = os.path.realpath(given)
        kind = os.stat(real).st_mode
    except FileNotFoundError:
        return real, False
    except (OSError, TypeError, ValueError) as error:
        raise LedgerError(
            f"the ledger {path!r} cannot be opened: {error}; give the path of a file"
        ) from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
        raise LedgerError(f"the ledger {given} is {what}; give the path of a file")
    return real, True


def connect(path: str, mode: str) -> sqlite3.Connection:
    """Open a file for reading ("ro"), writing ("rw") or making ("rwc"), so that nothing in it can act."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=10.0,
    )
    try:
        # Strings as bytes: one that is damaged shall spoil its own row and not the whole query.
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
        for setting in ("trusted_schema = OFF", "cell_size_check = ON", "secure_delete = OFF"):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def check_kind(connection: sqlite3.Connection, path: str) -> None:
    """Raise unless a file is a ledger of this format, with its tables and nothing else in it."""
    application = _number(connection, "application_id")
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 50").fetchall()
    if application != APPLICATION_ID:
        what = "it is a database of something else" if found or application else "it is empty"
        raise LedgerError(
            f"the file {path} is not a ledger: {what}; give another path, or delete it to start anew"
        )
    if (version := _number(connection, "user_version")) != FORMAT_VERSION:
        raise LedgerMismatch(
            f"the ledger {path} has format {version}, and this version of the library reads {FORMAT_VERSION}; "
            "use the version that wrote it"
        )
    if sorted(map(repr, found)) != expected_schema():
        raise damaged(path, "its tables are not those of a ledger")


def read_header(connection: sqlite3.Connection, path: str) -> Header:
    """Return the header of a ledger, verified."""
    records = connection.execute("SELECT body, digest FROM header LIMIT 2").fetchall()
    if len(records) != 1:
        raise damaged(path, f"it has {'no header' if not records else 'several headers'}")
    try:
        header = decode_header(*records[0])
    except Bad as error:
        raise damaged(path, f"it has {error}") from error
    if header.format_version != FORMAT_VERSION:
        raise damaged(path, f"its header speaks of format {header.format_version}")
    return header


@contextmanager
def our_errors(path: str, doing: str) -> Iterator[None]:
    """Turn what SQLite raises into errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, doing) from error
    except (OverflowError, MemoryError) as error:
        raise LedgerError(
            f"the ledger {path} could not be {doing}: {error}; hand over less at once"
        ) from error


def translate(error: sqlite3.Error, path: str, doing: str) -> LedgerError:
    """Return the error of ours that says what an error of SQLite means."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    what = f"the ledger {path} could not be {doing}: {error}"
    if primary in _BUSY:
        return LedgerBusy(f"{what}; another process has it, wait for it or stop it")
    if primary in _DAMAGE:
        if primary == sqlite3.SQLITE_NOTADB:
            return LedgerDamaged(
                f"{what}; it is not a ledger, or its beginning is damaged: give another path"
            )
        return damaged(path, str(error))
    if primary in _ROOM:
        return LedgerError(
            f"{what}; what was recorded before is safe: make room on the disk (or mend it) and run again"
        )
    if primary in _RIGHTS:
        return LedgerError(f"{what}; make the file and its folder writable, or copy them to where they are")
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerError(f"{what}; open it again")
    return LedgerError(f"{what}; check the file, `leapwise.storage.salvage` copies what is whole")


def damaged(path: str, what: str) -> LedgerDamaged:
    """Return the error that says that a ledger is damaged, and what to do."""
    return LedgerDamaged(
        f"the ledger {path} is damaged: {what}; copy what is whole into a new one with "
        "leapwise.storage.salvage(path, new_path), or go back to a copy"
    )


def require_writable(path: str, exists: bool) -> None:
    """Raise unless a ledger can be written here: the file, and the folder for what SQLite puts beside it."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise LedgerError(f"the folder of the ledger {path} does not exist; make it first")
    for what, place in (("folder of the ledger", folder), ("ledger", path)):
        if (place == folder or exists) and not os.access(place, os.W_OK):
            reason = os.strerror(errno.EACCES)
            raise LedgerError(
                f"the {what} {place} cannot be written: {reason}; change its permissions or choose another"
            )


@cache
def expected_schema() -> list[str]:
    """Return what a ledger's table of contents says, as this version of SQLite puts it."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.text_factory = bytes
        for statement in SCHEMA:
            connection.execute(statement)
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    finally:
        connection.close()
    return sorted(map(repr, found))


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchall()[0][0])
