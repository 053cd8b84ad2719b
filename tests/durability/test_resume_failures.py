"""Failures that a retry overcomes leave no trace in the draws; others end the run so that it can be resumed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import resume_cases as cases

import leapwise as lw
from leapwise.errors import EvaluationError
from leapwise.execution import evaluator as evaluator_module
from leapwise.storage import Ledger

CASES = ("auto", "auto, values", "auto, outputs", "auto, vectorized", "HMC", "RNSHMC")
PLACES = ("here", "threads")
QUICK = ("auto, values", "HMC")


def some(names):
    """Return cases; those that are not in `QUICK` are marked slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


class Shaky(cases.Model):
    """Fails at the first attempts of a share of positions: some raise, some return NaN, some hold no gradient."""

    def __init__(self, share):
        super().__init__()
        self.share, self.failed, self.calls = share, {}, 0
        self._lock = threading.Lock()

    def value(self, x):
        return np.nan if self.fails(x) else super().value(x)

    def both(self, x):
        fails = self.fails(x)
        value, slope = super().both(x)
        return value, slope * np.nan if fails else slope

    def outputs(self, x):
        return super().outputs(x) * (np.nan if self.fails(x) else 1.0)

    def values(self, points):
        bad = [self.fails(x) for x in points]
        return np.where(bad, np.nan, super().values(points))

    def fails(self, x):
        """Whether this attempt fails; the position alone decides."""
        number = int(cases.mark(x), 16)
        if number % 1000 >= 1000 * self.share:
            return False
        with self._lock:
            before = self.failed.get(number, 0)
            if before > number // 1000 % 2:  # at most twice
                return False
            self.failed[number] = before + 1
        if number // 7000 % 2:
            raise RuntimeError("the solver did not converge")
        return True


@pytest.mark.parametrize("case", some(CASES))
@pytest.mark.parametrize("where", PLACES)
def test_failures_that_pass_leave_no_trace(case, where, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator_module, "FIRST_PAUSE", 0.001)
    kind = cases.CASES[case][0]
    with ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool:
        options = cases.settings(case, executor=pool)
        wanted = lw.sample(cases.target(kind, cases.Model()), **options)
        shaky = Shaky(0.1)
        found = lw.sample(cases.target(kind, shaky), ledger=tmp_path / "run.db", retries=5, **options)
    assert len(shaky.failed) > 5
    if kind.startswith("vectorized"):  # rows are retried alone, and fewer of them may be rounded differently
        np.testing.assert_allclose(found.draws, wanted.draws, rtol=1e-5, atol=1e-5)
    else:
        assert np.array_equal(found.draws, wanted.draws)
        for name, values in wanted.posterior.stats.items():
            assert np.array_equal(found.posterior.stats[name], values, equal_nan=values.dtype.kind == "f"), (
                name
            )
    assert found.cost.n_failures == wanted.cost.n_failed_attempts == 0
    again = lw.resume(tmp_path / "run.db", cases.target(kind, cases.Model()))
    with Ledger.read(tmp_path / "run.db") as ledger:
        n_failed = len(ledger.failures())
    assert n_failed >= sum(shaky.failed.values())
    assert found.cost.n_failed_attempts == again.cost.n_failed_attempts == n_failed
    assert "failed attempts" in str(found.summary()) and "failed attempts" not in str(wanted.summary())
    with Ledger.read(tmp_path / "run.db") as ledger:
        tried = [row for row in ledger.rows() if row.attempts > 1]
    assert tried and all(row.message and row.status == "ok" for row in tried)


class Broken(cases.Model):
    """Fails at every retry in a region, until it is fixed; counts its calls."""

    def __init__(self, limit):
        super().__init__()
        self.limit, self.calls = limit, []

    def done(self, kind, *points):
        self.calls.extend((kind, cases.mark(point)) for point in points)
        if any(point[0] > self.limit for point in points):
            raise ZeroDivisionError("the mesh is broken")


