"""The file of a ledger: what its header says, its tables, how it is opened and closed, and its lock.

A ledger is one SQLite file. It is made under another name and renamed when it is complete, so that a file of its name
is always whole. While a run writes, SQLite keeps a write-ahead log beside the file. Closing copies the log
into the file and leaves one plain file. Files are opened so that nothing in them can act: no triggers, no attached
files, no schema but that of this version.

One process writes. The operating system releases its lock when the process dies, however it dies. POSIX record locks
belong to a process and are not inherited, so worker processes that were forked during a run do not keep the ledger
locked after the run was killed. They do not exclude a second lock in the same process, hence the table of locks held
here.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sqlite3
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from leapwise.errors import LedgerBusy, LedgerDamaged, LedgerError, LedgerMismatch
from leapwise.storage.rows import Bad, digest_of, from_json, to_json

#: Goes up whenever an earlier ledger could not be resumed. 2: stored classes have tags, checkpoints their own table.
FORMAT_VERSION = 2
#: Far above any target; bounds the arrays that a forged header can ask for.
MAX_DIM = 1_000_000
#: Marks ledgers among the files of other applications of SQLite. The same for all formats, so that earlier ones are
#: recognised.
APPLICATION_ID = 0x756E6472
#: The longest text or array that is read or written; SQLite enforces it.
MAX_BYTES = 1 << 28
#: Small: a row takes a few hundred bytes, and every transaction writes whole pages to the log.
PAGE_SIZE = 2048
#: The log is copied into the file, and flushed to disk, when it is this long: rarely enough to cost little, and often
#: enough to keep the log short.
LOG_BYTES = 64 << 20
#: Files that SQLite may leave beside a ledger.
_BESIDE = ("-wal", "-journal")
# Columns without a type keep every bit of a float; a REAL column would lose the sign of -0.0.
SCHEMA = (
    "CREATE TABLE header (id INTEGER PRIMARY KEY, body TEXT NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE evaluation (id INTEGER PRIMARY KEY, place INTEGER NOT NULL UNIQUE, phase TEXT NOT NULL, "
    "chain INTEGER NOT NULL, step INTEGER NOT NULL, status TEXT NOT NULL, log_density NOT NULL, "
    "seconds NOT NULL, attempts INTEGER NOT NULL, message TEXT NOT NULL, digest BLOB NOT NULL, "
    "position BLOB NOT NULL, gradient BLOB, outputs BLOB)",
    "CREATE TABLE failure (id INTEGER PRIMARY KEY, place INTEGER NOT NULL, attempt INTEGER NOT NULL, "
    "message TEXT NOT NULL, seconds NOT NULL, digest BLOB NOT NULL, position BLOB NOT NULL)",
    "CREATE TABLE checkpoint (id INTEGER PRIMARY KEY, name TEXT NOT NULL, part INTEGER NOT NULL, "
    "body BLOB NOT NULL, digest BLOB NOT NULL, UNIQUE (name, part))",
)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_RIGHTS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


class LedgerWarning(UserWarning):
    """Part of a ledger was left out because it is damaged; it will be evaluated again."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Header:
    """What a ledger belongs to.

    Attributes
    ----------
    library_version : str
        Version of the library that made it.
    dim : int
        Number of parameters of the target.
    names : tuple of str
        Their names.
    settings : dict
        Settings of the run, as JSON can hold them.
    seed : int, list, str or None
        Seed of the run.
    fingerprint : dict of str to str
        What identifies the target.
    format_version : int
        Format of the file.
    created : str
        When it was made, in ISO 8601.

    Examples
    --------
    >>> Header("0.1.0", 2, ("a", "b"), {"draws": 10}, 1, {"version": "2"}, created="2026-01-01T00:00:00+00:00").names
    ('a', 'b')
    """

    library_version: str
    dim: int
    names: tuple[str, ...]
    settings: dict[str, Any]
    seed: Any
    fingerprint: dict[str, str]
    format_version: int = FORMAT_VERSION
    created: str = field(default_factory=_now)


def encode_header(header: Header) -> tuple[str, bytes]:
    """Return a header as JSON, and its checksum."""
    text = to_json(asdict(header), "the header of a ledger")
    try:
        _checked(json.loads(text))
    except Bad as error:
        raise LedgerError(f"the header of a ledger has {error}; give what `Header` describes") from error
    return text, digest_of(text.encode(), b"header")


