"""A recorded position is used where it agrees with the computed one up to rounding; otherwise the run is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import resume_cases as cases

import leapwise as lw
from leapwise.errors import LedgerMismatch
from leapwise.storage import Ledger


def sample(case, path, model=None, **changes):
    target = cases.target(cases.CASES[case][0], model or cases.Model())
    return lw.sample(target, ledger=path, **cases.settings(case, **changes))


def rewritten(path, new, change):
    """Copy the evaluations of a ledger with changed positions, without its checkpoints."""
    with Ledger.read(path) as old, Ledger.open(new, old.header) as ledger:
        for row in old.rows():
            ledger.append([replace(row, position=change(row))])


#: With bounds the search for other modes descends along tails where the potential is nearly straight. A long descent
#: there makes 1e-3 of a difference of 1e-15, and the run is refused.
AMPLIFIED = ("auto, bounds",)


@pytest.mark.parametrize(
    "case",
    [each if each in ("auto", "HMC") else pytest.param(each, marks=pytest.mark.slow) for each in cases.CASES],
)
@pytest.mark.parametrize("noise", [pytest.param(1e-15, marks=pytest.mark.slow), 1e-14])
def test_positions_that_differ_in_rounding(case, noise, tmp_path):
    first = sample(case, tmp_path / "run.db")

    def rounded_otherwise(row):
        """Return nearly the same position, and the same one for equal positions."""
        rng = np.random.default_rng(int(cases.mark(row.position), 16))
        return row.position * (1.0 + noise * rng.uniform(-1, 1, size=row.position.shape))

    rewritten(tmp_path / "run.db", tmp_path / "new.db", rounded_otherwise)
    model = cases.Model()
    calls = []
    model.done = lambda kind, *points: calls.extend(points)
    try:
        again = sample(case, tmp_path / "new.db", model)
    except LedgerMismatch:  # nothing is drawn that differs
        assert case in AMPLIFIED
        return
    assert again.complete and len(calls) == 1, "the recheck"
    np.testing.assert_allclose(again.draws, first.draws, rtol=1e-6, atol=1e-6)
    more = sample(case, tmp_path / "new.db", model, draws=first.draws.shape[1] + 5)
    assert np.array_equal(more.draws[:, :-5], again.draws)


@pytest.mark.parametrize(
    "case",
    [
        "HMC",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("auto", "auto, values", "auto, outputs", "RNSHMC")
        ),
    ],
)
def test_positions_that_differ(case, tmp_path):
    sample(case, tmp_path / "run.db")
    changed = 55  # later than the rows of which one is evaluated again
    rewritten(
        tmp_path / "run.db",
        tmp_path / "new.db",
        lambda row: row.position + 1e-2 if row.index >= changed else row.position,
    )
    model = cases.Model()
    calls = []
    model.done = lambda kind, *points: calls.extend(points)
    with pytest.raises(
        LedgerMismatch, match=rf"the position of evaluation {changed} of sequence 0 .* in this run"
    ) as caught:
        sample(case, tmp_path / "new.db", model)
    assert len(calls) == 1, "the recheck"
    assert "learn_from=" in str(caught.value)


def test_another_kind_of_evaluation(tmp_path):
    """A recorded value where the run asks for a gradient."""
    sample("HMC", tmp_path / "run.db")
    with Ledger.read(tmp_path / "run.db") as old, Ledger.open(tmp_path / "new.db", old.header) as ledger:
        for row in old.rows():
            ledger.append([replace(row, gradient=None) if row.index == 30 else row])
    with pytest.raises(
        LedgerMismatch, match=r"has a value at evaluation 30 .* asks for a value and gradient"
    ):
        sample("HMC", tmp_path / "new.db")


def test_the_evaluator_returns_recorded_positions(tmp_path):
    from leapwise.execution import Evaluator
    from leapwise.storage.replay import Replay

    sample("auto", tmp_path / "run.db")
    with Ledger.read(tmp_path / "run.db") as old, Ledger.open(tmp_path / "new.db", old.header) as ledger:
        row = next(old.rows(0))
        stored = row.position * (1 + 1e-12)
        ledger.append([replace(row, position=stored)])
        evaluator = Evaluator(cases.target("gradient", cases.Model()), replay=Replay(ledger, 0))
        ask = evaluator.value_and_gradient if row.gradient is not None else evaluator.value
        found = ask(row.position[None])
    assert np.array_equal(found.position[0], stored) and not np.array_equal(stored, row.position)
    assert found.potential[0] == -row.log_density
