"""A byte flipped or the file cut, anywhere: a typed error or what is whole; never a value that was not written."""

from __future__ import annotations

import os
import shutil
import warnings

import numpy as np
import pytest
from ledger_helpers import bits, fill, header, make_row, write

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage import Ledger, LedgerWarning, salvage

N_LANES, N = 3, 120
SHORT, FULL = 150, 1000


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A ledger that was closed, and all that is in it."""
    folder = tmp_path_factory.mktemp("closed")
    rows = fill(folder / "run.db", N_LANES, N)
    return folder, rows, contents(folder / "run.db")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A ledger as a killed process leaves it: much of it in the log only."""
    folder, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("killed")
    with Ledger.open(folder / "run.db", header()) as ledger:
        rows = write(ledger, N_LANES, N)
        for end in ("", "-wal"):
            shutil.copy(folder / f"run.db{end}", copy / f"run.db{end}")
    with Ledger.open(
        shutil.copytree(copy, tmp_path_factory.mktemp("whole") / "x") / "run.db", header()
    ) as ledger:
        assert {(row.lane, row.index): bits(row) for row in ledger.rows()} == rows
    return copy, rows, contents(folder / "run.db")


def contents(path):
    """Return snapshots and failures, comparable."""
    with Ledger.read(path) as ledger:
        found = {}
        for name in ledger.names():
            arrays, meta = ledger.load(name)
            found[name] = {key: array.tobytes() for key, array in arrays.items()}, meta
        return found, [f.message for f in ledger.failures()], ledger.header


def flip(data, rng):
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    return data


def overwrite(data, rng):
    start, size = rng.integers(len(data)), rng.integers(1, 600)
    data[start : start + size] = rng.bytes(len(data[start : start + size]))
    return data


def cut(data, rng):
    return data[: rng.integers(len(data))]


def look(open_it, rows, others):
    """Read everything there is; assert that it was written; return what happened."""
    snapshots, messages, first_header = others
    happened = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with open_it() as ledger:
                assert ledger.header == first_header
                try:
                    for row in ledger.rows():
                        assert bits(row) == rows[row.lane, row.index]
                    for place in list(rows)[::40]:
                        assert (row := ledger.get(*place)) is None or bits(row) == rows[place]
                    ledger.count(verify=False)
                    assert {failure.message for failure in ledger.failures()} <= set(messages)
                except LedgerError:
                    happened.add("rows")
                try:
                    for name in set(ledger.names()) & set(snapshots):
                        arrays, meta = ledger.load(name)
                        assert ({key: array.tobytes() for key, array in arrays.items()}, meta) == snapshots[
                            name
                        ]
                except LedgerError:
                    happened.add("snapshot")
        except LedgerError as error:
            happened.add(type(error).__name__)
    assert all(issubclass(warning.category, LedgerWarning) for warning in caught)
    return happened | ({"warned"} if caught else set())


def try_all(source, tmp_path, end, damage, n):
    """Damage a copy at n random places; return how often what happened."""
    folder, rows, others = source
    path, told = tmp_path / "run.db", {}
    original = (folder / f"run.db{end}").read_bytes()
    for seed in range(n):
        rng = np.random.default_rng([20261116, seed])
        for read_only in (True, False):
            for file in tmp_path.iterdir():
                file.unlink()
            for file in folder.iterdir():
                shutil.copy(file, tmp_path)
            if read_only:
                damaged = bytes(damage(bytearray(original), rng))
            (tmp_path / f"run.db{end}").write_bytes(damaged)
            how = look(lambda: Ledger.read(path) if read_only else Ledger.open(path, header()), rows, others)  # noqa: B023
            for what in how or {"nothing"}:
                told[what] = told.get(what, 0) + 1
    return told


CASES = [
    ("closed", "", flip),
    ("closed", "", overwrite),
    ("closed", "", cut),
    ("killed", "", flip),
    ("killed", "-wal", flip),
    ("killed", "-wal", cut),
]


