"""Targets that count their calls, and can be told to fail at one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from leapwise import Target


class Counted:
    """A standard normal, evaluated one point at a time; `at` maps the number of a call to what happens then.

    What happens is a function without arguments: it may raise, or return what the log-density is to be.
    """

    def __init__(self, dim: int = 2, at: dict[int, Callable[[], Any]] | None = None, **settings: Any) -> None:
        self.calls, self.at = 0, at or {}
        self.target = Target(self.value, lambda x: -x, dim=dim, **settings)

    def value(self, x: np.ndarray) -> Any:
        self.calls += 1
        return self.at[self.calls]() if self.calls in self.at else -0.5 * x @ x


class Skewed:
    """Gumbel variables, each pulled towards the next; remembers each call: where it was, and whether for a gradient."""

    def __init__(
        self,
        dim: int = 3,
        gradient: bool = True,
        at: dict[int, Callable[[], Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.positions: list[np.ndarray] = []
        self.for_gradient: list[bool] = []
        self.at = at or {}
        self.target = Target(self.value, self.score if gradient else None, dim=dim, **settings)

    @property
    def calls(self) -> int:
        return len(self.positions)

    @property
    def n_gradients(self) -> int:
        return sum(self.for_gradient)

    def value(self, x: np.ndarray) -> Any:
        self.positions.append(np.array(x))
        self.for_gradient.append(False)
        if self.calls in self.at:
            return self.at[self.calls]()
        with np.errstate(over="ignore"):  # far out there is no mass
            return -(x + np.exp(-x)).sum() - 0.3 * (np.diff(x) ** 2).sum()

    def score(self, x: np.ndarray) -> np.ndarray:
        self.for_gradient[-1] = True
        pull = np.zeros(len(x) + 1)
        pull[1:-1] = 0.6 * np.diff(x)
        with np.errstate(over="ignore"):
            return np.exp(-x) - 1.0 + np.diff(pull)


def repeated(positions: list[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of calls at one position, up to rounding: far nearer than neighbours of a difference quotient are."""
    return sorted(cKDTree(np.array(positions)).query_pairs(1e-8, p=np.inf))
