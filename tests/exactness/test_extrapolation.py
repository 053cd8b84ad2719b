"""Chains that begin far from all training points: they may stay there, but nothing breaks.

Ten thousand starts are between 10 and 10^6 standard deviations away, for every surrogate and every kernel that follows
one. There is no crash and no warning, every state that is kept is finite and known exactly, and the work of a proposal
is bounded, so nothing can hang.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
from public_kernels import public_kernels

import leapwise.surrogates
from leapwise import (
    FITC,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    GaussianProcess,
    HessianMetric,
    NormalPrior,
    OutputSurrogate,
    QuadraticNetwork,
    RBFNetwork,
    SharedStream,
    SoftplusNetwork,
    State,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
    TrainingSet,
)
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate

DIM, N_STEPS, INNER, STEPS = 3, 4, 2, 3
MIX = np.array([[1.0, 0.4, 0.0], [0.0, 1.0, -0.5], [0.7, 0.0, 1.0], [0.2, -0.3, 0.8]])
N_STARTS, FEW = 10_000, 200


def forward(x):
    return x @ MIX.T + 0.1 * (x[:, :1] * x[:, 1:2] - x[:, 2:] ** 2)


TARGET = ForwardTarget(
    forward,
    GaussianLikelihood([0.5, -0.3, 1.0, 0.2], sd=0.5),
    NormalPrior(0.0, 1.0, dim=DIM),
    vectorized=True,
)
RECIPES = {
    "softplus": SoftplusNetwork(40),
    "softplus, a handful of sharp nodes": SoftplusNetwork(5, gain=2.0),
    "radial": RBFNetwork(40),
    "quadratic": QuadraticNetwork(),
    "quadratic and softplus": QuadraticNetwork(20),
    "quadratic and radial": QuadraticNetwork(20, radial=True),
    "Gaussian process": GaussianProcess(),
    "FITC": FITC(15),
    "outputs": OutputSurrogate.of(TARGET),
    "outputs and softplus": OutputSurrogate.of(TARGET, n_hidden=20),
}


def evaluated(n=80):
    """Exact evaluations about where the posterior has its mass."""
    rng = np.random.default_rng(1)
    return Evaluator(TARGET).value(np.array([0.3, 0.1, 0.4]) + 0.5 * rng.normal(size=(n, DIM)))


@pytest.fixture(scope="module", params=RECIPES)
def surrogate(request):
    seen = evaluated()
    training = TrainingSet(seen.position, seen.potential, outputs=seen.outputs)
    return RECIPES[request.param].fit(training, np.random.default_rng(2))


@dataclass
class Counted:
    """A surrogate that counts the rows of everything it is asked."""

    surrogate: Any
    rows: Counter = field(default_factory=Counter)

    def __getattr__(self, name):
        return self.count(name, getattr(self.surrogate, name))

    def count(self, name, function):
        def counting(position, *others):
            self.rows[name] += len(position)
            return function(position, *others)

        return counting


def counted(make, surrogate):
    """Return a kernel that follows the surrogate as fast as ever, and who counts what it asks."""
    counter = Counted(surrogate)
    kernel = make(surrogate, counter)
    bare = compile_surrogate(surrogate)
    object.__setattr__(
        kernel,
        "_compiled",
        CompiledSurrogate(
            counter.count("potential", bare.potential), counter.count("gradient", bare.gradient)
        ),
    )
    return kernel, counter.rows


def riemannian(form):
    return lambda surrogate, counter: SurrogateRMHMC(
        0.3, N_STEPS, surrogate=surrogate, metric=HessianMetric(counter, form, floor=0.1)
    )


KERNELS = {
    "SurrogateHMC": lambda surrogate, counter: SurrogateHMC(0.3, N_STEPS, surrogate=surrogate),
    "SurrogateTransition": lambda surrogate, counter: SurrogateTransition(
        0.3, N_STEPS, surrogate=surrogate, inner_steps=INNER
    ),
}
RIEMANNIAN = {
    "SurrogateRMHMC, full": riemannian("full"),
    "SurrogateRMHMC, diagonal": riemannian("diagonal"),
    "SurrogateRMHMC, SoftAbs": riemannian("softabs"),
}
SOLVES = 2 * 41  # iterations of the two solves of one equation, there and back, at most
#: Rows that may be asked of each method, for each proposal and chain; the start is asked for once more in the run.
BOUNDS = {
    "SurrogateHMC": {"gradient": N_STEPS, "potential": 1},
    "SurrogateTransition": {"gradient": N_STEPS * INNER, "potential": INNER},
    "SurrogateRMHMC": {
        "gradient": N_STEPS,
        "potential": 1,
        "hessian": N_STEPS * (SOLVES + 2) + 2,
        "hessian_product": N_STEPS * SOLVES,
        "quadratic_contraction": N_STEPS * (SOLVES + 1),
        "trace_contraction": N_STEPS * (SOLVES + 3) + 1,
    },
}


def far_away(n):
    """Starts between 10 and 10^6 standard deviations from the training set, in every direction."""
    rng, seen = np.random.default_rng(3), evaluated().position
    direction = rng.normal(size=(n, DIM))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    distance = 10.0 ** rng.uniform(1.0, 6.0, size=(n, 1))
    return seen.mean(axis=0) + distance * direction @ np.linalg.cholesky(np.cov(seen.T)).T


def run_from_afar(kernel, rows, bounds, n):
    """Step from far away; check every state and the cost of every proposal."""
    evaluator, streams = Evaluator(TARGET), SharedStream(np.random.default_rng(4), n)
    state = State.from_evaluation(evaluator.value(far_away(n)))
    assert np.isfinite(state.potential).all()
    for step in range(STEPS):
        before = rows.copy()
        spent = evaluator.counts.n_exact
        state, info = kernel.step(streams, state, evaluator)
        assert evaluator.counts.n_exact - spent <= n
        assert state.position.shape == (n, DIM)
        for each in (state.position, state.potential, info.acceptance_rate):
            assert np.isfinite(each).all()
        # Where a metric is not positive definite there is no energy either; the proposal counts as unsolved.
        assert np.isfinite(info.energy[~info.unsolved if info.unsolved is not None else slice(None)]).all()
        np.testing.assert_array_equal(state.potential, Evaluator(TARGET).value(state.position).potential)
        assert not (info.accepted & info.diverging).any()
        for name, asked in (rows - before).items():
            assert asked <= n * (bounds[name] + (step == 0)), name


@pytest.mark.parametrize("name", KERNELS)
def test_starts_far_away(name, surrogate):
    kernel, rows = counted(KERNELS[name], surrogate)
    run_from_afar(kernel, rows, BOUNDS[name], N_STARTS)
    assert rows["gradient"] > 0


@pytest.mark.parametrize("n", [FEW, pytest.param(N_STARTS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RIEMANNIAN)
def test_starts_far_away_on_a_manifold(name, n, surrogate):
    kernel, rows = counted(RIEMANNIAN[name], surrogate)
    run_from_afar(kernel, rows, BOUNDS["SurrogateRMHMC"], n)
    assert rows["hessian"] > 0


def test_every_surrogate_and_every_kernel_that_follows_one_is_tested_here():
    """One that is exported and not in the tables fails the suite."""
    exported = {getattr(leapwise.surrogates, name) for name in leapwise.surrogates.__all__}
    recipes = {each for each in exported if hasattr(each, "fit") and not getattr(each, "_is_protocol", False)}
    assert {type(recipe) for recipe in RECIPES.values()} == recipes
    steps = {each for each in public_kernels() if hasattr(each, "step")}
    guided = {each for each in steps if "surrogate" in {field.name for field in fields(each)}}
    assert {each.__name__ for each in guided} == set(BOUNDS)
