"""Moves of the final kernel: how many would end beyond an edge of the support, and how good the surrogate is there."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import leapwise as lw
from leapwise import QuadraticNetwork, TrainingSet, Whitening
from leapwise.adaptation import adapt
from leapwise.adaptation.explore import check_support, sd_at_moves
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.tune import tune_kernel

DIM = 4
N_MOVES = DEFAULT.explore.n_moves


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

    evaluate = value


def rng():
    return np.random.default_rng(1)


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


@pytest.mark.parametrize(("n_draws", "most"), [(4000, N_MOVES), (1000, 20), (500, 0)])
def test_moves_by_values_show_how_good_the_surrogate_is_there(n_draws, most):
    good, bad = Asked(normal), Asked(rough)
    sds = [sd_at_moves(record, known(sd=0.1), rng(), n_draws) for record in (good, bad)]
    assert 0.8 * most <= bad.n <= most
    assert np.isnan(sds).all() if most == 0 else sds[0] < 0.1 < 1.0 < sds[1]


def test_by_values_a_surrogate_that_fails_at_moves_of_the_draws_learns_from_them(monkeypatch):
    seen = []

    def fail_once(record, result, rng, n_draws):
        seen.append(len(record))
        return 4.0 if len(seen) == 1 else 0.1

    monkeypatch.setattr(adapt, "sd_at_moves", fail_once)
    target = lw.Target(lambda x: -0.5 * x @ x, dim=2)
    lw.sample(target, draws=20, random_seed=1, progressbar=False)
    assert len(seen) == 2 and seen[0] < seen[1]
    seen.clear()
    lw.sample(target, draws=20, tune=200, random_seed=1, progressbar=False)
    assert not seen, "with a limit of the user's nothing is spent on it"


def test_by_values_learning_does_not_stop_before_the_surrogate_in_use_is_tested(monkeypatch):
    """With a plan that always has enough, the number of tests is all that holds it back."""
    monkeypatch.setattr(adapt.AdaptationPlan, "is_enough", lambda *args: True)
    tested = {}
    explore = adapt._Learning._explore

    def counted(self):
        fell = explore(self)
        tested.setdefault(self.by_values, len(self.record.discrepancies(self.candidates.chosen)))
        return fell

    monkeypatch.setattr(adapt._Learning, "_explore", counted)
    lw.sample(lw.Target(lambda x: -0.5 * x @ x, dim=2), draws=20, random_seed=1, progressbar=False)
    lw.sample(
        lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2), draws=20, random_seed=1, progressbar=False
    )
    assert tested[True] >= DEFAULT.stopping.fewest_tests > tested[False]
