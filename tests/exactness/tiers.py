"""Two tiers of the same checks: a quick one, and one with ten times the chains for `make test-full`."""

from __future__ import annotations

import zlib

import pytest

SLOW = pytest.mark.slow
#: How many times the chains of the quick tier.
TIERS = [pytest.param(1, id="quick"), pytest.param(10, id="full", marks=SLOW)]


def seed(*names: object) -> int:
    """Return a different seed for each check, so that no unlucky draw occurs twice."""
    return zlib.crc32(repr(names).encode())
