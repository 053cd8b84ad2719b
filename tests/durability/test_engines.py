"""Engines in this process and on threads: every row has one attempt, whatever the model does."""

from __future__ import annotations

import _thread
import pickle
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from engine_models import EXIT, HANG, NAN, OK, RAISE, gather, moody, rows, sleepy, sums, values

from leapwise import Target
from leapwise.errors import (
    EngineClosed,
    EvaluationTimeout,
    InputError,
    MissingExtraError,
    ModelError,
    WorkerError,
)
from leapwise.execution import InProcess, OnExecutor, engine_for, on_cores
from leapwise.execution.executor_engine import TaskLock
from leapwise.execution.workers import PackedTarget, Pool, evaluate_row


@pytest.fixture(params=["here", "threads"])
def engine_of(request):
    """Make an engine of either kind."""
    with ThreadPoolExecutor(3) as threads:
        yield lambda target, timeout=None: engine_for(
            target, executor=None if request.param == "here" else threads, timeout=timeout
        )


class TestEveryRowHasOneAttempt:
    def test_values_and_gradients(self, engine_of):
        engine, parameters = engine_of(moody()), rows(OK, OK, OK)
        for i, attempt in enumerate(gather(engine, parameters, gradient=True)):
            assert attempt.values.log_density[0] == -0.5 * i**2
            assert np.array_equal(attempt.values.gradient, -parameters[i : i + 1])
        assert all(attempt.values.gradient is None for attempt in gather(engine, parameters))

    def test_no_rows_no_attempts(self, engine_of):
        assert list(engine_of(moody()).evaluate(np.empty((0, 2)), gradient=False)) == []
        assert list(engine_of(sums()).evaluate(np.empty((0, 40)), gradient=False)) == []

    def test_what_the_model_does_ends_as_an_attempt(self, engine_of):
        found = gather(engine_of(moody()), rows(OK, RAISE, EXIT, NAN, OK))
        assert [type(attempt.error) for attempt in found] == [
            type(None),
            KeyError,
            ModelError,
            type(None),
            type(None),
        ]
        assert str(found[2].error) == "SystemExit(7)"
        assert np.isnan(found[3].values.log_density[0])
        assert found[4].values.log_density[0] == -8.0

    def test_seconds_are_those_inside_the_target(self, engine_of):
        parameters = np.array([[0.0, 1.0], [0.5, 2.0]])
        first, second = gather(engine_of(sleepy(0.1)), parameters)
        assert 0.05 <= first.seconds < second.seconds

    def test_out_of_time(self, engine_of):
        found = gather(engine_of(moody(), timeout=0.2), rows(OK, HANG, OK, RAISE))
        assert isinstance(found[1].error, EvaluationTimeout) and "0.2 s" in str(found[1].error)
        assert found[1].seconds >= 0.2
        assert found[2].values.log_density[0] == -2.0
        assert isinstance(found[3].error, KeyError)

    def test_waiting_for_a_worker_is_not_in_the_time(self):
        with ThreadPoolExecutor(1) as threads:
            engine = OnExecutor(sleepy(0.1), threads, timeout=0.19)
            values(engine, np.full((5, 2), 0.1))  # 60 ms each, 300 ms in all

    @pytest.mark.parametrize("timeout", [0, -1.0, np.inf, np.nan, "3", True])
    def test_times_that_are_none(self, engine_of, timeout):
        with pytest.raises(InputError, match="timeout must be a positive number of seconds"):
            engine_of(moody(), timeout=timeout)


class TestInProcess:
    def test_a_vectorised_target_is_called_once(self):
        sizes = []
        target = Target(lambda x: sizes.append(len(x)) or -np.sum(x**2, axis=1), dim=2, vectorized=True)
        (attempt,) = InProcess(target).evaluate(np.ones((4, 2)), gradient=False)
        assert list(attempt.rows) == [0, 1, 2, 3] and len(attempt.values.log_density) == 4
        list(InProcess(target).evaluate(np.ones((3, 2)), gradient=False, one_by_one=True))
        list(InProcess(target, timeout=5).evaluate(np.ones((2, 2)), gradient=False))
        assert sizes == [4, 1, 1, 1, 1, 1]

    def test_rows_are_evaluated_as_they_are_asked_for(self):
        seen = []
        target = Target(lambda x: seen.append(x[0]) or 0.0, dim=1)
        attempts = InProcess(target).evaluate(np.arange(3.0)[:, None], gradient=False)
        next(attempts)
        assert seen == [0.0]

    def test_ctrl_c_is_for_the_run(self):
        def log_density(x):
            _thread.interrupt_main()
            time.sleep(5)

        with pytest.raises(KeyboardInterrupt):
            list(InProcess(Target(log_density, dim=1)).evaluate(np.ones((1, 1)), gradient=False))

    def test_closed(self):
        engine = InProcess(moody())
        attempts = engine.evaluate(rows(OK, OK), gradient=False)
        next(attempts)
        engine.close()
        with pytest.raises(EngineClosed):
            next(attempts)


