"""A flipped byte or a cut anywhere gives the rows that are whole or a typed error, never a false value."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
from ledger_helpers import bits, fill, header, raw, write

from leapwise.errors import LedgerDamaged, LedgerError
from leapwise.storage import Ledger, LedgerWarning, salvage

N_SEQUENCES, N = 3, 120
SHORT, FULL = 150, 1000


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A ledger that was closed, and all that is in it."""
    folder = tmp_path_factory.mktemp("closed")
    rows = fill(folder / "run.db", N_SEQUENCES, N)
    return folder, rows, contents(folder / "run.db")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A ledger as a killed process leaves it: much of it in the log only."""
    folder, copy = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("killed")
    with Ledger.open(folder / "run.db", header()) as ledger:
        rows = write(ledger, N_SEQUENCES, N)
        for end in ("", "-wal"):
            shutil.copy(folder / f"run.db{end}", copy / f"run.db{end}")
    with Ledger.open(
        shutil.copytree(copy, tmp_path_factory.mktemp("whole") / "x") / "run.db", header()
    ) as ledger:
        assert {(row.sequence, row.index): bits(row) for row in ledger.rows()} == rows
    return copy, rows, contents(folder / "run.db")


def contents(path):
    """Return checkpoints and failures, comparable."""
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
    """Read everything; assert that it was written; return what happened."""
    checkpoints, messages, first_header = others
    happened = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with open_it() as ledger:
                assert ledger.header == first_header
                try:
                    for row in ledger.rows():
                        assert bits(row) == rows[row.sequence, row.index]
                    for place in list(rows)[::40]:
                        assert (row := ledger.get(*place)) is None or bits(row) == rows[place]
                    ledger.count(verify=False)
                    assert {failure.message for failure in ledger.failures()} <= set(messages)
                except LedgerError:
                    happened.add("rows")
                try:
                    for name in set(ledger.names()) & set(checkpoints):
                        arrays, meta = ledger.load(name)
                        assert ({key: array.tobytes() for key, array in arrays.items()}, meta) == checkpoints[
                            name
                        ]
                except LedgerError:
                    happened.add("checkpoint")
        except LedgerError as error:
            happened.add(type(error).__name__)
    assert all(issubclass(warning.category, LedgerWarning) for warning in caught)
    return happened | ({"warned"} if caught else set())


def try_all(source, tmp_path, end, damage, n):
    """Damage a copy at n random places; return how often each thing happened."""
    folder, rows, others = source
    path, counts = tmp_path / "run.db", {}
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
                counts[what] = counts.get(what, 0) + 1
    return counts


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
    counts = try_all(request.getfixturevalue(state), tmp_path, end, damage, SHORT // len(CASES))
    assert sum(counts.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("state", "end", "damage"), CASES)
def test_damage_never_makes_a_wrong_value_in_full(state, end, damage, tmp_path, request):
    counts = try_all(request.getfixturevalue(state), tmp_path, end, damage, FULL // len(CASES) + 1)
    print(state, end, damage.__name__, counts)
    assert len(counts) > 1 or end == "-wal"


def damaged_log(killed, tmp_path, change):
    for file in killed[0].iterdir():
        shutil.copy(file, tmp_path)
    log = bytearray((tmp_path / "run.db-wal").read_bytes())
    change(log)
    (tmp_path / "run.db-wal").write_bytes(log)
    return tmp_path / "run.db"


@pytest.mark.parametrize("place", [20, 40, -3000])
def test_the_part_of_a_log_before_its_damage_is_read(place, killed, tmp_path):
    def flip_bit(log):
        log[place] ^= 1

    path, rows = damaged_log(killed, tmp_path, flip_bit), killed[1]
    with Ledger.open(path, header()) as ledger:
        found = {(row.sequence, row.index): bits(row) for row in ledger.rows()}
    assert found.items() <= rows.items()
    assert (len(found) > 0) == (place < 0)


@pytest.mark.parametrize("missing", [1, 1000, 3000])
def test_the_last_transaction_of_a_killed_process_may_be_incomplete(missing, killed, tmp_path):
    def cut_end(log):
        del log[-missing:]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger.open(damaged_log(killed, tmp_path, cut_end), header()).close()


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
    with pytest.raises(LedgerDamaged, match="put the ledger back, or delete the log too"):
        Ledger.open(tmp_path / "run.db", header())


def test_parts_of_two_checkpoints_do_not_mix(tmp_path):
    path = tmp_path / "run.db"
    with Ledger.open(path, header()) as ledger:
        ledger.save("a", {"x": np.zeros(2)}, {})
        old = ledger._query("SELECT body, digest FROM checkpoint WHERE part = 1", ())[0]
        ledger.save("a", {"x": np.ones(2)}, {})
    with raw(path) as connection:
        connection.execute("UPDATE checkpoint SET body = ?, digest = ? WHERE part = 1", old)
    with Ledger.read(path) as ledger, pytest.raises(LedgerDamaged, match="the checkpoint 'a' has a checksum"):
        ledger.load("a")


def test_swapped_rows_are_left_out(tmp_path):
    path = tmp_path / "run.db"
    rows = fill(path)
    with raw(path) as connection:
        for old, new in [(7, -1), (8, 7), (-1, 8)]:
            connection.execute("UPDATE evaluation SET place = ? WHERE place = ?", (new, old))
    with Ledger.read(path) as ledger, pytest.warns(LedgerWarning, match="2 evaluations"):
        found = {(row.sequence, row.index): bits(row) for row in ledger.rows(0)}
    assert found.keys() == {(0, index) for index in range(40)} - {(0, 7), (0, 8)}
    assert found.items() <= rows.items()


def test_salvage_copies_the_rows_that_are_whole(closed, tmp_path, rng):
    """A page of zeros costs the rows on it, a changed bit one row."""
    folder, rows, (_, _, first_header) = closed
    data = bytearray((folder / "run.db").read_bytes())
    page = 2048 * (len(data) // 2048 // 2)
    data[page : page + 2048] = bytes(2048)
    changed = data.rindex(b"it failed once")
    data[changed] ^= 1
    (tmp_path / "run.db").write_bytes(data)
    with pytest.raises(LedgerDamaged, match="salvage"):
        Ledger.open(tmp_path / "run.db", header())
    n_rows = salvage(tmp_path / "run.db", tmp_path / "new.db")
    with Ledger.open(tmp_path / "new.db", header()) as ledger:
        kept = {(row.sequence, row.index): bits(row) for row in ledger.rows()}
        assert ledger.header == first_header
    assert kept.items() <= rows.items()
    assert len(rows) - 60 < len(kept) == n_rows < len(rows)


def test_salvage_of_a_whole_ledger_copies_all(closed, killed, tmp_path):
    for number, (folder, rows, _) in enumerate([closed, killed]):
        source = shutil.copytree(folder, tmp_path / f"from {number}") / "run.db"
        assert salvage(source, tmp_path / f"{number}.db") == len(rows)
        with Ledger.read(tmp_path / f"{number}.db") as ledger:
            assert {(row.sequence, row.index): bits(row) for row in ledger.rows()} == rows


def test_salvage_needs_a_header_and_a_new_file(closed, tmp_path):
    path = tmp_path / "run.db"
    shutil.copy(closed[0] / "run.db", path)
    with raw(path) as connection:
        connection.execute("UPDATE header SET digest = x'00'")
    with pytest.raises(LedgerDamaged, match=r"header .* is lost"):
        salvage(path, tmp_path / "new.db")
    with pytest.raises(LedgerError, match="already"):
        salvage(path, path)
    with pytest.raises(LedgerError, match="there is no ledger"):
        salvage(tmp_path / "none.db", tmp_path / "newer.db")
