"""HMC against a second implementation of the algorithm, and settings that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import skewed_target, start

from leapwise import HMC, DenseMetric, DiagonalMetric, Evaluator, Streams, UnitMetric
from leapwise.errors import InputError

COVARIANCE = np.array([[1.5, 0.6], [0.6, 0.8]])
METRICS = {
    "unit": (UnitMetric(), np.eye(2)),
    "diagonal": (DiagonalMetric([1.5, 0.8]), np.diag([1.5, 0.8])),
    "dense": (DenseMetric(COVARIANCE), COVARIANCE),
}


def algorithm_1(x, streams, step_size, n_steps, covariance):
    """One step of one chain, as in the paper, with the random numbers in the order the kernel takes them."""

    def potential(x):
        return (x + np.exp(-x)).sum()

    def gradient(x):
        return 1.0 - np.exp(-x)

    length = 1 + int(streams.uniforms()[0] * n_steps)
    start, p = x, np.linalg.inv(np.linalg.cholesky(covariance)).T @ streams.normals(2)[0]
    before = potential(x) + 0.5 * p @ covariance @ p
    for _ in range(length):
        p = p - 0.5 * step_size * gradient(x)
        x = x + step_size * covariance @ p
        p = p - 0.5 * step_size * gradient(x)
    after = potential(x) + 0.5 * p @ covariance @ p
    return x if streams.uniforms()[0] < np.exp(before - after) else start


@pytest.mark.parametrize("name", METRICS)
def test_it_is_algorithm_1(name):
    metric, covariance = METRICS[name]
    evaluator, streams, same = Evaluator(skewed_target()), Streams(3, 1), Streams(3, 1)
    state = start(evaluator, 1)
    x = state.position[0]
    moved = 0
    for _ in range(40):
        before = state
        state, _ = HMC(1.0, 5, metric=metric).step(streams, before, evaluator)
        moved += int((state.position != before.position).any())
        x = algorithm_1(x, same, 1.0, 5, covariance)
        np.testing.assert_allclose(state.position[0], x, rtol=1e-9, atol=1e-9)
    assert 5 < moved < 40


@pytest.mark.parametrize("metric", [None, "unit", "diagonal", "dense"])
def test_a_metric_still_to_be_learned_cannot_step(metric):
    evaluator = Evaluator(skewed_target())
    with pytest.raises(InputError, match="no metric to step with"):
        HMC(0.1, 3, metric=metric).step(Streams(1, 2), start(evaluator, 2), evaluator)


def test_needs_no_settings_to_be_made():
    assert not HMC().is_set


def test_a_covariance_as_metric_says_what_to_do():
    with pytest.raises(InputError, match="DenseMetric"):
        HMC(0.1, 3, metric=COVARIANCE)


def test_far_out_of_a_steep_valley_the_energy_limit_ends_trajectories():
    """Unstable trajectories stop long before their numbers do, and are flagged."""
    evaluator = Evaluator(skewed_target())
    state = start(evaluator, 10)
    with np.errstate(over="ignore"):
        _, info = HMC(8.0, (200, 200), metric=UnitMetric()).step(Streams(1, 10), state, evaluator)
    assert info.diverging.all() and not info.accepted.any()
    assert info.n_exact.max() < 30
