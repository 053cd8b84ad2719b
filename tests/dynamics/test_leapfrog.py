"""Leapfrog: its properties, its counts, and when it abandons a trajectory."""

from __future__ import annotations

import numpy as np
import pytest
from integrators import Flow, Recorder, ReversibleVolumePreserving, Symplectic, skewed_force, twisted_force

from leapwise.dynamics import DenseMetric, DiagonalMetric, PhasePoint, UnitMetric, kinetic_energy, leapfrog

COVARIANCE = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
METRICS = {
    "unit": UnitMetric(),
    "diagonal": DiagonalMetric([0.4, 1.0, 2.5]),
    "dense": DenseMetric(COVARIANCE),
}


@pytest.fixture(params=METRICS)
def metric(request):
    return METRICS[request.param]


def start_at(force, position, momentum, complete=None):
    everyone = np.ones(len(position), dtype=bool) if complete is None else complete
    return PhasePoint(position, momentum, *force(position), complete=everyone)


def flow_of(force, metric, rng):
    def run(position, momentum, step_size, n_steps):
        end, _ = leapfrog(force, metric, start_at(force, position, momentum), step_size, n_steps)
        assert end.complete.all()
        return end.position, end.momentum

    momentum = metric.momentum(rng.normal(size=(6, 3)))
    return Flow(
        run, lambda q, p: force(q)[0] + kinetic_energy(metric, p), rng.normal(size=(6, 3)) + 0.5, momentum
    )


class TestLeapfrog(Symplectic):
    @pytest.fixture
    def flow(self, metric, rng):
        return flow_of(skewed_force, metric, rng)


class TestLeapfrogWithAnyForce(ReversibleVolumePreserving):
    """What exactness rests on when the force is a surrogate, however bad."""

    @pytest.fixture
    def flow(self, metric, rng):
        return flow_of(twisted_force, metric, rng)

    def test_the_force_is_no_gradient(self, flow):
        """Else the two tests above would show nothing new: the symplectic form is lost."""
        jacobian = flow.jacobian(1)
        form = np.kron([[0.0, 1.0], [-1.0, 0.0]], np.eye(3))
        assert np.abs(np.swapaxes(jacobian, 1, 2) @ form @ jacobian - form).max() > 1e-3


def test_a_force_that_is_not_a_function_of_the_position_is_not_reversible(rng):
    """The reversibility test can fail: a force that remembers how often it was called does fail it."""
    n_calls = 0

    def forgetful(position):
        nonlocal n_calls
        n_calls += 1
        return (position**2).sum(axis=1), position * (1.0 + 0.1 * n_calls)

    with pytest.raises(AssertionError):
        ReversibleVolumePreserving().test_forward_then_back_returns(
            flow_of(forgetful, UnitMetric(), rng), n_steps=7
        )


def test_chains_have_their_own_step_sizes_and_numbers_of_steps(metric, rng):
    """Each row is, bit for bit, what it would be alone."""
    step_size, n_steps = rng.uniform(0.05, 0.4, 8), np.array([3, 1, 9, 0, 5, 5, 2, 9])
    start = start_at(skewed_force, rng.normal(size=(8, 3)), metric.momentum(rng.normal(size=(8, 3))))
    end, n_taken = leapfrog(skewed_force, metric, start, step_size, n_steps)
    np.testing.assert_array_equal(n_taken, n_steps)
    for i in range(8):
        row = slice(i, i + 1)
        one = start_at(skewed_force, start.position[row], start.momentum[row])
        alone, _ = leapfrog(skewed_force, metric, one, step_size[row], n_steps[row])
        for name in ("position", "momentum", "potential", "gradient", "complete"):
            np.testing.assert_array_equal(getattr(end, name)[row], getattr(alone, name))


