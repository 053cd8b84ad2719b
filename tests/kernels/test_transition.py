from __future__ import annotations

import pickle

import numpy as np
import pytest
from kernel_cases import SkewedSurrogate, skewed_target

from leapwise import DenseMetric, Evaluator, State, Streams, SurrogateHMC, SurrogateTransition
from leapwise.errors import InputError


class Wall(SkewedSurrogate):
    """Has no answer above zero."""

    def potential(self, position):
        return np.where(position[:, 0] > 0, np.nan, super().potential(position))


def begin(n=4, visited=None, where=0.5):
    evaluator = Evaluator(skewed_target(visited))
    return evaluator, State.from_evaluation(evaluator.value(np.full((n, 2), where)))


def test_one_value_for_each_draw_and_no_gradient():
    evaluator, state = begin()
    kernel, streams = SurrogateTransition(0.4, 3, surrogate=SkewedSurrogate(), inner_steps=4), Streams(1, 4)
    for _ in range(25):
        state, info = kernel.step(streams, state, evaluator)
        assert (info.n_exact == (info.proposal != state.position).any(axis=1) | info.accepted).all()
    assert evaluator.counts.n_gradients == 0 and evaluator.counts.n_values <= 4 + 100


def test_a_chain_that_does_not_move_costs_nothing():
    evaluator, state = begin()
    kernel = SurrogateTransition(50.0, (1, 1), surrogate=SkewedSurrogate(), inner_steps=2)
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    assert evaluator.counts.n_values == 4 and not info.accepted.any() and not info.n_exact.any()
    np.testing.assert_array_equal(after.position, state.position)
    assert not info.diverging.any() and np.isnan(info.discrepancy).all()


def test_no_position_is_evaluated_twice():
    visited = []
    evaluator, state = begin(visited=visited)
    kernel, streams = SurrogateTransition(0.9, 3, surrogate=SkewedSurrogate(), inner_steps=2), Streams(1, 4)
    visited.clear()
    for _ in range(50):
        state, _ = kernel.step(streams, state, evaluator)
    assert len(np.unique(visited, axis=0)) == len(visited)


def test_the_surrogate_is_evaluated_only_where_it_is_not_known():
    """Its potential and gradient at the start of a step are those of the end of the last one."""

    class Counted(SkewedSurrogate):
        n_potentials = 0

        def potential(self, position):
            self.n_potentials += 1
            return super().potential(position)

    surrogate = Counted()
    evaluator, state = begin()
    kernel, streams = SurrogateTransition(0.2, (2, 2), surrogate=surrogate, inner_steps=3), Streams(1, 4)
    state, _ = kernel.step(streams, state, evaluator)
    before = surrogate.n_potentials
    kernel.step(streams, state, evaluator)
    # Two leapfrog steps, which ask this surrogate for both, and one potential, for each inner step.
    assert surrogate.n_potentials - before == 3 * 3


def test_no_chain_enters_a_region_where_the_surrogate_is_not_finite():
    evaluator, state = begin(where=-0.5)
    kernel, streams = SurrogateTransition(0.5, 3, surrogate=Wall(), inner_steps=2), Streams(1, 4)
    for _ in range(30):
        state, _ = kernel.step(streams, state, evaluator)
        assert (state.position[:, 0] <= 0).all()
    inside, there = begin(where=0.5)
    after, info = kernel.step(streams, there, inside)
    np.testing.assert_array_equal(after.position, there.position)
    assert info.diverging.all() and inside.counts.n_values == 4


def test_the_discrepancy_is_exact_minus_surrogate_at_the_proposal():
    evaluator, state = begin()
    surrogate = SkewedSurrogate()
    _, info = SurrogateTransition(0.4, 3, surrogate=surrogate).step(Streams(3, 4), state, evaluator)
    found = info.proposal_potential - surrogate.potential(info.proposal)
    np.testing.assert_allclose(info.discrepancy, found)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "three"])
def test_inner_steps_are_a_whole_number(steps):
    with pytest.raises(InputError, match="inner_steps"):
        SurrogateTransition(0.4, 3, surrogate=SkewedSurrogate(), inner_steps=steps)


SWING = {
    "surrogate": SkewedSurrogate(),
    "centre": [0.4, 0.4],
    "metric": DenseMetric([[1.5, 0.3], [0.3, 1.2]]),
}


