"""The test of invariance has teeth: each classic mistake, made on purpose, is caught.

Each is one small change to code that passes in `test_invariance`; the largest |z| must go over the same threshold,
and well over it, so that the verdict does not hang on the seed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from one_step import (
    CURVATURE,
    STEEP,
    THRESHOLD,
    bounded_exponential,
    correlated_gumbel,
    largest_z,
    single_gumbel,
)

import understudy.kernels.guides
import understudy.kernels.hmc
import understudy.kernels.rmhmc
from understudy import HMC, RMHMC, DiagonalMetric, State, UnitMetric
from understudy.dynamics import kinetic_energy, leapfrog, riemannian_energy
from understudy.dynamics.metrics import times_rows
from understudy.targets.transforms import Transform

N = 300_000
FEWER = 100_000  # for the slower kernel
CAUGHT = 2 * THRESHOLD
KERNEL = HMC(0.9, 3, metric=UnitMetric())
RIEMANNIAN = RMHMC(1.2, 2, metric=CURVATURE)


@pytest.fixture
def hmc(monkeypatch):
    """Return a function that replaces a name inside the module of HMC, or of what it follows."""
    guides, kernel = understudy.kernels.guides, understudy.kernels.hmc
    return lambda name, value: monkeypatch.setattr(kernel if hasattr(kernel, name) else guides, name, value)


@pytest.fixture
def rmhmc(monkeypatch):
    return lambda name, value: monkeypatch.setattr(understudy.kernels.rmhmc, name, value)


def test_kinetic_energy_missing_from_the_decision(hmc):
    hmc("kinetic_energy", lambda metric, momentum: np.zeros(len(momentum)))
    assert largest_z(KERNEL, correlated_gumbel(), N) > CAUGHT


def test_no_decision_at_all(hmc):
    hmc("metropolis", lambda energy, proposal, uniforms: (uniforms < 0.9, np.full(len(uniforms), 0.9)))
    assert largest_z(KERNEL, correlated_gumbel(), N) > CAUGHT


@pytest.mark.parametrize("stale", ["potential", "gradient"])
def test_what_is_kept_after_acceptance_is_stale(monkeypatch, stale):
    accept = State.accept

    def forgetful(self, accepted, proposal):
        return replace(accept(self, accepted, proposal), **{stale: getattr(self, stale)})

    monkeypatch.setattr(State, "accept", forgetful)
    assert largest_z(KERNEL, correlated_gumbel(), N, steps=2) > CAUGHT


def test_number_of_steps_depends_on_the_state(hmc):
    def eager(force, metric, start, step_size, n_steps):
        return leapfrog(force, metric, start, step_size, np.where(start.position[:, 0] > 0.0, 1, 3))

    hmc("leapfrog", eager)
    assert largest_z(KERNEL, correlated_gumbel(), N) > CAUGHT


def test_step_size_depends_on_the_state(hmc):
    def careful(force, metric, start, step_size, n_steps):
        step_size = np.where(start.position[:, 0] > 0.0, step_size, 0.5 * step_size)
        return leapfrog(force, metric, start, step_size, n_steps)

    hmc("leapfrog", careful)
    assert largest_z(KERNEL, correlated_gumbel(), N) > CAUGHT


@dataclass(frozen=True, eq=False)
class Hot(DiagonalMetric):
    """Momenta a tenth too large for the energy that they are given."""

    def momentum(self, normals):
        return 1.1 * super().momentum(normals)


def test_momenta_of_the_wrong_covariance():
    kernel = HMC(0.6, 3, metric=Hot([1.6, 2.7]))
    assert largest_z(kernel, correlated_gumbel(), N) > CAUGHT


def test_energy_limit_relative_to_the_start(hmc):
    """The same limit, counted from where the trajectory began, is caught; from both ends it is not."""

    def asymmetric(force, metric, start, step_size, n_steps, limit=0.5):
        point, complete = start, start.complete
        before = start.potential + kinetic_energy(metric, start.momentum)
        for step in range(int(n_steps.max())):
            moving = (n_steps > step).astype(int)
            point, _ = leapfrog(force, metric, point, step_size, moving)
            energy = point.potential + kinetic_energy(metric, point.momentum)
            complete = complete & (energy - before <= limit)
        return replace(point, complete=complete), n_steps

    hmc("leapfrog", asymmetric)
    assert largest_z(HMC(1.0, (4, 4), metric=UnitMetric()), correlated_gumbel(), N) > CAUGHT


def test_a_force_that_depends_on_the_momentum(hmc):
    """Neither reversible nor volume preserving, however exact the decision."""

    def dragged(force, metric, start, step_size, n_steps):
        dragging = replace(start, gradient=start.gradient + 0.2 * start.momentum)
        return leapfrog(force, metric, dragging, step_size, n_steps)

    hmc("leapfrog", dragged)
    assert largest_z(KERNEL, correlated_gumbel(), N) > CAUGHT


def test_jacobian_missing_from_the_value(monkeypatch):
    monkeypatch.setattr(Transform, "log_jacobian", lambda self, position: np.zeros(len(position)))
    assert largest_z(KERNEL, bounded_exponential(), N) > CAUGHT


def test_log_determinant_missing_from_the_energy(rmhmc):
    def without(point):
        log_det = 2.0 * np.log(np.diagonal(point.local.cholesky, axis1=1, axis2=2)).sum(axis=1)
        return riemannian_energy(point) - 0.5 * log_det

    rmhmc("riemannian_energy", without)
    assert largest_z(RIEMANNIAN, single_gumbel(), FEWER) > CAUGHT


def test_riemannian_momenta_from_another_metric(rmhmc):
    rmhmc("riemannian_momentum", lambda local, normals: times_rows(np.sqrt(local.cholesky), normals))
    assert largest_z(RIEMANNIAN, single_gumbel(), FEWER) > CAUGHT


def test_a_way_back_that_is_not_checked(monkeypatch):
    """Solutions that are not found again from the other side are proposals without a return."""

    def never_check(metric, start, end, half, half_step, slope, solver):
        return np.zeros(len(half), dtype=int), end.complete

    monkeypatch.setattr(sys.modules["understudy.dynamics.generalized_leapfrog"], "_returns", never_check)
    assert largest_z(RMHMC(1.0, 2, metric=STEEP), single_gumbel(), FEWER) > CAUGHT


def test_a_contraction_that_is_not_the_derivative_of_the_metric():
    """The map is then reversible but does not preserve volume."""
    wrong = replace(CURVATURE, slope=lambda q: np.exp(-q))
    assert largest_z(RMHMC(0.6, 2, metric=wrong), single_gumbel(), FEWER) > CAUGHT
