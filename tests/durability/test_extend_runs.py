"""More draws of the same chains, fewer draws, and resuming on other workers: the draws depend on the seed alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import resume_cases as cases
from engine_executors import executor

import leapwise as lw
from leapwise.run import production
from leapwise.storage import Ledger

PLACES = ("here", "threads")
QUICK = ("auto", "HMC", "RNSHMC")


def some(names):
    """Return cases; those that are not in `QUICK` are marked slow."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def sample(case, path, where="here", stop_after=np.inf, **changes):
    """Make a run, interrupted after `stop_after` calls; return it and the number of calls."""
    calls = []

    def done(kind, *points):
        calls.extend([kind] * len(points))
        if len(calls) > stop_after:
            raise KeyboardInterrupt

    model = cases.Model()
    model.done = done
    target = cases.target(cases.CASES[case][0], model)
    with ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool:
        run = lw.sample(target, ledger=path, executor=pool, **cases.settings(case, **changes))
    return run, len(calls)


def forget(path, *prefixes):
    """Delete checkpoints of a ledger, so that its evaluations must be replayed."""
    with Ledger.open(path, _header(path)) as ledger:
        names = [name for name in ledger.names() if name.startswith(prefixes)]
        assert all(any(name.startswith(each) for name in names) for each in prefixes), "not all was saved"
        for name in names:
            ledger.discard(name)


def _header(path):
    with Ledger.read(path) as ledger:
        return ledger.header


@pytest.mark.parametrize("case", some(cases.CASES))
@pytest.mark.parametrize("where", PLACES)
class TestMoreDraws:
    def test_the_same_chains_go_on(self, case, where, tmp_path):
        first, n_first = sample(case, tmp_path / "run.db", where, draws=20)
        more, n_more = sample(case, tmp_path / "run.db", where, draws=33)
        assert more.draws.shape[1] == 33 and more.complete
        assert np.array_equal(more.draws[:, :20], first.draws)
        assert n_first == first.cost.n_exact
        assert n_more == 1 + more.cost.n_exact - first.cost.n_exact, "what is new, and the recheck"
        # Replaying the evaluations alone gives the same draws, so they are the same chains.
        forget(tmp_path / "run.db", "state", "draws", "warm-up")
        again, n_again = sample(case, tmp_path / "run.db", where, draws=33)
        cases.assert_same(cases.arrays(again), cases.arrays(more))
        assert n_again == 1, "the recheck"

    def test_fewer_draws(self, case, where, tmp_path):
        first, _ = sample(case, tmp_path / "run.db", where, draws=20)
        fewer, n_calls = sample(case, tmp_path / "run.db", where, draws=7)
        assert fewer.draws.shape[1] == 7 and fewer.complete and n_calls == 1
        assert np.array_equal(fewer.draws, first.draws[:, :7])
        assert all(
            np.array_equal(fewer.posterior.stats[name], each[:, :7], equal_nan=each.dtype.kind == "f")
            for name, each in first.posterior.stats.items()
        )
        again, n_calls = sample(case, tmp_path / "run.db", where, draws=20)
        cases.assert_same(cases.arrays(again), cases.arrays(first))
        assert n_calls == 1, "the recheck"


@pytest.mark.parametrize("case", some(["auto", "auto, outputs", "auto, vectorized", "HMC", "RNSHMC"]))
@pytest.mark.parametrize("where", ["here", pytest.param("threads", marks=pytest.mark.slow)])
def test_many_short_blocks_are_one_run(case, where, tmp_path, monkeypatch):
    """Neither checkpoints nor the number of calls of `sample` that a run is made in change its draws."""
    whole, _ = sample(case, None, where)
    monkeypatch.setattr(production, "STEPS_PER_BLOCK", 7)
    blocks, _ = sample(case, tmp_path / "blocks.db", where)
    cases.assert_same(cases.arrays(blocks), cases.arrays(whole))
    if case in QUICK:  # their warm-up does not depend on the number of draws asked for
        for draws in (0 + 1, 6, 14, 15, 31, cases.settings(case)["draws"]):
            pieces, _ = sample(
                case, tmp_path / "pieces.db", where, draws=min(draws, cases.settings(case)["draws"])
            )
        cases.assert_same(cases.arrays(pieces), cases.arrays(whole))


