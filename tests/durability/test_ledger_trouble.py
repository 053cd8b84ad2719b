"""Full disks, folders without write permission, other processes: typed errors, and all recorded rows stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from ledger_helpers import bits, fill, header, make_row, raw

from leapwise.errors import LedgerBusy, LedgerError
from leapwise.storage import Ledger

HERE = str(Path(__file__).parent)
START = f"""
import json, os, sys
sys.path.insert(0, {HERE!r})
import numpy as np
from ledger_helpers import fill, header, make_row, write
from leapwise.errors import *
from leapwise.storage import Ledger
path = sys.argv[1]
"""


def python(code, path):
    """Run code in a process of its own; return what it printed as JSON."""
    command = [sys.executable, "-c", START + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_full_disk(tmp_path):
    """The system does not let files grow: the writer gets an error, and all recorded rows stay."""
    code = """
import resource
ledger = Ledger.open(path, header())
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
n, said = 0, None
for index in range(10_000):
    try:
        ledger.append([make_row(0, index)])
    except LedgerError as error:
        said = type(error).__name__, str(error)
        break
    n += 1
readable = len(list(ledger.rows()))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
ledger.append([make_row(0, n)])
after = len(list(ledger.rows()))
ledger.close()
print(json.dumps([n, said, readable, after]))
"""
    n, (kind, text), readable, after = python(code, tmp_path / "run.db")
    assert kind == "LedgerError" and "make room" in text
    assert 10 < n == readable == after - 1
    with Ledger.open(tmp_path / "run.db", header()) as ledger:
        assert [bits(row) for row in ledger.rows()] == [bits(make_row(0, i)) for i in range(n + 1)]


def test_a_full_disk_when_a_ledger_is_made(tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
try:
    Ledger.open(path, header())
except LedgerError as error:
    print(json.dumps(str(error)))
"""
    assert "make room" in python(code, tmp_path / "run.db")
    fill(tmp_path / "run.db")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_device_is_not_a_ledger():
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger.open("/dev/full", header())


def test_no_more_pages(tmp_path):
    """SQLite's own way to be full, in the midst of a batch and of a checkpoint."""
    fill(tmp_path / "run.db")
    with Ledger.open(tmp_path / "run.db", header()) as ledger:
        before = [bits(row) for row in ledger.rows()]
        ledger._connection.execute("PRAGMA max_page_count = 1").fetchall()
        with pytest.raises(LedgerError, match="full; all that was recorded before is safe"):
            ledger.append([make_row(7, i) for i in range(500)])
        with pytest.raises(LedgerError, match="full; all that was recorded before is safe"):
            ledger.save("kernel", {"x": np.zeros(100_000)}, {})
        assert [bits(row) for row in ledger.rows()] == before
        assert ledger.load("kernel")[1] == {"step_size": 0.1}
        ledger._connection.execute("PRAGMA max_page_count = 1000000").fetchall()
        ledger.append([make_row(7, i) for i in range(500)])
        assert len(list(ledger.rows(7))) == 500


@pytest.fixture
def folder():
    """A folder that a process without rights can look into."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


# The superuser may write anywhere, so it becomes another user first.
REFUSED = """
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    Ledger.open(path, header())
except LedgerError as error:
    said = str(error)
with Ledger.read(path) as ledger:
    print(json.dumps([said, len(list(ledger.rows())), sorted(os.listdir(os.path.dirname(path)))]))
"""


def test_a_folder_that_cannot_be_written(folder):
    fill(folder / "run.db", n=5)
    os.chmod(folder / "run.db", 0o666)
    os.chmod(folder, 0o555)
    said, n, files = python(REFUSED, folder / "run.db")
    assert "folder" in said and "cannot be written: Permission denied; change its permissions" in said
    assert (n, files) == (15, ["run.db"])


def test_a_file_that_cannot_be_written(folder):
    fill(folder / "run.db", n=5)
    os.chmod(folder / "run.db", 0o444)
    os.chmod(folder, 0o777)
    said, n, _ = python(REFUSED, folder / "run.db")
    assert "run.db cannot be written: Permission denied" in said
    assert n == 15


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(LedgerError, match="does not exist; make it first"):
        Ledger.open(tmp_path / "none" / "run.db", header())
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.read(tmp_path / "run.db")


@pytest.mark.parametrize("path", ["", "\0", 5, None, b"\xff/x", "a" * 5000])
def test_a_path_that_is_not_one(path):
    for act in (lambda: Ledger.read(path), lambda: Ledger.open(path, header())):
        with pytest.raises(LedgerError):
            act()


def test_a_second_process_is_refused_and_may_read(tmp_path):
    path = tmp_path / "run.db"
    with Ledger.open(path, header()) as ledger:
        ledger.append([make_row(0, i) for i in range(10)])
        code = """
