"""Properties of every public kernel; the kernels are found among the exported names."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from kernel_cases import (
    MAKERS,
    every_exact_kernel,
    every_kernel,
    every_kernel_of_its_own,
    every_kernel_of_one_proposal,
    every_surrogate_kernel,
    skewed_target,
    start,
)

import leapwise.kernels
from leapwise import Evaluator, Streams, SurrogateHMC, Target
from leapwise.errors import InputError
from leapwise.kernels import Info, State
from leapwise.kernels.hmc import MAX_ENERGY_ERROR
from leapwise.surrogates import SoftplusNetwork

PUBLIC = {
    name
    for name in leapwise.kernels.__all__
    if hasattr(getattr(leapwise.kernels, name), "step")
    and not getattr(getattr(leapwise.kernels, name), "_is_protocol", False)
}
N = 5
FLAGS = ("accepted", "diverging", "unsolved")
COUNTS = ("n_steps", "n_exact", "n_metrics")
NUMBERS = ("acceptance_rate", "step_size", "energy", "energy_error")


def test_every_public_kernel_is_tested_here():
    assert set(MAKERS) == PUBLIC


def run(kernel, n_chains=N, n_steps=6, seed=1, target=None):
    """Return the evaluator and all states and infos, the start among the states."""
    evaluator = Evaluator(skewed_target() if target is None else target)
    states, infos, streams = [start(evaluator, n_chains)], [], Streams(seed, n_chains)
    for _ in range(n_steps):
        state, info = kernel.step(streams, states[-1], evaluator)
        states.append(state)
        infos.append(info)
    return evaluator, states, infos


@every_kernel
def test_declares_itself_exact(make):
    assert make().is_exact is True


@every_kernel
def test_is_frozen(make):
    kernel = make()
    for name in [field.name for field in fields(kernel)] + ["is_exact", "something_new"]:
        with pytest.raises(FrozenInstanceError):
            setattr(kernel, name, 1)


@every_kernel
@pytest.mark.parametrize("n_chains", [1, 2, 5])
def test_shapes_and_types(make, n_chains):
    _, states, infos = run(make(), n_chains)
    for state, info in zip(states[1:], infos, strict=True):
        assert type(state) is State and type(info) is Info
        assert state.position.shape == (n_chains, 2)
        assert state.gradient is None or state.gradient.shape == (n_chains, 2)
        assert state.potential.shape == (n_chains,)
        assert info.proposal.shape == info.proposal_momentum.shape == (n_chains, 2)
        for names, kind in ((FLAGS, bool), (COUNTS, np.integer), (NUMBERS, np.float64)):
            for name in names:
                values = getattr(info, name)
                if values is not None:
                    assert values.shape == (n_chains,), name
                    assert np.issubdtype(values.dtype, kind), name


@every_kernel
def test_the_same_stream_gives_the_same_step(make):
    (_, first, _), (_, second, _), (_, other, _) = run(make()), run(make()), run(make(), seed=2)
    np.testing.assert_array_equal(first[-1].position, second[-1].position)
    assert not np.array_equal(first[-1].position, other[-1].position)


@every_kernel
def test_states_are_left_alone(make):
    """No kernel writes into the arrays of earlier states."""
    evaluator, states, _ = run(make())
    for state in states:
        exact = evaluator.value_and_gradient(state.position)
        np.testing.assert_array_equal(state.potential, exact.potential)
        if state.gradient is not None:
            known = ~np.isnan(state.gradient)  # a surrogate leaves none where it has moved a chain
            np.testing.assert_array_equal(state.gradient[known], exact.gradient[known])


@every_kernel
def test_accepted_chains_move_to_the_proposal_and_the_others_stay(make):
    _, states, infos = run(make(step_size=1.6), n_chains=20)
    accepted = np.stack([info.accepted for info in infos])
    assert accepted.any() and not accepted.all()
    for before, after, info in zip(states, states[1:], infos, strict=False):
        expected = np.where(info.accepted[:, None], info.proposal, before.position)
        np.testing.assert_array_equal(after.position, expected)


@every_kernel_of_one_proposal
def test_the_acceptance_rate_belongs_to_the_energy_error(make):
    _, _, infos = run(make(step_size=1.6), n_chains=20)
    for info in infos:
        finite = np.isfinite(info.energy_error)
        expected = np.where(finite, np.exp(-np.maximum(np.where(finite, info.energy_error, 0), 0)), 0.0)
        np.testing.assert_allclose(info.acceptance_rate, expected, rtol=1e-12)
        assert np.isfinite(info.energy).all()
        given_up = info.diverging if info.unsolved is None else info.diverging | info.unsolved
        asked = slice(None) if info.inner_acceptance is None else info.n_exact > 0  # others never left
        np.testing.assert_array_equal(given_up[asked], ~(info.energy_error <= MAX_ENERGY_ERROR)[asked])


@every_kernel
def test_every_exact_evaluation_is_counted_and_none_is_made_twice(make):
    visited: list[np.ndarray] = []
    evaluator, states, infos = run(make(step_size=1.2), target=skewed_target(visited))
    spent = sum(int(info.n_exact.sum()) for info in infos)
    assert evaluator.counts.n_exact == spent + N == len(visited)
    assert len(np.unique(visited, axis=0)) == len(visited)
    for state in states:
        assert {tuple(row) for row in state.position} <= {tuple(row) for row in visited}


@every_exact_kernel
def test_trajectories_cost_one_gradient_a_step(make):
    evaluator, _, infos = run(make(step_size=0.2))
    for info in infos:
        np.testing.assert_array_equal(info.n_exact, info.n_steps)
    assert evaluator.counts.n_values == 0


@every_surrogate_kernel
def test_surrogate_trajectories_cost_one_value_and_no_gradient(make):
    evaluator, _, infos = run(make(step_size=0.2))
    for info in infos:
        np.testing.assert_array_equal(info.n_exact, 1)
    assert evaluator.counts.n_gradients == N  # of the start


@every_kernel
def test_chains_never_leave_the_support(make):
    """Zero density, given as -inf, is a wall: trajectories that meet it are rejected and flagged."""
    inner = skewed_target()

    def log_density(x):
        return -np.inf if x[0] > 0.5 else inner._log_density(x)

    evaluator = Evaluator(Target(log_density, inner._gradient, dim=2))
    position = np.random.default_rng(0).uniform(-0.5, 0.4, (20, 2))
    state, streams = State.from_evaluation(evaluator.value_and_gradient(position)), Streams(1, 20)
    met = 0
    for _ in range(10):
        state, info = make().step(streams, state, evaluator)
        assert (state.position[:, 0] <= 0.5).all() and np.isfinite(state.potential).all()
        if make is not MAKERS["NUTS"]:  # which may have moved to an earlier leaf
            assert not (info.diverging & info.accepted).any()
        met += int(info.diverging.sum())
    assert met > 10


@every_kernel
@pytest.mark.parametrize("step_size", [3.0, 30.0, 1e3, 1e10, 1e200])
def test_wild_step_sizes_leave_finite_states(make, step_size):
    with np.errstate(over="ignore"):  # the target's own exp
        _, states, infos = run(make(step_size=step_size), n_chains=10)
    for state, info in zip(states[1:], infos, strict=True):
        assert np.isfinite(state.position).all() and np.isfinite(state.potential).all()
        assert state.gradient is None or not np.isinf(state.gradient).any()
        assert np.isfinite(info.energy).all()
    assert np.mean([info.accepted for info in infos]) < 0.6


BAD = [
    *(
        {"step_size": bad}
        for bad in (0.0, -0.1, np.nan, np.inf, "small", [0.1, -0.1], [[0.1]], [[1], [1, 2]], [])
    ),
    *({"n_steps": bad} for bad in (0, -1, 2.0, True, "many", (3, 1), (0, 3), (1, 2, 3), [1, 3], (1.0, 2.0))),
    *({"trajectory_length": bad, "n_steps": None} for bad in (0.0, -1.0, np.nan, "long", [1.0, 2.0])),
    {"trajectory_length": 1.0, "n_steps": 3},
    *({"jitter": bad} for bad in (-0.1, 1.0, np.nan, "some", [0.1], None)),
    *({"metric": bad} for bad in ("round", np.eye(2), 3.0, object())),
]


@every_kernel_of_one_proposal
@pytest.mark.parametrize("bad", BAD)
def test_bad_settings_are_refused_with_a_sentence(make, bad):
    name = next(iter(bad))
    with pytest.raises(InputError, match=name):
        make(**bad)


@every_exact_kernel
@pytest.mark.parametrize("bad", [0.0, 1.0, np.nan, "high", [0.8], None], ids=str)
def test_bad_target_acceptance_is_refused_with_a_sentence(make, bad):
    with pytest.raises(InputError, match="target_acceptance"):
        make(target_acceptance=bad)


@every_surrogate_kernel
@pytest.mark.parametrize("bad", [None, 3.0, SurrogateHMC, SoftplusNetwork(3)], ids=str)
def test_a_surrogate_that_is_not_trained_is_refused_with_a_sentence(make, bad):
    with pytest.raises(InputError, match="trained surrogate"):
        make(surrogate=bad, metric=make().metric)


@every_kernel_of_its_own
def test_a_metric_that_was_not_made_is_refused(make):
    with pytest.raises(InputError, match="metric"):
        make(metric=type(make().metric))


@every_kernel_of_one_proposal
def test_stepping_without_settings_is_refused(make):
    evaluator = Evaluator(skewed_target())
    state = start(evaluator, 2)
    for missing in ({"step_size": None}, {"n_steps": None}):
        with pytest.raises(InputError, match="no settings to step with"):
            make(**missing).step(Streams(1, 2), state, evaluator)
    assert evaluator.counts.n_exact == 2
