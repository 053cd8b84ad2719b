"""Non-centred coordinates, and inner steps by turns in them.

A correct kernel fails one of the checks of invariance with probability 1e-6.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from leapwise import DenseMetric, Evaluator, State, Streams, SurrogateTransition, Target, Whitening
from leapwise.adaptation.surrogate_chains import trace
from leapwise.adaptation.tune import tune_kernel
from leapwise.errors import InputError
from leapwise.kernels import Jumps
from leapwise.kernels.coordinates import ChangedSurrogate, Hierarchy, NonCentred
from leapwise.kernels.transition import Turns
from leapwise.testing import ExactTarget, check_invariance

FALSE_ALARM = 1e-6

#: Columns of each: a location and a scale for both members; two of each; none and a constant; a scale that is a member
#: of a hierarchy of its own, and so is the location.
CASES = {
    "one": NonCentred(Hierarchy([2, 3], scales=1, locations=0)),
    "each its own": NonCentred(Hierarchy([4, 5], scales=[1, 3], locations=[2, 0])),
    "no location": NonCentred([Hierarchy([5, 2, 3], scales=1, shift=[0.5, -1.0, 2.0])]),
    "several": NonCentred((Hierarchy([2], 0, locations=1), Hierarchy([4, 5], 3, locations=1, shift=0.3))),
    "nested": NonCentred(
        (Hierarchy([0], 3), Hierarchy([1], 3, locations=0), Hierarchy([2, 4, 5], scales=1, locations=0))
    ),
}
POSITIONS = np.random.default_rng(3).normal(0.2, 0.7, (6, 6))
STEP = 1e-5


class Bent:
    """A potential of six parameters, none of which is like another."""

    def potential(self, position):
        weights = np.arange(1.0, 7.0)
        return (np.exp(-position / weights) + 0.3 * weights * position).sum(axis=1) + position[
            :, 0
        ] * position[:, 5] * position[:, 2]

    def potential_and_gradient(self, position):
        weights = np.arange(1.0, 7.0)
        gradient = 0.3 * weights - np.exp(-position / weights) / weights
        for i, j, k in ((0, 2, 5), (2, 0, 5), (5, 0, 2)):
            gradient[:, i] += position[:, j] * position[:, k]
        return self.potential(position), gradient


def differences(function, position):
    """Derivatives ``(n, ..., dim)`` of a function of positions."""
    return np.stack(
        [
            (function(position + STEP * axis) - function(position - STEP * axis)) / (2 * STEP)
            for axis in np.eye(position.shape[1])
        ],
        axis=-1,
    )


@pytest.fixture(params=CASES)
def coordinates(request):
    return CASES[request.param]


def test_there_and_back(coordinates):
    other = coordinates.to(POSITIONS)
    assert (other != POSITIONS).any()
    np.testing.assert_allclose(coordinates.back(other), POSITIONS, atol=1e-14)


def test_a_member_is_its_location_plus_its_scale_times_the_coordinate():
    other = CASES["each its own"].to(POSITIONS)
    found = POSITIONS[:, [2, 0]] + np.exp(POSITIONS[:, [1, 3]]) * other[:, 4:]
    np.testing.assert_allclose(found, POSITIONS[:, 4:], atol=1e-14)
    np.testing.assert_array_equal(other[:, :4], POSITIONS[:, :4])


def test_the_jacobian_is_the_determinant(coordinates):
    other = coordinates.to(POSITIONS)
    determinants = np.linalg.slogdet(differences(coordinates.back, other))
    np.testing.assert_allclose(determinants.logabsdet, coordinates.log_jacobian(other), atol=1e-8)
    assert (determinants.sign == 1).all()


def test_the_potential_is_that_of_the_density_and_the_gradient_is_its_own(coordinates):
    changed, other = ChangedSurrogate(Bent(), coordinates), coordinates.to(POSITIONS)
    potential, gradient = changed.potential_and_gradient(other)
    np.testing.assert_allclose(
        potential, Bent().potential(POSITIONS) - coordinates.log_jacobian(other), rtol=1e-12
    )
    np.testing.assert_allclose(gradient, differences(changed.potential, other), atol=1e-7)
    np.testing.assert_array_equal(changed.compiled().potential(other), changed.potential(other))


def test_a_surrogate_is_asked_only_at_finite_positions():
    class Strict(Bent):
        def potential(self, position):
            assert len(position) and np.isfinite(position).all()
            return super().potential(position)

    other = np.zeros((3, 6))
    other[1:, 1] = -800.0, 800.0  # scales too small and too large for floating-point numbers
    potential, gradient = ChangedSurrogate(Strict(), CASES["one"]).potential_and_gradient(other)
    np.testing.assert_array_equal(np.isfinite(potential), [True, False, False])
    assert np.isfinite(gradient[0]).all()
    assert np.isnan(ChangedSurrogate(Strict(), CASES["one"]).potential(other[1:])).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hierarchy([], 0), "members"),
        (lambda: Hierarchy([1, 1], 0), "different columns"),
        (lambda: Hierarchy([1, -2], 0), "columns"),
        (lambda: Hierarchy([1, 2], 0.5), "scales"),
        (lambda: Hierarchy([1, 2], [0, 3, 4]), "one for each of its 2 members"),
        (lambda: Hierarchy([1, 2], 0, shift=np.nan), "shift"),
        (lambda: NonCentred(()), "hierarchies"),
        (lambda: NonCentred("mu"), "hierarchies"),
        (lambda: NonCentred((Hierarchy([1], 0), Hierarchy([1, 2], 0))), "once"),
        (lambda: NonCentred(Hierarchy([1, 2], 2)), "same or a later"),
        (lambda: NonCentred((Hierarchy([1], 0), Hierarchy([0], 2))), "change the order"),
        (lambda: CASES["one"].to(np.zeros((2, 3))), "at least 4"),
        (lambda: CASES["one"].back(np.zeros(6)), "x\\[None\\]"),
    ],
)
def test_bad_hierarchies_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


class Funnel:
    """Location N(0.3, 1), logarithm of the scale minus a Gumbel variable, and two members; with `wrong`, not quite."""

    def __init__(self, wrong=0.0):
        self.wrong = wrong

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        location, s, members = position[:, 0] - 0.3, position[:, 1], position[:, 2:]
        shrunk = 1.0 - self.wrong
        with np.errstate(all="ignore"):
            inverse, tail = np.exp(-shrunk * s)[:, None], np.exp(s)
            z = (members - position[:, :1]) * inverse
            height = 0.5 * location**2 + tail - s + 0.5 * (z**2).sum(axis=1) + 2 * shrunk * s
            slopes = [location - (z * inverse).sum(axis=1), tail - 1 - shrunk * ((z**2).sum(axis=1) - 2)]
        return shrunk * height, shrunk * np.column_stack([*slopes, z * inverse])


def draw_funnel(rng, n):
    location, s = 0.3 + rng.standard_normal(n), -rng.gumbel(size=n)
    return np.column_stack(
        [location, s, location[:, None] + np.exp(s)[:, None] * rng.standard_normal((n, 2))]
    )


FUNNEL = ExactTarget(
    Target(lambda x: -Funnel().potential(x), dim=4, vectorized=True), draw_funnel, name="funnel"
)
FRAME = Whitening(np.array([0.3, -0.5, 0.1, 0.0]), np.diag([1.0, 1.2, 0.9, 1.0]))
TURNS = Turns(0.7, trajectory_length=1.5, coordinates=CASES["one"], frame=FRAME)
LEAPFROG = SurrogateTransition(0.5, 3, surrogate=Funnel(), inner_steps=3, turns=TURNS)
SPLIT = replace(LEAPFROG, centre=[0.3, -0.5, 0.2, 0.3], metric=DenseMetric(np.diag([1.0, 1.5, 2.0, 2.0])))
JUMPS = Jumps(np.array([[0.0, 0.4, 0.2, 0.0], [0.3, -1.5, 0.3, 0.3]]), np.stack([np.eye(4), 0.6 * np.eye(4)]))
KERNELS = {
    "leapfrog": LEAPFROG,
    "split flow": SPLIT,
    "one inner step": replace(LEAPFROG, inner_steps=1),
    "wrong surrogate, leapfrog": replace(LEAPFROG, surrogate=Funnel(0.2)),
    "wrong surrogate, split flow": replace(SPLIT, surrogate=Funnel(0.2)),
    "wrong surrogate, jumps": replace(LEAPFROG, surrogate=Funnel(0.2), jumps=JUMPS, inner_steps=1),
    "others only": replace(SPLIT, surrogate=Funnel(0.1), turns=replace(TURNS, probability=1.0)),
}


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_the_gradient_of_the_funnel(wrong):
    position = draw_funnel(np.random.default_rng(0), 5)
    found = Funnel(wrong).potential_and_gradient(position)[1]
    np.testing.assert_allclose(found, differences(Funnel(wrong).potential, position), rtol=1e-5, atol=1e-5)


def test_turns_leave_a_funnel_invariant(kernel):
    verdict = check_invariance(kernel, FUNNEL, n_chains=50_000, false_alarm=FALSE_ALARM, random_seed=4)
    assert verdict.passed, str(verdict)
    assert verdict.acceptance > 0.3


def begin(n, seed=5):
    evaluator = Evaluator(FUNNEL.target)
    position = FUNNEL.positions(np.random.default_rng(seed), n)
    return evaluator, State.from_evaluation(evaluator.value(position))


def one(state, chain):
    return State(state.position[[chain]], state.potential[[chain]])


def test_chains_apart_draw_what_they_draw_together(kernel):
    """The choice of coordinates is common to all chains, and the same in each group of them."""
    n, n_draws = 4, 6
    evaluator, state = begin(n)
    apart = [Streams(7, n).for_chain(chain) for chain in range(n)]
    alone, streams = [one(state, chain) for chain in range(n)], Streams(7, n)
    for _ in range(n_draws):
        state, _ = kernel.step(streams, state, evaluator)
        alone = [kernel.step(own, each, evaluator)[0] for own, each in zip(apart, alone, strict=True)]
        together = np.concatenate([each.position for each in alone])
        np.testing.assert_allclose(state.position, together, rtol=1e-8, atol=1e-8)


def test_turns_that_are_never_taken_are_as_none():
    """But for one common number of each inner step, which is used up."""
    never = replace(SPLIT, turns=replace(TURNS, probability=0.0))

    class Used(Streams):
        def common_uniforms(self):
            super().common_uniforms()
            return super().common_uniforms()

    evaluator, state = begin(4)
    first, info = never.step(Streams(2, 4), state, evaluator)
    second, expected = replace(SPLIT, turns=None).step(Used(2, 4), state, evaluator)
    np.testing.assert_array_equal(first.position, second.position)
    np.testing.assert_array_equal(info.n_steps, expected.n_steps)


def test_stored_potentials_are_those_of_the_surrogate():
    surrogate = Funnel(0.2)
    for kernel in (replace(LEAPFROG, surrogate=surrogate), replace(SPLIT, surrogate=surrogate)):
        evaluator, state = begin(8)
        streams = Streams(3, 8)
        for _ in range(10):
            state, info = kernel.step(streams, state, evaluator)
            known = state.known_force
            np.testing.assert_allclose(known.potential, surrogate.potential(state.position), rtol=1e-8)
            if known.gradient is not None:
                wanted = surrogate.potential_and_gradient(state.position)[1]
                np.testing.assert_allclose(known.gradient, wanted, rtol=1e-7)
            expected = info.proposal_potential - surrogate.potential(info.proposal)
            moved = info.n_exact > 0
            np.testing.assert_allclose(info.discrepancy[moved], expected[moved], rtol=1e-6, atol=1e-8)


def test_a_chain_that_is_rejected_stays_to_the_last_bit_and_costs_nothing():
    class Steep(Funnel):
        """Wrong gradients, so that no trajectory is accepted."""

        def potential_and_gradient(self, position):
            potential, gradient = super().potential_and_gradient(position)
            return potential, np.full_like(gradient, 1e6)

    for kernel in (LEAPFROG, SPLIT):
        evaluator, state = begin(4)
        counted = evaluator.counts.n_values
        after, info = replace(kernel, surrogate=Steep()).step(Streams(1, 4), state, evaluator)
        np.testing.assert_array_equal(after.position, state.position)
        assert evaluator.counts.n_values == counted and not info.accepted.any() and not info.n_exact.any()


def test_trajectories_that_leave_finite_numbers_are_abandoned():
    class Cliff(Funnel):
        """Pulls the logarithm of the scale to where the scale overflows."""

        def potential_and_gradient(self, position):
            assert np.isfinite(position).all()
            potential, gradient = super().potential_and_gradient(position)
            return potential, np.where(np.arange(4) == 1, -1e5, gradient)

        def potential(self, position):
            return super().potential_and_gradient(position)[0]

    kernel = replace(SPLIT, surrogate=Cliff(), turns=replace(TURNS, probability=1.0))
    evaluator, state = begin(4)
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    assert info.diverging.all() and not info.accepted.any() and not info.n_exact.any()
    np.testing.assert_array_equal(after.position, state.position)


def test_a_kernel_with_turns_can_be_pickled():
    found = []
    for each in (SPLIT, pickle.loads(pickle.dumps(SPLIT))):
        evaluator, state = begin(4)
        found.append(each.step(Streams(1, 4), state, evaluator)[0].position)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"probability": 1.5}, "probability"),
        ({"probability": [0.5, 0.2]}, "the same everywhere"),
        ({"trajectory_length": None}, "turns need one step_size"),
        ({"step_size": [0.5, 0.2]}, "turns need one step_size"),
        ({"frame": np.eye(4)}, "Whitening"),
        ({"coordinates": Hierarchy([2], 1)}, "NonCentred"),
        ({"frame": Whitening(np.zeros(3), np.eye(3))}, "whole positions"),
    ],
)
def test_bad_turns_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        replace(TURNS, **changes)


def test_turns_of_a_kernel_are_turns():
    with pytest.raises(InputError, match="turns must be Turns"):
        replace(LEAPFROG, turns=CASES["one"])


def autocorrelation(draws):
    """Of one column ``(draws, chains)`` at lag one."""
    centred = draws - draws.mean()
    return float((centred[1:] * centred[:-1]).mean() / (centred**2).mean())


class Schools:
    """Eight members with weak data each: a funnel in centred coordinates."""

    data = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]) / 10
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]) / 10

    def __init__(self, noise=1.0):
        self.noise = noise

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        location, s, members = position[:, :1], position[:, 1:2], position[:, 2:]
        with np.errstate(all="ignore"):
            z = (members - location) * np.exp(-s)
            error = (members - self.data) / (self.noise * self.errors)
            potential = (z**2 / 2 + s + error**2 / 2).sum(axis=1) + (2 * location**2 + s**2 / 8)[:, 0]
            pull = z * np.exp(-s)
            by_scale = s / 4 + (1 - z**2).sum(axis=1, keepdims=True)
            gradient = [
                4 * location - pull.sum(axis=1, keepdims=True),
                by_scale,
                pull + error / (self.noise * self.errors),
            ]
        return potential, np.concatenate(gradient, axis=1)


def tuned(surrogate, coordinates, seed=1):
    rng = np.random.default_rng(seed)
    start = rng.normal(0.0, 0.5, (16, 10))
    return tune_kernel(surrogate, Whitening.from_positions(start), start, 0.1, rng, coordinates=coordinates)


MEMBERS = NonCentred(Hierarchy(np.arange(2, 10), scales=1, locations=0))


def test_a_funnel_is_tuned_to_turns_and_forgets_its_scale():
    surrogate = Schools()
    kernel = tuned(surrogate, MEMBERS)
    assert kernel.turns is not None and kernel.surrogate is surrogate
    rng = np.random.default_rng(2)
    start = trace(kernel, np.zeros((200, 10)), rng, 10)[-1]
    found = [
        autocorrelation(trace(each, start, rng, 20)[:, :, 1]) for each in (kernel, tuned(surrogate, None))
    ]
    assert found[0] < 0.4 and found[0] < found[1] - 0.2


def test_strong_data_need_no_turns_or_few():
    """Data that fix each member make the centred coordinates the good ones: turns are no worse than none."""
    surrogate = Schools(noise=0.3)
    kernel, plain = tuned(surrogate, MEMBERS), tuned(surrogate, None)
    rng = np.random.default_rng(2)
    start = trace(plain, np.zeros((200, 10)), rng, 10)[-1]
    found = [autocorrelation(trace(each, start, rng, 20)[:, :, 1]) for each in (kernel, plain)]
    assert found[0] < found[1] + 0.15


def test_the_same_seed_gives_the_same_turns():
    first, again = (tuned(Schools(), MEMBERS, seed=4) for _ in range(2))
    assert first.turns is not None
    assert (first.inner_steps, first.step_size, first.turns.step_size, first.turns.probability) == (
        again.inner_steps,
        again.step_size,
        again.turns.step_size,
        again.turns.probability,
    )
