"""Failures of the generalised leapfrog: reported, symmetric in both directions, and always finite numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from integrators import Case, HessianMetric, Recorder, ShearMetric, TensorLocal, skewed_force

from leapwise.dynamics import (
    ImplicitSolver,
    RiemannianPoint,
    evaluate_metric,
    generalized_leapfrog,
    riemannian_energy,
    riemannian_momentum,
)
from leapwise.dynamics.generalized import velocity
from leapwise.errors import InputError

CASES = {
    "hessian": Case(skewed_force, HessianMetric(), np.full(2, 0.5)),
    "shear": Case(skewed_force, ShearMetric(), np.full(2, 0.5)),
}


@pytest.fixture(params=CASES)
def small_case(request):
    return CASES[request.param]


class TestUnsolved:
    def test_too_few_iterations_are_said_so(self, small_case, rng):
        start = small_case.start(rng, 10)
        solver = ImplicitSolver(tolerance=1e-12, max_iterations=1)
        end, n_taken, n_metrics = generalized_leapfrog(
            small_case.force, small_case.metric, start, np.full(10, 0.3), np.full(10, 4), solver
        )
        assert end.unsolved.all() and not end.complete.any()
        assert (n_taken == 0).all() and (n_metrics <= 3).all()
        np.testing.assert_array_equal(end.position, start.position)

    def test_a_step_too_long_is_either_solved_or_said_so(self, small_case, rng):
        start = small_case.start(rng, 500)
        end, _, _ = generalized_leapfrog(
            small_case.force, small_case.metric, start, np.full(500, 1.3), np.full(500, 3), ImplicitSolver()
        )
        assert 0.02 < end.unsolved.mean() < 0.98
        assert (
            end.complete ^ end.unsolved
        ).all()  # the potential is finite everywhere: there is no third way
        np.testing.assert_array_equal(end.potential, small_case.force(end.position)[0])

    @pytest.mark.parametrize(
        ("tolerance", "return_tolerance"),
        [(ImplicitSolver().tolerance, ImplicitSolver().return_tolerance), (1e-10, 1e-6)],
    )
    @pytest.mark.parametrize(("step_size", "n_steps"), [(1.0, 2), (1.6, 1), (1.6, 2)])
    def test_giving_up_is_the_same_both_ways(
        self, small_case, step_size, n_steps, tolerance, return_tolerance, rng
    ):
        """From the end of any trajectory that stands, the way back stands too and leads to its start.

        The error of a solution must be far below what counts as a return, or chance decides whether it does.
        """
        solver = ImplicitSolver(tolerance, return_tolerance=return_tolerance)
        kept, missed = self.there_and_back(small_case, step_size, n_steps, solver, rng)
        assert 0.1 < kept < 1
        assert missed < 1e-3  # the odd one at the very edge of convergence, where rounding decides

    def test_the_way_back_is_needed(self, small_case, monkeypatch, rng):
        """Without the check, trajectories would stand that do not lead back: it is not there for show."""

        def never_check(metric, start, end, half, half_step, slope, solver):
            return np.zeros(len(half), dtype=int), end.complete

        monkeypatch.setattr(sys.modules["leapwise.dynamics.generalized"], "_returns", never_check)
        _, missed = self.there_and_back(small_case, 1.6, 1, ImplicitSolver(1e-10), rng)
        assert missed > 5e-3

    @staticmethod
    def there_and_back(case, step_size, n_steps, solver, rng):
        """Return the share of trajectories that stand, and of these the share that do not lead back."""
        n = 2000
        start, step_size, n_steps = case.start(rng, n), np.full(n, step_size), np.full(n, n_steps)
        there, _, _ = generalized_leapfrog(case.force, case.metric, start, step_size, n_steps, solver)
        kept = there.complete
        flipped = case.start_at(there.position[kept], -there.momentum[kept])
        back, _, _ = generalized_leapfrog(
            case.force, case.metric, flipped, step_size[kept], n_steps[kept], solver
        )
        distance = np.abs(back.position - start.position[kept]).max(axis=1)
        return kept.mean(), (~back.complete | (distance > 1e-3)).mean()


@dataclass
class ExpLocal:
    """G = exp(q), written as a user might: it underflows to a singular matrix that does not say so."""

    position: np.ndarray

    def __post_init__(self):
        self.matrix = np.exp(self.position)[:, :, None]
        self.cholesky = np.sqrt(self.matrix)

    def quadratic_contraction(self, velocity):
        return self.matrix[:, :, 0] * velocity**2

    def trace_contraction(self):
        return np.ones_like(self.position)


class ExpMetric:
    def at(self, position):
        return ExpLocal(position)


class HalfSpace:
    """A metric that is not positive definite where the first coordinate is above 1."""

    def at(self, position):
        sign = np.where(position[:, 0] > 1.0, -1.0, 1.0)[:, None, None]
        inner = HessianMetric().at(position)
        return TensorLocal(sign * inner.matrix, sign[..., None] * inner.derivative)


def quartic_force(position):
    with np.errstate(over="ignore", invalid="ignore"):
        return (position**4).sum(axis=1), 4 * position**3


ROUGH = {
    "hessian": Case(skewed_force, HessianMetric(), np.zeros(2)),
    "shear": Case(quartic_force, ShearMetric(), np.zeros(2)),
    "exp": Case(quartic_force, ExpMetric(), np.zeros(1)),
    "half space": Case(skewed_force, HalfSpace(), np.full(2, -1.0), 0.5),
}


class TestRoughGoing:
    @pytest.mark.parametrize("name", ROUGH)
    @pytest.mark.parametrize("step_size", [0.5, 1.0, 3.0, 10.0, 1e2, 1e4, 1e8, 1e100, 1e300])
    def test_long_steps_neither_crash_nor_leave_the_numbers(self, name, step_size, rng):
        """Warnings are errors here, too."""
        case = ROUGH[name]
        start, force, metric = case.start(rng, 300), Recorder(case.force), Recorder(case.metric.at)
        end, n_taken, n_metrics = generalized_leapfrog(
            force, metric, start, np.full(300, step_size), np.full(300, 3), ImplicitSolver()
        )
        energy = riemannian_energy(end)
        assert np.isfinite(energy[end.complete]).all()
        assert np.isfinite(end.position).all()
        assert not (end.complete & end.unsolved).any()
        assert not force.calls or np.isfinite(force.rows).all()
        assert not metric.calls or np.isfinite(metric.rows).all()
        assert n_metrics.sum() == sum(map(len, metric.calls)) and n_taken.sum() == sum(map(len, force.calls))

    def test_a_hole_in_the_metric_is_a_rejection(self, rng):
        case = ROUGH["half space"]
        start = case.start(rng, 400)
        end, _, _ = generalized_leapfrog(
            case.force, case.metric, start, np.full(400, 0.3), np.full(400, 6), ImplicitSolver()
        )
        assert 0.05 < end.unsolved.mean() < 0.95
        assert (end.position[:, 0] <= 1.0).all()
        assert (end.complete ^ end.unsolved).all()

    def test_a_start_in_the_hole(self, rng):
        case = ROUGH["half space"]
        position = np.array([[2.0, 0.0], [0.0, 0.0]])
        local = evaluate_metric(case.metric, position)
        momentum = riemannian_momentum(local, rng.normal(size=(2, 2)))
        usable = np.isfinite(momentum).all(axis=1)
        assert usable.tolist() == [False, True]
        start = RiemannianPoint(position, momentum, *case.force(position), local, usable, ~usable)
        end, n_taken, _ = generalized_leapfrog(
            case.force, case.metric, start, np.full(2, 0.1), np.full(2, 2), ImplicitSolver()
        )
        assert end.complete.tolist() == [False, True] and end.unsolved.tolist() == [True, False]
        assert n_taken.tolist() == [0, 2]
        assert np.isnan(riemannian_energy(end)[0]) and np.isfinite(riemannian_energy(end)[1])

    @pytest.mark.parametrize("potential", [np.inf, np.nan, -np.inf])
    def test_zero_density_is_given_up_but_not_called_unsolved(self, potential, rng):
        def force(position):
            value, gradient = skewed_force(position)
            outside = position[:, 0] > 1.0
            return np.where(outside, potential, value), np.where(outside[:, None], 0.0, gradient)

        case = Case(force, HessianMetric(), np.full(2, -1.0), 0.5)
        start = case.start(rng, 300)
        end, _, _ = generalized_leapfrog(
            force, case.metric, start, np.full(300, 0.3), np.full(300, 6), ImplicitSolver()
        )
        assert 0.05 < end.complete.mean() < 0.95
        assert not end.unsolved.any()
        assert np.isfinite(end.potential[end.complete]).all()

    def test_velocity_is_nan_only_where_the_matrix_is_unusable(self):
        class Metric:
            def at(self, position):
                local = TensorLocal(np.stack([np.eye(2), -np.eye(2), np.eye(2)]), np.zeros((3, 2, 2, 2)))
                local.cholesky[2] = 0.0  # a factor of zeros is no less singular than one of NaN
                return local

        found = velocity(evaluate_metric(Metric(), np.zeros((3, 2))), np.ones((3, 2)))
        np.testing.assert_array_equal(found, [[1.0, 1.0], [np.nan, np.nan], [np.nan, np.nan]])


@pytest.mark.parametrize(
    "bad",
    [
        {"tolerance": 0.0},
        {"tolerance": np.nan},
        {"tolerance": "tight"},
        {"return_tolerance": -1.0},
        {"max_iterations": 0},
        {"max_iterations": 2.5},
    ],
)
def test_solver_settings_are_checked(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        ImplicitSolver(**bad)
