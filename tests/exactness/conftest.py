"""The false-alarm rate of the checks, and the fixture that makes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leapwise.testing import Invariance, check_invariance

#: Largest probability that a correct kernel fails one check of invariance. The summary adds them all up.
FALSE_ALARM = 1e-7


@pytest.fixture
def check(record_property) -> Callable[..., Invariance]:
    """Check a kernel; `table`, `row` and `column` say where the largest |z| goes in the summary."""

    def check(kernel, exact, *, table: str, row: str, column: str, **options) -> Invariance:
        verdict = check_invariance(kernel, exact, false_alarm=FALSE_ALARM, **options)
        moved = verdict.largest if verdict.acceptance else None  # if no chain moves, nothing is tested
        record_property("invariance", (table, row, column, moved, verdict.n_chains))
        record_property("threshold", verdict.threshold)
        record_property("false_alarm", FALSE_ALARM)
        assert verdict.passed, f"\n{verdict}"
        return verdict

    return check
