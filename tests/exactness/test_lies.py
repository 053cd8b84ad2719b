"""No wrong surrogate biases a draw: the target stays invariant, or a typed error is raised.

Every lie is tested with every kernel that takes a surrogate. The Riemannian kernel also has its metric from the lie.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
from gumbel_surrogates import JUMPS, Fair
from public_kernels import public_kernels
from tiers import TIERS, seed

from leapwise import (
    Evaluator,
    HessianMetric,
    Jumps,
    State,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
)
from leapwise.errors import SurrogateError
from leapwise.testing import BROKEN, LIES, Liar, gumbel


@dataclass(frozen=True)
class SurrogateTaker:
    """A kernel that takes a surrogate. The expensive Riemannian one has one dimension in the quick tier."""

    kernel: type
    jumps: Jumps | None = None

    def make(self, surrogate):
        if self.jumps is not None:
            return self.kernel(0.5, 3, surrogate=surrogate, jumps=self.jumps)
        if self.kernel is SurrogateRMHMC:
            metric = HessianMetric(surrogate, "diagonal", floor=0.3)
            return SurrogateRMHMC(0.5, 1, surrogate=surrogate, metric=metric)
        return self.kernel(0.5, 3, surrogate=surrogate)

    def target(self, tier):
        return gumbel(1 if self.kernel is SurrogateRMHMC and tier == 1 else 2)


TAKERS = {each.__name__: SurrogateTaker(each) for each in (SurrogateHMC, SurrogateRMHMC, SurrogateTransition)}
TAKERS["SurrogateTransition, jumping"] = SurrogateTaker(SurrogateTransition, JUMPS)
N = 40_000
every_kernel = pytest.mark.parametrize("name", TAKERS)


def test_every_kernel_that_takes_a_surrogate_is_tested():
    takers = {
        each
        for each in public_kernels()
        if hasattr(each, "step") and "surrogate" in {field.name for field in fields(each)}
    }
    assert takers == {each.kernel for each in TAKERS.values()}


@pytest.mark.parametrize("tier", TIERS)
@every_kernel
@pytest.mark.parametrize("lie", LIES)
def test_lies_do_no_harm(check, name, lie, tier):
    taker = TAKERS[name]
    check(
        taker.make(LIES[lie](Fair())),
        taker.target(tier),
        n_chains=tier * N,
        may_stay=True,  # with the worst lies every proposal is rejected
        steps=2,  # the second step uses what the first has stored of the surrogate
        random_seed=seed(name, lie, tier),
        table="every lie, every kernel that takes a surrogate, on Gumbel variables",
        row=lie,
        column=name,
    )


def start(n_chains=3):
    evaluator = Evaluator(gumbel().target)
    return State.from_evaluation(evaluator.value(np.zeros((n_chains, 2)))), evaluator


@every_kernel
@pytest.mark.parametrize("fault", BROKEN)
def test_unusable_values_raise(name, fault):
    state, evaluator = start()
    with pytest.raises(SurrogateError, match=r"the surrogate Liar (raised|must return)"):
        TAKERS[name].make(BROKEN[fault](Fair())).step(Streams(1, 3), state, evaluator)


@every_kernel
def test_nothing_is_evaluated_where_the_surrogate_is_not_finite(name):
    state, evaluator = start()
    _, info = TAKERS[name].make(LIES["NaN"](Fair())).step(Streams(1, 3), state, evaluator)
    assert evaluator.counts.n_exact == 3 and not info.n_exact.any() and not info.accepted.any()


def test_a_liar_changes_all_values():
    liar, honest, q = LIES["wrong sign"](Fair()), Fair(), np.array([[0.3, -0.2]])
    np.testing.assert_array_equal(liar.hessian(q), -honest.hessian(q))
    np.testing.assert_array_equal(liar.quadratic_contraction(q, q), -honest.quadratic_contraction(q, q))
    assert isinstance(liar, Liar)
