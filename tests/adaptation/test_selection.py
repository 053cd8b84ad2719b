"""Which surrogates are trained, and when: expensive ones only once the cheap ones are not good enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT
from leapwise.execution import Evaluator
from leapwise.surrogates import Whitening
from leapwise.surrogates.outputs import FittedOutputs

DIM = 8
TARGET = lw.Target(
    lambda x: -0.5 * (x**2).sum(axis=1) - 0.1 * (x**4).sum(axis=1),
    lambda x: -x - 0.4 * x**3,
    dim=DIM,
    vectorized=True,
)


@pytest.fixture
def candidates():
    record = EvaluationRecord.of(Evaluator(TARGET))
    record.evaluate(np.random.default_rng(0).standard_normal((60, DIM)))
    return Candidates(TARGET, record, np.random.default_rng(1))


FRAME = Whitening(np.zeros(DIM), np.eye(DIM))


def judge(candidates, n=12):
    """Compare all candidates with exact potentials at new positions."""
    position = candidates.rng.standard_normal((n, DIM))
    candidates.record.compare(position, "cold", candidates.predict(position))


def test_a_process_waits_until_hidden_units_have_been_compared(candidates):
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic"]
    judge(candidates)
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic", "network"]
    candidates.train(FRAME)  # nothing has been compared since
    assert list(candidates.fitted) == ["quadratic", "network"]
    judge(candidates)
    assert min(candidates.record.sd(name) for name in candidates.fitted) > 0.2
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic", "network", "process"]


@pytest.mark.parametrize(("sd", "expected"), [(0.0, 55), (2.0, 50)])
def test_a_process_is_given_more_evaluations_once_it_is_good(candidates, sd, expected):
    row = DIM + 1  # of one evaluation
    selection = replace(DEFAULT.selection, few_parameters=DIM, few_rows=50 * row, max_rows=55 * row)
    candidates.record.settings = replace(DEFAULT, selection=selection)
    candidates.train(FRAME)
    assert len(candidates.fitted["process"].posterior.rows.points) == 50
    position = candidates.rng.standard_normal((24, DIM))
    exact = -TARGET.evaluate(position, gradient=False).log_density
    predicted = exact + sd * candidates.rng.standard_normal(len(exact))
    candidates.record.compare(position, "cold", {"process": predicted})
    candidates.train(FRAME)
    assert len(candidates.fitted["process"].posterior.rows.points) == expected


def test_a_ridge_strength_is_kept_while_there_are_few_new_data(candidates):
    candidates.train(FRAME)
    first = candidates.fitted["quadratic"].ridge
    known = len(candidates.record)
    candidates.record.evaluate(candidates.rng.standard_normal((int(0.4 * known), DIM)))
    candidates.train(FRAME)
    assert candidates.fitted["quadratic"].ridge == first
    assert candidates._ridges[0] == (first, known)
    candidates.record.evaluate(candidates.rng.standard_normal((known, DIM)))
    candidates.train(FRAME)
    assert len(candidates.record) > DEFAULT.selection.steady * known
    assert candidates._ridges[0][1] == len(candidates.record)


def test_emulators_share_what_they_have_in_common():
    mixing = np.random.default_rng(2).standard_normal((DIM, 30))
    target = lw.ForwardTarget(
        lambda x: np.tanh(0.5 * x @ mixing),
        lw.GaussianLikelihood(np.zeros(30), sd=0.3),
        lw.NormalPrior(0.0, 1.0, dim=DIM),
        vectorized=True,
    )
    record = EvaluationRecord.of(Evaluator(target))
    record.evaluate(np.random.default_rng(0).standard_normal((60, DIM)))
    candidates = Candidates(target, record, np.random.default_rng(1))
    candidates.train(FRAME)
    judge(candidates)
    candidates.train(FRAME)
    plain, network = candidates.fitted.values()
    assert isinstance(plain, FittedOutputs) and isinstance(network, FittedOutputs)
    assert network.space is plain.space and network.features.rotation is plain.features.rotation
    assert plain.features.hidden is None and network.features.hidden.size == 300
    assert network.solution.shape[0] == plain.solution.shape[0] + 300