class TestThreads:
    def test_nothing_is_pickled(self):
        target = moody()
        target.unpicklable = threading.Lock()
        with ThreadPoolExecutor(2) as threads:
            values(OnExecutor(target, threads), rows(OK, OK))

    def test_rows_are_alone(self):
        parameters = np.random.default_rng(1).standard_normal((30, 40))
        alone = np.concatenate([sums().evaluate(row[None], gradient=False).log_density for row in parameters])
        with ThreadPoolExecutor(4) as threads:
            assert np.array_equal(values(OnExecutor(sums(), threads), parameters), alone)
        assert np.array_equal(values(InProcess(sums()), parameters, one_by_one=True), alone)

    def test_many_threads_ask_at_once(self):
        with ThreadPoolExecutor(5) as threads, ThreadPoolExecutor(20) as chains:
            engine = OnExecutor(sleepy(0.002), threads)

            def chain(i):
                rng = np.random.default_rng(i)
                for _ in range(20):
                    x = rng.uniform(size=(1, 2))
                    (attempt,) = engine.evaluate(x, gradient=False)
                    assert attempt.values.log_density[0] == -0.5 * float(x[0] @ x[0])

            list(chains.map(chain, range(20)))

    def test_leaving_early_cancels_what_has_not_begun(self):
        seen = []
        target = Target(lambda x: seen.append(x[0]) or time.sleep(0.05) or 0.0, dim=1)
        with ThreadPoolExecutor(1) as threads:
            attempts = OnExecutor(target, threads).evaluate(np.arange(20.0)[:, None], gradient=False)
            next(attempts)
            attempts.close()
        assert len(seen) <= 3

    def test_closing_wakes_those_who_wait(self):
        release = threading.Event()
        target = Target(lambda x: release.wait(30) and 0.0, dim=1)
        with ThreadPoolExecutor(1) as threads, ThreadPoolExecutor(3) as chains:
            engine = OnExecutor(target, threads)
            waiting = [
                chains.submit(list, engine.evaluate(np.ones((1, 1)), gradient=False)) for _ in range(3)
            ]
            time.sleep(0.1)
            engine.close()
            try:
                for each in waiting:
                    with pytest.raises(EngineClosed):
                        each.result(5)
            finally:
                release.set()
            with pytest.raises(EngineClosed):
                list(engine.evaluate(np.ones((1, 1)), gradient=False))
            engine.close()
            assert threads.submit(int).result(5) == 0  # an executor that was given goes on

    def test_one_that_was_made_here_is_ended(self):
        made = []
        engine = OnExecutor(moody(), lambda: made.append(ThreadPoolExecutor(1)) or made[-1])
        values(engine, rows(OK))
        engine.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            made[0].submit(int)


class Flaky:
    """An executor whose tasks are lost, or cancelled, now and then."""

    def __init__(self, fails):
        self.fails, self.n = fails, 0

    def submit(self, function, *arguments):
        self.n += 1
        future = Future()
        if self.fails(self.n):
            if self.n % 2:
                future.cancel()
                future.set_running_or_notify_cancel()
            else:
                future.set_exception(OSError("connection reset"))
        else:
            future.set_result(pickle.loads(pickle.dumps(function(*pickle.loads(pickle.dumps(arguments))))))
        return future


class TestLostOnTheWay:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")
        monkeypatch.setattr("leapwise.execution.executor_engine._FIRST_PAUSE", 1e-4)

    def test_lost_rows_are_sent_again(self):
        engine = OnExecutor(moody(), Flaky(lambda n: n % 3))
        assert np.array_equal(values(engine, rows(*[OK] * 10)), -0.5 * np.arange(10.0) ** 2)

    def test_not_for_ever(self):
        with pytest.raises(
            WorkerError, match=r"lost the same row 10 times .the last time .*connection reset"
        ):
            values(OnExecutor(moody(), Flaky(lambda n: True)), rows(OK))

    def test_a_target_that_cannot_be_made_there(self, tmp_path):
        def make(flag=str(tmp_path / "gone")):
            if Path(flag).exists():
                raise ModuleNotFoundError("No module named 'solver'")
            return Target(lambda x: 0.0, dim=2)

        engine = OnExecutor(Target.from_factory(make), Flaky(lambda n: False))
        (tmp_path / "gone").touch()
        with pytest.raises(WorkerError, match=r"cannot build the target .ModuleNotFoundError: No module"):
            values(engine, rows(OK))


