"""What is written comes back, bit for bit, in order, and in one piece."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from ledger_helpers import DIM, bits, fill, header, make_row, raw, write

from leapwise import storage as package
from leapwise.errors import LedgerBusy, LedgerError
from leapwise.storage import Failure, Ledger, LedgerWarning, Tally


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


@pytest.fixture
def ledger(path):
    with Ledger.open(path, header()) as ledger:
        yield ledger


def test_rows_come_back_bit_for_bit_and_in_order(path):
    rows = fill(path)
    with Ledger.read(path) as ledger:
        assert {(row.sequence, row.index): bits(row) for row in ledger.rows()} == rows
        for sequence in range(3):
            assert [row.index for row in ledger.rows(sequence)] == list(range(40))
        assert [row.index for row in ledger.rows(1, start=37)] == [37, 38, 39]
        assert list(ledger.rows(3)) == []
        assert bits(ledger.get(2, 5)) == rows[2, 5]
        assert ledger.get(2, 40) is None
        assert ledger.header == header(created=ledger.header.created)


@pytest.mark.parametrize("value", [-0.0, 0.0, 5e-324, -np.inf, 1e308, -7.0, 0.1])
def test_every_bit_of_a_number_is_kept(ledger, value):
    row = make_row(0, 0, log_density=value, position=np.array([-0.0, 5e-324, -1e308]), seconds=3.0)
    nan = np.array([np.nan, -np.inf, -0.0, 1.0])
    ledger.append([row, make_row(0, 1, outputs=nan), make_row(0, 2, outputs=np.empty(0))])
    assert bits(ledger.get(0, 0)) == bits(row)
    assert ledger.get(0, 1).outputs.tobytes() == nan.tobytes()
    assert ledger.get(0, 2).outputs.shape == (0,)


def test_rows_may_come_in_any_order_and_with_gaps(ledger):
    for index in [5, 1, 1000, 3]:
        ledger.append([make_row(0, index)])
    assert [row.index for row in ledger.rows(0)] == [1, 3, 5, 1000]


def test_wide_rows_are_read_a_few_at_a_time(path):
    with Ledger.open(path, header()) as ledger:
        ledger.append([make_row(0, i, outputs=np.full(200_000, float(i))) for i in range(40)])
        assert [row.outputs[-1] for row in ledger.rows(0)] == list(range(40))


def test_the_same_row_may_be_appended_twice_and_another_may_not(ledger):
    rows = [make_row(0, i) for i in range(3)]
    ledger.append(rows[1:2])
    ledger.append(rows)
    with pytest.raises(
        LedgerError, match=r"already has a different evaluation in sequence 0 at index 2; replay"
    ):
        ledger.append([make_row(0, 3), make_row(0, 2, log_density=5.0)])
    assert [bits(row) for row in ledger.rows(0)] == [bits(row) for row in rows]


def test_a_damaged_row_is_left_out_and_can_be_recorded_again(path):
    rows = fill(path)
    with raw(path) as connection:
        connection.execute("UPDATE evaluation SET log_density = log_density + 1 WHERE id = 5")
        ((place,),) = connection.execute("SELECT place FROM evaluation WHERE id = 5").fetchall()
    sequence, index = place >> 40, place & (2**40 - 1)
    with Ledger.open(path, header()) as ledger:
        with pytest.warns(
            LedgerWarning, match=rf"1 evaluation .* sequence {sequence} at index {index} \(a checksum"
        ):
            assert len(list(ledger.rows())) == len(rows) - 1
        with pytest.warns(LedgerWarning):
            assert ledger.get(sequence, index) is None
        ledger.append([make_row(sequence, index)])
        assert {(row.sequence, row.index): bits(row) for row in ledger.rows()} == rows
    with Ledger.open(path, header()) as ledger:  # no warning of missing rows either
        assert len(list(ledger.rows())) == len(rows)


def test_deleted_rows_are_missed(path):
    fill(path)
    with raw(path) as connection:
        connection.execute("DELETE FROM evaluation WHERE id IN (3, 4)")
    with pytest.warns(LedgerWarning, match="2 evaluations are missing"):
        Ledger.open(path, header()).close()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"position": np.array([0.0, np.nan, 0.0])}, "finite"),
        ({"position": np.zeros(DIM + 1)}, "3 float64 numbers"),
        ({"position": np.zeros(DIM, dtype=np.float32)}, "float32"),
        ({"gradient": np.zeros((1, DIM))}, "gradient"),
        ({"outputs": np.zeros((2, 2))}, "outputs"),
        ({"log_density": np.nan}, "nan cannot be recorded"),
        ({"log_density": np.inf}, "inf cannot be recorded"),
        ({"log_density": 1.0, "status": "rejected"}, "rejected"),
        ({"status": "maybe"}, "status"),
        ({"attempts": 0}, "at least one attempt"),
        ({"seconds": np.nan}, "finite seconds"),
        ({"sequence": -1}, "sequence"),
        ({"index": 2**40}, "index"),
    ],
)
def test_what_may_not_be_recorded_is_refused_and_nothing_of_its_batch_stays(ledger, changes, match):
    with pytest.raises(LedgerError, match=match):
        ledger.append([make_row(0, 0), replace(make_row(0, 1), **changes)])
    assert list(ledger.rows()) == []


def test_counts_by_phase_kind_and_status(path):
    fill(path)
    with Ledger.open(path, header()) as ledger:
        ledger.append([make_row(0, 100, log_density=-np.inf, status="rejected", seconds=2.0, attempts=3)])
        found, quick = ledger.count(), ledger.count(verify=False)
    assert [vars(t) | {"seconds": pytest.approx(t.seconds)} for t in quick] == [vars(t) for t in found]
    assert {(t.phase, t.kind, t.status): t.n for t in found} == {
        ("draws", "gradient", "ok"): 45,
        ("draws", "value", "ok"): 45,
        ("draws", "value", "rejected"): 1,
        ("warm-up", "gradient", "ok"): 15,
        ("warm-up", "value", "ok"): 15,
    }
    assert Tally("draws", "value", "rejected", 1, 3, 2.0) in found


def test_failures_come_back(path):
    with Ledger.open(path, header()) as ledger:
        ledger.append_failure(Failure(1, 2, 1, np.ones(DIM), "first", 0.5))
        ledger.append_failure(Failure(1, 2, 2, np.zeros(DIM), "x" * 10_000 + "\ud800", 1.5))
    with Ledger.read(path) as ledger:
        first, second = ledger.failures()
    assert (first.sequence, first.index, first.attempt, first.message, first.seconds) == (
        1,
        2,
        1,
        "first",
        0.5,
    )
    assert first.position.tobytes() == np.ones(DIM).tobytes()
    assert second.message.startswith("xxx") and len(second.message) == 2000


def test_checkpoints_come_back_and_are_replaced(ledger):
    arrays = {
        "a": np.random.default_rng(1).normal(size=(3, 4, 5)),
        "of integers": np.array([[-(2**63), 2**63 - 1]]),
        "flags": np.array([True, False]),
        "none": np.empty((0, 7)),
        "one": np.array(np.nan),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    meta = {"state": 2**127 + 1, "list": [1, None, "x'; DROP TABLE checkpoint; --"]}
    ledger.save("kernel", {"old": np.ones(3)}, {})
    ledger.save("kernel", arrays, meta)
    found, said = ledger.load("kernel")
    assert said == meta
    assert list(found) == list(arrays)
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype and found[key].shape == array.shape
        assert found[key].tobytes() == array.tobytes()
    assert ledger.load("nothing") is None
    ledger.save("draws/1", {}, {})
    ledger.save("draws/0", {}, {})
    assert ledger.names() == ["draws/0", "draws/1", "kernel"]
    ledger.discard("draws/0")
    assert ledger.names() == ["draws/1", "kernel"]


@pytest.mark.parametrize(
    ("name", "arrays", "meta"),
    [
        ("", {}, {}),
        ("x" * 300, {}, {}),
        ("a\nb", {}, {}),
        ("a", {"x": np.array([object()])}, {}),
        ("a", {"x": np.array(["text"])}, {}),
        ("a", {"x": np.zeros(2, dtype=[("a", "f8")])}, {}),
        ("a", {"x": np.zeros(2, dtype=complex)}, {}),
        ("a", {"x": [1.0]}, {}),
        ("a", {1: np.zeros(2)}, {}),
        ("a", {}, {"x": object()}),
        ("a", {}, {"x": np.zeros(2)}),
    ],
)
def test_what_cannot_be_kept_is_refused(ledger, name, arrays, meta):
    with pytest.raises(LedgerError):
        ledger.save(name, arrays, meta)
    assert ledger.names() == []


def test_a_transaction_is_all_or_nothing(ledger):
    ledger.save("kernel", {}, {"step": 1})

    def fail():
        with ledger.transaction():
            ledger.append([make_row(0, 0)])
            ledger.append([make_row(0, 1), make_row(0, 2)])
            ledger.save("kernel", {}, {"step": 2})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(ledger.rows()) == []
    assert ledger.load("kernel") == ({}, {"step": 1})
    with ledger.transaction():
        ledger.append([make_row(0, 0)])
        ledger.save("kernel", {}, {"step": 3})
    assert len(list(ledger.rows())) == 1
    assert ledger.load("kernel") == ({}, {"step": 3})


def test_threads_append_together(ledger):
    def chain(sequence):
        for index in range(100):
            ledger.append([make_row(sequence, index)])

    threads = [threading.Thread(target=chain, args=(sequence,)) for sequence in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sequence in range(8):
        assert [bits(row) for row in ledger.rows(sequence)] == [
            bits(make_row(sequence, i)) for i in range(100)
        ]


def test_one_plain_file_is_left(path, tmp_path):
    fill(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
    with Ledger.read(path) as ledger:
        list(ledger.rows())
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_a_closed_ledger_and_a_reader_say_so(path):
    with Ledger.open(path, header()) as ledger:
        pass
    ledger.close()
    with pytest.raises(LedgerError, match="is closed"):
        ledger.append([make_row(0, 0)])
    with pytest.raises(LedgerError, match="is closed"):
        ledger.get(0, 0)
    with Ledger.read(path) as reader, pytest.raises(LedgerError, match="to be read"):
        reader.append([make_row(0, 0)])


def test_one_writer_in_this_process(path):
    with Ledger.open(path, header()) as ledger:
        write(ledger)
        with pytest.raises(LedgerBusy, match="another run in this process"):
            Ledger.open(path, header())
        ledger.append([make_row(5, 0)])
    Ledger.open(path, header()).close()


def test_the_header_of_the_file_stays(path):
    fill(path)
    with Ledger.open(path, header(seed=2, names=("a", "b", "c"))) as ledger:
        assert ledger.header.seed == 1
    for wrong in [{"names": ("a",)}, {"dim": 0}, {"settings": {"x": object()}}, {"fingerprint": {"a": 1}}]:
        with pytest.raises(LedgerError):
            Ledger.open(f"{path}.other", header(**wrong))
        assert not os.path.exists(f"{path}.other")


def test_expensive_evaluations_are_written_through(path, monkeypatch):
    """Before the rows that are not safe from a power cut add up to more than they may."""
    calls = []
    from leapwise.storage import file as connection

    class Spy(connection.sqlite3.Connection):
        def execute(self, statement, *values):
            if "wal_checkpoint" in statement:
                calls.append(statement)
            return super().execute(statement, *values)

    connect = connection.sqlite3.connect
    monkeypatch.setattr(connection.sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Spy))
    with Ledger.open(path, header()) as ledger:
        calls.clear()
        ledger.append([make_row(0, 0, seconds=0.9 * package.FLUSH_SECONDS)])
        assert len(calls) == 0
        ledger.append([make_row(0, 1, seconds=0.2 * package.FLUSH_SECONDS)])
        assert len(calls) == 1
        with ledger.transaction():
            ledger.append([make_row(0, 2, seconds=3600.0)])
            assert len(calls) == 1
        assert len(calls) == 2


def test_reading_warns_of_nothing_when_all_is_well(path):
    fill(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Ledger.open(path, header()) as ledger:
            list(ledger.rows())
