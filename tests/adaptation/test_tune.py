"""The kernel of the draws is chosen on the surrogate alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leapwise import DenseMetric, QuadraticNetwork, TrainingSet, Whitening
from leapwise.adaptation.surrogate_chains import Tempered, learn_frame, move, surrogate_kernel
from leapwise.adaptation.tune import tune_kernel


def quadratic(scales, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, len(scales))) * scales
    return QuadraticNetwork().fit(TrainingSet(x, 0.5 * ((x / scales) ** 2).sum(axis=1), x / scales**2), rng)


SCALES = np.array([0.1, 1.0, 5.0])


def test_the_frame_is_learned_from_draws_of_the_surrogate():
    frame = Whitening(np.zeros(3), np.eye(3))
    rng = np.random.default_rng(0)
    for _ in range(3):
        frame = learn_frame(quadratic(SCALES), frame, np.zeros((4, 3)), rng)
    np.testing.assert_allclose(np.sqrt(np.diag(frame.factor @ frame.factor.T)), SCALES, rtol=0.05)


def test_the_frozen_kernel_forgets_where_it_was():
    """Correlation after one move, of 4000 of them: a little below zero for parameters, small for squares."""
    rng = np.random.default_rng(0)
    fitted = quadratic(SCALES)
    kernel = tune_kernel(fitted, Whitening(np.zeros(3), np.diag(SCALES)), np.zeros((4, 3)), 0.1, rng)
    assert isinstance(kernel.metric, DenseMetric) and kernel.surrogate is fitted
    start = SCALES * rng.standard_normal((4000, 3))
    end, accepted = move(kernel, start, rng)
    assert accepted > 0.9
    for power, least, most in ((1, -0.4, 0.0), (2, -0.1, 0.2)):
        found = [np.corrcoef(a**power, b**power)[0, 1] for a, b in zip(start.T, end.T, strict=True)]
        assert least < min(found) <= max(found) < most


def test_inner_steps_that_gain_little_are_not_made():
    """On a normal one trajectory leads about as far as any number of them."""
    scales = np.geomspace(0.1, 5.0, 12)
    fitted, frame, start = quadratic(scales), Whitening(np.zeros(12), np.diag(scales)), np.zeros((4, 12))
    found = [
        tune_kernel(fitted, frame, start, 0.3, np.random.default_rng(seed)).inner_steps for seed in range(4)
    ]
    assert np.mean(found) < 2.5 and max(found) <= 3


def test_a_tempered_chain_goes_further_out():
    rng = np.random.default_rng(0)
    fitted, frame = quadratic(np.ones(2)), Whitening(np.zeros(2), np.eye(2))
    widths = []
    for surrogate in (fitted, Tempered(fitted, 0.25)):
        end, _ = move(surrogate_kernel(surrogate, frame, 0.5, 2.0, 6), np.zeros((2000, 2)), rng)
        widths.append(end.std())
    assert 1.6 < widths[1] / widths[0] < 2.4


def test_the_same_settings_again():
    kernel = tune_kernel(
        quadratic(SCALES),
        Whitening(np.zeros(3), np.diag(SCALES)),
        np.zeros((4, 3)),
        0.1,
        np.random.default_rng(3),
    )
    again = tune_kernel(
        quadratic(SCALES),
        Whitening(np.zeros(3), np.diag(SCALES)),
        np.zeros((4, 3)),
        0.1,
        np.random.default_rng(3),
    )
    assert (kernel.step_size, kernel.trajectory_length, kernel.inner_steps) == (
        again.step_size,
        again.trajectory_length,
        again.inner_steps,
    )
    assert replace(kernel, inner_steps=2).inner_steps == 2
