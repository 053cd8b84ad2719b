"""The efficiency of chains on many workers: a model that sleeps 100 ms, give or take half, on threads and on Dask.

    python benchmarks/parallel.py [threads] [dask] [--chains 8 64] [--draws 40]

The efficiency is the time asleep in the model over workers times wall time, for draws and for warm-up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

import leapwise as lw

DIM = 20
MEAN = 0.1


def slow(x: np.ndarray) -> float:
    """Return a standard normal log-density, after a pause that depends on the position."""
    digits = np.abs(x * 1e6) % 1.0
    time.sleep(MEAN * (0.5 + float(digits[0])))
    return float(-0.5 * x @ x)


@contextmanager
def threads(n: int) -> Iterator[Executor]:
    with ThreadPoolExecutor(n) as pool:
        yield pool


@contextmanager
def dask(n: int) -> Iterator[Executor]:
    from distributed import Client, LocalCluster

    processes = min(n, 8)
    cluster = LocalCluster(
        n_workers=processes, threads_per_worker=n // processes, processes=True, dashboard_address=None
    )
    with cluster, Client(cluster) as client, client.get_executor() as pool:
        yield pool


def measure(name: str, n: int, draws: int) -> None:
    target = lw.Target(slow, lambda x: -x, dim=DIM)
    make = {"threads": threads, "dask": dask}[name]
    with make(n) as pool:
        run = lw.sample(target, draws=draws, chains=n, random_seed=1, executor=pool, progressbar=False)
    cost, warm = run.posterior.cost, run.warmup.cost
    print(
        f"| {name} | {n} | {cost.n_exact} | {cost.seconds:.1f} | {cost.model_seconds / (n * cost.seconds):.3f} | "
        f"{warm.n_exact} | {warm.model_seconds / (n * warm.seconds):.3f} | {run.surrogate.kind} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("executors", nargs="*", default=["threads", "dask"])
    parser.add_argument("--chains", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args()
    print(
        "| executor | chains = workers | values | seconds | efficiency | warm-up | its efficiency | surrogate |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in options.executors:
        for n in options.chains:
            measure(name, n, options.draws)


if __name__ == "__main__":
    main()
