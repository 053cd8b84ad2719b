"""One step from exact draws leaves exact draws, for every kernel in every way it can be set up.

Each test takes the largest of eight |z|; it fails a correct kernel with chance below 1e-5.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from one_step import (
    CURVATURE,
    HOLED,
    STEEP,
    THRESHOLD,
    bounded_exponential,
    correlated_gumbel,
    largest_z,
    single_gumbel,
    walled_gumbel,
)

import understudy.kernels.guides
from understudy import HMC, RMHMC, DenseMetric, DiagonalMetric, UnitMetric
from understudy.dynamics import ImplicitSolver, leapfrog

COVARIANCE = np.array([[1.6, 1.3], [1.3, 2.7]])
N = 400_000
HMC_CASES = {
    "unit": (HMC(0.9, 3, metric=UnitMetric()), correlated_gumbel),
    "diagonal": (HMC(0.6, 3, metric=DiagonalMetric([1.6, 2.7])), correlated_gumbel),
    "dense, fixed number": (HMC(0.9, (3, 3), metric=DenseMetric(COVARIANCE)), correlated_gumbel),
    "by time": (HMC(0.9, trajectory_length=1.5, metric=UnitMetric()), correlated_gumbel),
    "own step sizes": (HMC(np.linspace(0.1, 1.2, N), 3, metric=UnitMetric()), correlated_gumbel),
    "wall": (HMC(0.7, 3, metric=UnitMetric()), walled_gumbel),
    "bounds": (HMC(0.9, 3, metric=UnitMetric()), bounded_exponential),
}
QUICK = ImplicitSolver(tolerance=1e-7, return_tolerance=1e-5)
RMHMC_CASES = {
    "plain": RMHMC(1.2, 2, metric=CURVATURE, solver=QUICK),
    "by time": RMHMC(1.2, trajectory_length=1.5, metric=CURVATURE, solver=QUICK),
    "steps too long to be solved": RMHMC(2.5, 2, metric=CURVATURE, solver=QUICK),
    "several solutions": RMHMC(1.0, 2, metric=STEEP, solver=QUICK),
    "hole in the metric": RMHMC(0.8, 2, metric=HOLED, solver=QUICK),
}


@pytest.mark.parametrize("name", HMC_CASES)
def test_hmc_leaves_the_posterior_invariant(name):
    kernel, exact = HMC_CASES[name]
    assert largest_z(kernel, exact(), N) < THRESHOLD


@pytest.mark.slow
def test_hmc_leaves_the_posterior_invariant_to_a_finer_eye():
    assert largest_z(HMC(0.9, 4, metric=DenseMetric(COVARIANCE)), correlated_gumbel(), 4_000_000) < THRESHOLD


@pytest.mark.parametrize("name", RMHMC_CASES)
def test_rmhmc_leaves_the_posterior_invariant(name):
    assert largest_z(RMHMC_CASES[name], single_gumbel(), N // 4) < THRESHOLD


def test_two_steps_are_invariant_too():
    """The second starts from what the first has kept: potential and gradient must belong to the position."""
    assert largest_z(HMC(0.9, 3, metric=UnitMetric()), correlated_gumbel(), N, steps=2) < THRESHOLD


def test_giving_up_on_the_energy_range_is_invariant(monkeypatch):
    """With a limit that ends half of the trajectories, since it is the same from both ends."""
    monkeypatch.setattr(understudy.kernels.guides, "leapfrog", partial(leapfrog, max_energy_range=0.5))
    assert largest_z(HMC(1.0, (4, 4), metric=UnitMetric()), correlated_gumbel(), N) < THRESHOLD
