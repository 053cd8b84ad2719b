"""The tier's false-alarm rate, and how kernels are held to account."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leapwise.testing import Invariance, check_invariance

#: Of each check of invariance: a sound kernel fails it with this probability at most. The summary adds them all up.
FALSE_ALARM = 1e-7


@pytest.fixture
def hold(record_property) -> Callable[..., Invariance]:
    """Hold a kernel to account; `table`, `row` and `column` say where in the summary the largest |z| goes."""

    def hold(kernel, exact, *, table: str, row: str, column: str, **options) -> Invariance:
        verdict = check_invariance(kernel, exact, false_alarm=FALSE_ALARM, **options)
        moved = verdict.largest if verdict.acceptance else None  # where nothing moves there is nothing to see
        record_property("invariance", (table, row, column, moved, verdict.n_chains))
        record_property("threshold", verdict.threshold)
        record_property("false_alarm", FALSE_ALARM)
        assert verdict.passed, f"\n{verdict}"
        return verdict

    return hold