def test_the_end_knows_its_own_potential_and_gradient(metric, rng):
    start = start_at(skewed_force, rng.normal(size=(5, 3)), metric.momentum(rng.normal(size=(5, 3))))
    end, _ = leapfrog(skewed_force, metric, start, np.full(5, 0.1), np.arange(5))
    potential, gradient = skewed_force(end.position)
    np.testing.assert_array_equal(end.potential, potential)
    np.testing.assert_array_equal(end.gradient, gradient)


def test_a_step_costs_one_call_of_the_force_and_the_start_none(rng):
    n_steps = np.array([4, 0, 7, 1])
    start = start_at(skewed_force, rng.normal(size=(4, 3)), rng.normal(size=(4, 3)))
    force = Recorder(skewed_force)
    leapfrog(force, UnitMetric(), start, np.full(4, 0.1), n_steps)
    assert [len(call) for call in force.calls] == [3, 2, 2, 2, 1, 1, 1]
    assert len(np.unique(force.rows, axis=0)) == n_steps.sum()


def test_nothing_that_it_is_given_or_gives_is_written_to(rng):
    kept: list[np.ndarray] = []

    def force(position):
        kept.append(position)
        return skewed_force(position)

    start = start_at(skewed_force, rng.normal(size=(4, 3)), rng.normal(size=(4, 3)))
    before = [np.copy(values) for values in vars(start).values()]
    recorder = Recorder(force)
    leapfrog(recorder, UnitMetric(), start, np.full(4, 0.1), np.full(4, 5))
    for values, copy in zip(vars(start).values(), before, strict=True):
        np.testing.assert_array_equal(values, copy)
    for given, copy in zip(kept, recorder.calls, strict=True):
        np.testing.assert_array_equal(given, copy)  # positions already handed out do not move on


def walled(potential, gradient):
    """The skewed force up to a wall at 1 in the first coordinate, behind which it answers something else."""

    def force(position):
        value, slope = skewed_force(position)
        behind = position[:, 0] > 1.0
        value[behind] = value[behind] * 0 + potential
        slope[behind] = slope[behind] * 0 + gradient
        return value, slope

    return force


@pytest.mark.parametrize(
    ("potential", "gradient"),
    [
        (np.inf, 0.0),
        (np.nan, 0.0),
        (-np.inf, 0.0),
        (1.0, np.nan),
        (1.0, np.inf),
        (1.0, -np.inf),
        (np.nan, np.nan),
    ],
)
def test_what_is_not_finite_ends_a_trajectory(potential, gradient, metric, rng):
    inner = walled(potential, gradient)
    force = Recorder(inner)
    momentum = metric.momentum(rng.normal(size=(200, 3)))
    start = start_at(inner, rng.uniform(-1.0, 0.9, (200, 3)), momentum)
    end, n_taken = leapfrog(force, metric, start, np.full(200, 0.3), np.full(200, 6))
    assert 10 < end.complete.sum() < 190
    assert np.isfinite(force.rows).all()
    assert n_taken.sum() == len(force.rows)
    assert (n_taken[end.complete] == 6).all()
    # One visit behind the wall ends it, so no chain is evaluated there twice.
    assert (force.rows[:, 0] > 1.0).sum() == (~end.complete).sum()
    assert np.isfinite(end.potential[end.complete]).all() and np.isfinite(end.gradient[end.complete]).all()


def test_a_start_that_is_not_finite_is_given_up_at_once(rng):
    start = start_at(skewed_force, rng.normal(size=(6, 3)), rng.normal(size=(6, 3)))
    start.potential[0], start.gradient[1, 2], start.momentum[2, 0] = np.inf, np.nan, np.nan
    start.momentum[3] = 1e200  # finite, but its energy is not
    start.complete[4] = False
    force = Recorder(skewed_force)
    end, n_taken = leapfrog(force, UnitMetric(), start, np.full(6, 0.1), np.full(6, 3))
    assert end.complete.tolist() == [False] * 5 + [True]
    assert n_taken.tolist() == [0] * 5 + [3]
    assert len(force.rows) == 3


