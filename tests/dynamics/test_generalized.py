"""Generalised leapfrog: it solves its equations, is reversible, preserves volume, and reports failures."""

from __future__ import annotations

import numpy as np
import pytest
from integrators import (
    Case,
    Flow,
    HessianMetric,
    Recorder,
    ShearMetric,
    Symplectic,
    TensorLocal,
    skewed_force,
)

from leapwise.dynamics import (
    DenseMetric,
    ImplicitSolver,
    PhasePoint,
    generalized_leapfrog,
    leapfrog,
    riemannian_energy,
    riemannian_momentum,
)
from leapwise.dynamics.metrics import ProductMetric
from leapwise.problems.logistic import LogisticRegression

TIGHT = ImplicitSolver(tolerance=1e-13, max_iterations=200, return_tolerance=1e-9)


def logistic_case() -> Case:
    """A small logistic regression with the Fisher metric that the library ships."""
    rng = np.random.default_rng(3)
    features = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    model = LogisticRegression(features, (rng.random(40) < 0.7).astype(float), prior_sd=2.0)

    def force(position):
        value, gradient = model.value_and_gradient(position)
        return -value, -gradient

    return Case(force, model.metric, np.array([0.8, 0.0, 0.0]), 0.3)


CASES = {
    "hessian": lambda: Case(skewed_force, HessianMetric(), np.full(2, 0.5)),
    "shear": lambda: Case(skewed_force, ShearMetric(), np.full(2, 0.5), 0.5),
    "hessian, 4-d": lambda: Case(skewed_force, HessianMetric(), np.full(4, 0.5)),
    "logistic": logistic_case,
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]()


@pytest.fixture(params=["hessian", "shear"])
def small_case(request):
    return CASES[request.param]()


class TestGeneralizedLeapfrog(Symplectic):
    """The inherited properties, with the equations solved to rounding."""

    @pytest.fixture
    def flow(self, case, rng):
        def run(position, momentum, step_size, n_steps):
            start = case.start_at(position, momentum)
            end, _, _ = generalized_leapfrog(case.force, case.metric, start, step_size, n_steps, TIGHT)
            assert end.complete.all() and not end.unsolved.any()
            return end.position, end.momentum

        def energy(position, momentum):
            return riemannian_energy(case.start_at(position, momentum))

        start = case.start(rng, 5)
        return Flow(run, energy, start.position, start.momentum, step_size=0.2)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
def test_returns_to_the_solvers_own_tolerance(case, tolerance, rng):
    solver = ImplicitSolver(tolerance=tolerance, return_tolerance=100 * tolerance)
    start, step_size, n_steps = case.start(rng, 20), np.full(20, 0.2), np.full(20, 5)
    end, _, _ = generalized_leapfrog(case.force, case.metric, start, step_size, n_steps, solver)
    assert end.complete.all()
    flipped = case.start_at(end.position, -end.momentum)
    back, _, _ = generalized_leapfrog(case.force, case.metric, flipped, step_size, n_steps, solver)
    missed = back.position - start.position
    distance = np.sqrt(np.einsum("ni,nij,nj->n", missed, start.local.matrix, missed))
    assert 0 < distance.max() < 100 * tolerance


