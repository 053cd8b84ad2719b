"""Fixtures shared by all tests."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import numpy as np
import pytest

from exactness_summary import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name settings by what they are, less addresses in memory: tests have the same names in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(val)) if isinstance(val, dict) else None


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20161027)


@pytest.fixture
def central_differences() -> Callable[..., np.ndarray]:
    """Return the numerical gradient ``(n, dim)`` of a batch function, good to about 1e-9 relative."""

    def gradient(
        function: Callable[[np.ndarray], np.ndarray], points: np.ndarray, step: float = 1e-5
    ) -> np.ndarray:
        n, dim = points.shape
        steps = step * np.eye(dim)
        ahead = function((points[:, None] + steps).reshape(-1, dim)).reshape(n, dim)
        behind = function((points[:, None] - steps).reshape(-1, dim)).reshape(n, dim)
        return (ahead - behind) / (2 * step)

    return gradient


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C interrupt, also where tests run in the background: shells ignore SIGINT there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