def test_after_a_time_out_the_worker_builds_a_new_target(monkeypatch):
    pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")
    monkeypatch.setattr("leapwise.execution.workers._targets", {})
    built = []

    def make(built=built):
        built.append(1)
        return moody()

    packed = PackedTarget.of(Target.from_factory(make))
    monkeypatch.setattr("leapwise.execution.workers.pickle.loads", lambda payload: make())
    statuses = [
        evaluate_row(packed.key, packed.payload, rows(what), False, 0.2, 0).status
        for what in (OK, OK, HANG, OK)
    ]
    assert statuses == ["DONE"] * 4
    assert len(built) == 3  # here, at first, and after the one that hangs


def test_a_broken_pool_is_replaced_once():
    made = []
    pool = Pool(lambda: made.append(ThreadPoolExecutor(1)) or made[-1])
    for _ in range(3):  # three threads found it broken
        pool.replace(0, OSError("broken"))
    assert len(made) == 2 and pool.generation == 1
    pool.close()
    with pytest.raises(EngineClosed):
        pool.replace(1, OSError("broken"))
    assert len(made) == 2


class Turns:
    """Workers that take turns, each with targets of its own."""

    def __init__(self, n, monkeypatch):
        self.targets, self.turn, self.n_carried, self.n_sent = [{} for _ in range(n)], 0, 0, 0
        self.monkeypatch = monkeypatch

    def submit(self, function, key, payload, *rest):
        self.n_sent += 1
        self.n_carried += payload is not None
        self.turn = (self.turn + 1) % len(self.targets)
        self.monkeypatch.setattr("leapwise.execution.workers._targets", self.targets[self.turn])
        future = Future()
        future.set_result(function(key, payload, *rest))
        return future


@pytest.mark.parametrize("n", [1, 2, 3, 8, 16])
def test_workers_that_take_turns_all_get_the_target(n, monkeypatch):
    pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")
    workers = Turns(n, monkeypatch)
    engine = OnExecutor(moody(), workers)
    for _ in range(20 * n):
        values(engine, rows(OK))
    assert all(workers.targets)
    assert n <= workers.n_carried <= 5 * n + 1


class TestTaskLock:
    def test_alone_is_alone(self):
        tasks, inside, log = TaskLock(), [0], []

        def together(_):
            for _ in range(200):
                tasks.begin()
                inside[0] += 1
                inside[0] -= 1
                tasks.end()

        def alone(_):
            for _ in range(20):
                with tasks.alone():
                    log.append(inside[0])
                    inside[0] += 100
                    time.sleep(1e-4)
                    inside[0] -= 100
                    log.append(inside[0])

        with ThreadPoolExecutor(8) as threads:
            jobs = [threads.submit(alone if i % 4 == 0 else together, i) for i in range(8)]
            [job.result(20) for job in jobs]
        assert log == [0] * 80

    def test_closing_turns_those_away_who_wait(self):
        tasks = TaskLock()
        tasks.begin()

        def alone():
            with tasks.alone():
                pass

        with ThreadPoolExecutor(2) as threads:
            jobs = [threads.submit(alone)]
            time.sleep(0.05)
            jobs.append(threads.submit(tasks.begin))
            time.sleep(0.05)
            tasks.close()
            for job in jobs:
                with pytest.raises(EngineClosed):
                    job.result(5)


class TestWhatIsAsked:
    @pytest.mark.parametrize(("executor", "got"), [(3, "int"), (ThreadPoolExecutor, "the class Thread")])
    def test_no_executor(self, executor, got):
        with pytest.raises(InputError, match=f"executor must be a concurrent.futures.Executor .* got {got}"):
            OnExecutor(moody(), executor)

    def test_a_function_that_makes_none(self):
        with pytest.raises(InputError, match=r"must return a concurrent\.futures\.Executor, got NoneType"):
            OnExecutor(moody(), lambda: None)

    def test_both(self):
        with ThreadPoolExecutor(1) as threads, pytest.raises(InputError, match="both given"):
            engine_for(moody(), executor=threads, cores=2)

    def test_cores(self):
        with pytest.raises(InputError, match="cores must be a whole number"):
            on_cores(1.5)

    @pytest.mark.parametrize("module", ["loky", "cloudpickle"])
    def test_without_the_extra(self, monkeypatch, module):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"{module} is not installed; .*leapwise\[parallel\]"):
            engine_for(moody(), cores=2)

    def test_a_target_that_cannot_be_sent(self):
        pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")
        target = moody()
        target.solver = threading.Lock()
        with pytest.raises(InputError, match=r"cannot be sent .*from_factory"):
            OnExecutor(target, Flaky(lambda n: False))
