"""Evaluations beyond the outermost draws: surprises where mass is missed, none where it is not."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord, n_probes
from leapwise.adaptation.coverage import look_beyond
from leapwise.adaptation.explore import Explorer, ExploringChains
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT
from leapwise.execution import Evaluator
from leapwise.surrogates import QuadraticNetwork, Whitening


def heavy(x):
    """Flat shoulders: what looks like a normal in the middle goes on for long."""
    return -np.log1p(0.5 * (x**2).sum(axis=1))


def normal(x):
    return -0.5 * (x**2).sum(axis=1)


def cauchy(x):
    """Tails that go on for ever, along each axis."""
    return -np.log1p(x**2).sum(axis=1)


def explorer_of(log_density, reach):
    """An explorer whose surrogate was trained within a reach, after some rounds."""
    dim, rng = 2, np.random.default_rng(3)
    target = lw.Target(log_density, dim=dim, vectorized=True)
    record = EvaluationRecord.of(Evaluator(target))
    position = reach * rng.uniform(-1.0, 1.0, (60, dim))
    record.evaluate(position)
    candidates = Candidates(target, record, rng, QuadraticNetwork())
    frame = Whitening(np.zeros(dim), np.eye(dim))
    candidates.train(frame)
    chains = ExploringChains.begin(position[:4], record.training().potential[:4], rng, DEFAULT)
    explorer = Explorer(record, candidates, frame, chains, rng)
    for _ in range(6):
        explorer.round()
    return explorer


def test_missed_mass_is_found_and_tempered_chains_are_sent_there():
    explorer = explorer_of(heavy, reach=1.0)
    before, known = explorer.chains, len(explorer.record)
    assert look_beyond(explorer)
    assert known < len(explorer.record) <= known + n_probes()
    moved = (explorer.chains.position != before.position).any(axis=1)
    assert moved.any() and not moved[before.cold].any(), "tempered ones only"
    exact = -heavy(explorer.chains.position)
    np.testing.assert_allclose(explorer.chains.potential, exact, rtol=1e-9)


def test_nothing_is_found_where_nothing_is_missed():
    explorer = explorer_of(normal, reach=3.0)
    before = explorer.chains
    assert not look_beyond(explorer)
    assert explorer.chains is before or (explorer.chains.position == before.position).all()


def test_a_long_tail_of_high_potential_is_found():
    """It is far above the lowest potential, and holds mass all the same: it goes on for as long as it is thin."""
    explorer = explorer_of(cauchy, reach=12.0)
    assert look_beyond(explorer)


@pytest.mark.parametrize("dim", [1, 3, 20])
def test_99_of_100_draws_of_a_normal_are_below_the_height_of_draws(dim):
    draws = np.random.default_rng(1).standard_normal((4000, dim))
    share = np.mean(0.5 * (draws**2).sum(axis=1) < DEFAULT.heights.draws(dim))
    assert 0.98 < share < 0.9995


def curved(x):
    """A ridge along a parabola; x0 is standard normal."""
    return -0.5 * x[:, 0] ** 2 - 2.0 * (x[:, 1] - x[:, 0] ** 2) ** 2 - 0.5 * (x[:, 2:] ** 2).sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_the_ends_of_a_curved_ridge_are_found_by_values_alone(seed):
    """4.6 % of the mass has |x0| > 2."""
    run = lw.sample(lw.Target(curved, dim=3, vectorized=True), random_seed=seed, progressbar=False)
    tails = np.mean(np.abs(run.draws[..., 0]) > 2.0)
    assert 0.025 < tails < 0.07
    assert np.abs(run.draws[..., 0]).max() > 2.7
