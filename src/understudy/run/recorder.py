"""Keeps what each step of a phase leaves behind."""

from __future__ import annotations

import time

import numpy as np

from understudy.kernels import Info, State
from understudy.results import Cost, Record
from understudy.targets import Counts, Evaluator

STATISTICS = {
    "lp": float,
    "acceptance_rate": float,
    "accepted": bool,
    "step_size": float,
    "n_steps": int,
    "diverging": bool,
    "energy": float,
    "energy_error": float,
    "n_exact": int,
}
OTHER_STATISTICS = {  # of some kernels only
    "n_metrics": int,
    "unsolved": bool,
    "discrepancy": float,
    "inner_acceptance": float,
    "proposal_potential": float,
    "part": int,
}


class Recorder:
    """Room for the draws and statistics of one phase, filled step by step.

    Parameters
    ----------
    n_chains, n_draws : int
        Size of the phase.
    evaluator : Evaluator
        Whose counts tell the phase's cost, between `open` and `close`.
    """

    def __init__(self, n_chains: int, n_draws: int, evaluator: Evaluator) -> None:
        self._shape = (n_chains, n_draws)
        self._positions = np.empty((n_chains, n_draws, evaluator.target.dim))
        self._stats: dict[str, np.ndarray] = {
            name: np.empty(self._shape, dtype=kind) for name, kind in STATISTICS.items()
        }
        self._evaluator = evaluator
        self.n_metrics = 0  # spent besides the steps
        self._filled = 0
        self._closed: Record | None = None
        self._counts: Counts | None = None
        self._started = 0.0

    @property
    def is_full(self) -> bool:
        """Whether every step has been stored."""
        return self._filled == self._shape[1]

    def open(self) -> None:
        """Begin to count this phase's cost."""
        self._counts = self._evaluator.counts.copy()
        self._started = time.perf_counter()

    def resized(self, n_draws: int) -> Recorder:
        """Return an empty one with room for more steps, that has been counting since this one was opened."""
        other = Recorder(self._shape[0], n_draws, self._evaluator)
        other._counts, other._started = self._counts, self._started
        return other

    def add(self, state: State, info: Info) -> None:
        """Store one step of all chains."""
        now = self._filled
        self._positions[:, now] = state.position
        self._stats["lp"][:, now] = -state.potential
        for name in STATISTICS:
            if name != "lp":
                self._stats[name][:, now] = getattr(info, name)
        for name, kind in OTHER_STATISTICS.items():
            value = getattr(info, name)
            if value is not None:
                absent = np.nan if kind is float else 0  # in steps of a mixture that have no such thing
                self._stats.setdefault(name, np.full(self._shape, absent, dtype=kind))[:, now] = value
        self._filled = now + 1

    def close(self) -> Record:
        """Return what was stored, in the user's coordinates, with what it cost up to now (or the first close)."""
        if self._closed is None:
            transform = self._evaluator.target.transform
            positions = self._positions[:, : self._filled]
            draws = transform.to_parameters(positions.reshape(-1, positions.shape[2])).reshape(
                positions.shape
            )
            stats = {name: values[:, : self._filled].copy() for name, values in self._stats.items()}
            self._closed = Record(draws.copy(), stats, self._cost(stats))
        return self._closed

    def _cost(self, stats: dict[str, np.ndarray]) -> Cost:
        if self._counts is None:
            return Cost()
        spent = self._evaluator.counts.since(self._counts)
        n_metrics = self.n_metrics + (int(stats["n_metrics"].sum()) if "n_metrics" in stats else 0)
        return Cost(n_metrics=n_metrics, seconds=time.perf_counter() - self._started, **vars(spent))
