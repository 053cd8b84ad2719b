"""Executors of each kind, made where a test wants them and gone after it."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from leapwise.execution import on_cores


def process_pool(workers=2):
    # Not forked: this process has threads, and a lock that one of them holds would stay held in the child.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def loky_pool(workers=2):
    pytest.importorskip("loky", reason="loky comes with the extra parallel")
    return on_cores(workers)()


@contextmanager
def dask_client(workers=2, threads=1, **options):
    distributed = pytest.importorskip("distributed", reason="Dask comes with the extra dask")
    config = pytest.importorskip("dask.config")
    with (
        # A local cluster drops a worker for good that happens to be down 15 s after it was first lost.
        config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=True,
            dashboard_address=":0",
            silence_logs=50,
            **options,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def running(client):
    """Return the process ids of workers that are up: killed while it starts, a worker is not started again by Dask."""
    up = client.scheduler_info(n_workers=-1)["workers"]
    return [
        nanny.pid for nanny in client.cluster.workers.values() if nanny.worker_address in up and nanny.pid
    ]


@contextmanager
def dask_executor(workers=2):
    with dask_client(workers) as client:
        yield client.get_executor()


@contextmanager
def executor(kind, workers=2):
    if kind == "dask":
        with dask_executor(workers) as found:
            yield found
        return
    make = {"threads": ThreadPoolExecutor, "loky": loky_pool, "processes": process_pool}[kind]
    with make(workers) as found:
        yield found
