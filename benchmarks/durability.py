"""The cost of a ledger for a whole run, and what it saves: share of wall time, memory, and the time to resume.

    python benchmarks/durability.py [--overhead] [--long] [--draws 1000000] [--folder DIR]

Each run is its own process. Overhead: the same run with and without a ledger, in turn, on a model that takes 5 ms
per value. Long: four chains on two standard normals, with a ledger, for a tenth of the draws (of all chains together)
and for all of them, with peak memory; then the same calls again, which read all draws from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np

import leapwise as lw


def slow_value(x):
    time.sleep(0.005)
    return -0.5 * float(x @ x)


def overhead_run(ledger, dim, draws, chains):
    """Return wall seconds, those in the model, and evaluations."""
    target = lw.Target(slow_value, dim=dim)
    started = time.perf_counter()
    run = lw.sample(target, draws, chains=chains, random_seed=1, ledger=ledger, progressbar=False)
    return {
        "wall": time.perf_counter() - started,
        "model": run.cost.model_seconds,
        "n": run.cost.n_exact,
    }


def long_run(ledger, draws, chains):
    """Sample or resume, without reading the draws."""
    target = lw.Target(lambda x: -0.5 * np.vecdot(x, x), lambda x: -x, dim=2, vectorized=True)
    started, cpu = time.perf_counter(), time.process_time()
    run = lw.sample(target, draws, chains=chains, random_seed=1, ledger=ledger, progressbar=False)
    found = {
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "complete": run.complete,
    }
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    found["mean"] = run.draws.mean(axis=(0, 1)).tolist()
    found["look"] = time.perf_counter() - started
    found["shape"] = run.draws.shape
    return found


def child(what, *arguments):
    """Run one of the functions above in its own process."""
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--child", json.dumps([what, arguments])],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def overhead(folder, repeats, dim=5, draws=100, chains=4):
    shares, appended = [], []
    for number in range(repeats):
        plain = child("overhead_run", None, dim, draws, chains)
        kept = child("overhead_run", os.path.join(folder, f"overhead{number}.db"), dim, draws, chains)
        assert plain["n"] == kept["n"]
        beside = [each["wall"] - each["model"] for each in (plain, kept)]
        shares.append((beside[1] - beside[0]) / kept["wall"])
        appended.append(kept["wall"] / plain["wall"] - 1)
        print(
            f"  {kept['n']} evaluations: {plain['wall']:.2f} s without, {kept['wall']:.2f} s with; outside the model "
            f"{beside[0]:.2f} and {beside[1]:.2f} s"
        )
    print(
        f"a value of 5 ms: the ledger takes {100 * median(shares):.2f} % of wall time by what is outside the model "
        f"({', '.join(f'{100 * each:.2f}' for each in shares)}); by wall time {100 * median(appended):.2f} %"
    )


def long(folder, draws, chains):
    peaks = {}
    for n in (draws // chains // 10, draws // chains):
        path = os.path.join(folder, f"long{n}.db")
        first = child("long_run", path, n, chains)
        again = child("long_run", path, n, chains)
        assert first["complete"] and again["complete"] and first["mean"] == again["mean"]
        peaks[n] = first["peak"], again["peak"]
        print(
            f"{chains} x {n} draws: {first['wall']:.1f} s (CPU {first['cpu']:.1f}), peak {first['peak']:.1f} MiB, "
            f"{os.path.getsize(path) / 1e6:.0f} MB on disk; again {again['wall']:.2f} s (CPU {again['cpu']:.2f}), peak "
            f"{again['peak']:.1f} MiB; reading the draws {again['look']:.2f} s",
            flush=True,
        )
    (small, small_again), (large, large_again) = peaks.values()
    print(
        f"memory grows by {100 * (large / small - 1):.1f} % from a tenth of the draws to all of them, when they are "
        f"made; by {100 * (large_again / small_again - 1):.1f} % when they are resumed"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--overhead", action="store_true", help="only the share of wall time")
    parser.add_argument("--long", action="store_true", help="only the long run")
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to write; by default a temporary one")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, arguments = json.loads(options.child)
        print(json.dumps({"overhead_run": overhead_run, "long_run": long_run}[what](*arguments)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.overhead or not options.long:
            overhead(folder, options.repeats)
        if options.long or not options.overhead:
            long(folder, options.draws, options.chains)


if __name__ == "__main__":
    main()