def test_positions_that_overflow_never_reach_the_force():
    def force(position):
        assert np.isfinite(position).all()
        return np.zeros(len(position)), np.full_like(position, 1e308)

    start = start_at(force, np.zeros((3, 1)), np.ones((3, 1)))
    end, n_taken = leapfrog(force, UnitMetric(), start, np.array([1e-308, 10.0, 1e4]), np.full(3, 4))
    assert end.complete.tolist() == [True, False, False]
    assert n_taken.tolist() == [4, 0, 0]


@pytest.mark.parametrize("step_size", [1e1, 1e3, 1e30, 1e160, 1e300])
def test_wild_step_sizes_are_quiet(step_size, metric, rng):
    """Warnings are errors in these tests."""

    def steep(position):  # overflows by itself
        with np.errstate(over="ignore"):
            return (position**4).sum(axis=1), 4 * position**3

    force = Recorder(steep)
    start = start_at(steep, rng.normal(size=(20, 3)), metric.momentum(rng.normal(size=(20, 3))))
    end, _ = leapfrog(force, metric, start, np.full(20, step_size), np.full(20, 50))
    assert not end.complete.any()
    assert not force.calls or np.isfinite(force.rows).all()


class TestGivingUpOnEnergy:
    """Whether a trajectory is abandoned depends on its set of points, not on the end it starts from."""

    N_STEPS = 8

    @pytest.fixture
    def trajectories(self, metric, rng):
        """Energies ``(n, 9)`` along coarse trajectories, their starts and their ends."""
        n = 400
        momentum = metric.momentum(rng.normal(size=(n, 3)))
        point = start = start_at(skewed_force, rng.normal(size=(n, 3)) + 0.5, momentum)
        energies = [point.potential + kinetic_energy(metric, momentum)]
        for _ in range(self.N_STEPS):
            point, _ = leapfrog(skewed_force, metric, point, np.full(n, 0.5), np.ones(n, dtype=int))
            energies.append(point.potential + kinetic_energy(metric, point.momentum))
        back = PhasePoint(point.position, -point.momentum, point.potential, point.gradient, point.complete)
        return np.stack(energies, axis=1), start, back

    def test_both_ends_agree(self, trajectories, metric):
        energies, start, back = trajectories
        limit = float(np.median(np.ptp(energies, axis=1)))
        given_up = []
        for point in (start, back):
            n_steps = np.full(len(energies), self.N_STEPS)
            end, n_taken = leapfrog(
                skewed_force, metric, point, np.full(len(energies), 0.5), n_steps, max_energy_range=limit
            )
            given_up.append(~end.complete)
            assert (n_taken[~end.complete] <= self.N_STEPS).all() and n_taken.min() < self.N_STEPS
        clear = np.abs(np.ptp(energies, axis=1) - limit) > 1e-9  # the median itself is a toss-up of rounding
        np.testing.assert_array_equal(given_up[0][clear], (np.ptp(energies, axis=1) > limit)[clear])
        np.testing.assert_array_equal(given_up[1][clear], given_up[0][clear])

    def test_a_limit_relative_to_the_start_would_not(self, trajectories):
        """So the test above has something to see."""
        energies, _, _ = trajectories
        limit = float(np.median(np.ptp(energies, axis=1)))
        forward = (energies - energies[:, :1]).max(axis=1) > limit
        backward = (energies - energies[:, -1:]).max(axis=1) > limit
        assert (forward != backward).mean() > 0.05

    def test_no_limit_gives_up_nothing(self, trajectories, metric):
        _, start, _ = trajectories
        n = len(start.position)
        end, _ = leapfrog(
            skewed_force,
            metric,
            start,
            np.full(n, 0.5),
            np.full(n, self.N_STEPS),
            max_energy_range=np.inf,
        )
        assert end.complete.all()
