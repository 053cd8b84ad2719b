"""Leapfrog for cheap forces: the same flow with the same properties, without monitoring energies."""

from __future__ import annotations

import numpy as np
import pytest
from integrators import Flow, Recorder, ReversibleVolumePreserving, Symplectic, skewed_force, twisted_force
from test_leapfrog import METRICS, start_at

from leapwise.dynamics import PhasePoint, UnitMetric, kinetic_energy, leapfrog, plain_leapfrog


@pytest.fixture(params=METRICS)
def metric(request):
    return METRICS[request.param]


def flow_of(force, metric, rng):
    def run(position, momentum, step_size, n_steps):
        start = start_at(force, position, momentum)
        end = plain_leapfrog(lambda q: force(q)[1], metric, start, step_size, n_steps)
        assert end.complete.all()
        return end.position, end.momentum

    momentum = metric.momentum(rng.normal(size=(6, 3)))
    return Flow(
        run, lambda q, p: force(q)[0] + kinetic_energy(metric, p), rng.normal(size=(6, 3)) + 0.5, momentum
    )


class TestGlide(Symplectic):
    @pytest.fixture
    def flow(self, metric, rng):
        return flow_of(skewed_force, metric, rng)


class TestGlideWithAnyForce(ReversibleVolumePreserving):
    @pytest.fixture
    def flow(self, metric, rng):
        return flow_of(twisted_force, metric, rng)


def test_is_leapfrog(metric, rng):
    """Chains have their own step sizes and numbers of steps, none among them."""
    position, momentum = rng.normal(size=(2, 8, 3))
    step_size, n_steps = np.linspace(0.01, 0.2, 8), np.array([3, 0, 1, 7, 7, 2, 1, 5])
    start = start_at(skewed_force, position, momentum)
    expected, _ = leapfrog(skewed_force, metric, start, step_size, n_steps)
    found = plain_leapfrog(lambda q: skewed_force(q)[1], metric, start, step_size, n_steps)
    for name in ("position", "momentum", "gradient", "complete"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.potential, start.potential)


def test_a_step_costs_one_call_and_the_start_none(rng):
    force = Recorder(skewed_force)
    start = start_at(skewed_force, *rng.normal(size=(2, 4, 3)))
    plain_leapfrog(lambda q: force(q)[1], UnitMetric(), start, np.full(4, 0.1), np.array([5, 5, 2, 0]))
    assert [len(each) for each in force.calls] == [3, 3, 2, 2, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_gives_a_trajectory_up_both_ways(bad, rng):
    def gradient(q):
        return np.where(q[:, :1] > 1.0, bad, skewed_force(q)[1])

    q, p = rng.normal(size=(2, 400, 3))
    start = PhasePoint(q, p, np.zeros(400), gradient(q), np.ones(400, dtype=bool))
    size, number = np.full(400, 0.3), rng.integers(1, 6, 400)
    end = plain_leapfrog(gradient, UnitMetric(), start, size, number)
    assert 0.1 < end.complete.mean() < 0.9
    assert np.isfinite(end.position[end.complete]).all() and np.isfinite(end.momentum[end.complete]).all()
    arrived = end.complete
    back = plain_leapfrog(
        gradient,
        UnitMetric(),
        PhasePoint(end.position, -end.momentum, end.potential, end.gradient, arrived),
        size,
        number,
    )
    assert back.complete[arrived].all()
    np.testing.assert_allclose(back.position[arrived], q[arrived], atol=1e-10)


def test_positions_that_overflow_never_reach_the_force():
    asked = []

    def gradient(q):
        asked.append(q)
        return q * 1e200

    start = PhasePoint(
        np.ones((2, 1)), np.zeros((2, 1)), np.zeros(2), np.ones((2, 1)), np.ones(2, dtype=bool)
    )
    end = plain_leapfrog(gradient, UnitMetric(), start, np.array([1e150, 1e-3]), np.full(2, 10))
    assert not end.complete[0]
    assert all(np.isfinite(each).all() for each in asked)
