"""Hostile files in the place of a ledger: typed errors, nothing executed, limited memory and time."""

from __future__ import annotations

import resource
import warnings

import pytest
from ledger_helpers import DIM, bits, header, make_row
from ledger_hostile import HOSTILE, MARKER

from leapwise.errors import LedgerError
from leapwise.storage import Ledger, LedgerWarning, salvage

# Rows that are refused are left out, and the rest is read.
ROWS = {(sequence, index): bits(make_row(sequence, index)) for sequence in range(3) for index in range(5)}


def look(open_it):
    """Read everything; return how it was refused, and which rows were left out."""
    refused, found = set(), {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with open_it() as ledger:
                assert ledger.header.dim == DIM
                for step in (
                    lambda: found.update({(row.sequence, row.index): bits(row) for row in ledger.rows()}),
                    lambda: ledger.get(0, 1),
                    lambda: ledger.count(verify=False),
                    ledger.failures,
                    ledger.names,
                    lambda: [ledger.load(name) for name in ledger.names()],
                    lambda: refused.add("gone") if ledger.load("kernel") is None else None,
                ):
                    try:
                        step()
                    except LedgerError as error:
                        refused.add(str(error))
        except LedgerError as error:
            refused.add(str(error))
            return refused, set()
    for warning in caught:
        assert warning.category is LedgerWarning
        refused.add(str(warning.message))
    assert found.items() <= ROWS.items()
    return refused, ROWS.keys() - found.keys()


def test_there_are_fifty_or_more():
    assert len(HOSTILE) >= 50


@pytest.mark.parametrize("writing", [False, True], ids=["read", "open"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name, writing, tmp_path):
    path = str(tmp_path / "run.db")
    HOSTILE[name](path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, lost = look(lambda: Ledger.open(path, header()) if writing else Ledger.read(path))
    assert refused, "nothing was refused"
    assert len(lost) <= 1
    assert all(0 < len(message) < 1000 for message in refused)
    assert not (tmp_path / MARKER).exists()
    # Kilobytes: the longest value that SQLite may return is 256 MiB, and there may be two copies of it.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


@pytest.mark.parametrize("name", HOSTILE)
def test_salvage_of_hostile_files(name, tmp_path):
    path = str(tmp_path / "run.db")
    HOSTILE[name](path)
    try:
        salvage(path, tmp_path / "new.db")
    except LedgerError:
        pass
    else:
        with Ledger.read(tmp_path / "new.db") as ledger:
            assert {(row.sequence, row.index): bits(row) for row in ledger.rows()}.items() <= ROWS.items()
    assert not (tmp_path / MARKER).exists()
