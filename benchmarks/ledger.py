"""The cost of recording an evaluation: microseconds per row, one thread, four sequences in turn, on a given disk.

    python benchmarks/ledger.py [--rows 20000] [--repeats 3] [--folder DIR]

It also times opening and reading the ledger, and gives the share of wall time if a value costs 5 ms.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from statistics import median

import numpy as np

from leapwise.storage import Header, Ledger, Row

SHAPES = {
    "d=2": (2, False, 0),
    "d=25": (25, False, 0),
    "d=25, gradient": (25, True, 0),
    "d=100, gradient": (100, True, 0),
    "d=20, 121 outputs": (20, False, 121),
    "d=100, gradient, 121 outputs": (100, True, 121),
}
BATCHES = (1, 4, 64)
SEQUENCES = 4


def header(dim):
    return Header("0", dim, tuple(f"x[{i}]" for i in range(dim)), {}, 1, {})


def make_rows(n, dim, with_gradient, n_outputs, seconds=0.001):
    rng = np.random.default_rng(1)
    position, outputs = rng.normal(size=(n, dim)), rng.normal(size=(n, n_outputs))
    return [
        Row(
            sequence=i % SEQUENCES,
            index=i // SEQUENCES,
            phase="draws",
            chain=i % SEQUENCES,
            step=i // SEQUENCES,
            position=position[i],
            log_density=-0.5 * float(position[i] @ position[i]),
            gradient=-position[i] if with_gradient else None,
            outputs=outputs[i] if n_outputs else None,
            seconds=seconds,
        )
        for i in range(n)
    ]


def append_all(path, dim, rows, batch):
    with Ledger.open(path, header(dim)) as ledger:
        started = np.array([time.perf_counter(), time.thread_time()])
        for first in range(0, len(rows), batch):
            ledger.append(rows[first : first + batch])
        return np.array([time.perf_counter(), time.thread_time()]) - started


def appending(folder, n, repeats):
    print(f"append, microseconds a row: median of {repeats} (fastest, slowest), and of CPU; {n} rows")
    for name, (dim, with_gradient, n_outputs) in SHAPES.items():
        rows = make_rows(n, dim, with_gradient, n_outputs)
        for batch in BATCHES:
            found = []
            for _ in range(repeats):
                path = os.path.join(folder, "append.db")
                found.append(1e6 * append_all(path, dim, rows, batch) / n)
                size = os.path.getsize(path) / n
                os.unlink(path)
            wall, cpu = np.transpose(found)
            print(
                f"  {name:30} {batch:3} at a time: {median(wall):6.1f} ({min(wall):.1f}, {max(wall):.1f}), "
                f"CPU {median(cpu):.1f}; {size:.0f} bytes a row"
            )


def reading(folder, n):
    path = os.path.join(folder, "read.db")
    append_all(path, 2, make_rows(n, 2, False, 0), 1000)
    marks = [time.perf_counter()]
    ledger = Ledger.open(path, header(2))
    marks.append(time.perf_counter())
    assert sum(1 for _ in ledger.rows()) == n
    marks.append(time.perf_counter())
    ledger.count(verify=False)
    marks.append(time.perf_counter())
    ledger.close()
    open_seconds, read_seconds, count_seconds = np.diff(marks)
    print(
        f"{n} rows, d=2: open {open_seconds:.3f} s, read all verified {read_seconds:.2f} s "
        f"({1e6 * read_seconds / n:.1f} microseconds a row), count without verifying {count_seconds:.2f} s"
    )
    os.unlink(path)


def share(folder, n=400, cost=0.005):
    """Time in `append` as a share of the wall time of a loop whose value takes 5 ms."""
    path = os.path.join(folder, "share.db")
    inside, cpu, started = 0.0, 0.0, time.perf_counter()
    with Ledger.open(path, header(25)) as ledger:
        for row in make_rows(n, 25, True, 0, seconds=cost):
            time.sleep(cost)
            before, cpu_before = time.perf_counter(), time.thread_time()
            ledger.append([row])
            inside += time.perf_counter() - before
            cpu += time.thread_time() - cpu_before
        wall = time.perf_counter() - started
    print(
        f"a value of 5 ms, d=25 with gradient: {100 * inside / wall:.2f} % of {wall:.1f} s in append "
        f"(CPU {100 * cpu / wall:.2f} %)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to write; by default a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        appending(folder, options.rows, options.repeats)
        reading(folder, 50 * options.rows)
        share(folder)


if __name__ == "__main__":
    main()
