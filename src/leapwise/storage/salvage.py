"""Copy what is whole of a damaged ledger into a new one.

Records in the pages of an SQLite file, without SQLite: whatever of a damaged file can still be made out.

The format is SQLite's own (https://www.sqlite.org/fileformat2.html, sections 1.6, 2.1, 4). Every page that looks like
a leaf of a table is taken apart, in the file and in its log, whether or not anything leads to it any more. Much of
what comes out may be nonsense: the caller holds each record against its checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import IO, Any

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage.file import MAX_BYTES, PAGE_SIZE, FileLock, Header, decode_header, locate
from leapwise.storage.ledger import Ledger
from leapwise.storage.rows import Bad, Failure, Row, decode_failure, decode_row

_LEAF = 0x0D
_LOG_HEADER, _FRAME_HEADER = 32, 24
# Payload beyond this spills into overflow pages, all but at least _LEAST bytes of it.
_LOCAL = PAGE_SIZE - 35
_LEAST = (PAGE_SIZE - 12) * 32 // 255 - 23
_WIDTHS = (0, 1, 2, 3, 4, 6, 8)


class _Nonsense(Exception):
    """These bytes are not a record."""


class Pages:
    """The pages of a database file and its log.

    Parameters
    ----------
    path : str
        Of the database; its log, if there is one, has "-wal" added.
    max_bytes : int
        No record is longer.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        with ExitStack() as stack:
            self._file: IO[bytes] = stack.enter_context(open(path, "rb"))
            self._log: IO[bytes] | None = None
            if os.path.isfile(path + "-wal"):
                self._log = stack.enter_context(open(path + "-wal", "rb"))
            self._in_log = self._frames()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def records(self) -> Iterator[tuple[Any, ...]]:
        """Yield everything that looks like a record of a table; the log's come last."""
        for page in self._all():
            if len(page) < PAGE_SIZE or page[0] != _LEAF:
                continue
            n_cells = min(int.from_bytes(page[3:5], "big"), (PAGE_SIZE - 8) // 2)
            for number in range(n_cells):
                start = int.from_bytes(page[8 + 2 * number : 10 + 2 * number], "big")
                try:
                    yield self._record(page, start)
                except (_Nonsense, IndexError, struct.error):
                    continue

    def _all(self) -> Iterator[bytes]:
        # The first page holds the table of contents and no rows.
        for number in range(1, _size(self._file) // PAGE_SIZE):
            yield _read(self._file, number * PAGE_SIZE, PAGE_SIZE)
        if self._log is not None:
            step = _FRAME_HEADER + PAGE_SIZE
            for frame in range((_size(self._log) - _LOG_HEADER) // step):
                yield _read(self._log, _LOG_HEADER + frame * step + _FRAME_HEADER, PAGE_SIZE)

    def _frames(self) -> dict[int, int]:
        """Return where in the log the last copy of each page is."""
        if self._log is None:
            return {}
        step, found = _FRAME_HEADER + PAGE_SIZE, {}
        for frame in range((_size(self._log) - _LOG_HEADER) // step):
            start = _LOG_HEADER + frame * step
            found[int.from_bytes(_read(self._log, start, 4), "big")] = start + _FRAME_HEADER
        return found

    def _page(self, number: int) -> bytes:
        if self._log is not None and number in self._in_log:
            return _read(self._log, self._in_log[number], PAGE_SIZE)
        return _read(self._file, (number - 1) * PAGE_SIZE, PAGE_SIZE) if number > 0 else b""

    def _record(self, page: bytes, start: int) -> tuple[Any, ...]:
        length, start = _varint(page, start)
        rowid, start = _varint(page, start)
        if not 0 < length <= self._max_bytes:
            raise _Nonsense
        if length <= _LOCAL:
            payload = page[start : start + length]
        else:
            local = _LEAST + (length - _LEAST) % (PAGE_SIZE - 4)
            local = local if local <= _LOCAL else _LEAST
            parts, missing = [page[start : start + local]], length - local
            following = int.from_bytes(page[start + local : start + local + 4], "big")
            while missing > 0:
                more = self._page(following)
                if len(more) < PAGE_SIZE:
                    raise _Nonsense
                parts.append(more[4 : 4 + min(missing, PAGE_SIZE - 4)])
                missing -= PAGE_SIZE - 4
                following = int.from_bytes(more[:4], "big")
            payload = b"".join(parts)
        if len(payload) != length:
            raise _Nonsense
        return rowid, *_values(payload)


def _values(payload: bytes) -> list[Any]:
    """Return the columns of a record after its first, which is the row's number."""
    size, place = _varint(payload, 0)
    kinds = []
    while place < size:
        kind, place = _varint(payload, place)
        kinds.append(kind)
    if place != size or len(kinds) > 20:
        raise _Nonsense
    values: list[Any] = []
    for kind in kinds:
        width = _WIDTHS[kind] if kind < 7 else 8 if kind == 7 else 0 if kind < 12 else (kind - 12) // 2
        data = payload[place : place + width]
        if len(data) != width:
            raise _Nonsense
        place += width
        if kind == 0:
            values.append(None)
        elif kind < 7:
            values.append(int.from_bytes(data, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", data)[0])
        elif kind in (8, 9):
            values.append(kind - 8)
        elif kind < 12:
            raise _Nonsense
        else:
            values.append(data)
    return values[1:]


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a number of SQLite's variable length, and where it ends; seldom negative, and never for us."""
    value = 0
    for place in range(start, start + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[start + 8], start + 9


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _read(file: IO[bytes], start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


_BATCH = 500


@dataclass(frozen=True)
class Salvaged:
    """What was found.

    Attributes
    ----------
    n_rows, n_failures : int
        How many evaluations and failed attempts were copied.
    n_spoilt : int
        How many records looked like an evaluation and did not match their checksum; the same one may count twice.
    """

    n_rows: int
    n_failures: int
    n_spoilt: int


def salvage(
    path: str | os.PathLike[str], new_path: str | os.PathLike[str], header: Header | None = None
) -> Salvaged:
    """Copy every evaluation that matches its checksum into a new ledger, however the file is damaged.

    Snapshots are not copied: a run makes them again when it replays its evaluations.

    Parameters
    ----------
    path : path-like
        Of the damaged ledger, which is left as it is.
    new_path : path-like
        Of the new one; there must be nothing there.
    header : Header, optional
        For the new one, if that of the old one is lost.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> row = Row(lane=0, index=0, phase="draws", chain=0, step=0, position=np.ones(1), log_density=-1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(folder + "/run.db", Header("0.1.0", 1, ("a",), {}, 1, {})) as ledger:
    ...         ledger.append([row])
    ...     salvage(folder + "/run.db", folder + "/new.db")
    Salvaged(n_rows=1, n_failures=0, n_spoilt=0)
    """
    real, exists = locate(path)
    if not exists:
        raise LedgerError(f"there is no ledger {os.fsdecode(path)}; check the path")
    if locate(new_path)[1]:
        raise LedgerError(f"there is a file {os.fsdecode(new_path)} already; give the path of a new one")
    lock = FileLock(real)
    try:
        with closing(Pages(real, MAX_BYTES)) as pages:
            header = header or _find_header(pages, real)
            with Ledger.open(new_path, header) as ledger:
                return _copy(pages, ledger)
    except OSError as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"the ledger {real} could not be read: {error}; check the disk") from error
    finally:
        lock.release()


def _find_header(pages: Pages, path: str) -> Header:
    for record in pages.records():
        if len(record) == 3:
            with suppress(Bad):
                return decode_header(*record[1:])
    raise LedgerDamaged(
        f"the header of the ledger {path} is lost; say what it was (header=), or go back to a copy of the file"
    )


def _copy(pages: Pages, ledger: Ledger) -> Salvaged:
    places: set[tuple[int, int]] = set()
    seen: set[int] = set()
    n_spoilt, batch = 0, list[Row]()
    for found in _understood(pages, ledger.header.dim):
        if isinstance(found, Row):
            if (found.lane, found.index) not in places:
                places.add((found.lane, found.index))
                batch.append(found)
        elif found is None:
            n_spoilt += 1
        elif found[0] not in seen:
            seen.add(found[0])
            failure = found[1]
            ledger.failed(**vars(failure))
        if len(batch) == _BATCH:
            ledger.append(batch)
            batch = []
    ledger.append(batch)
    return Salvaged(len(places), len(seen), n_spoilt)


def _understood(pages: Pages, dim: int) -> Iterator[Row | tuple[int, Failure] | None]:
    """Yield rows, numbered failures, and None for rows that are spoilt."""
    record: tuple[Any, ...]
    for record in pages.records():
        if len(record) == 14:
            try:
                yield decode_row(record[1:], dim)
            except Bad:
                yield None
        elif len(record) == 7:
            with suppress(Bad):
                yield record[0], decode_failure(record[1:], dim)
