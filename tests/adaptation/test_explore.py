"""Trial moves can take trust away; they give none."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

import leapwise as lw
from leapwise import QuadraticNetwork, TrainingSet, Whitening
from leapwise.adaptation import adapt
from leapwise.adaptation.explore import check_support, try_moves
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.tune import tune_kernel

DIM = 4
N_MOVES, USELESS = DEFAULT.explore.n_moves, DEFAULT.stopping.useless


@dataclass(frozen=True)
class Result:
    """As much of an `AdaptationResult` as is read here."""

    kernel: object
    training: TrainingSet
    sd: float
    surrogate_kind: str = "network"


def normal(x):
    return 0.5 * (x**2).sum(axis=1)


def rough(x):
    return normal(x) + 3.0 * np.sin(20.0 * x).sum(axis=1)


def known(sd):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, DIM))
    training = TrainingSet(x, normal(x), x)
    fitted = QuadraticNetwork().fit(training, rng)
    kernel = tune_kernel(fitted, Whitening(np.zeros(DIM), np.eye(DIM)), x[:4], 0.3, rng)
    return Result(kernel, training, sd)


class Asked:
    """A record that knows its lowest potential, and counts what is asked of it."""

    def __init__(self, potential, outside=0.0):
        self.potential, self.n, self.lowest, self.settings = potential, 0, 0.0, DEFAULT
        self.evaluator, self.outside, self.observed_by = self, lambda surrogate_kind: outside, nullcontext

    def value(self, x):
        self.n += len(x)
        return SimpleNamespace(potential=self.potential(x))


def rng():
    return np.random.default_rng(1)


def test_a_surrogate_that_is_worse_at_moves_of_the_draws_loses_trust():
    record, result = Asked(rough), known(sd=0.7)
    found = try_moves(record, result, rng(), 4000)
    assert found.sd > USELESS and record.n <= N_MOVES
    assert replace(found, sd=result.sd) == result


@pytest.mark.parametrize("sd", [0.7, 3.0])
def test_one_that_does_better_there_gains_none(sd):
    result = known(sd)
    assert try_moves(Asked(normal), result, rng(), 4000) is result


@pytest.mark.parametrize(("n_draws", "most"), [(4000, N_MOVES), (1000, 20), (500, 0)])
def test_it_costs_a_small_share_of_the_draws(n_draws, most):
    record = Asked(rough)
    try_moves(record, known(sd=0.7), rng(), n_draws)
    assert 0.8 * most <= record.n <= most


def test_one_on_which_no_chain_moves_is_useless_and_costs_nothing():
    stuck = known(sd=0.7)
    stuck = replace(stuck, kernel=stuck.kernel.replace(step_size=1e6, trajectory_length=1e6))
    record = Asked(normal)
    assert try_moves(record, stuck, rng(), 4000).sd == np.inf and record.n == 0


def test_without_an_edge_nothing_is_spent():
    record, result = Asked(rough, outside=0.5 * DEFAULT.explore.edge), known(sd=0.3)
    assert check_support(record, result, rng(), most=100) == (result, 0.0) and record.n == 0


def test_with_an_edge_moves_show_how_many_end_beyond_it():
    def half(x):
        return np.where(x[:, 0] > 0, normal(x), np.inf)

    record, result = Asked(half, outside=0.2), known(sd=0.3)
    found, outside = check_support(record, result, rng(), most=20)
    assert 0.1 < outside < 0.9 and found.sd > result.sd and record.n <= 20
    assert check_support(record, result, rng(), most=3) == (result, 0.2)


@pytest.mark.parametrize(
    ("n_failures", "share"), [(0, 0.0), (1, 0.0), pytest.param(99, 1.0, marks=pytest.mark.slow)]
)
def test_a_surrogate_that_fails_once_learns_on_and_one_that_always_fails_is_not_used(
    monkeypatch, n_failures, share
):
    seen = []

    def fail_first(record, result, rng, n_draws):
        seen.append(len(record))
        return replace(result, sd=4.0) if len(seen) <= n_failures else result

    monkeypatch.setattr(adapt, "try_moves", fail_first)
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=3)
    run = lw.sample(target, draws=20, random_seed=1, progressbar=False)
    assert run.surrogate.exact_share == share
    # Two of warm-up itself, and twice two of surrogates that were trained on HMC's evaluations.
    assert len(seen) == min(n_failures + 1, 6)
    assert all(seen[i] < seen[i + 1] for i in range(0, len(seen) - 1, 2)), (
        "it learned on before it was tried again"
    )
