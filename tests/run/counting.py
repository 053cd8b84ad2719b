"""Targets that count their calls, and can be told to fail at one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from understudy import Target


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
