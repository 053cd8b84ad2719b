"""A process that writes a ledger and says on its standard output what it may rely on; it can kill itself on the way.

    python ledger_writer.py PATH N [KILL_AT {before,after}]

It appends N batches of one and of three rows in turn, and saves a checkpoint after every tenth. With KILL_AT, it is
killed before or after its KILL_AT-th call of SQLite. It prints the number of each batch after it was appended and in
the end the number of calls.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

import numpy as np
from ledger_helpers import header, make_row

from leapwise.storage import Ledger
from leapwise.storage import file as connection


class Doomed(sqlite3.Connection):
    """Counts its calls, and dies at one of them."""

    calls = 0
    kill_at = -1
    when = "before"

    def _call(self, function, *arguments):
        Doomed.calls += 1
        if (Doomed.calls, Doomed.when) == (Doomed.kill_at, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments)
        if (Doomed.calls, Doomed.when) == (Doomed.kill_at, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def execute(self, *arguments):
        return self._call(super().execute, *arguments)

    def executemany(self, *arguments):
        return self._call(super().executemany, *arguments)

    def close(self):
        return self._call(super().close)


def batch_of(number):
    """Return the rows of a batch."""
    sequences = (0,) if number % 2 else (0, 1, 2)
    return [make_row(sequence, number, seconds=0.3) for sequence in sequences]


def main():
    path, n = sys.argv[1], int(sys.argv[2])
    if len(sys.argv) > 3:
        Doomed.kill_at, Doomed.when = int(sys.argv[3]), sys.argv[4]
    connect = sqlite3.connect
    connection.sqlite3.connect = lambda *a, **k: connect(*a, **k, factory=Doomed)
    with Ledger.open(path, header()) as ledger:
        os.write(1, b"open\n")
        for number in range(n):
            ledger.append(batch_of(number))
            os.write(1, f"{number}\n".encode())
            if number % 10 == 9:
                with ledger.transaction():
                    ledger.save("state", {"x": np.full(1000, float(number))}, {"number": number})
                    ledger.save("other", {}, {"number": number})
                os.write(1, f"saved {number}\n".encode())
    os.write(1, f"calls {Doomed.calls}\n".encode())


if __name__ == "__main__":
    main()
