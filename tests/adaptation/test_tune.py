"""Inner steps are chosen on the surrogate alone; trust is earned."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise import DenseMetric, QuadraticNetwork, TrainingSet, Whitening
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.surrogate_chains import Tempered, learn_frame, move, surrogate_kernel
from leapwise.adaptation.trust import Trust, judge, require_use
from leapwise.adaptation.tune import tune_kernel
from leapwise.errors import SurrogateError


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


def result(sd, surprises, missed_mass=False):
    return SimpleNamespace(
        sd=sd,
        surprises=surprises,
        training=[0] * 50,
        missed_mass=missed_mass,
        settings=DEFAULT,
        is_useful=sd < DEFAULT.stopping.useless,
    )


class TestTrust:
    def test_a_good_surrogate_needs_no_exact_steps(self):
        assert judge(result(0.3, 0.0)) == Trust(0.0)

    @pytest.mark.parametrize(("sd", "surprises"), [(2.0, 0.0), (np.inf, 0.0), (0.1, 0.5), (np.nan, 0.0)])
    def test_a_useless_one_is_not_used(self, sd, surprises):
        found = judge(result(sd, surprises))
        assert found.exact_share == 1.0 and "after 50 evaluations" in found.reason
        if surprises == 0.0:
            with pytest.raises(SurrogateError, match="no gradient to fall back on"):
                require_use(result(sd, surprises), found)

    def test_a_fair_one_is_helped(self):
        found = judge(result(0.7, 0.0))
        assert 0.0 < found.exact_share < 0.5
        require_use(result(0.7, 0.0), found)

    def test_one_with_mass_beyond_its_draws_is_helped_and_says_so(self):
        found = judge(result(0.1, 0.0, missed_mass=True))
        assert 0.0 < found.exact_share < 0.5 and "there is mass" in found.reason
        assert "there is mass" not in judge(result(0.9, 0.0)).reason


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