try:
    Ledger.open(path, header())
except LedgerBusy as error:
    said = str(error)
with Ledger.read(path) as ledger:
    print(json.dumps([said, len(list(ledger.rows()))]))
"""
        said, n = python(code, path)
        assert f"is being written by process {os.getpid()} on " in said
        assert n == 10
        ledger.append([make_row(0, 10)])
    assert python("fill(path)\nprint(1)", tmp_path / "other.db") == 1
    with Ledger.read(tmp_path / "other.db") as other:
        assert len(list(other.rows())) == 120


def test_a_symbolic_link_is_the_same_ledger(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "run.db")
    with Ledger.open(tmp_path / "link.db", header()) as ledger:
        ledger.append([make_row(0, 0)])
        with pytest.raises(LedgerBusy):
            Ledger.open(tmp_path / "run.db", header())
    assert (tmp_path / "run.db").is_file()


def test_a_file_that_another_program_has_locked_is_busy(tmp_path):
    """Another program with a transaction of its own: waited for, then a typed error."""
    fill(tmp_path / "run.db")
    with raw(tmp_path / "run.db") as other, Ledger.open(tmp_path / "run.db", header()) as ledger:
        ledger._connection.execute("PRAGMA busy_timeout = 50").fetchall()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy):
            ledger.append([make_row(5, 0)])
        other.execute("ROLLBACK")
        ledger.append([make_row(5, 0)])


def test_a_reader_sees_whole_transactions_while_a_writer_writes(tmp_path):
    path = tmp_path / "run.db"
    code = """
import time
with Ledger.open(path, header()) as ledger:
    ledger.append([make_row(sequence, 0) for sequence in range(4)])
    print(json.dumps("open"), flush=True)
    slowest = 0.0
    for index in range(1, 1500):
        rows = [make_row(sequence, index) for sequence in range(4)]
        started = time.perf_counter()
        ledger.append(rows)
        slowest = max(slowest, time.perf_counter() - started)
print(json.dumps(slowest))
"""
    command = [sys.executable, "-c", START + code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == '"open"\n'
        seen = []
        while writer.poll() is None:
            with Ledger.read(path) as ledger:
                seen.append(sum(tally.n for tally in ledger.count(verify=False)))
                last = seen[-1] // 4 - 1
                assert bits(ledger.get(3, last)) == bits(make_row(3, last))
                assert sum(1 for _ in ledger.rows()) >= seen[-1]
        slowest = float(writer.stdout.readline())
    assert writer.returncode == 0
    assert seen == sorted(seen) and all(n % 4 == 0 for n in seen)
    # It would be ten seconds if a reader could hold it up.
    assert slowest < 5.0


def test_a_child_does_not_touch_its_parents_ledger(tmp_path):
    code = """
ledger = Ledger.open(path, header())
ledger.append([make_row(0, 0)])
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    said = []
    for act in (lambda: ledger.append([make_row(0, 1)]), lambda: Ledger.open(path, header())):
        try:
            act()
        except LedgerError as error:
            said.append(type(error).__name__)
    ledger.close()
    os.write(writes, json.dumps(said).encode())
    os._exit(0)
os.waitpid(child, 0)
said = json.loads(os.read(reads, 1000))
ledger.append([make_row(0, 1)])
try:
    Ledger.open(path, header())
except LedgerBusy:
    said.append("still locked")
ledger.close()
print(json.dumps(said))
"""
    assert python(code, tmp_path / "run.db") == ["LedgerError", "LedgerBusy", "still locked"]