def test_the_metrics_of_these_tests_are_what_they_say(case, rng, central_differences):
    """Their contractions are the derivatives of v'Gv (v held) and of log det G."""
    position, vector = case.start(rng, 4).position, rng.normal(size=(4, len(case.centre)))
    dim = len(case.centre)

    def quadratic(points):
        v = np.repeat(vector, dim, axis=0)
        return np.einsum("ni,nij,nj->n", v, case.metric.at(points).matrix, v)

    local = case.metric.at(position)
    np.testing.assert_allclose(
        local.quadratic_contraction(vector), central_differences(quadratic, position), rtol=1e-6, atol=1e-7
    )
    log_det = central_differences(lambda q: np.linalg.slogdet(case.metric.at(q).matrix)[1], position)
    np.testing.assert_allclose(local.trace_contraction(), log_det, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(local.cholesky @ np.swapaxes(local.cholesky, 1, 2), local.matrix, rtol=1e-12)


class TestEquations:
    """The three equations of a step, written out once more and checked at its solution."""

    @staticmethod
    def residuals(case, start, end, step_size):
        """Lengths of the residuals of first kick and drift, in the metric at the start.

        The momentum between them is read off the last kick, which the integrator does as it stands.
        """

        def kick(point, half):
            v = np.linalg.solve(point.local.matrix, half[:, :, None])[:, :, 0]
            slope = case.force(point.position)[1] + 0.5 * point.local.trace_contraction()
            return 0.5 * step_size * (slope - 0.5 * point.local.quadratic_contraction(v)), v

        half = end.momentum
        for _ in range(200):
            half = end.momentum + kick(end, half)[0]
        last_kick, end_velocity = kick(end, half)
        np.testing.assert_allclose(half - last_kick, end.momentum, rtol=0, atol=1e-12 * np.abs(half).max())
        first_kick, start_velocity = kick(start, half)
        of_kick = half - start.momentum + first_kick
        of_drift = end.position - start.position - 0.5 * step_size * (start_velocity + end_velocity)
        scaled = np.linalg.solve(start.local.cholesky, of_kick[:, :, None])[:, :, 0]
        drifted = np.einsum("nji,nj->ni", start.local.cholesky, of_drift)
        return np.linalg.norm(scaled, axis=1).max(), np.linalg.norm(drifted, axis=1).max()

    @pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-11])
    def test_are_solved_to_the_tolerance(self, case, tolerance, rng):
        start, step_size = case.start(rng, 30), 0.25
        solver = ImplicitSolver(tolerance, max_iterations=100, return_tolerance=1.0)
        end, _, _ = generalized_leapfrog(
            case.force, case.metric, start, np.full(30, step_size), np.ones(30, dtype=int), solver
        )
        assert end.complete.all()
        assert max(self.residuals(case, start, end, step_size)) < 1.001 * tolerance

    def test_an_explicit_step_does_not_solve_them(self, case, rng):
        start, step_size = case.start(rng, 30), 0.25
        metric = DenseMetric(np.linalg.inv(start.local.matrix[0]))
        plain = PhasePoint(start.position, start.momentum, start.potential, start.gradient, start.complete)
        end, _ = leapfrog(case.force, metric, plain, np.full(30, step_size), np.ones(30, dtype=int))
        assert min(self.residuals(case, start, case.start_at(end.position, end.momentum), step_size)) > 1e-2


class Constant:
    """The same matrix everywhere."""

    def __init__(self, matrix):
        self.matrix = matrix

    def at(self, position):
        dim = len(self.matrix)
        matrix = np.broadcast_to(self.matrix, (len(position), dim, dim))
        return TensorLocal(matrix, np.zeros((len(position), dim, dim, dim)))


