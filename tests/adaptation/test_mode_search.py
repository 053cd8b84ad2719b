"""Forward models that fit their data in several places."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord
from leapwise.adaptation.explore import Explorer, ExploringChains
from leapwise.adaptation.modes import KnownMass, KnownModes, search_prior
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT
from leapwise.execution import Evaluator
from leapwise.surrogates import Whitening

LEAST, N_DESCENTS = DEFAULT.modes.least, DEFAULT.modes.n_descents


def _target(forward, data) -> lw.ForwardTarget:
    return lw.ForwardTarget(
        forward, lw.GaussianLikelihood(data, sd=[0.1, 0.2]), lw.NormalPrior(0.0, 1.0, dim=3)
    )


def _mirrored() -> lw.ForwardTarget:
    """Return a posterior that is the same at both signs of the first parameter."""
    return _target(lambda x: np.array([x[0] ** 2, x[1] + 0.3 * x[2]]), [1.0, 0.5])


def _single() -> lw.ForwardTarget:
    return _target(lambda x: np.array([x[0] + 0.1 * x[0] ** 3, x[1] + 0.3 * x[2]]), [1.1, 0.5])


def _explorer(target: lw.ForwardTarget, seed: int, n_chains: int = 4) -> Explorer:
    """Return an explorer that has learned the posterior around (1, 0.4, 0.1), and nothing else."""
    rng, record = np.random.default_rng(seed), EvaluationRecord.of(Evaluator(target))
    frame = Whitening(np.array([1.0, 0.4, 0.1]), np.diag([0.05, 0.3, 0.9]))
    near = frame.from_white(rng.standard_normal((60, 3)))
    found = record.evaluate(near)
    candidates = Candidates(target, record, rng)
    candidates.train(frame)
    explorer = Explorer(
        record,
        candidates,
        frame,
        ExploringChains.begin(near[:n_chains], found.potential[:n_chains], rng, DEFAULT),
        rng,
    )
    explorer.rounds(4)
    return explorer


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_a_mirrored_mode_is_found_and_gets_a_chain(seed):
    explorer = _explorer(_mirrored(), seed)
    modes, known = KnownModes.of(explorer), len(explorer.record)
    assert search_prior(explorer, modes, 1000)
    assert len(explorer.record) - known <= LEAST
    chains = explorer.chains
    new = chains.cold & (chains.position[:, 0] < 0)
    assert new.sum() == 1 and abs(chains.position[new][0, 0] + 1.0) < 0.2
    np.testing.assert_array_equal(modes.position[new[chains.cold]], chains.position[new])
    paid = Evaluator(_mirrored()).value(chains.position[new]).potential
    np.testing.assert_allclose(chains.potential[new], paid, rtol=1e-12)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_nothing_is_found_where_there_is_one_and_little_is_spent(seed):
    explorer = _explorer(_single(), seed)
    before, known = explorer.chains.position.copy(), len(explorer.record)
    assert not search_prior(explorer, KnownModes.of(explorer), 4000)
    np.testing.assert_array_equal(explorer.chains.position, before)
    assert N_DESCENTS <= len(explorer.record) - known < 4 * N_DESCENTS


def test_it_never_costs_more_than_its_share():
    times = np.linspace(0.0, 30.0, 40)  # local minima everywhere, in which descents get stuck
    target = lw.ForwardTarget(
        lambda x: np.sin(np.exp(x[0]) * times) + x[1] + 0.3 * x[2],
        lw.GaussianLikelihood(np.sin(2.0 * times), sd=0.05),
        lw.NormalPrior(0.0, 1.0, dim=3),
    )
    for n_draws, most in ((100, LEAST), (4000, 120)):
        explorer = _explorer(target, 1)
        known = len(explorer.record)
        search_prior(explorer, KnownModes.of(explorer), n_draws)
        assert len(explorer.record) - known <= most


def test_a_descent_has_arrived_only_where_it_is_near_and_was_predicted():
    explorer = _explorer(_mirrored(), 1)
    known = KnownMass(explorer)
    place = np.array([1.0, 0.4, 0.1])
    height = float(Evaluator(_mirrored()).value(place[None]).potential[0])
    assert known.has(place, height)
    assert not known.has(place, height + 20.0)
    assert not known.has(place * [-1.0, 1.0, 1.0], height)


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 5))])
def test_a_run_has_both_signs(seed):
    """With each of these seeds one sign only was kept, without a warning, before other modes were searched for."""
    run = lw.sample(_mirrored(), draws=200, random_seed=seed, progressbar=False)
    assert run.draws[..., 0].min() < -0.8 and run.draws[..., 0].max() > 0.8


@pytest.mark.parametrize("limits", [{"tune": 150}, {"max_evaluations": 400}])
def test_a_limit_is_not_spent_on_it(limits, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr("leapwise.adaptation.adapt.search_prior", refuse)
    lw.sample(_single(), draws=100, random_seed=1, progressbar=False, **limits)
