"""A process that has imported everything, and makes a child for each run, which may be killed.

It reads one job per line, as JSON, forks, and prints a line of JSON when the child has begun (with its process id) and
when it has ended (with its exit code). A job has a case, a session, a ledger, a log, a file for the result, and
optionally: pause (seconds per call), where (here, threads, cores), workers, changes (of the settings), die (see
`_doom`), acks (a file for the places of rows that were recorded).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import resume_cases as cases

import leapwise as lw
from leapwise.storage import Ledger, file


def run(job):
    """Sample as the job says, and write the result."""
    os.environ[cases.SESSION] = str(job["session"])
    if job.get("acks"):
        _acknowledge(job["acks"], job["session"])
    if job.get("die"):
        _doom(*job["die"])
    kind, _ = cases.CASES[job["case"]]
    model = cases.Model(job["log"], job.get("pause", 0.0))
    target = cases.target(kind, model)
    given = cases.settings(job["case"], **job.get("changes", {}))
    _say({"begun": os.getpid()})
    where = job.get("where", "here")
    if where == "threads":
        with ThreadPoolExecutor(job.get("workers", 3)) as executor:
            found = lw.sample(target, ledger=job["ledger"], executor=executor, **given)
    elif where == "cores":
        found = lw.sample(target, ledger=job["ledger"], cores=job.get("workers", 2), **given)
    else:
        found = lw.sample(target, ledger=job["ledger"], **given)
    new = job["result"] + ".new.npz"
    np.savez(new, **cases.arrays(found))
    os.replace(new, job["result"])


def _acknowledge(path, session):
    """Write the place of each row to a file after `Ledger.append` has returned."""
    append = Ledger.append
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def acknowledged(self, rows):
        append(self, rows)
        text = "".join(f"{session} {row.sequence} {row.index}\n" for row in rows)
        os.write(file, text.encode())

    Ledger.append = acknowledged


def _doom(place, number, when):
    """Kill this process before or after its `number`-th call of a method of `Ledger`, or of SQLite."""
    count = [0]

    def due():
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    if place == "sqlite":  # every statement: BEGIN, INSERT, COMMIT, checkpoints
        connect = file.sqlite3.connect
        plain = file.sqlite3.Connection

        class Doomed(plain):
            def execute(self, *arguments):
                return self._around(super().execute, arguments)

            def executemany(self, *arguments):
                return self._around(super().executemany, arguments)

            def _around(self, function, arguments):
                if when == "before":
                    due()
                found = function(*arguments)
                if when == "after":
                    due()
                return found

        file.sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Doomed)
        return
    method = getattr(Ledger, place)

    def doomed(self, *arguments):
        if when == "before":
            due()
        found = method(self, *arguments)
        if when == "after":
            due()
        return found

    setattr(Ledger, place, doomed)


def _say(message):
    os.write(1, (json.dumps(message) + "\n").encode())


def main():
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.stdin.close()
            code = 1
            try:
                run(job)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        _say({"ended": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main()
