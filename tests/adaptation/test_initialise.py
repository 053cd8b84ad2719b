"""From anywhere to the typical set, and its shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leapwise import Evaluator, Streams, Target
from leapwise.adaptation.initialise import find
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.settings import DEFAULT
from leapwise.problems.shapes import lobes
from leapwise.warmup.start import find_start


def normal(scales, gradient=True, mean=0.0):
    precision = 1.0 / np.asarray(scales) ** 2
    return Target(
        lambda x: -0.5 * ((x - mean) ** 2 @ precision),
        (lambda x: -(x - mean) * precision) if gradient else None,
        dim=len(precision),
        vectorized=True,
    )


def start(target, chains=4, seed=1, init=None):
    evaluator = Evaluator(target)
    record = EvaluationRecord(evaluator, target.has_gradient)
    streams = Streams(seed, chains)
    return record, find(record, find_start(evaluator, streams, init, target.has_gradient), streams.shared)


@pytest.mark.parametrize("scales", [[1.0] * 6, [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0], [1e-4, 1.0, 1e4]])
def test_the_frame_is_the_covariance_of_a_normal(scales):
    """Whatever the scales; the last is as far from the start as from the target's width to its start's."""
    record, found = start(normal(scales))
    ratio = np.diag(found.frame.factor @ found.frame.factor.T) / np.square(scales)
    assert (ratio > 0.5).all() and (ratio < 2.0).all()
    assert len(record) < 60 + 20 * len(scales)


@pytest.mark.parametrize("gradient", [True, False])
def test_all_chains_arrive(gradient):
    record, found = start(normal([0.1, 1.0, 0.5, 2.0], gradient, mean=3.0))
    potential = Evaluator(record.evaluator.target).value(found.position).potential
    assert (potential < DEFAULT.heights.training(4)).all()
    assert (record.evaluator.counts.n_gradients > 0) == gradient


def test_chains_that_start_in_another_mode_stay_there():
    """Nothing drags them to the first; over a few seeds both lobes are seen."""
    sides = set()
    for seed in range(4):
        _, found = start(lobes().target, seed=seed)
        sides |= set(np.sign(found.position[:, 0]).tolist())
    assert sides == {-1.0, 1.0}


def test_nothing_is_evaluated_twice():
    record, _ = start(normal([0.1, 1.0, 3.0]))
    position = np.concatenate([each.position for each in record.evaluations])
    assert len(np.unique(position, axis=0)) == len(position)


def test_one_start_for_all_chains_is_paid_once_and_spread_about_its_end():
    record, found = start(normal([0.1, 1.0, 3.0]), init=[1.0, 2.0, 3.0])
    position = np.concatenate([each.position for each in record.evaluations])
    assert len(np.unique(position, axis=0)) == len(position)
    assert len(np.unique(found.position, axis=0)) == 4


def test_no_step_of_the_descent_goes_to_the_end_of_the_world():
    """A potential that is almost flat at first invites steps of any length."""
    target = Target(
        lambda x: -np.log1p(x**2).sum(axis=1), lambda x: -2 * x / (1 + x**2), dim=2, vectorized=True
    )
    record, _ = start(target, init=[30.0, -40.0])
    position = np.concatenate([each.position for each in record.evaluations])
    assert np.abs(position).max() < 1000.0


def regression(gradient):
    """A line through raw numbers: an intercept and a slope that are correlated by 0.9999, and the log of the noise."""
    rng = np.random.default_rng(3)
    x = np.arange(1952.0, 2014.0)
    y = 9.0 + 0.03 * (x - 1983.0) + rng.standard_normal(len(x))

    def both(q):
        off = y - q[:, :1] - q[:, 1:2] * x
        precision = np.exp(-2.0 * q[:, 2])
        value = -len(x) * q[:, 2] - 0.5 * precision * (off**2).sum(axis=1)
        slopes = [off.sum(axis=1) * precision, off @ x * precision, (off**2).sum(axis=1) * precision - len(x)]
        return value, np.stack(slopes, axis=1)

    target = Target(
        lambda q: both(q)[0], value_and_gradient=both if gradient else None, dim=3, vectorized=True
    )
    design = np.stack([np.ones_like(x), x], axis=1)
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    noise = np.mean((y - design @ best) ** 2)
    return target, best, noise * np.linalg.inv(design.T @ design)


@pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_regression_on_raw_numbers_is_found_with_its_covariance(gradient, seed):
    """From a million times above its lowest potential."""
    target, best, covariance = regression(gradient)
    record, found = start(target, seed=seed)
    assert record.evaluations[0].potential.max() > 1e5 and len(record) < (150 if gradient else 500)
    off = found.frame.mean[:2] - best
    assert off @ np.linalg.solve(covariance, off) < 1.0
    ratio = np.linalg.eigvals(
        np.linalg.solve(covariance, (found.frame.factor @ found.frame.factor.T)[:2, :2])
    )
    assert (ratio.real > 0.5).all() and (ratio.real < 2.0).all()


def test_a_chain_that_has_found_something_far_lower_leads_the_others():
    """One start is next to a shallow mode, and lower; the other arrives at a mode that is 60 below it."""

    def both(x):
        shallow, deep = 0.5 * ((x - 3.0) ** 2).sum(axis=1) + 60.0, 0.5 * (((x + 20.0) / 3.0) ** 2).sum(axis=1)
        low = np.minimum(shallow, deep)
        share = (np.exp(low - shallow) / (np.exp(low - shallow) + np.exp(low - deep)))[:, None]
        value = -low + np.log(np.exp(low - shallow) + np.exp(low - deep))
        return value, -share * (x - 3.0) - (1.0 - share) * (x + 20.0) / 9.0

    target = Target(lambda x: both(x)[0], value_and_gradient=both, dim=2, vectorized=True)
    _, found = start(target, chains=2, init=np.array([[3.0, 4.0], [-60.0, -50.0]]))
    potential = Evaluator(target).value(found.position).potential
    assert (potential < DEFAULT.heights.training(2)).all()
    assert np.allclose(found.frame.mean, -20.0, atol=3.0)


#: Centre of a minimum whose potential is 40; the lowest one is in a bent valley about (1, 0.25), at a potential of 0.
LOCAL = np.array([6.0, -6.0])


def valley_beside_a_local_minimum():
    def log_density(x):
        valley = 5.0 * (x[:, 1] - 0.25 * x[:, 0] ** 2) ** 2 + 0.5 * (x[:, 0] - 1.0) ** 2
        local = 40.0 + 2.0 * ((x - LOCAL) ** 2).sum(axis=1)
        return np.logaddexp(-valley, -local)

    return Target(log_density, dim=2, vectorized=True)


def potentials_of_starts(settings=DEFAULT, far=(-9.0, 12.0), known=None):
    """Two chains begin beside the local minimum, the others `far` away; one more position may be `known`."""
    target = valley_beside_a_local_minimum()
    evaluator = Evaluator(target)
    record = EvaluationRecord(evaluator, gradient=False, settings=settings)
    if known is not None:
        record.evaluate(np.array([known]))
    streams, beside = Streams(1, 4), LOCAL + np.array([[0.3, 0.2], [-0.2, 0.4]])
    init = np.concatenate([beside, far + np.array([[0.0, 0.0], [0.5, 1.0]])])
    found = find(record, find_start(evaluator, streams, init, False), streams.shared)
    return Evaluator(target).value(found.position).potential


def test_by_values_a_local_minimum_is_found_out_by_descents_of_other_chains():
    two_steps = replace(DEFAULT, initialise=replace(DEFAULT.initialise, n_to_the_end=0))
    assert potentials_of_starts(two_steps).min() > 30.0, "two steps of the others are not enough here"
    assert potentials_of_starts().min() < 5.0


def test_by_values_a_position_that_happens_to_be_lower_is_descended_from():
    beside = LOCAL + np.array([0.5, -0.5])
    assert potentials_of_starts(far=beside).min() > 30.0
    assert potentials_of_starts(far=beside, known=(-5.0, 6.0)).min() < 5.0
