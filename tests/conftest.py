"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest


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
