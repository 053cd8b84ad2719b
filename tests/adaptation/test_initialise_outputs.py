"""Forward models whose posterior is far narrower than the prior, or hidden among local minima."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation.initialise import OutputDescents, find_by_outputs, follow_trust_regions
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import DEFAULT
from leapwise.execution import Evaluator
from leapwise.kernels import State, Streams
from leapwise.surrogates import Whitening

GRID = np.linspace(0.0, 1.0, 200)


def _wave(x):
    return np.exp(x[0]) * np.sin(6.0 * GRID + x[1]) + x[0] * x[1] * GRID


def _sharp(sd: float = 0.1) -> lw.ForwardTarget:
    """Return a posterior of which each parameter is about a hundred times narrower than its prior."""
    data = _wave(np.array([0.3, 0.5])) + sd * np.random.default_rng(13).standard_normal(GRID.size)
    return lw.ForwardTarget(_wave, lw.GaussianLikelihood(data, sd=sd), lw.NormalPrior(0.0, 1.0, dim=2))


def _swinging() -> lw.ForwardTarget:
    """Return a damped oscillation: a local minimum without any amplitude is everywhere, and few frequencies fit."""
    times = np.linspace(0.0, 10.0, 40)

    def solve(x):
        return x[0] * np.exp(-np.exp(x[1]) * times) * np.cos(np.exp(x[2]) * times)

    data = solve(np.log([np.e, 0.15, 3.0])) + 0.1 * np.random.default_rng(11).standard_normal(40)
    prior = lw.NormalPrior([0.0, -2.0, 1.0], [2.0, 1.0, 0.6])
    return lw.ForwardTarget(solve, lw.GaussianLikelihood(data, sd=0.1), prior)


def _descents(target: lw.ForwardTarget, seed: int = 0, limit: int = 200) -> OutputDescents:
    rng = np.random.default_rng(seed)
    evaluator = Evaluator(target)
    evaluator.limit = limit
    frame = Whitening.from_positions(rng.standard_normal((200, target.dim)))
    return OutputDescents(EvaluationRecord.of(evaluator), target, frame, rng)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_posterior_far_narrower_than_the_prior_is_learned(seed):
    run = lw.sample(_sharp(), draws=100, chains=4, random_seed=seed, progressbar=False)
    assert run.surrogate.sd < 0.2 and run.warmup.cost.n_exact < 120
    np.testing.assert_allclose(run.draws.mean(axis=(0, 1)), [0.3, 0.5], atol=0.04)
    assert (run.draws.std(axis=(0, 1)) < 0.02).all()


@pytest.mark.parametrize("seed", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_chains_do_not_stay_where_nothing_fits(seed):
    run = lw.sample(_swinging(), draws=100, chains=4, tune=400, random_seed=seed, progressbar=False)
    np.testing.assert_allclose(run.draws[:, :, 2].mean(axis=1), np.log(3.0), atol=0.02)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_all_chains_arrive_and_the_frame_is_that_of_the_posterior(seed):
    target, streams = _sharp(), Streams(seed, 4)
    evaluator = Evaluator(target)
    record, evaluator.limit = EvaluationRecord.of(evaluator), 200
    position = np.random.default_rng(seed).standard_normal((4, 2))
    state = State.from_evaluation(evaluator.value(position))
    start = find_by_outputs(record, Candidates(target, record, streams.shared), state)
    assert len(record) < 120
    potential = Evaluator(target).value(start.position).potential
    assert (potential < record.lowest + DEFAULT.heights.training(2)).all()
    around = start.frame.from_white(np.random.default_rng(0).standard_normal((200, 2)))
    rise = Evaluator(target).value(around).potential - record.lowest
    assert 0.5 < rise.mean() < 2.0  # of a normal posterior in two dimensions it is 1


def test_a_chain_left_behind_starts_again_where_others_have_ended():
    descents = _descents(_sharp())
    good = np.array([[0.3, 0.5], [0.31, 0.5]])
    position = np.concatenate([good, [[3.0, -3.0]]])
    potential = descents.record.evaluate(position).potential
    start = follow_trust_regions(descents, position, potential, np.ones(3), iter(np.empty((0, 2))))
    assert np.abs(start.position - [0.3, 0.5]).max() < 0.1


def test_fresh_draws_are_tried_only_while_nothing_fits():
    drawn = []

    def fresh():
        rng = np.random.default_rng(0)
        while True:
            drawn.append(rng.standard_normal(2))
            yield drawn[-1]

    for sd, is_tried in ((0.1, False), (0.02, True)):
        likelihood = lw.GaussianLikelihood(_sharp().likelihood.data, sd=sd)  # too sure of errors of 0.1
        descents = _descents(lw.ForwardTarget(_wave, likelihood, lw.NormalPrior(0.0, 1.0, dim=2)))
        position = np.array([[0.3, 0.5], [0.31, 0.5]])
        potential = descents.record.evaluate(position).potential
        follow_trust_regions(descents, position, potential, np.ones(2), fresh())
        assert bool(drawn) == is_tried
        assert len(descents.record) <= descents.most + 8


def test_models_are_not_run_far_outside_the_prior():
    descents = _descents(_sharp())
    descents.record.evaluate(descents.frame.from_white(np.array([[0.0, 0.0]])))
    assert np.abs(descents.within(np.array([[9.0, -9.0]]))).max() == DEFAULT.trust_region.reach
    far = descents.frame.from_white(np.array([[4.0, 0.0]]))
    descents.record.evaluations[0].potential[:] = np.inf  # as if mass were out there
    descents.record.evaluate(far)
    assert np.abs(descents.within(np.array([[9.0, -9.0]]))).max() == pytest.approx(
        4.0 * DEFAULT.trust_region.further
    )


@pytest.mark.parametrize("sd", [1e-6, *(pytest.param(sd, marks=pytest.mark.slow) for sd in (1e-3, 1e-4))])
def test_a_ridge_a_million_times_longer_than_it_is_wide_is_explored(sd):
    """One output of two parameters: in a frame as wide as the prior no chain would ever move."""
    target = lw.ForwardTarget(
        lambda x: x[:1] + x[1:], lw.GaussianLikelihood([1.0], sd=sd), lw.NormalPrior(0.0, 1.0, dim=2)
    )
    run = lw.sample(target, draws=250, chains=4, random_seed=1, progressbar=False)
    assert not run.summary().warnings
    along = (run.draws[..., 0] - run.draws[..., 1]).ravel()  # N(0, 2) given the sum
    across = (run.draws.sum(axis=-1).ravel() - 1.0) / sd
    # 5 standard errors of a thousand draws, which are worth no fewer independent ones here: 6e-7 for each.
    assert abs(along.mean()) < 5.0 * np.sqrt(2.0 / 1000) and abs(across.mean()) < 5.0 / np.sqrt(1000)
    assert abs(along.var() / 2.0 - 1.0) < 0.25 and abs(across.var() - 1.0) < 0.25


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sd", [1e-5, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_a_few_exact_data_of_more_parameters_leave_a_plain_that_is_explored(sd, seed):
    """Two outputs of six parameters: nearly all evaluations that show their slopes are far up."""
    slopes = np.random.default_rng(0).standard_normal((2, 6))
    target = lw.ForwardTarget(
        lambda x: slopes @ x,
        lw.GaussianLikelihood(slopes.sum(axis=1), sd=sd),
        lw.NormalPrior(0.0, 1.0, dim=6),
    )
    run = lw.sample(target, draws=250, chains=4, random_seed=seed, progressbar=False)
    covariance = np.linalg.inv(np.eye(6) + slopes.T @ slopes / sd**2)
    ratio = run.draws.reshape(-1, 6).std(axis=0) / np.sqrt(np.diag(covariance))
    # 5 standard errors of a thousand draws, about, and of 24 in all: 1e-5.
    assert run.surrogate.sd < 0.1 and (np.abs(ratio - 1.0) < 0.12).all()


TIMES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
DATA = np.array([2.07, 1.62, 1.16, 0.87, 0.68, 0.44, 0.20, 0.10])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_row_of_init_will_do(seed):
    target = lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * TIMES),
        lw.GaussianLikelihood(DATA, sd=0.05),
        lw.UniformPrior([0.1, 0.01], [10.0, 5.0]),
    )
    run = lw.sample(target, draws=100, chains=4, init=[2.0, 0.5], random_seed=seed, progressbar=False)
    assert run.complete
    np.testing.assert_allclose(run.draws.mean(axis=(0, 1)), [2.086, 0.564], atol=0.03)


@pytest.mark.slow
def test_a_poor_emulator_without_a_gradient_goes_on_learning():
    """Two decays that can be exchanged: after the usual evaluations sd(D) is 3.9, too much to draw with."""
    target = lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * TIMES) + x[2] * np.exp(-x[3] * TIMES),
        lw.GaussianLikelihood(DATA, sd=0.05),
        lw.UniformPrior([0.0, 0.05, 0.0, 0.05], [4.0, 6.0, 4.0, 6.0]),
    )
    run = lw.sample(target, draws=250, chains=4, random_seed=0, progressbar=False)
    assert run.surrogate.sd < 1.3
