"""Free moves on a hierarchy: the model sees a; its prior's standard deviation tau and the noise sigma are free.

The strongest check of invariance, with planted mistakes, is in tests/exactness/mutations_free.py.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from leapwise import (
    HMC,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    HalfNormal,
    Normal,
    Prior,
    State,
    Streams,
    SurrogateTransition,
    UnitMetric,
)
from leapwise.errors import BudgetError, InputError
from leapwise.kernels.free_moves import HIGHEST_RATE, LOWEST_RATE, Conditional, FreeMoves, tune_free_moves
from leapwise.surrogates.joint import JointPotential
from leapwise.targets.transforms import Transform
from leapwise.testing import check_invariance

DATA, LOWEST_NOISE = np.array([0.9, 0.4]), 0.3
A, TAU, SIGMA = 0, 1, 2


def forward(inputs):
    a = inputs[:, 0]
    return np.stack([a + 0.3 * a**2, np.sin(a)], axis=1)


def with_jacobian(inputs):
    a = inputs[:, 0]
    return forward(inputs), np.stack([1.0 + 0.6 * a, np.cos(a)], axis=1)[:, :, None]


TARGET = ForwardTarget(
    forward,
    GaussianLikelihood(DATA, sd="sigma"),
    Prior(a=Normal(0.0, "tau"), tau=HalfNormal(1.0), sigma=HalfNormal(0.6)),
    jacobian=with_jacobian,
    bounds=[None, None, (LOWEST_NOISE, None)],
    inputs=["a"],
    vectorized=True,
)
JOINT = JointPotential(TARGET.joint, TARGET.transform)


def draw(rng, n):
    """Draw exactly, by rejection from the prior: the lowest noise bounds the likelihood."""
    size = 100 * n
    tau, sigma = np.abs(rng.standard_normal(size)), np.abs(0.6 * rng.standard_normal(size))
    a = tau * rng.standard_normal(size)
    misfit = ((forward(a[:, None]) - DATA) ** 2).sum(axis=1)
    with np.errstate(over="ignore"):
        likelihood = (LOWEST_NOISE / sigma) ** 2 * np.exp(-0.5 * misfit / sigma**2)
    kept = (sigma > LOWEST_NOISE) & (rng.random(size) < likelihood)
    return np.stack([a, tau, sigma], axis=1)[kept][:n]


class Rough:
    """A surrogate of standard deviation 1 about (0.5, -0.3, -1.2), whatever the data."""

    centre = np.array([0.5, -0.3, -1.2])

    def potential(self, position):
        return 0.5 * ((position - self.centre) ** 2).sum(axis=1)

    def potential_and_gradient(self, position):
        return self.potential(position), position - self.centre


INNER = SurrogateTransition(0.7, 3, surrogate=Rough(), inner_steps=2)
EXACT_INNER = HMC(0.3, 3, metric=UnitMetric())


def make(kernel=INNER, **changes):
    return FreeMoves(
        **{
            "kernel": kernel,
            "joint": JOINT,
            "free": [TAU, SIGMA],
            "step_size": 0.6,
            "n_steps": (1, 4),
            **changes,
        }
    )


def start(evaluator, n_chains, seed=0):
    position = TARGET.transform.to_position(draw(np.random.default_rng(seed), n_chains))
    return State.from_evaluation(evaluator.value(position))


def run(kernel, n_chains=5, n_steps=20):
    evaluator, streams = Evaluator(TARGET), Streams(3, n_chains)
    states, infos = [start(evaluator, n_chains)], []
    for _ in range(n_steps):
        state, info = kernel.step(streams, states[-1], evaluator)
        states.append(state)
        infos.append(info)
    return evaluator, states, infos


both = pytest.mark.parametrize("inner", [INNER, EXACT_INNER], ids=["surrogate", "exact"])


@both
def test_exact_draws_stay_exact_draws(inner):
    """With two steps, so that what the first leaves in the state is used."""
    verdict = check_invariance(make(inner), TARGET, draw, n_chains=3000, steps=2, false_alarm=1e-5)
    assert verdict.passed, f"\n{verdict}"
    assert verdict.acceptance > 0.8


def test_exactness_is_that_of_the_inner_kernel():
    class Loose(HMC):
        is_exact = False

    assert make().is_exact and not make(Loose(0.3, 3, metric=UnitMetric())).is_exact


def test_no_exact_evaluation_is_spent_on_free_moves():
    evaluator, alone = Evaluator(TARGET), Evaluator(TARGET)
    state = start(evaluator, 6)
    after, info = make().step(Streams(3, 6), state, evaluator)
    inner, inner_info = INNER.step(Streams(3, 6), state, alone)
    assert evaluator.counts.n_exact == 6 + alone.counts.n_exact == 6 + info.n_exact.sum()
    np.testing.assert_array_equal(after.position[:, A], inner.position[:, A])
    assert (after.position[:, [TAU, SIGMA]] != inner.position[:, [TAU, SIGMA]]).any(axis=1).sum() >= 5
    for each in fields(info):
        if each.name != "energy":
            np.testing.assert_array_equal(getattr(info, each.name), getattr(inner_info, each.name))
    np.testing.assert_allclose(info.energy, after.potential, rtol=1e-12)  # this kernel's has no momentum


@both
def test_every_exact_evaluation_is_counted(inner):
    evaluator, _, infos = run(make(inner))
    assert evaluator.counts.n_exact == 5 + sum(int(info.n_exact.sum()) for info in infos)


@both
def test_potentials_and_outputs_are_those_of_the_positions(inner):
    _, states, _ = run(make(inner))
    for state in states[1:]:
        again = Evaluator(TARGET).value(state.position)
        np.testing.assert_allclose(state.potential, again.potential, rtol=1e-12)
        np.testing.assert_array_equal(state.outputs, again.outputs)
        assert state.gradient is None and state.known_force is None and state.known_metric is None


def test_states_are_left_alone():
    evaluator = Evaluator(TARGET)
    state = start(evaluator, 5)
    arrays = [np.array(each) for each in (state.position, state.potential, state.outputs)]
    make().step(Streams(3, 5), state, evaluator)
    for before, now in zip(arrays, (state.position, state.potential, state.outputs), strict=True):
        np.testing.assert_array_equal(before, now)


def one_row(state, chain):
    rows = slice(chain, chain + 1)
    return State(state.position[rows], state.potential[rows], outputs=state.outputs[rows])


@pytest.mark.parametrize("unknown", [[], [1, 3], [0, 1, 2, 3]])
def test_chains_together_or_apart_draw_the_same(unknown):
    evaluator, streams = Evaluator(TARGET), Streams(7, 4)
    together = start(evaluator, 4)
    outputs = together.outputs.copy()
    outputs[unknown] = np.nan
    together = replace(together, outputs=outputs)
    apart = [(streams.for_chain(chain), one_row(together, chain)) for chain in range(4)]
    for _ in range(5):
        together, _ = make().step(streams, together, evaluator)
        apart = [(own, make().step(own, state, evaluator)[0]) for own, state in apart]
        for chain, (_, state) in enumerate(apart):
            np.testing.assert_array_equal(together.position[chain], state.position[0])
            np.testing.assert_array_equal(together.potential[chain], state.potential[0])


class Still:
    """A kernel that moves nothing and evaluates nothing."""

    is_exact = True

    def step(self, streams, state, evaluator):
        _, info = INNER.step(streams, state, Evaluator(TARGET))
        return State(state.position, state.potential), info


@pytest.mark.parametrize("unknown", [[2], [0, 1, 2, 3]])
def test_chains_without_outputs_are_not_moved(unknown):
    evaluator = Evaluator(TARGET)
    state = start(evaluator, 4)
    outputs = state.outputs.copy()
    outputs[unknown] = np.nan
    state = replace(state, outputs=outputs)
    moved = np.zeros(4, dtype=bool)
    for seed in range(5):
        after, _ = make(Still()).step(Streams(seed, 4), state, evaluator)
        moved |= (after.position != state.position).any(axis=1)
        np.testing.assert_array_equal(after.outputs, state.outputs)
        np.testing.assert_array_equal(after.potential[unknown], state.potential[unknown])
    assert set(np.flatnonzero(~moved)) == set(unknown)


def test_without_outputs_at_all_nothing_is_moved():
    evaluator = Evaluator(TARGET)
    state = replace(start(evaluator, 3), outputs=None)
    after, _ = make(Still()).step(Streams(1, 3), state, evaluator)
    np.testing.assert_array_equal(after.position, state.position)
    assert after.outputs is None


def test_the_list_of_evaluations_is_left_as_its_owner_expects():
    evaluator = Evaluator(TARGET)
    state = start(evaluator, 4)
    make().step(Streams(1, 4), state, evaluator)
    assert evaluator.recent is None
    evaluator.recent = owned = []
    make().step(Streams(1, 4), state, evaluator)
    assert evaluator.recent is owned and len(owned) == 1
    evaluator.recent, evaluator.limit = None, evaluator.counts.n_exact
    with pytest.raises(BudgetError):
        make().step(Streams(1, 4), state, evaluator)
    assert evaluator.recent is None


def test_what_the_model_sees_is_refused():
    evaluator = Evaluator(TARGET)
    state = start(evaluator, 2)
    with pytest.raises(InputError, match=r"that the forward model sees, got \[0\]"):
        make(free=[A, TAU]).step(Streams(1, 2), state, evaluator)
    with pytest.raises(InputError, match="columns of 3 parameters"):
        make(free=[3]).step(Streams(1, 2), state, evaluator)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": HMC}, "kernel"),
        ({"joint": TARGET.joint}, "joint must be a JointPotential"),
        ({"free": []}, "at least one"),
        ({"free": [0.5]}, "free"),
        ({"free": [1, 1]}, "different"),
        ({"free": [-1]}, "counted from 0"),
        ({"free": [True]}, "free"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"step_size": [0.1, 0.2]}, "step_size"),
        ({"n_steps": 0}, "n_steps"),
        ({"n_steps": None}, "n_steps"),
        ({"n_steps": (3, 2)}, "n_steps"),
        ({"n_moves": 0}, "n_moves"),
        ({"scales": [1.0]}, "scales"),
        ({"scales": [1.0, -1.0]}, "scales must be positive"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        make(**changes)


def test_is_frozen():
    for name in [each.name for each in fields(FreeMoves)]:
        with pytest.raises(FrozenInstanceError):
            setattr(make(), name, 1)


class Bent:
    """A joint of (a, f, g): f is normal of width 0.01, g is flat but for a quartic, and both lean on the output."""

    def log_density(self, x, y):
        return -0.5 * ((x[:, 1] - y[:, 0]) / 0.01) ** 2 - 0.25 * (x[:, 2] - y[:, 0]) ** 4

    def gradient(self, x, y):
        by_f, by_g = -(x[:, 1] - y[:, 0]) / 1e-4, -((x[:, 2] - y[:, 0]) ** 3)
        return np.stack([0.0 * by_f, by_f, by_g], axis=1), -(by_f + by_g)[:, None]


class Hollow(Bent):
    """Its second parameter has a hill, and no valley."""

    def log_density(self, x, y):
        return 0.5 * x[:, 1] ** 2

    def gradient(self, x, y):
        return x * [0.0, 1.0, 0.0], 0.0 * y


def potentials(joint):
    return JointPotential(joint, Transform.from_bounds(None, 3))


def bent_states(rng, n=40):
    y = rng.standard_normal((n, 1))
    f, g = y[:, 0] + 0.01 * rng.standard_normal(n), y[:, 0] + 0.8 * rng.standard_normal(n)
    return np.stack([y[:, 0], f, g], axis=1), y


def test_tuning_finds_scales_and_a_step_size_that_is_accepted(rng):
    position, outputs = bent_states(rng)
    step_size, n_steps, scales = tune_free_moves(potentials(Bent()), [1, 2], position, outputs, rng)
    curvature = 3.0 * (position[:, 2] - outputs[:, 0]) ** 2
    np.testing.assert_allclose(scales, [0.01, 1.0 / np.sqrt(np.median(curvature))], rtol=1e-4)
    assert 1 <= n_steps[0] < n_steps[1]
    assert 1.0 <= step_size * np.mean(n_steps) <= 2.5
    rates = []
    for seed in range(20):
        kernel = FreeMoves(INNER, potentials(Bent()), [1, 2], step_size, n_steps, scales=scales)
        conditional = Conditional(kernel.joint, kernel.free, position, outputs)
        streams, rows = Streams(seed, len(position)), np.arange(len(position))
        point = conditional.begin()
        rates.append(conditional.move(point, kernel._metric, kernel._settings, streams, rows)[1].mean())
    # The trials were 100, of standard deviation at most 0.5: three standard errors.
    assert LOWEST_RATE - 0.15 < np.mean(rates) < HIGHEST_RATE + 0.05


def test_tuning_depends_on_its_generator_alone():
    position, outputs = bent_states(np.random.default_rng(0), 7)
    first, second = (
        tune_free_moves(potentials(Bent()), [1, 2], position, outputs, np.random.default_rng(4))
        for _ in range(2)
    )
    assert first[:2] == second[:2]
    np.testing.assert_array_equal(first[2], second[2])


def test_scales_fall_back_to_one(rng):
    position, outputs = bent_states(rng)
    _, _, scales = tune_free_moves(potentials(Hollow()), [1], position, outputs, rng)
    np.testing.assert_array_equal(scales, [1.0])


def test_steps_are_halved_where_the_curvature_misleads(rng):
    """In the middle of a quartic there is next to none, and the scales are far too large."""
    position, outputs = bent_states(rng)
    position[:, 2] = outputs[:, 0] + 0.02 * rng.standard_normal(len(position))
    step_size, n_steps, scales = tune_free_moves(potentials(Bent()), [2], position, outputs, rng)
    assert scales[0] > 10.0
    assert step_size < 0.2 and n_steps[1] <= 75


def test_tuning_leaves_out_states_without_outputs(rng):
    position, outputs = bent_states(rng)
    some = outputs.copy()
    some[5:] = np.nan
    tuned = tune_free_moves(potentials(Bent()), [1], position, some, np.random.default_rng(1))
    few = tune_free_moves(potentials(Bent()), [1], position[:5], outputs[:5], np.random.default_rng(1))
    assert tuned[:2] == few[:2]
    with pytest.raises(InputError, match="known outputs"):
        tune_free_moves(potentials(Bent()), [1], position, np.full_like(outputs, np.nan), rng)


def test_what_is_tuned_can_be_stepped_with(rng):
    evaluator = Evaluator(TARGET)
    state = start(evaluator, 30)
    step_size, n_steps, scales = tune_free_moves(JOINT, [TAU, SIGMA], state.position, state.outputs, rng)
    after, _ = make(step_size=step_size, n_steps=n_steps, scales=scales).step(
        Streams(1, 30), state, evaluator
    )
    free = (after.position != state.position)[:, [TAU, SIGMA]]
    assert free.any(axis=1).mean() > 0.9
