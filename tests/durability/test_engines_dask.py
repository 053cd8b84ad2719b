"""Engines on Dask, for real: a local cluster of processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from engine_executors import dask_client, running
from engine_models import EXIT, HANG, OK, RAISE, gather, moody, rows, sleepy, sums, values

from leapwise import Target, sample
from leapwise.errors import EvaluationTimeout, ModelError, WorkerError
from leapwise.execution import InProcess, OnExecutor

distributed = pytest.importorskip("distributed", reason="Dask comes with the extra dask")


@pytest.fixture(scope="module")
def client():
    with dask_client(workers=2, threads=2) as found:
        yield found


def test_the_same_values_as_alone_here(client):
    parameters = np.random.default_rng(1).standard_normal((20, 40))
    expected = values(InProcess(sums()), parameters, one_by_one=True)
    assert np.array_equal(values(OnExecutor(sums(), client.get_executor()), parameters), expected)


def test_what_the_model_does_ends_as_an_attempt(client):
    engine = OnExecutor(moody(), client, timeout=0.5)  # the client itself will do
    found = gather(engine, rows(OK, RAISE, EXIT, HANG, OK))
    assert [type(attempt.error) for attempt in found] == [
        type(None),
        KeyError,
        ModelError,
        EvaluationTimeout,
        type(None),
    ]
    assert len(client.scheduler_info()["workers"]) == 2


def test_the_same_row_again_is_evaluated_again(client, tmp_path):
    """Dask would hand back the result that it has for the same arguments."""

    def log_density(x):
        n = len(os.listdir(str(tmp_path)))
        open(os.path.join(str(tmp_path), str(n)), "x").close()
        return float(n)

    engine = OnExecutor(Target(log_density, dim=2), client.get_executor())
    assert [values(engine, rows(OK))[0] for _ in range(3)] == [0.0, 1.0, 2.0]


def test_a_closed_client_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr("leapwise.execution.executor_engine._CHECK_EVERY", 0.2)
    with distributed.Client(client.cluster, set_as_default=False) as second:
        engine = OnExecutor(moody(), second.get_executor())
        values(engine, rows(OK))
        threading.Timer(0.3, second.close).start()
        with pytest.raises(WorkerError, match="cannot be made again"):
            gather(engine, rows(HANG))


@contextmanager
def killing(client, seconds, pause=1.0):
    """Kill a worker every so often, for so long or until the block ends; yields a list that has their number."""
    done, kills = threading.Event(), [0]

    def kill():
        rng = np.random.default_rng(2)
        until = time.monotonic() + seconds
        while not done.wait(pause) and time.monotonic() < until:
            pids = running(client)
            if pids:
                os.kill(int(rng.choice(pids)), signal.SIGKILL)
                kills[0] += 1

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield kills
    finally:
        done.set()
        killer.join()


def storm(client, seconds, rows_each):
    """Let four threads evaluate rows meanwhile, and hold all values against the truth; return how many were killed."""
    engine = OnExecutor(sleepy(0.2), client.get_executor())
    parameters = np.random.default_rng(1).uniform(size=(4 * rows_each, 2))
    found = {}

    def chain(i):
        for row in range(i, len(parameters), 4):
            found[row] = values(engine, parameters[row : row + 1])[0]

    chains = [threading.Thread(target=chain, args=(i,), daemon=True) for i in range(4)]
    with killing(client, seconds) as kills:
        for thread in chains:
            thread.start()
        for thread in chains:
            thread.join(seconds + 180)
    engine.close()
    assert not any(thread.is_alive() for thread in chains)
    expected = [-0.5 * float(x @ x) for x in parameters]
    assert [found.get(i) for i in range(len(parameters))] == expected
    return kills[0]


@pytest.mark.slow
def test_a_few_workers_killed():
    with dask_client(workers=2) as found:
        assert storm(found, seconds=4, rows_each=12) >= 1


@pytest.mark.slow
def test_a_run_with_a_worker_killed_every_second_for_two_minutes(tmp_path):
    """The run outlasts the two minutes, and its draws are those that threads give."""
    target, shape = sleepy(0.3), {"draws": 350, "chains": 4, "random_seed": 1, "progressbar": False}
    with ThreadPoolExecutor(4) as pool:
        expected = sample(sleepy(0.0), executor=pool, **shape)
    started = time.monotonic()
    with dask_client(workers=4) as found, killing(found, seconds=120) as kills:
        run = sample(target, executor=found.get_executor(), ledger=tmp_path / "run.db", **shape)
    assert time.monotonic() - started > 120 and kills[0] >= 30
    assert run.complete and np.array_equal(run.draws, expected.draws)
    assert run.cost.n_exact == expected.cost.n_exact
