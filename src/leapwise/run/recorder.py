"""What each step of the chains leaves: its position and its statistics, as arrays.

A `Recorder` is filled step by step, in warm-up and in the draws. Its `Block`s are joined in time or side by side. It
holds no evaluations and trains nothing; the evaluations of warm-up are in `leapwise.adaptation.record`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from leapwise.kernels import Info, State
from leapwise.targets import AnyTarget

#: Statistics of every kernel, in ArviZ's words, and their types.
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

#: Statistics of some kernels only. Steps without one of them hold NaN, or 0, in its place.
OPTIONAL_STATISTICS = {
    "n_metrics": int,
    "unsolved": bool,
    "discrepancy": float,
    "inner_acceptance": float,
    "proposal_potential": float,
    "part": int,
    "left": bool,
    "mode": int,
}


class Block(NamedTuple):
    """Successive steps of some chains: positions ``(chains, steps, dim)``, and statistics ``(chains, steps)``."""

    positions: np.ndarray
    stats: dict[str, np.ndarray]

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return self.positions.shape[1]

    def first(self, n_steps: int) -> Block:
        """Return the first steps only."""
        stats = {name: values[:, :n_steps] for name, values in self.stats.items()}
        return Block(self.positions[:, :n_steps], stats)


class Recorder:
    """Arrays for positions and statistics of some chains, filled step by step.

    Parameters
    ----------
    n_chains, n_steps : int
        Number of chains, and of steps that there is room for.
    dim : int
        Number of parameters.
    """

    def __init__(self, n_chains: int, n_steps: int, dim: int) -> None:
        self._shape = (n_chains, n_steps)
        self._positions = np.empty((n_chains, n_steps, dim))
        self._stats: dict[str, np.ndarray] = {
            name: np.empty(self._shape, dtype=kind) for name, kind in STATISTICS.items()
        }
        self.n_filled = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another step."""
        return self.n_filled == self._shape[1]

    def add(self, state: State, info: Info) -> None:
        """Store one step of all chains."""
        now = self.n_filled
        self._positions[:, now] = state.position
        self._stats["lp"][:, now] = -state.potential
        for name in STATISTICS:
            if name != "lp":
                self._stats[name][:, now] = getattr(info, name)
        for name in OPTIONAL_STATISTICS:
            value = getattr(info, name)
            if value is not None:
                if name not in self._stats:  # earlier steps, of another kernel of a mixture, did not have it
                    self._stats[name] = _missing(name, self._shape)
                self._stats[name][:, now] = value
        self.n_filled = now + 1

    def block(self) -> Block:
        """Return a copy of what is stored."""
        n = self.n_filled
        return Block(
            self._positions[:, :n].copy(),
            {name: values[:, :n].copy() for name, values in self._stats.items()},
        )

    def empty(self) -> None:
        """Make room again, and clear the statistics that the next steps may not have."""
        self.n_filled = 0
        for name in OPTIONAL_STATISTICS:
            if name in self._stats:
                self._stats[name] = _missing(name, self._shape)


def joined(blocks: list[Block]) -> Block:
    """Return blocks of the same chains one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(np.concatenate([block.positions for block in blocks], axis=1), _joined_stats(blocks, axis=1))


def beside(blocks: list[Block]) -> Block:
    """Return blocks of different chains side by side, with as many steps as all of them have."""
    if len(blocks) == 1:
        return blocks[0]
    n = min(block.n_steps for block in blocks)
    cut = [block.first(n) for block in blocks]
    return Block(np.concatenate([block.positions for block in cut]), _joined_stats(cut, axis=0))


def in_parameters(positions: np.ndarray, target: AnyTarget) -> np.ndarray:
    """Return positions ``(chains, steps, dim)`` in the user's coordinates."""
    flat = target.transform.to_parameters(positions.reshape(-1, positions.shape[2]))
    return np.array(flat).reshape(positions.shape)


def _joined_stats(blocks: list[Block], axis: int) -> dict[str, np.ndarray]:
    """Join the statistics that at least one block has."""
    names = [
        name for name in (*STATISTICS, *OPTIONAL_STATISTICS) if any(name in block.stats for block in blocks)
    ]
    return {
        name: np.concatenate(
            [
                block.stats[name] if name in block.stats else _missing(name, block.positions.shape[:2])
                for block in blocks
            ],
            axis=axis,
        )
        for name in names
    }


def _missing(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return NaN, or 0, in place of a statistic that steps do not have."""
    kind = (STATISTICS | OPTIONAL_STATISTICS)[name]
    return np.full(shape, np.nan if kind is float else 0, dtype=kind)
