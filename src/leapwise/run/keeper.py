"""What a run keeps in its ledger beside evaluations: the end of warm-up, blocks of draws, and where chains are.

They spare a resumed run the steps up to there; without them it would come to the same by replaying every evaluation.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise.errors import ArchiveError, LedgerDamaged
from leapwise.execution import Counts, Evaluation
from leapwise.kernels import State, Streams
from leapwise.run.recorder import Block
from leapwise.storage import Ledger, LedgerWarning
from leapwise.storage.archive import pack, unpack

#: A larger surrogate (the factor of a Gaussian process) is trained again when a run is resumed.
MOST_BYTES = 1 << 26
_METHOD, _WARMED, _LEARNT = "method", "warmed", "learnt"


@dataclass(frozen=True, eq=False)
class Kept:
    """Where a group can be taken up: after `n_done` steps and before evaluation `index` of its lane."""

    state: State
    streams: Streams
    counts: Counts
    n_done: int
    index: int
    seconds: float
    failures: list[np.ndarray]
    proven: list[bool]


class Keeper:
    """Keeps the parts of one run in a ledger.

    Parameters
    ----------
    ledger : Ledger
        Open for writing.
    references : mapping of str to object
        Live objects that a kernel may hold, and which are not written: the target, the user's method.
    """

    def __init__(self, ledger: Ledger, references: Mapping[str, object]) -> None:
        self._ledger = ledger
        self._references = dict(references)
        # States know what a surrogate of the kernel is where the chains are: of *this* one, to the last bit.
        self._kernel: dict[str, object] = {}

    def keep_method(self, method: object) -> None:
        """Keep how to sample, for those who resume without it; what cannot be written is left out."""
        with suppress(ArchiveError):
            self._ledger.save(_METHOD, *pack(method, {"target": self._references["target"]}))

    def method(self) -> Any:
        """Return how to sample, or None if that was not kept."""
        found = self._ledger.load(_METHOD)
        return None if found is None else unpack(*found, {"target": self._references["target"]})

    def keep_warmed(self, parts: dict[str, Any]) -> bool:
        """Keep what warm-up has come to; return False if it cannot be written, or is too much."""
        try:
            arrays, meta = pack(parts, self._references)
        except ArchiveError:
            return False
        if sum(each.nbytes for each in arrays.values()) > MOST_BYTES:
            return False
        self._ledger.save(_WARMED, arrays, meta)
        self._kernel = {"kernel": parts["kernel"]}
        return True

    def warmed(self) -> dict[str, Any] | None:
        """Return what warm-up had come to, if it was kept."""
        try:
            found = self._load(_WARMED)
        except ArchiveError as error:
            warnings.warn(_unread(self._ledger.path, error), LedgerWarning, stacklevel=2)
            return None
        if found is None:
            return None
        self._kernel = {"kernel": found["kernel"]}
        return dict(found)

    def keep_known(self, known: list[Evaluation]) -> None:
        """Keep what is learnt from other ledgers, which may change or go away."""
        self._ledger.save(_LEARNT, *pack(known))

    def known(self) -> list[Evaluation] | None:
        """Return what was learnt from other ledgers, if it was kept."""
        return self._load(_LEARNT)

    def keep(self, lane: int, first: int, block: Block, kept: Kept) -> None:
        """Keep a block of draws that begins at step `first`, and where its chains are after it, in one piece."""
        state, meta = pack(dict(vars(kept)), self._references | self._kernel)
        arrays = {
            "positions": block.positions,
            **{f"stats {name}": each for name, each in block.stats.items()},
        }
        with self._ledger.transaction():
            self._ledger.save(_name(lane, first), arrays, {})
            self._ledger.save(f"state {lane}", state, {"n_done": kept.n_done, "archive": meta})

    def kept(self, lane: int) -> Kept | None:
        """Return where a group can be taken up, if it was kept; the end of warm-up must have been read before."""
        found = self._ledger.load(f"state {lane}")
        if found is None:
            return None
        try:
            return Kept(**unpack(found[0], found[1]["archive"], self._references | self._kernel))
        except (ArchiveError, TypeError) as error:
            warnings.warn(_unread(self._ledger.path, error), LedgerWarning, stacklevel=2)
            return None

    def blocks(self, lane: int, n_steps: int) -> Iterator[Block]:
        """Yield the blocks of a group that make up its first steps."""
        done = 0
        while done < n_steps:
            block = self._block(lane, done)
            if block is None:
                raise LedgerDamaged(
                    f"the ledger {self._ledger.path} has no draws of lane {lane} from step {done} on, though it says "
                    "that they were made; go back to a copy of it"
                )
            yield block
            done += block.n_steps

    def all_blocks(self, lane: int) -> Iterator[Block]:
        """Yield all blocks of a group from its first step on."""
        done = 0
        while (block := self._block(lane, done)) is not None and block.n_steps:
            yield block
            done += block.n_steps

    def _block(self, lane: int, first: int) -> Block | None:
        found = self._ledger.load(_name(lane, first))
        if found is None:
            return None
        arrays = found[0]
        stats = {name.removeprefix("stats "): each for name, each in arrays.items() if name != "positions"}
        return Block(arrays["positions"], stats)

    def _load(self, name: str) -> Any:
        found = self._ledger.load(name)
        if found is None:
            return None
        return unpack(*found, self._references)


def _unread(path: str, error: Exception) -> str:
    return f"of the ledger {path} the evaluations are replayed, since what they had come to cannot be read: {error}"


def _name(lane: int, first: int) -> str:
    return f"draws {lane} {first:012d}"


def one_row(state: State, chain: int) -> State:
    """Return the state of one chain alone; what is known of a surrogate or metric there is found again."""
    rows = slice(chain, chain + 1)
    gradient = None if state.gradient is None else np.array(state.gradient[rows])
    return State(np.array(state.position[rows]), np.array(state.potential[rows]), gradient)
