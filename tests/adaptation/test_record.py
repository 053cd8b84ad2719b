"""Every exact evaluation is a test of the surrogates before it is training data."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior, Target
from leapwise.adaptation.record import Comparison, EvaluationRecord, effective_sd, equivalent_sd, recent
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.stopping import efficiency

TARGET = Target(lambda x: -0.5 * (x**2).sum(axis=1), lambda x: -x, dim=2, vectorized=True)


FORWARD = ForwardTarget(
    lambda x: x, GaussianLikelihood(np.zeros(2), 1.0), NormalPrior(np.zeros(2), 1.0), vectorized=True
)


def record_with(discrepancies, kind="cold", n=None, target=TARGET):
    record = EvaluationRecord(Evaluator(target), True)
    for i, part in enumerate(discrepancies):
        part = np.asarray(part, dtype=float)
        record.comparisons.append(
            Comparison(kind, 100 * (i + 1) if n is None else n[i], part, {"one": np.zeros(len(part))})
        )
    return record


def test_it_collects_all_and_trains_on_each_position_once():
    record = EvaluationRecord(Evaluator(TARGET), True)
    record.evaluate(np.ones((2, 2)))
    record.evaluate(np.zeros((1, 2)))
    assert len(record) == 3 and len(record.training()) == 2 and record.lowest == 0.0


def test_positions_without_mass_are_left_out():
    half = Target(
        lambda x: np.where(x[:, 0] > 0, -np.inf, 0.0), lambda x: np.zeros_like(x), dim=1, vectorized=True
    )
    record = EvaluationRecord(Evaluator(half), True)
    record.evaluate(np.array([[-1.0], [1.0]]))
    assert record.training().position.tolist() == [[-1.0]]


def test_a_position_is_looked_up_by_each_parameter():
    """One parameter in millions must not hide that another, in thousandths, is somewhere else."""
    scale = np.array([1e6, 1e-3])
    target = Target(
        lambda x: -0.5 * ((x / scale) ** 2).sum(axis=1), lambda x: -x / scale**2, dim=2, vectorized=True
    )
    record = EvaluationRecord(Evaluator(target), True)
    position = np.array([[2.0, 1.0], [1.0, -1.0], [0.0, 3.0]]) * scale
    potential = record.evaluate(position).potential
    found, known = record.look_up(position * (1.0 + 1e-15))
    np.testing.assert_array_equal(found.position, position)
    np.testing.assert_array_equal(found.potential, potential)
    assert known.all()
    other = position + np.array([0.0, 1e-3 * scale[1]])
    assert not record.look_up(other)[1].any()
    assert record.state(position, potential).gradient is not None
    assert record.state(other, potential).gradient is None


def test_sd_is_of_the_later_comparisons_and_infinite_while_they_are_few():
    rng = np.random.default_rng(0)
    record = record_with([rng.normal(0, 3.0, 100), rng.normal(0, 0.1, 100)])
    assert 0.07 < record.sd("one") < 0.13
    assert record_with([[0.1, 0.2]]).sd("one") == np.inf and record.sd("another") == np.inf


def test_early_comparisons_of_an_emulator_do_not_count():
    rng = np.random.default_rng(0)
    parts = [rng.normal(0, 0.8, 60), rng.normal(0, 0.1, 30)]
    assert 0.07 < record_with(parts, target=FORWARD).sd("one") < 0.13
    assert record_with(parts).sd("one") > 0.3  # a surrogate of the potential is trusted later


def test_leaving_out_wider_comparisons_makes_sd_too_small_by_little():
    rng = np.random.default_rng(0)
    found = [
        (effective_sd(recent(each)), effective_sd(each[-50:])) for each in rng.standard_t(5, (2000, 100))
    ]
    shorter, half = np.mean(found, axis=0)
    assert 0.97 * half < shorter <= half  # the mean errs by 0.003


def test_one_extreme_discrepancy_does_not_dominate():
    values = np.append(np.random.default_rng(0).normal(0, 0.1, 200), 1e9)
    assert effective_sd(values) < 0.35
    assert effective_sd(np.zeros(DEFAULT.score.min_tests // 2 - 1)) == np.inf


def test_the_rate_is_measured_where_there_is_enough_to_measure():
    rng = np.random.default_rng(0)
    n = [100, 200, 400, 800]
    flat = record_with([rng.normal(0, 0.3, 100) for _ in n], n=n)
    falling = record_with([rng.normal(0, 30.0 / each, 100) for each in n], n=n)
    assert flat.rate("one") < 0.2 and falling.rate("one") > 0.7
    assert record_with([[0.1] * 20]).rate("one") == 0.7


def test_proposals_outside_the_support_count_by_what_they_cost():
    """Half of them lost to an edge is worth as much as an sd(D) of 0.7; what is inside is not blamed for it."""
    inside = np.random.default_rng(0).normal(0, 0.1, 100)
    record = record_with([np.column_stack([inside, np.full(100, np.inf)]).ravel()])
    assert record.outside("one") == 0.5
    assert 0.65 < record.sd("one") < 0.85
    assert record_with([inside]).outside("one") == 0.0
    assert record_with([np.full(40, np.inf)]).sd("one") == np.inf


def test_candidates_are_compared_at_the_same_positions():
    """The newcomer came when positions had become harder; where both were tried it is twice as good."""
    rng = np.random.default_rng(0)
    record = EvaluationRecord(Evaluator(TARGET), True)
    for i, (size, names) in enumerate(((0.2, ("old",)), (1.0, ("old", "new")))):
        found = size * rng.standard_normal(40)
        said = {name: found * (0.5 if name == "new" else 0.0) for name in names}
        record.comparisons.append(Comparison("cold", 50 * (i + 1), found, said))
    assert record.relative_sd("new", "old") == pytest.approx(0.5, rel=1e-6)
    assert record.relative_sd("old", "new") == pytest.approx(2.0, rel=1e-6)
    assert record.relative_sd("another", "old") == np.inf


@pytest.mark.parametrize("sd", [0.0, 0.3, 1.0])
def test_the_equivalent_sd_has_the_same_efficiency(sd):
    found = [equivalent_sd(sd, outside) for outside in (0.0, 0.2, 0.5, 0.9)]
    assert found[0] == sd and (np.diff(found) > 0).all()
    for outside, each in zip((0.2, 0.5), found[1:3], strict=True):
        lost = 1.0 / efficiency(sd)
        assert efficiency(each) == pytest.approx(1.0 / ((1.0 + lost) / (1.0 - outside) - 1.0), rel=0.02)


def test_surprises_are_mass_where_it_was_not_predicted():
    record = record_with([np.zeros(40)])
    record.evaluate(np.zeros((1, 2)))  # the lowest potential is 0
    assert record.surprises("one") == 0.0
    potential = np.array([0.5, 3.0, 0.0, 50.0])  # the last is far up, so its prediction does not matter
    predicted = potential + np.array([3.0, -3.0, 0.0, 30.0])
    record.comparisons.append(Comparison("uncertain", 50, potential, {"one": predicted}))
    assert record.surprises("one") == 1 / 12
    assert record.surprises("another") == 1.0
