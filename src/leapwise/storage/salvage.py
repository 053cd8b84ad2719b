"""Copy what is whole of a damaged ledger into a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage.connection import MAX_BYTES, locate
from leapwise.storage.header import Header, decode_header
from leapwise.storage.ledger import Ledger
from leapwise.storage.lock import FileLock
from leapwise.storage.pages import Pages
from leapwise.storage.rows import Bad, Failure, Row, decode_failure, decode_row

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
