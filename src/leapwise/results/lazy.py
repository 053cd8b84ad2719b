"""A record that stays on disk until somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leapwise.results.run import Cost, Record


class LazyRecord(Record):
    """Draws and statistics that are read when they are first asked for.

    Parameters
    ----------
    load : callable
        Returns draws ``(chains, draws, dim)`` and statistics.
    shape : tuple of int
        Of the draws, which is known without reading them.
    cost : Cost

    Examples
    --------
    >>> record = LazyRecord(lambda: (np.zeros((4, 10, 2)), {}), (4, 10, 2), Cost())
    >>> record.shape, record.draws.shape
    ((4, 10, 2), (4, 10, 2))
    """

    def __init__(
        self,
        load: Callable[[], tuple[np.ndarray, dict[str, np.ndarray]]],
        shape: tuple[int, int, int],
        cost: Cost,
    ) -> None:
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "_load", load)
        object.__setattr__(self, "_shape", shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Chains, draws and parameters."""
        return self._shape

    def __getattr__(self, name: str) -> Any:
        if name not in ("draws", "stats"):
            raise AttributeError(name)
        draws, stats = self._load()
        object.__setattr__(self, "draws", draws)
        object.__setattr__(self, "stats", stats)
        return getattr(self, name)
