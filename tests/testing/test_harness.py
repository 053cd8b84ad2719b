"""What all checks require of kernels and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from leapwise import HMC, Mixture, State, UnitMetric
from leapwise.errors import InputError
from leapwise.testing import (
    ExactTarget,
    check_balance,
    check_invariance,
    check_ranks,
    check_two_samples,
    gaussian,
    gumbel,
    metropolis_matrix,
    surrogate_transition_matrix,
    trajectory_matrix,
)

KERNEL = HMC(0.9, 3, metric=UnitMetric())
CHECKS = [check_invariance, check_ranks, check_two_samples]
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@dataclass
class Step:
    """A kernel whose step returns what a function of the state does."""

    returns: object
    is_exact = True

    def step(self, streams, state, evaluator):
        return self.returns(state)


@dataclass
class InPlace:
    """A random walk that writes into the arrays it is given, or into arrays of its own that it uses again."""

    sound: bool
    reuse: bool = False
    is_exact = True
    kept = None

    def step(self, streams, state, evaluator):
        proposed = state.position + 0.8 * streams.normals(state.position.shape[1])
        proposal = State.from_evaluation(evaluator.value(proposed))
        chance = np.exp(np.minimum(0.0, state.potential - proposal.potential))
        accepted = streams.uniforms() < (chance if self.sound else 1.0)
        new = state
        if self.reuse:
            if self.kept is None or len(self.kept.position) != len(state.position):
                self.kept = State(state.position.copy(), state.potential.copy())
            new = self.kept
            new.position[:], new.potential[:] = state.position, state.potential
        new.position[accepted] = proposal.position[accepted]
        new.potential[accepted] = proposal.potential[accepted]
        return State(new.position, new.potential), None


@every_check
@pytest.mark.parametrize("reuse", [False, True])
def test_kernels_may_write_in_place_and_are_judged_all_the_same(check, reuse):
    """A sound one fails with chance 1e-5."""
    assert check(InPlace(True, reuse), gumbel(), n_chains=4000).passed
    assert not check(InPlace(False, reuse), gumbel(), n_chains=4000).passed


def test_a_kernel_that_never_moves_does_not_pass_unless_it_may():
    stays = Step(lambda state: (state, None))
    verdict = check_invariance(stays, gumbel(), n_chains=1000)
    assert not verdict.passed and verdict.acceptance == 0.0
    assert str(verdict).startswith("NOTHING WAS TESTED: no chain moved") and "NOTHING" in repr(verdict)
    assert check_invariance(stays, gumbel(), n_chains=1000, may_stay=True).passed
    with pytest.raises(InputError, match="may_stay"):
        check_invariance(stays, gumbel(), may_stay="yes")


@pytest.mark.parametrize("check", CHECKS[1:], ids=lambda check: check.__name__)
def test_the_other_checks_say_that_nothing_was_tested(check):
    verdict = check(Step(lambda state: (state, None)), gumbel(), n_chains=500)
    assert verdict.moved == 0.0 and "NOTHING WAS TESTED" in repr(verdict) and "NOTHING" in str(verdict)
    verdict = check(KERNEL, gumbel(), n_chains=500)
    assert verdict.moved > 0.5 and "NOTHING" not in repr(verdict) + str(verdict)


RETURNED = {
    "nothing": lambda state: None,
    "a bare state": lambda state: state,
    "arrays": lambda state: (state.position, state.potential),
    "three things": lambda state: (state, None, None),
    "a list": lambda state: [state, None],
    "fewer chains": lambda state: (State(state.position[1:], state.potential[1:]), None),
    "more chains": lambda state: (State(np.tile(state.position, (2, 1)), np.tile(state.potential, 2)), None),
    "lists": lambda state: (State(state.position.tolist(), state.potential.tolist()), None),
    "a column of potentials": lambda state: (State(state.position, state.potential[:, None]), None),
    "words": lambda state: (State(state.position.astype(str), state.potential), None),
    "a flat gradient": lambda state: (State(state.position, state.potential, state.potential), None),
}


@every_check
@pytest.mark.parametrize("returned", RETURNED)
def test_what_is_no_step_is_refused(check, returned):
    with pytest.raises(
        InputError, match=r"step must return \(State, info\) with positions of shape \(200, 2\)"
    ):
        check(Step(RETURNED[returned]), gumbel(), n_chains=200)


def test_ranks_of_a_mixture_are_refused():
    with pytest.raises(InputError, match=r"ranks are not independent.*check_invariance"):
        check_ranks(Mixture((KERNEL, KERNEL), (0.5, 0.5)), gumbel())


@every_check
def test_a_statistic_that_is_no_number_at_the_draws_is_named(check):
    with pytest.raises(InputError, match="the statistic 'log' is not finite at"):
        check(KERNEL, gaussian(), statistics=lambda q, u: {"U": u, "log": np.log(q[:, 0])}, n_chains=200)


@pytest.mark.parametrize("bad", [{"q0": np.nan}, {"q0": np.inf}, {"q0": "zero"}, {"q0": [0.0]}, 3.0], ids=str)
def test_exact_values_must_be_numbers(bad):
    with pytest.raises(InputError, match="expected"):
        ExactTarget(gaussian().target, gaussian().draw, expected=bad)


def test_exact_values_of_no_statistic_are_refused():
    exact = ExactTarget(gaussian().target, gaussian().draw, expected={"q_0": 0.0})
    with pytest.raises(InputError, match=r"expected has exact values of \['q_0'\]"):
        check_invariance(KERNEL, exact, n_chains=200)
    own = {"statistics": lambda q, u: {"sum": q.sum(axis=1)}, "n_chains": 200}
    assert check_invariance(KERNEL, gaussian(), **own).passed  # those of default statistics do no harm


@every_check
@pytest.mark.parametrize(
    "bad",
    [
        {"false_alarm": "rare"},
        {"false_alarm": None},
        {"false_alarm": True},
        {"false_alarm": np.nan},
        {"random_seed": -1},
        {"random_seed": 1.5},
        {"random_seed": "one"},
    ],
    ids=str,
)
def test_bad_settings_are_refused(check, bad):
    with pytest.raises(InputError, match=f"{next(iter(bad))} must be"):
        check(KERNEL, gumbel(), n_chains=200, **bad)


@every_check
def test_no_seed_is_a_fresh_one(check):
    """Whatever it is, a kernel this wrong does not pass."""
    assert not check(InPlace(False), gumbel(), n_chains=4000, random_seed=None).passed


MASS, END = np.full((2, 2), 0.5), np.array([[0, 1], [2, 3]])
ANYWHERE = np.full((2, 2), 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(trajectory_matrix, np.zeros((2, 2)), 2 * MASS, END), "momentum_mass must"),
        (partial(trajectory_matrix, np.zeros((2, 2)), [[1.5, -0.5], [0.5, 0.5]], END), "momentum_mass must"),
        (partial(trajectory_matrix, np.zeros((2, 2)), MASS, END + 1), "end must"),
        (partial(trajectory_matrix, np.zeros((2, 2)), MASS, END - 2), "end must"),
        (partial(trajectory_matrix, np.zeros((2, 2)), MASS, END + 0.0), "end must"),
        (partial(surrogate_transition_matrix, [0, 1], [0, 1], ANYWHERE, 0), "inner_steps must"),
        (partial(surrogate_transition_matrix, [0, 1], [0, 1, 2], ANYWHERE), "surrogate must"),
        (partial(surrogate_transition_matrix, [0, np.nan], [0, 1], ANYWHERE), "potential must"),
        (partial(metropolis_matrix, [0, -np.inf], ANYWHERE), "potential must"),
        (partial(metropolis_matrix, [0, np.nan], ANYWHERE), "potential must"),
        (partial(check_balance, np.eye(2), [0, np.nan]), "potential must"),
        (partial(check_balance, np.eye(2), [0, -np.inf]), "potential must"),
    ],
)
def test_bad_matrices_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
