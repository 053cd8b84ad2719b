"""Runs in processes of their own that are killed and resumed, and checks of their log and ledger."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import resume_cases as cases
from ledger_helpers import header

from leapwise.storage import Ledger

#: Seconds after which a run is taken to hang.
PATIENCE = 120.0
#: Seconds in which workers must end after their run.
ORPHANS_HAVE = 15.0


class ChildRuns:
    """Starts runs quickly in child processes that can be killed; see `resume_child`."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("resume_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self._said: queue.Queue = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self._process.stdout:
            self._said.put(json.loads(line))

    def go(self, job, after=None, number=signal.SIGKILL, tidy=True):
        """Run a job, and send its process a signal `after` seconds; return its exit code and its time.

        Its workers must end too. If the run is killed and `tidy`, they are killed as well.
        """
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        said = self._said.get(timeout=PATIENCE)
        if "ended" in said:
            return said["ended"], 0.0
        child, started = said["begun"], time.perf_counter()
        try:
            try:
                ended = self._said.get(timeout=PATIENCE if after is None else after)["ended"]
            except queue.Empty:
                if after is None:
                    raise AssertionError(f"the run hangs: {job}") from None
                os.kill(child, number)
                ended = self._said.get(timeout=PATIENCE)["ended"]
            took = time.perf_counter() - started
            if ended == -signal.SIGKILL and tidy:
                _end_session(child)
            _wait_for_end_of_session(child)
            return ended, took
        except BaseException:
            _end_session(child)
            raise

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def _end_session(session):
    """Kill the workers of a killed run."""
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def _wait_for_end_of_session(session):
    """Wait until no process of a session is left: workers must not outlive their run."""
    ends = time.perf_counter() + ORPHANS_HAVE
    while time.perf_counter() < ends:
        if not (left := list(_members(session))):
            return
        time.sleep(0.02)
    raise AssertionError(f"processes {left} have outlived their run")


def _members(session):
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                after_name = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(after_name[3]) == session and after_name[0] != "Z":
                yield int(name)


@dataclass
class Trial:
    """One ledger, the sessions that wrote to it, and the rows that were recorded before each."""

    folder: Path
    case: str
    options: dict = field(default_factory=dict)
    before: list = field(default_factory=list)  # Counters of (kind, hash) on record as each session began
    first_rows: set = field(default_factory=set)
    n_sessions: int = 0

    def __post_init__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger, self.log, self.acks, self.result = (
            str(self.folder / name) for name in ("run.db", "calls.log", "acks.log", "result.npz")
        )

    def job(self, **changes):
        self.before.append(self.recorded())
        found = {
            "case": self.case,
            "ledger": self.ledger,
            "log": self.log,
            "acks": self.acks,
            "result": self.result,
            "session": self.n_sessions,
            **self.options,
            **changes,
        }
        self.n_sessions += 1
        return found

    def rows(self):
        """Return all recorded rows, and check that none is missing that `append` had returned from."""
        rows = []
        if os.path.exists(self.ledger):
            # Opened to write, because a reader cannot recover the log of a killed process.
            with Ledger.open(self.ledger, header()) as ledger:
                rows = list(ledger.rows())
        places = {(row.sequence, row.index) for row in rows}
        if os.path.exists(self.acks):
            for line in Path(self.acks).read_text().splitlines():
                _, sequence, index = map(int, line.split())
                assert (sequence, index) in places, "an evaluation that was acknowledged is lost"
        return rows

    def recorded(self):
        rows = self.rows()
        self.first_rows = {cases.mark(row.position) for row in rows if row.sequence == 0 and row.index < 50}
        return Counter((_kind(row), cases.mark(row.position)) for row in rows)

    def load(self):
        with np.load(self.result) as found:
            return dict(found)


def _kind(row):
    return "v" if row.gradient is None else "g"


@dataclass(frozen=True)
class Account:
    """Calls of all sessions together."""

    n_calls: int
    n_rechecks: int
    n_repeated: int  # calls that were complete and not yet recorded when their process was killed


def account(trial, needed):
    """Assert that no session evaluated a recorded position but one, the recheck; return the numbers of calls.

    Parameters
    ----------
    trial : Trial
    needed : Counter
        The calls of a run that is not interrupted.
    """
    made = cases.calls(trial.log)
    n_rechecks = 0
    for session, before in enumerate(trial.before):
        own = made.get(str(session), Counter())
        left = needed - before
        again = own - left
        assert set(own) <= set(needed) | set(again)
        assert sum(again.values()) <= 1, (
            f"session {session} evaluated {sum(again.values())} recorded positions"
        )
        for kind, point in again:
            assert before[kind, point] or kind == "v", "an evaluation that is no part of the run"
            assert point in trial.first_rows, "the recheck is of one of the first positions"
        n_rechecks += sum(again.values())
    total = sum(sum(own.values()) for own in made.values())
    return Account(total, n_rechecks, total - n_rechecks - sum(needed.values()))


def whole(runner, folder, case, **options):
    """Make a run without interruption; return its arrays, its calls, and its time in seconds."""
    trial = Trial(folder, case, options)
    ended, seconds = runner.go(trial.job())
    assert ended == 0
    made = cases.calls(trial.log)
    assert list(made) == ["0"]
    assert made["0"] == trial.recorded(), "the recorded rows are the calls"
    return trial.load(), made["0"], seconds


def kill_and_resume(runner, trial, moments):
    """Make a run whose process is killed at moments of its running time; return the number of kills."""
    n_kills, done = 0, 0.0
    for moment in sorted(moments):
        ended, _ = runner.go(trial.job(), after=max(moment - done, 0.0))
        done = moment
        if ended == 0:
            return n_kills
        assert ended == -signal.SIGKILL, "it ended by itself, and not well"
        n_kills += 1
    ended, _ = runner.go(trial.job())
    assert ended == 0
    return n_kills
