"""Every integrator with every metric that the library ships: reversible, volume preserving, and failures are reported.

The force is not a gradient, because a surrogate need not have one that is. What these two properties
rest on in detail is tested beside the integrators, in `tests/dynamics`.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import leapwise.dynamics
from dynamics.integrators import Case, Flow, ReversibleVolumePreserving, skewed_force, twisted_force
from leapwise import (
    RMHMC,
    DenseMetric,
    DiagonalMetric,
    HessianMetric,
    ImplicitSolver,
    QuadraticNetwork,
    RBFNetwork,
    SoftplusNetwork,
    TrainingSet,
    UnitMetric,
    sample,
)
from leapwise.dynamics import PhasePoint, generalized_leapfrog, leapfrog, plain_leapfrog, split_flow
from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.logistic import LogisticRegression
from leapwise.testing import gumbel

TIGHT = ImplicitSolver(tolerance=1e-11, max_iterations=200, return_tolerance=1e-9)
DIM, N = 2, 5


def trained(recipe):
    """Learn the skewed potential in a bowl, where trajectories go."""
    rng = np.random.default_rng(2)
    where = 0.5 + rng.normal(size=(80, DIM))
    value, gradient = skewed_force(where)
    return recipe.fit(TrainingSet(where, value + (where**2).sum(axis=1), gradient + 2.0 * where), rng)


def fisher():
    rng = np.random.default_rng(3)
    features = np.column_stack([np.ones(30), rng.normal(size=30)])
    return LogisticRegression(features, (rng.random(30) < 0.6).astype(float), prior_sd=2.0).metric


EUCLIDEAN = {
    "unit": UnitMetric,
    "diagonal": lambda: DiagonalMetric([0.4, 2.5]),
    "dense": lambda: DenseMetric([[2.0, 0.9], [0.9, 1.0]]),
}
RIEMANNIAN = {
    "full Hessian": lambda: HessianMetric(trained(QuadraticNetwork(8))),
    "diagonal Hessian": lambda: HessianMetric(trained(SoftplusNetwork(30)), "diagonal", 1.0),
    "SoftAbs": lambda: HessianMetric(trained(RBFNetwork(30)), "softabs", 1.0),
    "logistic Fisher": fisher,
}


def plain(integrator, metric, position, momentum, step_size, n_steps):
    """Run one of the explicit integrators."""
    if integrator is split_flow:  # in coordinates in which the metric is the identity
        *end, complete = split_flow(lambda q: twisted_force(q)[1], position, momentum, step_size, n_steps)
        assert complete.all()
        return tuple(end)
    value, gradient = twisted_force(position)
    start = PhasePoint(position, momentum, value, gradient, np.ones(len(position), dtype=bool))
    if integrator is leapfrog:
        end, _ = leapfrog(twisted_force, metric, start, step_size, n_steps)
    else:
        end = plain_leapfrog(lambda q: twisted_force(q)[1], metric, start, step_size, n_steps)
    assert end.complete.all()
    return end.position, end.momentum


def euclidean(integrator, metric):
    rng = np.random.default_rng(5)
    position, momentum = 0.5 + 0.5 * rng.normal(size=(N, DIM)), metric.momentum(rng.normal(size=(N, DIM)))
    return Flow(lambda *phase: plain(integrator, metric, *phase), None, position, momentum)


def riemannian(metric):
    return generalised(Case(twisted_force, metric, np.full(DIM, 0.4), 0.4), N, 0.15)


def generalised(case, n, step_size):
    def run(position, momentum, step_size, n_steps):
        start = case.start_at(position, momentum)
        end, _, _ = generalized_leapfrog(case.force, case.metric, start, step_size, n_steps, TIGHT)
        assert end.complete.all() and not end.unsolved.any()
        return end.position, end.momentum

    start = case.start(np.random.default_rng(5), n)
    return Flow(run, None, start.position, start.momentum, step_size)


TABLE = {
    **{f"leapfrog, {name}": (leapfrog, make) for name, make in EUCLIDEAN.items()},
    **{f"plain_leapfrog, {name}": (plain_leapfrog, make) for name, make in EUCLIDEAN.items()},
    "split_flow": (split_flow, UnitMetric),
    **{f"generalised leapfrog, {name}": (generalized_leapfrog, make) for name, make in RIEMANNIAN.items()},
}


class TestEveryIntegrator(ReversibleVolumePreserving):
    @pytest.fixture(params=TABLE)
    def flow(self, request):
        integrator, make = TABLE[request.param]
        return riemannian(make()) if integrator is generalized_leapfrog else euclidean(integrator, make())


@pytest.mark.slow
class TestEllipticFisher(ReversibleVolumePreserving):
    """The metric of the largest built-in problem, with its own force: 20 parameters of a PDE."""

    @pytest.fixture
    def flow(self):
        problem = elliptic_pde(10)

        def force(position):
            raw = problem.target.evaluate(position, gradient=True)
            return -raw.log_density, -raw.gradient

        return generalised(Case(force, problem.metric, np.zeros(20), 0.3), 1, 0.3)


def test_every_integrator_and_metric_is_in_the_table():
    """One that is exported and not in it fails the suite."""
    exported = [getattr(leapwise.dynamics, name) for name in leapwise.dynamics.__all__]
    integrators = {
        f for f in exported if inspect.isfunction(f) and "n_steps" in inspect.signature(f).parameters
    }
    metrics = {
        c
        for c in exported
        if inspect.isclass(c)
        and any(hasattr(c, name) for name in ("mass_times", "at"))
        and not getattr(c, "_is_protocol", False)
    }
    assert {integrator for integrator, _ in TABLE.values()} == integrators
    assert {type(make()) for _, make in TABLE.values()} >= metrics >= {UnitMetric, HessianMetric}


def test_a_force_that_depends_on_more_than_the_position_would_be_caught(monkeypatch):
    """The table can fail: with a force that changes from call to call nothing returns."""
    n_calls = []

    def fickle(position):
        n_calls.append(None)
        value, gradient = skewed_force(position)
        return value, gradient * (1.0 + 0.01 * len(n_calls))

    monkeypatch.setattr("test_integrators.twisted_force", fickle)
    checks = ReversibleVolumePreserving()
    for make in (lambda: euclidean(leapfrog, UnitMetric()), lambda: riemannian(fisher())):
        with pytest.raises(AssertionError):
            checks.test_forward_then_back_returns(make(), 7)


@pytest.fixture(scope="module")
def run():
    """Draws with steps so long that a good part of their equations cannot be solved."""
    kernel = RMHMC(1.2, 2, metric=HessianMetric(trained(RBFNetwork(30)), "softabs", 1.0))
    return sample(
        gumbel().target, method=kernel, draws=60, tune=0, chains=3, random_seed=1, progressbar=False
    )


class TestUnsolvedSteps:
    """How often an implicit equation was not solved, and the proposal rejected for it, is in the results."""

    def test_each_is_flagged_where_it_occurred(self, run):
        unsolved = run.posterior.stats["unsolved"]
        assert unsolved.shape == (3, 60) and unsolved.dtype == bool
        assert 0.05 < unsolved.mean() < 0.95
        assert not (unsolved & run.posterior.stats["accepted"]).any()
        assert (run.posterior.stats["acceptance_rate"][unsolved] == 0).all()
        stayed = (np.diff(run.draws, axis=1) == 0).all(axis=2)
        assert stayed[unsolved[:, 1:]].all()

    def test_the_flags_are_in_the_datatree(self, run):
        stored = run.to_datatree()["sample_stats"]["unsolved"]
        np.testing.assert_array_equal(stored.values, run.posterior.stats["unsolved"])

    def test_their_number_is_in_the_summary_and_a_high_share_is_a_warning(self, run):
        summary, unsolved = run.summary(), run.posterior.stats["unsolved"]
        assert summary.cost["draws"]["n_unsolved"] == unsolved.sum() == summary.cost["total"]["n_unsolved"]
        assert "unsolved" in str(summary)
        assert any(f"{unsolved.mean():.0%} of proposals" in warning for warning in summary.warnings)