@pytest.mark.parametrize(("state", "end", "damage"), CASES)
def test_damage_never_makes_a_wrong_value(state, end, damage, tmp_path, request):
    told = try_all(request.getfixturevalue(state), tmp_path, end, damage, SHORT // len(CASES))
    assert sum(told.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("state", "end", "damage"), CASES)
def test_damage_never_makes_a_wrong_value_in_full(state, end, damage, tmp_path, request):
    told = try_all(request.getfixturevalue(state), tmp_path, end, damage, FULL // len(CASES) + 1)
    print(state, end, damage.__name__, told)
    assert len(told) > 1 or end == "-wal"


def test_a_damaged_log_is_told(killed, tmp_path):
    folder, rows, _ = killed
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    log = bytearray((tmp_path / "run.db-wal").read_bytes())
    log[len(log) // 2] ^= 1
    (tmp_path / "run.db-wal").write_bytes(log)
    with pytest.warns(LedgerWarning, match=r"the log of the ledger .* is damaged: its last \d+ transactions"):
        ledger = Ledger.open(tmp_path / "run.db", header())
    found = {(row.lane, row.index): bits(row) for row in ledger.rows()}
    ledger.close()
    assert 0 < len(found) < len(rows)
    assert found.items() <= rows.items()


def test_a_log_with_a_damaged_beginning_is_told(killed, tmp_path):
    for file in killed[0].iterdir():
        shutil.copy(file, tmp_path)
    log = bytearray((tmp_path / "run.db-wal").read_bytes())
    log[20] ^= 1
    (tmp_path / "run.db-wal").write_bytes(log)
    with pytest.warns(LedgerWarning, match=r"damaged: its last 12\d transactions"):
        Ledger.open(tmp_path / "run.db", header()).close()


def test_a_killed_log_is_not_called_damaged(killed, tmp_path):
    """The last transaction may be there in part."""
    folder = killed[0]
    for missing in (1, 1000, 3000):
        for file in folder.iterdir():
            shutil.copy(file, tmp_path)
        os.truncate(tmp_path / "run.db-wal", (folder / "run.db-wal").stat().st_size - missing)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Ledger.open(tmp_path / "run.db", header()).close()


def test_a_log_whose_last_frame_was_being_written_is_not_called_damaged(killed, tmp_path):
    """The frame's header is written before its page."""
    for file in killed[0].iterdir():
        shutil.copy(file, tmp_path)
    log = bytearray((tmp_path / "run.db-wal").read_bytes())
    log[-2048:] = bytes(2048)
    (tmp_path / "run.db-wal").write_bytes(log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.open(tmp_path / "run.db", header()).close()


def test_a_file_whose_pages_do_not_hang_together_is_not_written_to(tmp_path):
    """A list of free pages that names one in use would have it overwritten."""
    path = tmp_path / "run.db"
    fill(path)
    with Ledger.open(path, header()) as ledger:
        ledger.discard("kernel")
    data = bytearray(path.read_bytes())
    assert int.from_bytes(data[36:40], "big") > 0  # free pages
    data[32:36] = (3).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(LedgerDamaged, match="salvage"):
        Ledger.open(path, header())
    with Ledger.read(path) as ledger:
        assert len(list(ledger.rows())) == 120


def test_a_log_without_its_ledger_is_refused(killed, tmp_path):
    shutil.copy(killed[0] / "run.db-wal", tmp_path)
    with pytest.raises(LedgerDamaged, match="put it back, or delete that too"):
        Ledger.open(tmp_path / "run.db", header())


def test_parts_of_two_snapshots_do_not_mix(tmp_path):
    from ledger_helpers import raw

    path = tmp_path / "run.db"
    with Ledger.open(path, header()) as ledger:
        ledger.save("a", {"x": np.zeros(2)}, {})
        old = ledger._query("SELECT body, digest FROM snapshot WHERE part = 1", ())[0]
        ledger.save("a", {"x": np.ones(2)}, {})
    with raw(path) as connection:
        connection.execute("UPDATE snapshot SET body = ?, digest = ? WHERE part = 1", old)
    connection.close()
    with Ledger.read(path) as ledger, pytest.raises(LedgerDamaged, match="the snapshot 'a' has a checksum"):
        ledger.load("a")


def test_swapped_rows_are_left_out(tmp_path):
    from ledger_helpers import raw

    path = tmp_path / "run.db"
    rows = fill(path)
    with raw(path) as connection:
        for old, new in [(7, -1), (8, 7), (-1, 8)]:
            connection.execute("UPDATE evaluation SET place = ? WHERE place = ?", (new, old))
    connection.close()
    with Ledger.read(path) as ledger, pytest.warns(LedgerWarning, match="2 evaluations"):
        found = {(row.lane, row.index): bits(row) for row in ledger.lane(0)}
    assert found.keys() == {(0, index) for index in range(40)} - {(0, 7), (0, 8)}
    assert found.items() <= rows.items()


def test_salvage_finds_what_is_whole(closed, tmp_path, rng):
    folder, rows, (_, _, first_header) = closed
    data = bytearray((folder / "run.db").read_bytes())
    # The first page, the roots of all tables, and a few places more.
    data[:100] = bytes(100)
    data[2048 + 2048 : 7 * 2048] = bytes(5 * 2048)
    for place in rng.integers(7 * 2048, len(data), size=10):
        data[place] ^= 1
    (tmp_path / "run.db").write_bytes(data)
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path / "run.db", header())
    found = salvage(tmp_path / "run.db", tmp_path / "new.db")
    with Ledger.open(tmp_path / "new.db", header()) as ledger:
        kept = {(row.lane, row.index): bits(row) for row in ledger.rows()}
        assert ledger.header == first_header
    assert kept.items() <= rows.items()
    assert len(rows) - 60 < len(kept) == found.n_rows < len(rows)
    assert (tmp_path / "run.db").read_bytes() == data


def test_salvage_of_a_whole_ledger_finds_all(closed, killed, tmp_path):
    for number, (folder, rows, (_, messages, _)) in enumerate([closed, killed]):
        found = salvage(folder / "run.db", tmp_path / f"{number}.db")
        with Ledger.read(tmp_path / f"{number}.db") as ledger:
            assert {(row.lane, row.index): bits(row) for row in ledger.rows()} == rows
            assert [failure.message for failure in ledger.failures()] == messages
        assert (found.n_rows, found.n_failures) == (len(rows), len(messages))


def test_salvage_reads_a_log_beyond_its_damage(killed, tmp_path):
    folder, rows, _ = killed
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    log = bytearray((tmp_path / "run.db-wal").read_bytes())
    log[40] ^= 1  # SQLite reads nothing of it
    (tmp_path / "run.db-wal").write_bytes(log)
    assert salvage(tmp_path / "run.db", tmp_path / "new.db").n_rows == len(rows)


def test_salvage_of_wide_rows(tmp_path):
    with Ledger.open(tmp_path / "run.db", header()) as ledger:
        rows = [
            make_row(0, i, outputs=np.full(size, 1.0)) for i, size in enumerate([200, 250, 260, 1000, 30_000])
        ]
        ledger.append(rows)
    assert salvage(tmp_path / "run.db", tmp_path / "new.db").n_rows == 5
    with Ledger.read(tmp_path / "new.db") as ledger:
        assert [bits(row) for row in ledger.rows()] == [bits(row) for row in rows]


def test_salvage_needs_a_header_and_a_new_file(tmp_path):
    (tmp_path / "run.db").write_bytes(b"nothing")
    with pytest.raises(LedgerDamaged, match="header="):
        salvage(tmp_path / "run.db", tmp_path / "new.db")
    assert salvage(tmp_path / "run.db", tmp_path / "new.db", header()).n_rows == 0
    with pytest.raises(LedgerError, match="already"):
        salvage(tmp_path / "run.db", tmp_path / "new.db")
    with pytest.raises(LedgerError, match="there is no ledger"):
        salvage(tmp_path / "none.db", tmp_path / "newer.db")
