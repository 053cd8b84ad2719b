"""Our targets in the form that the peers of `benchmarks.compare` need."""

from __future__ import annotations

import numpy as np
from benchmarks.compare.exact import Exact

import leapwise as lw

from .runs import starts


class Given(Exact):
    """A target that peers call back, and starts within a radius."""

    def __init__(self, target: lw.Target, radius: float) -> None:
        self.form = "numpy"
        self.target, self.dim, self.radius = target, target.dim, radius
        self.evaluator = lw.Evaluator(target)
        self._known = {}

    def starts(self, seed: int, n: int) -> np.ndarray:
        """Draw starts ``(n, dim)``, the same as for `sample`."""
        return starts(self.target, seed, n, self.radius)
