"""Keeps what each step of a phase leaves behind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from leapwise.kernels import Info, State
from leapwise.targets import AnyTarget

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
    "left": bool,
    "mode": int,
}


class Block(NamedTuple):
    """Successive steps of some chains: positions ``(chains, steps, dim)``, and statistics ``(chains, steps)``."""

    positions: np.ndarray
    stats: dict[str, np.ndarray]

    @property
    def n_steps(self) -> int:
        """How many steps."""
        return self.positions.shape[1]


class Recorder:
    """Room for positions and statistics of some chains, filled step by step.

    Parameters
    ----------
    n_chains, n_steps : int
        Size.
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
        for name, kind in OTHER_STATISTICS.items():
            value = getattr(info, name)
            if value is not None:
                if name not in self._stats:  # steps of a mixture that have no such thing
                    self._stats[name] = np.full(self._shape, np.nan if kind is float else 0, dtype=kind)
                self._stats[name][:, now] = value
        self.n_filled = now + 1

    def block(self) -> Block:
        """Return what is stored."""
        n = self.n_filled
        return Block(
            self._positions[:, :n].copy(),
            {name: values[:, :n].copy() for name, values in self._stats.items()},
        )

    def empty(self) -> None:
        """Make room again; what other kernels of a mixture left must not show through."""
        self.n_filled = 0
        for name, kind in OTHER_STATISTICS.items():
            if name in self._stats:
                self._stats[name][:] = np.nan if kind is float else 0


def joined(blocks: list[Block]) -> Block:
    """Return blocks of the same chains one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(np.concatenate([block.positions for block in blocks], axis=1), _stats(blocks, axis=1))


def beside(blocks: list[Block]) -> Block:
    """Return blocks of different chains side by side, as many steps as all of them have."""
    if len(blocks) == 1:
        return blocks[0]
    n = min(block.n_steps for block in blocks)
    cut = [Block(block.positions[:, :n], {k: v[:, :n] for k, v in block.stats.items()}) for block in blocks]
    return Block(np.concatenate([block.positions for block in cut]), _stats(cut, axis=0))


def in_parameters(positions: np.ndarray, target: AnyTarget) -> np.ndarray:
    """Return positions ``(chains, steps, dim)`` in the user's coordinates."""
    flat = target.transform.to_parameters(positions.reshape(-1, positions.shape[2]))
    return np.array(flat).reshape(positions.shape)


def _stats(blocks: list[Block], axis: int) -> dict[str, np.ndarray]:
    """Join statistics; those that a block has not are NaN, or 0, in its part."""
    names = [
        name for name in (*STATISTICS, *OTHER_STATISTICS) if any(name in block.stats for block in blocks)
    ]
    return {name: np.concatenate([_one(block, name) for block in blocks], axis=axis) for name in names}


def _one(block: Block, name: str) -> np.ndarray:
    if name in block.stats:
        return block.stats[name]
    kind = (STATISTICS | OTHER_STATISTICS)[name]
    return np.full(block.positions.shape[:2], np.nan if kind is float else 0, dtype=kind)
