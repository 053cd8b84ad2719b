"""Two tiers of the same checks: a quick one, and one with five times the chains for `make test-full`."""

from __future__ import annotations

import zlib

import pytest

#: How many times the chains of the quick tier.
TIERS = [pytest.param(1, id="quick"), pytest.param(5, id="full", marks=pytest.mark.slow)]


def seed(*names: object) -> int:
    """Return a seed of its own for each check, so that no unlucky draw is seen twice."""
    return zlib.crc32(repr(names).encode())