@pytest.mark.parametrize("case", some(["auto", "auto, outputs", "HMC", "RNSHMC"]))
@pytest.mark.parametrize("where", PLACES)
class TestLasting:
    def test_an_error_says_how_to_resume_and_that_works(self, case, where, tmp_path):
        kind, path = cases.CASES[case][0], tmp_path / "run.db"
        with ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool:
            options = cases.settings(case, executor=pool, draws=60)
            whole = lw.sample(cases.target(kind, cases.Model()), **options)
            # Late in the draws.
            limit = np.sort(whole.draws[:, :, 0].ravel())[-2] - 1e-9
            limit = max(limit, whole.warmup.draws[..., 0].max(initial=-np.inf))
            model = Broken(limit)
            target = cases.target(kind, model)
            with pytest.raises(EvaluationError, match="the mesh is broken") as caught:
                lw.sample(target, ledger=path, **options)
            error = caught.value
            assert error.parameters[0] > limit
            assert "the same call continues" in str(error) and str(path) in str(error)
            assert not error.run.complete and error.run.failures.shape == (1, 3)
            n = error.run.draws.shape[1]
            assert np.array_equal(error.run.draws, whole.draws[:, :n])
            with Ledger.read(path) as ledger:
                recorded = [cases.mark(row.position) for row in ledger.rows()]
                assert ledger.failures()[-1].message == "raised ZeroDivisionError: the mesh is broken"
            model.limit, model.calls = np.inf, []
            run = lw.sample(target, ledger=path, **options)
        assert run.complete and np.array_equal(run.draws, whole.draws)
        assert sum(mark in recorded for _, mark in model.calls) <= 1, "the recheck"
        assert len(model.calls) <= 1 + whole.cost.n_exact - len(recorded)

    def test_without_a_ledger_nothing_is_said_of_one(self, case, where):
        kind = cases.CASES[case][0]
        with (
            ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool,
            pytest.raises(EvaluationError) as caught,
        ):
            lw.sample(cases.target(kind, Broken(0.5)), **cases.settings(case, executor=pool))
        assert "ledger" not in str(caught.value)

    def test_rejections_are_counted_and_reported(self, case, where, tmp_path):
        """Also if some of them were made by an earlier call."""
        kind, path = cases.CASES[case][0], tmp_path / "run.db"
        with ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool:
            options = cases.settings(case, executor=pool, on_failure="reject")
            whole = lw.sample(cases.target(kind, Broken(1.0)), **options)
            assert whole.cost.n_failures == len(whole.failures) > 0
            assert (whole.failures[:, 0] > 1.0).all() and (whole.draws[..., 0] <= 1.0).all()
            for draws in (options["draws"] // 2, options["draws"]):
                run = lw.sample(cases.target(kind, Broken(1.0)), ledger=path, **options | {"draws": draws})
            if case != "auto, outputs":  # its warm-up depends on the draws first asked for
                cases.assert_same(cases.arrays(run), cases.arrays(whole))
                assert sorted(map(tuple, run.failures)) == sorted(map(tuple, whole.failures))
            assert run.cost.n_failures == len(run.failures)
        with Ledger.read(path) as ledger:
            rejected = [row for row in ledger.rows() if row.status == "rejected"]
        assert len(rejected) == run.cost.n_failures
        assert all("the mesh is broken" in row.message for row in rejected)


def test_the_failure_of_one_chain_does_not_lose_the_draws_of_others(tmp_path):
    """The other chains stop, their draws are saved, and nothing of them is evaluated again."""
    fail_at = 15
    lock, seen = threading.Lock(), {"n": 0}

    class OneChain(cases.Model):
        def value(self, x):
            if threading.current_thread().name.startswith("run") and x[2] > 1.2:
                with lock:
                    seen["n"] += 1
                    if seen["n"] >= fail_at:
                        raise OSError("this chain is broken")
            return super().value(x)

    path = tmp_path / "run.db"
    options = cases.settings("auto", draws=200)
    with ThreadPoolExecutor(3, thread_name_prefix="run") as pool:
        with pytest.raises(EvaluationError, match="is broken") as caught:
            lw.sample(cases.target("gradient", OneChain()), ledger=path, executor=pool, **options)
        with Ledger.read(path) as ledger:
            steps = [max(row.step for row in ledger.rows(sequence)) for sequence in (1, 2, 3)]
            n_rows = sum(1 for _ in ledger.rows())
        assert min(steps) > 5
        # The run has as many draws as every chain has; the ledger has the rest.
        assert caught.value.run.draws.shape[1] >= min(steps)
        counted = Broken(np.inf)
        run = lw.sample(cases.target("gradient", counted), ledger=path, executor=pool, **options)
        whole = lw.sample(cases.target("gradient", cases.Model()), executor=pool, **options)
    assert np.array_equal(run.draws, whole.draws)
    assert len(counted.calls) == 1 + whole.cost.n_exact - n_rows
