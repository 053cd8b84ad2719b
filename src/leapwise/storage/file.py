"""How a ledger's file is opened: its schema, the settings of SQLite, and its errors in our words.

What a ledger is of: the library, the settings, the seed and the target that made it.

One writer: a lock that the operating system lets go of when its holder dies, however it dies.

POSIX record locks belong to a process and are not inherited: worker processes forked during a run do not keep a
ledger locked after the run was killed. They say nothing within one process, hence the table of those held here.

What SQLite does not say: how much of a damaged log it has left out.

SQLite reads its write-ahead log up to the first frame that does not match its checksum, and forgets what follows. Of a
killed process that is the one transaction it was writing; of a damaged log it can be many that were finished.

Make a ledger, open it to write or to read, and close it so that one plain file is left.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sqlite3
import stat
import struct
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

FORMAT_VERSION = 1
MAX_DIM = 1_000_000


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Header:
    """What a ledger is of.

    Attributes
    ----------
    library_version : str
        Of the library that made it.
    dim : int
        How many parameters the target has.
    names : tuple of str
        Theirs.
    settings : dict
        Of the run, as JSON can hold them.
    seed : int, list, str or None
        As JSON can hold it.
    fingerprint : dict of str to str
        What identifies the target.
    format_version : int
        Of the file.
    created : str
        When, in ISO 8601.

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
    """Return a header as JSON and its checksum."""
    text = to_json(asdict(header), "the header of a ledger")
    try:
        _checked(json.loads(text))
    except Bad as error:
        raise LedgerError(f"the header of a ledger has {error}; give what `Header` describes") from error
    return text, digest_of(text.encode(), b"header")


def decode_header(text: Any, digest: Any) -> Header:
    """Return the header that a record holds, or raise `Bad`."""
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
        raise Bad("other entries than a header")
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


_held: dict[str, int] = {}
_guard = threading.Lock()


class FileLock:
    """Hold ``<path>.lock`` from construction to `release`; raise `LedgerBusy` if somebody else does.

    Parameters
    ----------
    path : str
        Of the file that is protected, with symbolic links resolved.
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
        """Let go; the lock file goes too. Does nothing in a forked child: the lock is its parent's."""
        with _guard:
            if self._pid != os.getpid() or _held.get(self._name) != self._pid:
                return
            del _held[self._name]
            # Unlinked while held: whoever has opened it meanwhile will find that it is no longer there.
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
                    "put it on a file system that has locks and room, such as a local disk"
                ) from error
            os.close(descriptor)


def _is_same(descriptor: int, name: str) -> bool:
    """Return whether an open file is still the one of that name."""
    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Far beyond the text, which others may then read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


PAGE_SIZE = 2048
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_STEP = _FRAME.size + PAGE_SIZE


def commits_after(path: str, n_frames: int) -> int:
    """Return how many transactions were begun to be written to a log after its first `n_frames` frames."""
    n_commits = 0
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            # Frames that are left from an earlier use of the file have other salts than those of now.
            salts = list(_HEADER.unpack(header)[4:6]) if _is_whole(header) else None
            for number in range((os.fstat(file.fileno()).st_size - _HEADER.size) // _STEP):
                file.seek(_HEADER.size + number * _STEP)
                _, commit, *own, _, _ = _FRAME.unpack(file.read(_FRAME.size))
                salts = salts or own
                n_commits += number >= n_frames and commit > 0 and own == salts
    except (OSError, struct.error):
        return 0
    return n_commits


def _is_whole(header: bytes) -> bool:
    """Return whether the header of a log matches its checksum."""
    words = struct.unpack(">6I" if header[3:4] == b"\x83" else "<6I", header[:24])
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == struct.unpack(">2I", header[24:])


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
