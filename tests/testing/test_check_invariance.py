"""`check_invariance`: correct, wrong, idle and lost kernels, and its false-alarm rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import norm

from leapwise import HMC, RNSHMC, SoftplusNetwork, State, Target, UnitMetric
from leapwise.errors import InputError
from leapwise.testing import ExactTarget, check_invariance, gaussian, gumbel, student_t

KERNEL = HMC(0.9, 3, metric=UnitMetric())


@dataclass(frozen=True)
class Shift:
    """Moves each chain by a fixed amount, to the side that a coin says, or always to one; `keep` shrinks first."""

    by: float
    fair: bool = True
    keep: float = 1.0

    is_exact = True

    def step(self, streams, state, evaluator):
        side = np.where(streams.uniforms() < 0.5, -1.0, 1.0)[:, None] if self.fair else 1.0
        return State.from_evaluation(evaluator.value(self.keep * state.position + self.by * side)), None


class Idle:
    is_exact = True

    def step(self, streams, state, evaluator):
        return state, None


class Swap:
    """Mirrors the chain; for a symmetric target that is exact, and nothing is random."""

    is_exact = True

    def step(self, streams, state, evaluator):
        return State.from_evaluation(evaluator.value(-state.position)), None


def normal(centre=0.0, scale=1.0, dim=2, expected=None):
    target = Target(
        lambda x: -0.5 * (((x - centre) / scale) ** 2).sum(axis=1),
        lambda x: -(x - centre) / scale**2,
        dim=dim,
        vectorized=True,
    )
    draw = lambda rng, n: centre + scale * rng.standard_normal((n, dim))  # noqa: E731
    return ExactTarget(target, draw, expected={} if expected is None else expected)


def test_a_sound_kernel_passes():
    verdict = check_invariance(KERNEL, gumbel(), n_chains=20_000, steps=2)
    assert verdict.passed and verdict.largest < verdict.threshold
    assert 0.5 < verdict.acceptance < 0.95 and verdict.n_lost == 0
    assert set(verdict.exact) <= set(verdict.change) and len(verdict.change) == 10


def test_the_verdict_depends_on_the_seed_alone():
    first, second, other = (
        check_invariance(KERNEL, gumbel(), n_chains=1000, random_seed=seed) for seed in (1, 1, 2)
    )
    assert first.change == second.change and first.exact == second.exact
    assert first.change != other.change


def test_the_threshold_is_that_of_the_false_alarm_rate():
    for rate in (1e-2, 1e-5, 1e-9):
        verdict = check_invariance(KERNEL, gaussian(), n_chains=1000, false_alarm=rate)
        m = 20  # ten statistics, each with an exact value
        assert m * 2 * 3.178 * norm.sf(verdict.threshold) == pytest.approx(rate, rel=1e-3)


def test_few_false_alarms_with_few_chains_and_heavy_tails():
    """Where no central limit theorem helps: of 300 checks at a rate of 0.02, 20 alarms have a chance of 5e-6."""
    kernel, exact = HMC(0.5, 2, metric=UnitMetric()), student_t()
    exact = ExactTarget(exact.target, exact.draw)
    verdicts = [
        check_invariance(kernel, exact, n_chains=100, random_seed=seed, false_alarm=0.02)
        for seed in range(300)
    ]
    assert sum(not verdict.passed for verdict in verdicts) < 20


@pytest.mark.parametrize(
    ("broken", "statistic"), [(Shift(0.05, fair=False), "q0"), (Shift(0.0, keep=0.97), "q0^2")]
)
def test_a_broken_kernel_is_caught(broken, statistic):
    verdict = check_invariance(broken, normal(), n_chains=20_000)
    assert not verdict.passed
    assert abs(verdict.change[statistic]) > 2 * verdict.threshold
    assert "FAILED" in repr(verdict) and "NOT INVARIANT" in str(verdict)


def test_location_and_scale_do_not_matter():
    """A tenth of a standard deviation is one, wherever and however wide the target is."""
    shifts = [
        check_invariance(Shift(0.1 * scale), normal(centre, scale), n_chains=20_000).change["q0^2"]
        for centre, scale in ((0.0, 1.0), (1e4, 1e-3), (-50.0, 200.0))
    ]
    assert min(shifts) > 0
    np.testing.assert_allclose(shifts, shifts[0], rtol=0.5)


def test_what_is_exact_in_the_mean_only_is_caught_by_the_rest():
    verdict = check_invariance(Shift(0.4), normal(), n_chains=20_000)
    assert abs(verdict.change["q0"]) < verdict.threshold < verdict.change["q0^2"]


def test_draws_that_are_not_of_the_target_are_caught_even_if_nothing_moves():
    exact = gaussian()
    wrong = ExactTarget(exact.target, lambda rng, n: 1.05 * exact.draw(rng, n), expected=exact.expected)
    verdict = check_invariance(Idle(), wrong, n_chains=50_000)
    assert not verdict.passed and max(map(abs, verdict.change.values())) == 0.0
    assert "nothing was tested" in str(verdict) and "NOT INVARIANT" in str(verdict)


def test_a_kernel_without_chance_can_pass():
    assert check_invariance(Swap(), normal(), n_chains=5000).passed


def test_values_that_are_too_skewed_are_not_held_against_their_expectation():
    few, many = (check_invariance(KERNEL, gaussian(), n_chains=n) for n in (1000, 500_000))
    assert "q1^4" not in few.exact and "q1^4" in many.exact
    assert "q0" in few.exact


def test_lost_chains_fail():
    class Flung(Idle):
        def step(self, streams, state, evaluator):
            position = state.position.copy()
            position[:3] = 1e300
            return State(position, state.potential), None

    verdict = check_invariance(Flung(), gaussian(), n_chains=1000)
    assert not verdict.passed and verdict.n_lost == 3 and verdict.largest == np.inf
    assert "3 chains ended" in str(verdict) and "lost chains" in repr(verdict)


def test_statistics_of_ones_own():
    verdict = check_invariance(
        Shift(0.2, fair=False),
        normal(dim=3, expected={"sum": 0.0}),
        statistics=lambda q, u: {"sum": q.sum(axis=1), "low": u < 1.0},
        n_chains=5000,
    )
    assert set(verdict.change) == {"sum", "low"} and set(verdict.exact) == {"sum"}
    assert not verdict.passed and verdict.worst == "sum"


def test_a_target_and_its_draws_may_be_given_apart():
    exact = gumbel()
    assert check_invariance(KERNEL, exact.target, exact.draw, n_chains=2000).passed


def test_a_target_without_gradient():
    exact = normal()
    plain = Target(lambda x: -0.5 * x @ x, dim=2)
    verdict = check_invariance(Shift(0.3, fair=False), plain, exact.draw, n_chains=500)
    assert not verdict.passed


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (gumbel(), {"n_chains": 10}, "n_chains must be"),
        (gumbel(), {"n_chains": 1e5}, "n_chains must be"),
        (gumbel(), {"steps": 0}, "steps must be"),
        (gumbel(), {"false_alarm": 0.0}, "false_alarm must be"),
        (gumbel(), {"draw": lambda rng, n: 0}, "has its own draw"),
        (gumbel().target, {}, "exact draws of the target are needed"),
        (gumbel().target, {"draw": np.zeros((100, 2))}, "draw must be a function"),
        (gumbel().target, {"draw": lambda rng, n: np.zeros((n, 3))}, "draw must return"),
        (3.0, {"draw": lambda rng, n: np.zeros((n, 3))}, "target must be"),
        (gumbel(), {"statistics": lambda q, u: u}, "must return a dict"),
        (gumbel(), {"statistics": lambda q, u: {}}, "must return a dict"),
        (gumbel(), {"statistics": lambda q, u: {"all": q}}, "one number for each chain"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(target, options, message):
    with pytest.raises(InputError, match=message):
        check_invariance(KERNEL, target, **{"n_chains": 100, **options})


@pytest.mark.parametrize("bad", [None, HMC, RNSHMC(SoftplusNetwork(5))], ids=str)
def test_what_cannot_step_is_refused(bad):
    with pytest.raises(InputError, match="kernel must have a method step"):
        check_invariance(bad, gumbel())


def test_draws_outside_the_support_are_refused():
    walled = Target(
        lambda x: -x[:, 0] - np.exp(-x[:, 0]) + np.where(x[:, 0] > 1, -np.inf, 0), dim=1, vectorized=True
    )
    with pytest.raises(InputError, match="where the target has no density"):
        check_invariance(KERNEL, walled, lambda rng, n: rng.gumbel(size=(n, 1)), n_chains=100)
