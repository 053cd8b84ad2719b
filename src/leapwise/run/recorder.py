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


#: Outputs of all draws take at most so many bytes by default. A guess: small beside the memory of any computer.
MAX_OUTPUT_BYTES = 1 << 28


def keep_every(wanted: bool | int | None, n_draws: int, n_outputs: int) -> int:
    """Return every how many draws outputs are kept; 0 for none.

    Parameters
    ----------
    wanted : bool, int or None
        All, none, every so many, or as many as fit into 256 MiB.
    n_draws : int
        Of all chains together.
    n_outputs : int

    Examples
    --------
    >>> keep_every(None, 4000, 100), keep_every(None, 4000, 100_000), keep_every(False, 4000, 100)
    (1, 12, 0)
    """
    if wanted is None:
        return max(1, -(-n_draws * n_outputs * 8 // MAX_OUTPUT_BYTES))
    return int(wanted)


class Block(NamedTuple):
    """Successive steps of some chains: positions ``(chains, steps, dim)``, and statistics ``(chains, steps)``.

    `outputs` ``(chains, kept, m)`` are those of the forward model at every so many steps, counted from the first of the
    run; None if there are none.
    """

    positions: np.ndarray
    stats: dict[str, np.ndarray]
    outputs: np.ndarray | None = None

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return self.positions.shape[1]

    def first(self, n_steps: int, every: int = 1) -> Block:
        """Return the first steps only, of a block that begins at the first step and has outputs `every` so many."""
        stats = {name: values[:, :n_steps] for name, values in self.stats.items()}
        outputs = None if self.outputs is None else self.outputs[:, : -(-n_steps // every)]
        return Block(self.positions[:, :n_steps], stats, outputs)


class Recorder:
    """Arrays for positions and statistics of some chains, filled step by step.

    Parameters
    ----------
    n_chains, n_steps : int
        Number of chains, and of steps that there is room for.
    dim : int
        Number of parameters.
    every : int
        Outputs of every so many steps are kept; 0 for none.

    Attributes
    ----------
    n_before : int
        Steps of the run before the first that is stored here.
    """

    def __init__(self, n_chains: int, n_steps: int, dim: int, every: int = 0) -> None:
        self._shape, self.every, self.n_before = (n_chains, n_steps), every, 0
        self._outputs: list[np.ndarray] = []
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
        if self.every and state.outputs is not None and (self.n_before + now) % self.every == 0:
            self._outputs.append(state.outputs)
        self.n_filled = now + 1

    def block(self) -> Block:
        """Return a copy of what is stored."""
        n = self.n_filled
        return Block(
            self._positions[:, :n].copy(),
            {name: values[:, :n].copy() for name, values in self._stats.items()},
            np.stack(self._outputs, axis=1) if self._outputs else None,
        )

    def empty(self) -> None:
        """Make room again, and clear the statistics that the next steps may not have."""
        self.n_before += self.n_filled
        self.n_filled, self._outputs = 0, []
        for name in OPTIONAL_STATISTICS:
            if name in self._stats:
                self._stats[name] = _missing(name, self._shape)


def joined(blocks: list[Block]) -> Block:
    """Return blocks of the same chains one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        np.concatenate([block.positions for block in blocks], axis=1),
        _joined_stats(blocks, axis=1),
        _joined_outputs(blocks, axis=1),
    )


def beside(blocks: list[Block], every: int = 1) -> Block:
    """Return blocks of different chains side by side, with as many steps as all of them have."""
    if len(blocks) == 1:
        return blocks[0]
    n = min(block.n_steps for block in blocks)
    cut = [block.first(n, every) for block in blocks]
    return Block(
        np.concatenate([block.positions for block in cut]),
        _joined_stats(cut, axis=0),
        _joined_outputs(cut, axis=0),
    )


def in_parameters(positions: np.ndarray, target: AnyTarget) -> np.ndarray:
    """Return positions ``(chains, steps, dim)`` in the user's coordinates."""
    flat = target.transform.to_parameters(positions.reshape(-1, positions.shape[2]))
    return np.array(flat).reshape(positions.shape)


def _joined_outputs(blocks: list[Block], axis: int) -> np.ndarray | None:
    """Join the outputs of blocks; blocks one after the other may lack them, those side by side may not."""
    found = [block.outputs for block in blocks if block.outputs is not None]
    if not found or (axis == 0 and len(found) < len(blocks)):
        return None
    return np.concatenate(found, axis=axis)


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
