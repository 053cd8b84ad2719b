"""Looks along tails: what a surrogate cuts is found on the profile, and nothing where it cuts nothing."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import EvaluationRecord, explore
from leapwise.adaptation.explore import Explorer, ExploringChains
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.surrogate_chains import surrogate_kernel
from leapwise.adaptation.tails import (
    HiddenTail,
    TailProfile,
    hidden_in_tails,
    look_along_tails,
    n_tail_probes,
    outer_rank,
)
from leapwise.execution import Evaluator
from leapwise.surrogates import QuadraticNetwork, Whitening

NARROW = 0.05


def long_tail(x):
    """x0 is normal to the left and falls off like exp(-|x0|) to the right; x1 follows it closely, x2 does not."""
    rise = np.where(x[:, 0] < 0, 0.5 * x[:, 0] ** 2, np.sqrt(1.0 + x[:, 0] ** 2) - 1.0)
    return -rise - 0.5 * ((x[:, 1] - 0.5 * x[:, 0]) / NARROW) ** 2 - 0.5 * x[:, 2] ** 2


def long_tail_slope(x):
    slope = np.where(x[:, 0] < 0, x[:, 0], x[:, 0] / np.sqrt(1.0 + x[:, 0] ** 2))
    off = (x[:, 1] - 0.5 * x[:, 0]) / NARROW**2
    return -np.stack([slope - 0.5 * off, off, x[:, 2]], axis=1)


def normal(x):
    return -0.5 * (x[:, 0] ** 2 + ((x[:, 1] - 0.5 * x[:, 0]) / NARROW) ** 2 + x[:, 2] ** 2)


def explorer_of(log_density, gradient=None, reach=1.2):
    """An explorer with a quadratic surrogate, trained within a reach of the ridge, ready to explore."""
    rng = np.random.default_rng(3)
    target = lw.Target(log_density, gradient, dim=3, vectorized=True)
    record = EvaluationRecord.of(Evaluator(target))
    position = reach * rng.uniform(-1.0, 1.0, (80, 3))
    position[:, 1] = 0.5 * position[:, 0] + NARROW * position[:, 1]
    record.evaluate(position)
    candidates = Candidates(target, record, rng, QuadraticNetwork())
    frame = Whitening.from_positions(position)
    candidates.train(frame)
    return Explorer(
        record,
        candidates,
        frame,
        ExploringChains.begin(position[:4], record.look_up(position[:4])[0].potential, rng, DEFAULT),
        rng,
    )


def draws_of(explorer, n=192):
    """Independent draws of a quadratic surrogate."""
    surrogate = explorer.candidates.surrogate
    precision = surrogate.hessian(np.zeros((1, 3)))[0]
    mean = -np.linalg.solve(precision, surrogate.potential_and_gradient(np.zeros((1, 3)))[1][0])
    white = np.random.default_rng(5).standard_normal((n, 3))
    return mean + white @ np.linalg.cholesky(np.linalg.inv(precision)).T


@pytest.mark.parametrize("gradient", [long_tail_slope, None])
def test_a_tail_that_is_cut_is_found_on_its_ridge(gradient):
    """Also where a straight step would be twenty widths off it; nothing is found on the other sides."""
    explorer = explorer_of(long_tail, gradient)
    known, spent = len(explorer.record), explorer.record.evaluator.counts.n_exact
    places, potential = look_along_tails(explorer, draws_of(explorer))
    assert len(places)
    assert (places[:, 0] > 2.0).all(), "the long tail, not the short one"
    assert (np.abs(places[:, 1] - 0.5 * places[:, 0]) < 4 * NARROW).all(), "on the ridge"
    np.testing.assert_allclose(potential, -long_tail(places))
    assert explorer.record.evaluator.counts.n_exact - spent <= n_tail_probes()
    assert len(explorer.record) - known < explorer.record.evaluator.counts.n_exact - spent, (
        "far places are not trained on"
    )


def test_a_surrogate_that_is_right_hides_nothing():
    explorer = explorer_of(normal)
    assert not len(look_along_tails(explorer, draws_of(explorer))[0])


def test_what_is_hidden_is_about_what_is_missing_of_the_variance():
    """A normal surrogate of an exponential tail, from where the outer 1.5 % of it begins."""
    explorer = explorer_of(normal)
    draws = draws_of(explorer, 4000)
    own = Whitening.from_positions(draws)
    profile = TailProfile.follow(explorer.candidates.surrogate, own, own.to_white(draws), 0.0)
    right = np.flatnonzero((profile.parameter == 2) & (profile.direction[:, 2] > 0))
    profile, share = profile.rows(right), outer_rank(len(draws)) / len(draws)
    end, sd = profile.reach[0], profile.sd[0]
    # The exact density falls off like exp(-x) beyond the end, where that of the surrogate is known.
    way = np.array([0.4])
    potential = profile.potential + way * end
    x = np.linspace(0.0, 4.0 * end, 4000)
    own_density = np.exp(-0.5 * ((end + x) ** 2 - end**2))
    missing = np.trapezoid((np.exp(-x) - own_density) * (end + x) ** 2, x)
    missing *= share / np.trapezoid(own_density, x) / sd**2
    assert profile.hidden(potential, way)[0] * share == pytest.approx(missing, rel=0.35)
    assert profile.hidden(profile.potential + 100.0, way)[0] == 0.0


def test_the_tail_that_draws_of_the_final_kernel_miss_is_named():
    explorer = explorer_of(long_tail, long_tail_slope)
    kernel = surrogate_kernel(explorer.candidates.surrogate, explorer.frame, 0.5, 2.0, 3)
    tail, places, _ = hidden_in_tails(explorer, kernel)
    assert isinstance(tail, HiddenTail)
    assert tail.parameter in (0, 1) and tail.share > DEFAULT.tails.hidden, "x1 follows x0"
    assert len(places)
    right = explorer_of(normal)
    kernel = surrogate_kernel(right.candidates.surrogate, right.frame, 0.5, 2.0, 3)
    assert hidden_in_tails(right, kernel)[0] is None


def test_the_frame_is_not_learned_where_a_chain_was_sent(monkeypatch):
    """The surrogate is wrong there, and may be steep: the frame would become too narrow."""
    explorer = explorer_of(long_tail, long_tail_slope)
    for _ in range(8):
        explorer.round()
    tempered = np.flatnonzero(~explorer.chains.cold)
    far = np.tile([60.0, 30.0, 0.0], (len(tempered), 1))
    explorer.put(tempered, far, -long_tail(far))
    begun = []
    monkeypatch.setattr(
        explore, "learn_frame", lambda surrogate, frame, position, rng, **_: begun.append(position) or frame
    )
    explorer.train()
    np.testing.assert_array_equal(begun[0], explorer.chains.position[explorer.chains.cold])


def one_sided(x):
    """Four parameters, of which the last has a tail like that of an inverse gamma distribution."""
    v = np.logaddexp(0.0, x[:, 3])
    rest = 0.5 * (x[:, :3] ** 2).sum(axis=1)
    with np.errstate(all="ignore"):
        return -3.0 * np.log(v) - 2.0 / v - np.logaddexp(0.0, -x[:, 3]) - rest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_long_tail_is_seen_or_a_warning_says_that_it_is_not(seed):
    """By quadrature 1.75 % of the mass has x3 > 10. Without a gradient an error may say it, too."""
    try:
        run = lw.sample(lw.Target(one_sided, dim=4, vectorized=True), random_seed=seed, progressbar=False)
    except lw.errors.SurrogateError as error:
        seen, said = 0.0, [str(error)]
    else:
        seen, said = np.mean(run.draws[..., 3] > 10.0), lw.results.warnings_for(run)
    assert seen > 0.006 or any("tail" in each or "trust" in each for each in said)