def test_a_swing_about_the_centre_of_a_normal_is_never_rejected():
    """Whatever the length of its steps, since it follows the normal exactly."""
    covariance = np.array([[2.0, 0.7], [0.7, 1.0]])
    precision, centre = np.linalg.inv(covariance), np.array([3.0, -1.0])

    class Normal:
        def potential(self, position):
            return 0.5 * np.einsum("ni,ij,nj->n", position - centre, precision, position - centre)

        def potential_and_gradient(self, position):
            return self.potential(position), (position - centre) @ precision

    evaluator, state = begin()
    kernel = SurrogateTransition(
        2.5, 3, surrogate=Normal(), metric=DenseMetric(covariance), inner_steps=2, centre=centre
    )
    streams = Streams(1, 4)
    for _ in range(5):
        state, info = kernel.step(streams, state, evaluator)
        np.testing.assert_allclose(info.inner_acceptance, 1.0, rtol=1e-12)


def test_a_swing_costs_one_gradient_a_step_and_one_potential_a_trajectory():
    asked = []

    class Counted(SkewedSurrogate):
        def compiled(self):
            def potential(position):
                asked.append("potential")
                return self.potential(position)

            def gradient(position):
                asked.append("gradient")
                return self.potential_and_gradient(position)[1]

            return potential, gradient

    evaluator, state = begin()
    kernel = SurrogateTransition(0.3, (2, 2), **(SWING | {"surrogate": Counted()}), inner_steps=3)
    streams = Streams(1, 4)
    state, _ = kernel.step(streams, state, evaluator)
    asked.clear()
    kernel.step(streams, state, evaluator)
    assert asked == ["gradient", "gradient", "potential"] * 3


def test_a_chain_that_swings_and_comes_back_is_where_it_was_to_the_last_bit():
    evaluator, state = begin(where=0.1 + 0.2)
    kernel = SurrogateTransition(40.0, (1, 1), **SWING, inner_steps=2)
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    stayed = info.n_exact == 0
    assert stayed.any() and evaluator.counts.n_values == 4 + (~stayed).sum()
    np.testing.assert_array_equal(after.position[stayed], state.position[stayed])
    np.testing.assert_array_equal(info.proposal[stayed], state.position[stayed])


def test_stored_potentials_after_a_split_flow_are_those_of_the_surrogate():
    """Also after moves of which some were rejected, and for another kernel that asks for gradients."""
    evaluator, state = begin()
    streams, surrogate = Streams(1, 4), SWING["surrogate"]
    swinging = SurrogateTransition(0.9, 3, **SWING, inner_steps=2)
    straight = SurrogateTransition(0.5, 3, surrogate=surrogate)
    for kernel in (swinging, straight, swinging, SurrogateHMC(0.5, 3, surrogate=surrogate), swinging) * 8:
        state, _ = kernel.step(streams, state, evaluator)
        known = state.known_force
        if known.potential is not None:
            np.testing.assert_allclose(known.potential, surrogate.potential(state.position), rtol=1e-12)
        if known.gradient is not None:
            wanted = surrogate.potential_and_gradient(state.position)[1]
            np.testing.assert_allclose(known.gradient, wanted, rtol=1e-12)
        exact = evaluator.value(state.position).potential
        np.testing.assert_allclose(state.potential, exact, rtol=1e-12)


def test_a_chain_where_the_surrogate_is_not_finite_does_not_move_by_a_split_flow():
    evaluator, state = begin(where=0.5)
    kernel = SurrogateTransition(0.5, 3, surrogate=Wall(), inner_steps=2, centre=[-0.5, -0.5])
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    np.testing.assert_array_equal(after.position, state.position)
    assert info.diverging.all() and evaluator.counts.n_values == 4


@pytest.mark.parametrize("centre", [None, [0.4, 0.4]])
def test_momenta_too_large_to_be_squared_are_rejected_without_a_warning(centre):
    class Steep(SkewedSurrogate):
        def potential_and_gradient(self, position):
            return self.potential(position), np.full_like(position, 1e160)

    evaluator, state = begin()
    kernel = SurrogateTransition(1e-3, (1, 1), surrogate=Steep(), inner_steps=2, centre=centre)
    after, info = kernel.step(Streams(1, 4), state, evaluator)
    assert not info.accepted.any() and not info.n_exact.any()
    np.testing.assert_array_equal(after.position, state.position)


def test_a_kernel_that_swings_can_be_pickled():
    kernel = SurrogateTransition(0.5, 3, **SWING)
    found = []
    for each in (kernel, pickle.loads(pickle.dumps(kernel))):
        evaluator, state = begin()
        found.append(each.step(Streams(1, 4), state, evaluator)[0].position)
        kernel.step(Streams(1, 4), state, evaluator)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("centre", ["here", [np.nan, 0.0], [[0.0, 0.0]], 1.0])
def test_the_centre_is_one_position(centre):
    with pytest.raises(InputError, match="centre"):
        SurrogateTransition(0.4, 3, **(SWING | {"centre": centre}))


def test_the_centre_fits_the_metric():
    with pytest.raises(InputError, match="centre must fit the metric"):
        SurrogateTransition(0.4, 3, **(SWING | {"centre": [0.0, 0.0, 0.0]}))
