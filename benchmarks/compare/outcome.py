"""The result of a run."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Outcome:
    """Draws ``(chains, draws, dim)``, their cost, and seconds without compiling.

    `ess`, of means and of squares, is given only by methods whose chains are not independent. `is_precise` says that
    the run ended as soon as its errors were at most `figures.PRECISION`.
    """

    draws: np.ndarray
    n_values: int
    n_gradients: int
    seconds: float
    warmup_seconds: float | None = None
    compile_seconds: float = 0.0
    ess: tuple[np.ndarray, np.ndarray] | None = None
    notes: dict = field(default_factory=dict)
    is_precise: bool = False


class Watch:
    """Times parts of a run, without compiling if there is a clock for it."""

    def __init__(self, clock=None) -> None:
        self.clock = clock
        self.parts: dict[str, float] = {}
        self.compile_seconds = 0.0

    @contextmanager
    def part(self, name: str):
        started = time.perf_counter()
        yield
        ended = time.perf_counter()
        compiling = 0.0 if self.clock is None else self.clock.seconds(started, ended)
        self.compile_seconds += compiling
        self.parts[name] = ended - started - compiling

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())
