"""Where the support has an edge, moves of the final kernel show how many draws would end beyond it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from leapwise import QuadraticNetwork, TrainingSet, Whitening
from leapwise.adaptation.explore import check_support
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.tune import tune_kernel

DIM = 4


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