@pytest.mark.parametrize("case", some(["auto", "auto, values", "auto, outputs", "HMC"]))
@pytest.mark.parametrize("began", ["here", pytest.param("threads", marks=pytest.mark.slow)])
def test_resumed_on_other_workers(case, began, tmp_path):
    """With an executor where the run began without one, and the other way round; at any stage."""
    other = PLACES[1 - PLACES.index(began)]
    whole, _ = sample(case, tmp_path / "whole.db", began)
    for stop_after in (5, whole.cost.n_exact // 2, whole.cost.n_exact - 5):
        path = tmp_path / f"{stop_after}.db"
        stopped(case, path, began, stop_after)
        found, n_calls = sample(case, path, other)
        cases.assert_same(cases.arrays(found), cases.arrays(whole))
        assert n_calls <= whole.cost.n_exact - stop_after + 1


@pytest.mark.parametrize("case", some(cases.CASES))
@pytest.mark.parametrize("places", ["few", pytest.param("many", marks=pytest.mark.slow)])
def test_stopped_anywhere(case, places, tmp_path):
    """In the first calls, in the last ones of warm-up, in the first of the draws, and at the end."""
    whole, _ = sample(case, None)
    n_warm, n_all = whole.warmup.cost.n_exact, whole.cost.n_exact
    many = (1, 2, 3, 4, 5, 7, n_warm // 2, n_warm - 1, n_warm, n_warm + 2, n_warm + 5, n_all - 2)
    for number in many if places == "many" else (3, n_warm, n_warm + 5):
        path = tmp_path / f"{number}.db"
        part, _ = sample(case, path, stop_after=number)
        assert not part.complete
        found, _ = sample(case, path)
        cases.assert_same(cases.arrays(found), cases.arrays(whole))


def stopped(case, path, where, after):
    """Make a run whose target fails after `after` calls, at every retry."""
    calls = []

    def done(kind, *points):
        calls.extend(points)
        if len(calls) > after:
            raise RuntimeError("no more")

    model = cases.Model()
    model.done = done
    target = cases.target(cases.CASES[case][0], model)
    with (
        ThreadPoolExecutor(3) if where == "threads" else nullcontext() as pool,
        pytest.raises(lw.errors.EvaluationError),
    ):
        lw.sample(target, ledger=path, executor=pool, retries=0, **cases.settings(case))


@pytest.fixture(scope="module", params=some(["auto", "auto, values", "auto, outputs", "HMC"]))
def apart(request, tmp_path_factory):
    """A run whose chains are groups of their own, evaluated by one thread."""
    path = tmp_path_factory.mktemp("apart") / "run.db"
    with ThreadPoolExecutor(1) as pool:
        return request.param, _sample_on(request.param, pool, path)


def _sample_on(case, pool, path=None):
    target = cases.target(cases.CASES[case][0], cases.Model())
    return cases.arrays(lw.sample(target, ledger=path, executor=pool, **cases.settings(case)))


@pytest.mark.parametrize(
    "workers", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_the_same_draws_with_any_number_of_threads(workers, apart):
    case, wanted = apart
    with ThreadPoolExecutor(workers) as pool:
        cases.assert_same(_sample_on(case, pool), wanted)


@pytest.mark.slow
def test_the_same_draws_on_cores(apart, tmp_path):
    case, wanted = apart
    with executor("loky", 2) as pool:
        cases.assert_same(_sample_on(case, pool, tmp_path / "run.db"), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loky", "dask"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_same_draws_with_any_number_of_processes(kind, workers, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        wanted = {case: _sample_on(case, pool) for case in ("auto", "HMC")}
    with executor(kind, workers) as pool:
        for case, arrays in wanted.items():
            cases.assert_same(_sample_on(case, pool, tmp_path / f"{case}.db"), arrays)