def test_a_constant_metric_gives_plain_leapfrog(rng):
    mass = np.array([[2.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
    case = Case(skewed_force, Constant(mass), np.zeros(3))
    start, step_size, n_steps = case.start(rng, 10), rng.uniform(0.05, 0.2, 10), rng.integers(1, 8, 10)
    end, n_taken, _ = generalized_leapfrog(
        case.force, case.metric, start, step_size, n_steps, ImplicitSolver()
    )
    plain = PhasePoint(start.position, start.momentum, start.potential, start.gradient, start.complete)
    expected, expected_taken = leapfrog(
        skewed_force, DenseMetric(np.linalg.inv(mass)), plain, step_size, n_steps
    )
    for name in ("position", "momentum", "potential", "gradient"):
        np.testing.assert_allclose(getattr(end, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(n_taken, expected_taken)
    np.testing.assert_array_equal(end.complete, expected.complete)


class Formed:
    """A metric without its product, which then has to be formed at every iterate."""

    def __init__(self, metric):
        self.at = metric.at


def test_a_product_with_the_metric_solves_the_same_equations(rng):
    case = logistic_case()
    start, step_size, n_steps = case.start(rng, 8), np.full(8, 0.25), np.full(8, 4)
    assert isinstance(case.metric, ProductMetric)
    end, _, n_metrics = generalized_leapfrog(case.force, case.metric, start, step_size, n_steps, TIGHT)
    formed = Formed(case.metric)
    assert not isinstance(formed, ProductMetric)
    expected, _, n_formed = generalized_leapfrog(case.force, formed, start, step_size, n_steps, TIGHT)
    assert end.complete.all() and expected.complete.all()
    np.testing.assert_allclose(end.position, expected.position, atol=1e-10)
    np.testing.assert_allclose(end.momentum, expected.momentum, atol=1e-9)
    assert (3 * n_metrics < n_formed).all()


def test_momenta_have_the_metric_as_covariance(case, rng):
    """They are linear in the normals, p = C z, so C C' must be G."""
    dim = len(case.centre)
    local = case.metric.at(np.tile(case.start(rng, 1).position, (dim, 1)))
    factor = riemannian_momentum(local, np.eye(dim)).T
    np.testing.assert_allclose(factor @ factor.T, local.matrix[0], rtol=1e-12)


def test_energy_is_that_of_the_formula(case, rng):
    start = case.start(rng, 6)
    inverse = np.linalg.inv(start.local.matrix)
    expected = start.potential + 0.5 * np.linalg.slogdet(start.local.matrix)[1]
    expected += 0.5 * np.einsum("ni,nij,nj->n", start.momentum, inverse, start.momentum)
    np.testing.assert_allclose(riemannian_energy(start), expected, rtol=1e-12)


def test_chains_have_their_own_step_sizes_and_numbers_of_steps(small_case, rng):
    """Each row is, bit for bit, what it would be alone; also beside rows that are hard to solve or abandoned."""
    start = small_case.start(rng, 9)
    step_size = np.array([0.1, 0.3, 0.7, 2.0, 30.0, 0.2, 0.2, 0.9, 0.05])
    n_steps = np.array([5, 3, 4, 4, 4, 0, 1, 6, 6])
    end, n_taken, _ = generalized_leapfrog(
        small_case.force, small_case.metric, start, step_size, n_steps, ImplicitSolver()
    )
    assert not end.complete.all()
    for i in range(9):
        row = slice(i, i + 1)
        one = small_case.start_at(start.position[row], start.momentum[row])
        alone, taken, _ = generalized_leapfrog(
            small_case.force, small_case.metric, one, step_size[row], n_steps[row], ImplicitSolver()
        )
        for name in ("position", "momentum", "potential", "gradient", "complete", "unsolved"):
            np.testing.assert_array_equal(getattr(end, name)[row], getattr(alone, name))
        np.testing.assert_array_equal(riemannian_energy(end)[row], riemannian_energy(alone))
        assert n_taken[i] == taken[0]


class TestAccounts:
    def run(self, case, start, step_size, n_steps):
        force, metric = Recorder(case.force), Recorder(case.metric.at)
        solver = ImplicitSolver()
        return *generalized_leapfrog(force, metric, start, step_size, n_steps, solver), force, metric

    def test_every_call_is_counted(self, small_case, rng):
        start, n_steps = small_case.start(rng, 12), np.arange(12) % 5
        step_size = rng.uniform(0.1, 1.5, 12)  # some too long to be solved
        end, n_taken, n_metrics, force, metric = self.run(small_case, start, step_size, n_steps)
        assert end.unsolved.any() and end.complete.any()
        assert n_taken.sum() == len(force.rows)
        assert n_metrics.sum() == len(metric.rows)
        np.testing.assert_array_equal(n_taken[end.complete], n_steps[end.complete])
        assert (n_taken <= n_steps).all()
        assert np.isfinite(metric.rows).all() and np.isfinite(force.rows).all()

    def test_no_position_is_given_to_the_force_twice(self, small_case, rng):
        start = small_case.start(rng, 6)
        _, _, _, force, _ = self.run(small_case, start, np.full(6, 0.2), np.full(6, 5))
        visited = np.concatenate([start.position, force.rows])
        assert len(np.unique(visited, axis=0)) == 36

    def test_a_lone_chain_pays_for_its_iterations_alone(self, small_case, rng):
        start = small_case.start(rng, 1)
        _, n_taken, n_metrics, _, metric = self.run(small_case, start, np.full(1, 0.2), np.array([3]))
        assert n_taken[0] == 3
        assert n_metrics[0] == len(metric.calls)

    def test_chains_that_have_arrived_cost_nothing_but_one_last_metric(self, small_case, rng):
        start = small_case.start(rng, 2)
        _, _, alone, _, _ = self.run(
            small_case,
            small_case.start_at(start.position[:1], start.momentum[:1]),
            np.full(1, 0.2),
            np.array([1]),
        )
        _, _, together, _, _ = self.run(small_case, start, np.full(2, 0.2), np.array([1, 20]))
        assert together[0] <= alone[0] + 2
        assert together[1] > 10 * together[0]

    def test_starts_that_were_given_up_stay(self, small_case, rng):
        start = small_case.start(rng, 3)
        start.complete[1] = False
        end, n_taken, _, force, _ = self.run(small_case, start, np.full(3, 0.1), np.full(3, 2))
        assert end.complete.tolist() == [True, False, True]
        assert n_taken.tolist() == [2, 0, 2] and len(force.rows) == 4
        np.testing.assert_array_equal(end.position[1], start.position[1])

    def test_what_it_is_given_is_left_alone(self, small_case, rng):
        start = small_case.start(rng, 5)
        names = ("position", "momentum", "potential", "gradient", "complete", "unsolved")
        before = {name: getattr(start, name).copy() for name in names}
        self.run(small_case, start, rng.uniform(0.1, 3.0, 5), np.arange(5))
        for name, values in before.items():
            np.testing.assert_array_equal(getattr(start, name), values)
