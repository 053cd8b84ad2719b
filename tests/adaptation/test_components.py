"""Components of a bent mode, and whether jumps between them are worth it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_modes import Banana, Normals

from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.surrogate_chains import move, surrogate_kernel, trace
from leapwise.adaptation.tune import (
    _efficiency_of_draws,
    _in_quartiles,
    find_components,
    fit_components,
    tune_kernel,
)
from leapwise.kernels import Jumps
from leapwise.surrogates import Whitening

TUNE = DEFAULT.tune
UNIT = Whitening(np.zeros(2), np.eye(2))
BENT = Whitening(np.array([0.0, 4.0]), np.diag([2.0, 4.0]))
TOUCHING = Normals([[-2.25, 0.0], [2.25, 0.0]], [1.0, 1.0])


def bent_draws(n, seed=0):
    rng = np.random.default_rng(seed)
    x = 2.0 * rng.standard_normal(n)
    return np.stack([x, x**2 + 0.3 * rng.standard_normal(n)], axis=1)


def touching_draws(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) + np.where(rng.random(n) < 0.5, -2.25, 2.25)[:, None] * [1.0, 0.0]


@pytest.mark.parametrize("seed", range(5))
def test_each_of_two_lobes_is_a_component(seed):
    found = fit_components(UNIT, touching_draws(1500, seed), 2, np.random.default_rng(seed))
    order = np.argsort(found.centres[:, 0])
    np.testing.assert_allclose(found.centres[order], [[-2.25, 0.0], [2.25, 0.0]], atol=0.2)
    assert found.n_modes == 1


def test_components_are_the_normals_of_their_draws():
    draws = touching_draws(1500)
    found = fit_components(UNIT, draws, 2, np.random.default_rng(1))
    place = found.components(draws)
    for i in range(2):
        each = Whitening.from_positions(draws[place == i])
        np.testing.assert_allclose(found.centres[i], each.mean)
        np.testing.assert_allclose(found.factors[i], each.factor)


def test_too_few_draws_have_no_components():
    assert fit_components(UNIT, touching_draws(30), 2, np.random.default_rng(0)) is None
    assert find_components(TOUCHING, UNIT, touching_draws(30), np.random.default_rng(0), None) is None
    assert fit_components(UNIT, np.zeros((500, 2)), 2, np.random.default_rng(0)) is None  # all in one place


def test_draws_that_are_not_finite_are_left_out():
    draws = touching_draws(1500)
    draws[::7] = np.nan
    assert find_components(TOUCHING, UNIT, draws, np.random.default_rng(0), None) is not None


def test_each_mode_has_components_of_its_own():
    """Two bent valleys far apart: no component covers draws of both."""
    draws = np.concatenate([bent_draws(800, 1), bent_draws(800, 2) + np.array([100.0, 0.0])])
    both = np.stack([draws[:800].mean(axis=0), draws[800:].mean(axis=0)])
    modes = Jumps(both, np.tile(np.diag([2.0, 5.0]), (2, 1, 1)))

    class Two:
        def potential(self, position):
            return Banana().potential(position - np.where(position[:, :1] > 50, [[100.0, 0.0]], 0.0))

    found = find_components(Two(), BENT, draws, np.random.default_rng(0), modes)
    assert found.n_modes == 2 and len(found.centres) > 4
    np.testing.assert_array_equal(found.component_modes, found.centres[:, 0] > 50)
    np.testing.assert_array_equal(found.modes(draws), draws[:, 0] > 50)


CASES = pytest.mark.parametrize(
    ("surrogate", "frame", "draws"),
    [
        pytest.param(Banana(), BENT, bent_draws, id="bent"),
        pytest.param(TOUCHING, UNIT, touching_draws, id="touching", marks=pytest.mark.slow),
    ],
)


def jumping(surrogate, frame, draws):
    found = find_components(surrogate, frame, draws(1500, 3), np.random.default_rng(3), None)
    assert found is not None and found.n_modes == 1
    return replace(surrogate_kernel(surrogate, frame, 0.15, 2.0, 3), jumps=found)


@CASES
def test_a_chain_that_jumps_forgets_sooner(surrogate, frame, draws):
    kernel = jumping(surrogate, frame, draws)
    worth = [
        _efficiency_of_draws(
            _in_quartiles(trace(each, draws(512, 4), np.random.default_rng(5), 16), frame, None, TUNE),
            1.0,
            TUNE,
        )
        for each in (kernel, replace(kernel, jumps=None))
    ]
    assert worth[0] > 1.3 * worth[1]


@CASES
def test_draws_are_still_those_of_the_surrogate(surrogate, frame, draws):
    """20000 chains, four moves from exact draws: 6 standard errors of how means and squares change are allowed."""
    kernel, rng, start = jumping(surrogate, frame, draws), np.random.default_rng(6), draws(20000, 6)
    end = start
    for _ in range(4):
        end, _ = move(kernel, end, rng)
    for power in (1, 2):
        change = end**power - start**power
        assert (np.abs(change.mean(axis=0)) < 6 * change.std(axis=0) / np.sqrt(20000)).all()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_lobes_that_touch_are_jumped_between(seed):
    kernel = tune_kernel(TOUCHING, UNIT, touching_draws(64, seed), 0.05, np.random.default_rng(seed))
    assert kernel.jumps is not None and kernel.jumps.n_modes == 1 and kernel.inner_steps <= 8


def test_where_one_trajectory_is_enough_nothing_jumps():
    normal = Normals([[0.0, 0.0]], [1.0])
    assert tune_kernel(normal, UNIT, np.zeros((4, 2)), 0.1, np.random.default_rng(0)).jumps is None


def test_independent_draws_are_worth_one_each_and_repeated_ones_less():
    rng = np.random.default_rng(0)
    independent = rng.standard_normal((40, 400, 3))
    assert _efficiency_of_draws(independent, 1.0, TUNE) == pytest.approx(1.0, abs=0.1)
    assert _efficiency_of_draws(independent, 0.5, TUNE) == pytest.approx(1.0 / 3.0, abs=0.05)
    slow = np.empty_like(independent)
    slow[0] = independent[0]
    for i in range(1, 40):
        slow[i] = 0.5 * slow[i - 1] + np.sqrt(0.75) * independent[i]
    assert _efficiency_of_draws(slow, 1.0, TUNE) == pytest.approx(2.0 / (3.0 + 5.0 / 3.0), abs=0.05)


def test_changing_sides_does_not_hide_what_is_slow():
    """Two lobes that alternate, with a position in them that hardly changes: one lag alone would look good."""
    rng = np.random.default_rng(1)
    chain = np.empty((40, 400, 1))
    inner = rng.standard_normal(400)
    for i in range(40):
        inner = 0.95 * inner + np.sqrt(1 - 0.95**2) * rng.standard_normal(400)
        chain[i, :, 0] = (-1.0) ** i * inner + 0.5 * (-1.0) ** i
    assert _efficiency_of_draws(chain, 1.0, TUNE) < 0.35
