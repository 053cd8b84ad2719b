"""Who is trained, and when: the dear ones only once the cheap ones have had their chance."""

from __future__ import annotations

import numpy as np
import pytest

import understudy as us
from understudy.surrogates import Whitening
from understudy.surrogates.outputs import FittedOutputs
from understudy.targets import Evaluator
from understudy.warmup.rehearsal import Diary
from understudy.warmup.rehearsal.candidates import STEADY, Candidates

DIM = 8
TARGET = us.Target(
    lambda x: -0.5 * (x**2).sum(axis=1) - 0.1 * (x**4).sum(axis=1),
    lambda x: -x - 0.4 * x**3,
    dim=DIM,
    vectorized=True,
)


@pytest.fixture
def candidates():
    diary = Diary.of(Evaluator(TARGET))
    diary.evaluate(np.random.default_rng(0).standard_normal((60, DIM)))
    return Candidates(TARGET, diary, np.random.default_rng(1))


FRAME = Whitening(np.zeros(DIM), np.eye(DIM))


def judge(candidates, n=12):
    """Hold all candidates against new positions."""
    position = candidates.rng.standard_normal((n, DIM))
    candidates.diary.try_out(position, "walk", candidates.foretell(position))


def test_a_process_waits_for_the_verdict_on_hidden_nodes(candidates):
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic"]
    judge(candidates)
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic", "network"]
    candidates.train(FRAME)  # nobody has been held against anything since
    assert list(candidates.fitted) == ["quadratic", "network"]
    judge(candidates)
    assert min(candidates.diary.sd(name) for name in candidates.fitted) > 0.2
    candidates.train(FRAME)
    assert list(candidates.fitted) == ["quadratic", "network", "process"]


def test_a_ridge_is_kept_while_little_more_is_known(candidates):
    candidates.train(FRAME)
    first = candidates.fitted["quadratic"].ridge
    known = len(candidates.diary)
    candidates.diary.evaluate(candidates.rng.standard_normal((int(0.4 * known), DIM)))
    candidates.train(FRAME)
    assert candidates.fitted["quadratic"].ridge == first
    assert candidates._ridges[0] == (first, known)
    candidates.diary.evaluate(candidates.rng.standard_normal((known, DIM)))
    candidates.train(FRAME)
    assert len(candidates.diary) > STEADY * known
    assert candidates._ridges[0][1] == len(candidates.diary)


def test_emulators_share_what_they_have_in_common():
    mixing = np.random.default_rng(2).standard_normal((DIM, 30))
    target = us.ForwardTarget(
        lambda x: np.tanh(0.5 * x @ mixing),
        us.GaussianLikelihood(np.zeros(30), sd=0.3),
        us.NormalPrior(0.0, 1.0, dim=DIM),
        vectorized=True,
    )
    diary = Diary.of(Evaluator(target))
    diary.evaluate(np.random.default_rng(0).standard_normal((60, DIM)))
    candidates = Candidates(target, diary, np.random.default_rng(1))
    candidates.train(FRAME)
    judge(candidates)
    candidates.train(FRAME)
    plain, network = candidates.fitted.values()
    assert isinstance(plain, FittedOutputs) and isinstance(network, FittedOutputs)
    assert network.space is plain.space and network.features.rotation is plain.features.rotation
    assert plain.features.nodes is None and network.features.nodes.size == 300
    assert network.solution.shape[0] == plain.solution.shape[0] + 300
