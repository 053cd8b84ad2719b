"""A process that is killed while it writes loses no row that `Ledger.append` had returned from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import bits, header
from ledger_writer import batch_of

from leapwise.storage import Ledger

WRITER = [sys.executable, str(Path(__file__).with_name("ledger_writer.py"))]
N = 30


def run(path, *arguments, before=()):
    """Run the writer; return what it printed."""
    done = subprocess.run(
        [*before, *WRITER, str(path), str(N), *arguments], capture_output=True, text=True, timeout=120
    )
    return done.stdout.split("\n")[:-1], done


def check(path, said):
    """Assert that a ledger holds all acknowledged rows and at most one batch more, and can be written to."""
    acknowledged = [int(line) for line in said if line.isdigit()]
    saved = [int(line.split()[1]) for line in said if line.startswith("saved")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Ledger.open(path, header()) as ledger:
            found = {(row.sequence, row.index): bits(row) for row in ledger.rows()}
            n_done = len(acknowledged)
            for extra in (0, 1):
                wanted = {
                    (row.sequence, row.index): bits(row)
                    for number in range(n_done + extra)
                    for row in batch_of(number)
                }
                if found == wanted:
                    break
            else:
                raise AssertionError("rows are lost, or half of a batch is there")
            state, other = ledger.load("state"), ledger.load("other")
            if saved or state is not None:
                arrays, meta = state
                assert meta == other[1] and meta["number"] in (*saved[-1:], saved[-1] + 10 if saved else 9)
                assert arrays["x"].tobytes() == np.full(1000, float(meta["number"])).tobytes()
            else:
                assert other is None
            for number in range(n_done, N):
                ledger.append(batch_of(number))
            assert len(list(ledger.rows())) == sum(len(batch_of(number)) for number in range(N))
    assert [file.name for file in path.parent.iterdir() if "run.db" in file.name] == ["run.db"]


def test_a_writer_that_lives(tmp_path):
    said, done = run(tmp_path / "run.db")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run.db", said)


@pytest.fixture(scope="module")
def n_calls(tmp_path_factory):
    said, done = run(tmp_path_factory.mktemp("all") / "run.db")
    assert done.returncode == 0, done.stderr
    return int(said[-1].split()[1])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("share", np.round(np.linspace(0.005, 0.995, 10), 3))
def test_killed_around_a_call_of_sqlite(share, when, n_calls, tmp_path):
    said, done = run(tmp_path / "run.db", str(1 + int(share * n_calls)), when)
    assert done.returncode == -9, done.stderr
    check(tmp_path / "run.db", said)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_every_call_of_sqlite(when, n_calls, tmp_path):
    for call in range(1, n_calls + 1):
        folder = tmp_path / str(call)
        folder.mkdir()
        said, done = run(folder / "run.db", str(call), when)
        assert done.returncode == -9, done.stderr
        check(folder / "run.db", said)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace kills inside of system calls; it is not installed"
)
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync", "ftruncate", "unlink", "rename"])
def test_killed_inside_sqlite(call, tmp_path):
    """At a system call that writes: the first, the second, and so on until it is not reached."""
    step = 7 if call == "pwrite64" else 1
    for number in range(1, 400, step):
        folder = tmp_path / str(number)
        folder.mkdir()
        inject = ["strace", "-f", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"]
        said, done = run(folder / "run.db", before=inject)
        check(folder / "run.db", said)
        if done.returncode == 0:
            assert number > 1
            return
        assert done.returncode in (-9, 137), done.stderr


def test_killed_while_its_workers_live_on(tmp_path):
    """Forked children of a killed run keep its files open, but must not keep the ledger locked."""
    code = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from ledger_helpers import header, make_row
from leapwise.storage import Ledger
ledger = Ledger.open({str(tmp_path / "run.db")!r}, header())
ledger.append([make_row(0, 0)])
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait(30)
        os.kill(child, 0)  # it lives
        with Ledger.open(tmp_path / "run.db", header()) as ledger:
            assert [row.index for row in ledger.rows(0)] == [0]
    finally:
        os.kill(child, 9)
        process.stdout.close()


def test_killed_at_random_moments(tmp_path, rng):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [*WRITER, str(folder / "run.db"), str(100_000)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        said = process.stdout.read().split("\n")[:-1]
        process.stdout.close()
        process.wait(30)
        n_done = sum(line.isdigit() for line in said)
        with Ledger.open(folder / "run.db", header()) as ledger:
            found = {(row.sequence, row.index): bits(row) for row in ledger.rows()}
        wanted = {(row.sequence, row.index): bits(row) for n in range(n_done) for row in batch_of(n)}
        assert wanted.items() <= found.items()
        assert len(found) <= len(wanted) + 3
