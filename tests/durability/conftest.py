"""Fixtures of the tests of resuming."""

from __future__ import annotations

import pytest
from resume_runs import Nursery


@pytest.fixture(scope="session")
def nursery():
    """Starts runs in processes that can be killed."""
    found = Nursery()
    yield found
    found.close()
