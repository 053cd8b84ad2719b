"""Engines on worker processes, for real: loky and the standard library's pool."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from engine_executors import executor, process_pool
from engine_models import (
    DIE,
    EXIT,
    HANG,
    OK,
    RAISE,
    UNPICKLABLE,
    counted,
    dies_once,
    gather,
    moody,
    rows,
    sleepy,
    sums,
    values,
)

from leapwise import Target
from leapwise.errors import EngineClosed, EvaluationTimeout, ModelError, WorkerError
from leapwise.execution import InProcess, OnExecutor, engine_for, on_cores

pytest.importorskip("loky", reason="loky comes with the extra parallel")
pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")


@pytest.fixture(scope="module", params=["loky", "processes"])
def workers(request):
    """Two workers that all tests share, none of which harms them."""
    with executor(request.param, 2) as found:
        yield found


class TestWorkers:
    def test_the_same_values_as_alone_here(self, workers):
        parameters = np.random.default_rng(1).standard_normal((20, 40))
        expected = values(InProcess(sums()), parameters, one_by_one=True)
        assert np.array_equal(values(OnExecutor(sums(), workers), parameters), expected)

    def test_what_the_model_does_ends_as_an_attempt(self, workers):
        found = gather(
            OnExecutor(moody(), workers, timeout=0.5), rows(OK, RAISE, EXIT, UNPICKLABLE, HANG, OK)
        )
        kinds = [type(attempt.error) for attempt in found]
        assert kinds == [type(None), KeyError, ModelError, ModelError, EvaluationTimeout, type(None)]
        assert found[5].values.log_density[0] == -12.5
        for attempt, words in zip(found[1:4], ["as asked", "SystemExit", "as asked"], strict=True):
            (note,) = attempt.error.__notes__
            assert words in note and "log_density" in note  # the traceback, as it was there

    def test_a_target_is_sent_only_to_workers_that_ask(self, workers, monkeypatch):
        sent = []
        engine = OnExecutor(sleepy(0.001), workers)
        submit = engine.pool.submit

        def watched(function, key, payload, *rest):
            sent.append(payload is not None)
            return submit(function, key, payload, *rest)

        monkeypatch.setattr(engine.pool, "submit", watched)
        for x in np.random.default_rng(1).uniform(size=(60, 1, 2)):
            values(engine, x)
        # A row that is sent again need not reach the worker that lacked the target: it may take more than one for each.
        assert 1 <= sum(sent) <= 10 and not any(sent[-20:])

    def test_built_once_in_each_process(self, workers, tmp_path):
        target = Target.from_factory(counted(str(tmp_path)))
        values(OnExecutor(target, workers), np.ones((30, 2)))
        values(OnExecutor(target, workers), np.ones((30, 2)))  # another run finds it there
        builders = [int(file.name.split("-")[0]) for file in tmp_path.iterdir()]
        assert len(set(builders)) == len(builders) <= 3 and os.getpid() in builders


class TestDeaths:
    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(on_cores(2), id="loky"),
            pytest.param(process_pool, id="processes", marks=pytest.mark.slow),
        ],
    )
    def test_a_death_costs_only_time(self, make, tmp_path):
        engine = OnExecutor(dies_once(str(tmp_path)), make)
        assert np.array_equal(values(engine, rows(OK, OK)), [0.0, -0.5])
        engine.close()

    @pytest.mark.slow
    def test_a_row_that_kills_every_worker_is_to_blame(self):
        engine = engine_for(moody(), cores=2)
        found = gather(engine, rows(OK, DIE, OK, OK))
        assert isinstance(found[1].error, WorkerError) and "died each time" in str(found[1].error)
        assert [found[i].values.log_density[0] for i in (0, 2, 3)] == [0.0, -2.0, -4.5]
        assert np.array_equal(values(engine, rows(OK)), [0.0])
        engine.close()

    def test_a_pool_that_cannot_be_made_again(self):
        with process_pool(1) as pool:
            engine = OnExecutor(moody(), pool)
            for _ in range(2):
                with pytest.raises(WorkerError, match="cannot be made again; pass cores=4, or a function"):
                    values(engine, rows(DIE))

    @pytest.mark.slow
    def test_chains_beside_a_killer(self):
        """Six chains in threads; a worker is killed from outside whenever ten more rows have been evaluated."""
        engine, parameters = (
            engine_for(sleepy(0.05), cores=3),
            np.random.default_rng(1).uniform(size=(240, 2)),
        )
        found, done = {}, threading.Event()

        def chain(i):
            for row in range(i, 240, 6):
                found[row] = values(engine, parameters[row : row + 1])[0]

        def kill():
            killed_at = 0
            while not done.wait(0.01):
                if len(found) < killed_at + 10:  # a new pool is given the time that it needs to start
                    continue
                killed_at = len(found)
                for pid in list(getattr(engine.pool.executor, "_processes", None) or {})[:1]:
                    os.kill(pid, signal.SIGKILL)

        chains = [threading.Thread(target=chain, args=(i,), daemon=True) for i in range(6)]
        killer = threading.Thread(target=kill, daemon=True)
        for thread in [*chains, killer]:
            thread.start()
        for thread in chains:
            thread.join(180)
        done.set()
        killer.join()
        assert engine.pool.generation >= 5
        assert [found[i] for i in range(240)] == [-0.5 * float(x @ x) for x in parameters]
        engine.close()


def test_closing_ends_what_runs():
    engine = engine_for(moody(), cores=1)
    values(engine, rows(OK))
    waiting = engine.evaluate(rows(HANG), gradient=False)
    threading.Timer(0.3, engine.close).start()
    started = time.monotonic()
    with pytest.raises(EngineClosed):
        next(waiting)
    assert time.monotonic() - started < 20  # the model would sleep for a minute
