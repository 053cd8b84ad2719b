"""Curved ridges: where they would go on, and steps that are fine enough for their tips."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation.coverage import continue_ridge, softest_direction
from leapwise.adaptation.surrogate_chains import find_step_size, move, surrogate_kernel
from leapwise.surrogates import Whitening

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


def test_steps_are_fine_enough_for_the_tips_of_a_thin_banana():
    """4.6 % of the mass has |x0| > 2; chains whose steps suit the places they visit hardly ever go there."""
    shares = []
    for everywhere in (True, False):
        rng = np.random.default_rng(5)
        start = np.array([[-0.5, 0.4], [0.0, 0.0], [0.5, 0.4], [0.8, 1.0]])
        step_size = find_step_size(Banana(), FRAME, start, rng, everywhere=everywhere)
        kernel = surrogate_kernel(Banana(), FRAME, step_size, 2.0, 60)
        draws = move(kernel, np.repeat(start, 250, axis=0), rng)[0]
        shares.append(np.mean(np.abs(draws[:, 0]) > 2.0))
    assert shares[0] > 0.02
    assert shares[1] < 0.5 * shares[0]


def test_a_normal_posterior_keeps_its_long_steps(rng):
    x = rng.standard_normal((60, 4))
    normal = lw.QuadraticNetwork().fit(lw.TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    frame = Whitening(np.zeros(4), np.eye(4))
    steps = [find_step_size(normal, frame, x[:8], rng, everywhere=everywhere) for everywhere in (True, False)]
    assert steps[0] == steps[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3])
def test_the_tips_of_a_thin_banana_are_drawn_or_warned_of(seed):
    def both(x):
        potential, gradient = Banana().potential_and_gradient(x)
        return -potential, -gradient

    target = lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=2, vectorized=True)
    run = lw.sample(target, random_seed=seed, progressbar=False)
    assert run.draws[..., 0].std() > 0.94 or run.summary().warnings
