"""Fixtures of the tests of resuming."""

from __future__ import annotations

import pytest
from resume_runs import ChildRuns


@pytest.fixture(scope="session")
def runner():
    """Starts runs in processes that can be killed."""
    found = ChildRuns()
    yield found
    found.close()