def decode_header(text: Any, digest: Any) -> Header:
    """Return the header of a record, or raise `Bad`."""
    if type(text) is not bytes or digest != digest_of(text, b"header"):
        raise Bad("a header that does not match its checksum")
    return _checked(from_json(text))


def _checked(found: Any) -> Header:
    kinds = {
        "library_version": str,
        "dim": int,
        "names": list,
        "settings": dict,
        "seed": object,
        "fingerprint": dict,
        "format_version": int,
        "created": str,
    }
    if type(found) is not dict or found.keys() != kinds.keys():
        raise Bad("a header with other entries")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise Bad(f"{name} of the wrong type")
    if not 1 <= found["dim"] <= MAX_DIM:
        raise Bad(f"a dimension of {found['dim']}")
    if len(found["names"]) != found["dim"] or not all(type(name) is str for name in found["names"]):
        raise Bad("names that do not match the dimension")
    if not all(type(value) is str for value in found["fingerprint"].values()):
        raise Bad("a fingerprint that is not of strings")
    return Header(**{**found, "names": tuple(found["names"])})


def locate(path: str | os.PathLike[str]) -> tuple[str, bool]:
    """Return a path without symbolic links, and whether a file is there; raise if it is not a regular file."""
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
    """Open a file for reading ("ro"), writing ("rw") or making ("rwc"), so that nothing in it is executed."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=10.0,
    )
    try:
        # Text as bytes: damaged text must spoil its own row and not the whole query.
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
    """Raise unless a file is a ledger of this format, with its tables and nothing else."""
    application = _number(connection, "application_id")
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 50").fetchall()
    if application != APPLICATION_ID:
        what = "it is another program's database" if found or application else "it is empty"
        raise LedgerError(
            f"the file {path} is not a ledger: {what}; give another path, or delete it to start a new ledger"
        )
    if (version := _number(connection, "user_version")) != FORMAT_VERSION:
        raise LedgerMismatch(
            f"the ledger {path} has format {version}, which another version of leapwise wrote, and this version reads "
            f"format {FORMAT_VERSION} only; resume it with the version that wrote it, or start a new ledger"
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
        raise damaged(path, f"its header has format {header.format_version}")
    return header


@contextmanager
def our_errors(path: str, doing: str) -> Iterator[None]:
    """Turn errors of SQLite into `LedgerError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path, doing) from error
    except (OverflowError, MemoryError) as error:
        raise LedgerError(f"the ledger {path} could not be {doing}: {error}; write less at once") from error


def translate(error: sqlite3.Error, path: str, doing: str) -> LedgerError:
    """Return the `LedgerError` that explains an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    what = f"the ledger {path} could not be {doing}: {error}"
    if primary in _BUSY:
        return LedgerBusy(f"{what}; another process is using it: wait for it or stop it")
    if primary in _DAMAGE:
        if primary == sqlite3.SQLITE_NOTADB:
            return LedgerDamaged(
                f"{what}; it is not a ledger, or its beginning is damaged: give another path"
            )
        return damaged(path, str(error))
    if primary in _ROOM:
        return LedgerError(
            f"{what}; all that was recorded before is safe: make room on the disk (or repair it) and run again"
        )
    if primary in _RIGHTS:
        return LedgerError(f"{what}; make the file and its folder writable, or copy it to a folder that is")
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerError(f"{what}; open it again")
    return LedgerError(f"{what}; check the file, leapwise.storage.salvage copies the rows that are whole")


def damaged(path: str, what: str) -> LedgerDamaged:
    """Return the error for a damaged ledger."""
    return LedgerDamaged(
        f"the ledger {path} is damaged: {what}; copy the rows that are whole to a new ledger with "
        "leapwise.storage.salvage(path, new_path), or go back to a backup"
    )


def require_writable(path: str, exists: bool) -> None:
    """Raise unless the file can be written, and the folder too: SQLite puts its log beside the file."""
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
    """Return the description of a ledger's tables, in the words of this version of SQLite."""
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


#: Lock files that this process holds, with its process id: a forked child holds none.
_held: dict[str, int] = {}
_guard = threading.Lock()


class FileLock:
    """Hold ``<path>.lock`` from construction to `release`; raise `LedgerBusy` if another run holds it.

    Parameters
    ----------
    path : str
        Path of the protected file, with symbolic links resolved.
    """

    def __init__(self, path: str) -> None:
        self._name = path + ".lock"
        with _guard:
            if _held.get(self._name) == os.getpid():
                raise LedgerBusy(
                    f"the ledger {path} is being written by another run in this process; wait for it, or close it"
                )
            self._descriptor = self._acquire(path)
            _held[self._name] = self._pid = os.getpid()

    def release(self) -> None:
        """Release the lock and delete its file; in a forked child do nothing, because the lock is its parent's."""
        with _guard:
            if self._pid != os.getpid() or _held.get(self._name) != self._pid:
                return
            del _held[self._name]
            # Deleted while held: another process that has opened it meanwhile sees that it is gone, and tries again.
            with suppress(OSError):
                os.unlink(self._name)
            os.close(self._descriptor)
            with suppress(OSError):
                if sys.platform == "win32":
                    os.unlink(self._name)

    def _acquire(self, path: str) -> int:
        while True:
            try:
                descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            except OSError as error:
                raise LedgerError(
                    f"the ledger {path} cannot be locked: {error.strerror} ({self._name}); "
                    "choose a folder that can be written"
                ) from error
            try:
                _lock(descriptor)
                if _is_same(descriptor, self._name):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                    return descriptor
            except (BlockingIOError, PermissionError) as error:
                holder = os.pread(descriptor, 200, 0) if hasattr(os, "pread") else b""
                who = holder.decode("utf-8", "replace").strip() or "another process"
                os.close(descriptor)
                raise LedgerBusy(
                    f"the ledger {path} is being written by {who}; wait for it or stop it, or use another file"
                ) from error
            except OSError as error:
                os.close(descriptor)
                raise LedgerError(
                    f"the ledger {path} cannot be locked: {error.strerror}; "
                    "put it on a file system with locks and free space, such as a local disk"
                ) from error
            os.close(descriptor)


def _is_same(descriptor: int, name: str) -> bool:
    """Return whether the file of that name is still the one that is open."""
    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Far beyond the text, so that others can read who holds the lock.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_writer(
    path: str | os.PathLike[str], header: Header
) -> tuple[str, sqlite3.Connection, Header, FileLock]:
    """Make a ledger or open an existing one, as its only writer."""
    real, exists = locate(path)
    require_writable(real, exists)
    lock = FileLock(real)
    try:
        real, exists = locate(real)  # the last holder of the lock may have made the file
        if not exists:
            create(real, header)
        elif os.stat(real).st_nlink > 1:
            raise LedgerError(
                f"the ledger {real} has a second name (a hard link), under which another run could write to it; "
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
    """Open a ledger to read, even while a run writes to it."""
    real, exists = locate(path)
    if not exists:
        raise LedgerError(f"there is no ledger {os.fsdecode(path)}; check the path")
    try:
        return _reader(real, "ro")
    except LedgerError as error:
        # After a kill SQLite may have to recover the log first, for which it must open the file to write.
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
    """Close a connection, and leave one plain file without a log if nothing else is reading it."""
    try:
        with suppress(sqlite3.Error):  # while something reads, the log stays; the next writer removes it
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        connection.close()


def create(path: str, header: Header) -> None:
    """Make a ledger under another name, and rename it when it is complete."""
    for end in _BESIDE:
        if os.path.exists(path + end):
            raise LedgerDamaged(
                f"the ledger {path} is missing but its log {path + end} is there; "
                "put the ledger back, or delete the log too to start a new one"
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
    """Raise if the pages of the file are inconsistent: writing to it could destroy rows that are whole."""
    problems = connection.execute("PRAGMA quick_check(1)").fetchall()
    if problems != [(b"ok",)]:
        said = problems[0][0] if problems and type(problems[0][0]) is bytes else b"no reply"
        raise damaged(path, said.decode("utf-8", "replace").replace("\n", " ")[:200])
    # Rows are numbered without gaps and never deleted, so a gap means a loss.
    ((n_rows, last),) = connection.execute("SELECT count(*), max(id) FROM evaluation").fetchall()
    if n_rows < (last or 0):
        warnings.warn(
            f"{last - n_rows} evaluations are missing from the ledger {path}; they will be evaluated again",
            LedgerWarning,
            stacklevel=5,
        )


def _start_log(connection: sqlite3.Connection, path: str) -> None:
    """Begin to write to a log. SQLite recovers one that was left behind, up to the first damaged transaction."""
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != b"wal":
        raise LedgerError(
            f"the ledger {path} cannot have a write-ahead log here (got {mode!r}); put it on a local disk"
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // PAGE_SIZE}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    connection.execute("SELECT id FROM header").fetchall()  # the change takes effect with the next read
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # what a killed run left in its log


def _flush_folder(folder: str) -> None:
    """Make a new file name survive a power cut, where folders can be flushed."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
