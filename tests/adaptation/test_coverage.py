"""Evaluations beyond the outermost draws, straight and along curved ridges: surprises where mass is missed."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord, n_probes
from leapwise.adaptation.coverage import continue_ridge, look_beyond, softest_direction
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


WIDTH = 0.04
FRAME = Whitening(np.array([0.0, 1.5]), np.diag([1.0, 2.0]))


class Banana:
    """A ridge along a parabola: x0 is standard normal, and x1 within 0.2 of 1.5 x0^2."""

    def potential(self, x):
        return 0.5 * x[:, 0] ** 2 + 0.5 * self.off(x) ** 2 / WIDTH

    def potential_and_gradient(self, x):
        off = self.off(x) / WIDTH
        return self.potential(x), np.stack([x[:, 0] - 3.0 * x[:, 0] * off, off], axis=1)

    def hessian(self, x):
        off, slope = self.off(x) / WIDTH, 3.0 * x[:, 0]
        found = np.empty((len(x), 2, 2))
        found[:, 0, 0] = 1.0 - 3.0 * off + slope**2 / WIDTH
        found[:, 0, 1] = found[:, 1, 0] = -slope / WIDTH
        found[:, 1, 1] = 1.0 / WIDTH
        return found

    @staticmethod
    def off(x):
        return x[:, 1] - 1.5 * x[:, 0] ** 2


def test_a_curved_ridge_is_followed_round_the_bend(rng):
    x0 = np.array([-1.9, -1.5, 1.4, 1.8])
    x = np.stack([x0, 1.5 * x0**2 + 0.2 * rng.standard_normal(4)], axis=1)
    length = np.full((4, 1), 1.5)
    bottom, ahead = continue_ridge(Banana(), FRAME, FRAME.to_white(x), length)
    reached = FRAME.from_white(ahead)
    assert (np.abs(reached[:, 0]) > np.abs(x0) + 0.15).all(), "outwards"
    straight = FRAME.from_white(
        FRAME.to_white(x) + length * softest_direction(Banana(), FRAME, FRAME.to_white(x))
    )
    rise = Banana().potential(reached) - 0.5 * reached[:, 0] ** 2
    assert (rise < 2.0).all(), "and still on the ridge"
    assert np.median(Banana().potential(straight) - 0.5 * straight[:, 0] ** 2) > 5.0 * np.median(rise)
    assert (np.abs(Banana.off(FRAME.from_white(bottom))) < 0.2).all()


@pytest.mark.parametrize("dim", [1, 3])
def test_a_straight_one_goes_on_straight(dim):
    x = np.random.default_rng(1).standard_normal((30, dim))
    curvature = np.array([0.2, 1.0, 2.0])[:dim]
    normal = lw.QuadraticNetwork().fit(
        lw.TrainingSet(x, 0.5 * (curvature * x**2).sum(axis=1)), np.random.default_rng(1)
    )
    frame = Whitening(np.zeros(dim), np.eye(dim))
    bottom, ahead = continue_ridge(normal, frame, np.full((1, dim), 2.0), np.array([[1.5]]))
    step = ahead[0] - bottom[0]
    np.testing.assert_allclose(np.linalg.norm(step), 1.5, atol=0.02)
    assert step[0] > 0.99 * 1.5 and np.abs(bottom[0, 1:]).max(initial=0.0) < 0.3


def test_where_it_bends_alike_rounding_does_not_decide_the_direction():
    """All directions of a standard normal are equally soft: straight away from the middle, then."""
    x = np.random.default_rng(1).standard_normal((30, 3))
    normal = lw.QuadraticNetwork().fit(
        lw.TrainingSet(x, 0.5 * (x**2).sum(axis=1), x), np.random.default_rng(1)
    )
    white = np.array([[2.0, 1.0, -1.0]])
    found = softest_direction(normal, Whitening(np.zeros(3), np.eye(3)), white)
    np.testing.assert_allclose(found, white / np.linalg.norm(white), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_the_tips_of_a_thin_banana_are_drawn_or_warned_of(seed):
    def both(x):
        potential, gradient = Banana().potential_and_gradient(x)
        return -potential, -gradient

    target = lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=2, vectorized=True)
    run = lw.sample(target, random_seed=seed, progressbar=False)
    assert run.draws[..., 0].std() > 0.94 or run.summary().warnings
