"""The ledger side of a run: opened, held against what is asked for, and filled.

Before anything is spent on an existing ledger, three things are compared with it: what identifies the target, the
settings that decide what the program does, and the log-density at one recorded position, which is evaluated again.

What a run keeps in its ledger beside evaluations: the end of warm-up, blocks of draws, and where chains are.

They spare a resumed run the steps up to there; without them it would come to the same by replaying every evaluation.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import ArchiveError, LedgerDamaged, LedgerMismatch
from leapwise.execution import Counts, Evaluation, Evaluator
from leapwise.execution.evaluator import middle_row, require_unchanged
from leapwise.kernels import State, Streams
from leapwise.results import Cost, LazyRecord, Record

if TYPE_CHECKING:
    from leapwise.run.production import ChainGroup

from leapwise.run.recorder import Block, beside, in_parameters, joined
from leapwise.run.request import Request, describe, versions
from leapwise.run.stored import pack, parts_of, unpack
from leapwise.storage import Header, Ledger, LedgerWarning
from leapwise.storage.replay import Journal
from leapwise.surrogates.base import fingerprint
from leapwise.targets import AnyTarget
from leapwise.targets.identity import differences, identify

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
            self._ledger.save(_METHOD, *pack(method, self._of_target()))

    def method(self) -> Any:
        """Return how to sample, or None if that was not kept."""
        found = self._ledger.load(_METHOD)
        return None if found is None else unpack(*found, self._of_target())

    def _of_target(self) -> dict[str, object]:
        return {name: each for name, each in self._references.items() if name != "method"}

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


#: Names of small snapshots for those who look inside: the draws asked for, and how the surrogate did.
ASKED, SURROGATE = "asked", "surrogate"
#: How many of the first recorded positions the one to evaluate again is chosen from.
_FIRST_ROWS = 50
#: Draws and statistics of more bytes than this stay on disk until they are looked at.
_MOST_BYTES = 1 << 24


class Book:
    """One run's ledger.

    Attributes
    ----------
    ledger : Ledger
    keeper : Keeper
    apart : bool
        Whether each chain has a lane of its own for its draws.
    planned_draws : int
        How many draws were asked for when the run began.
    can_keep : bool
        Whether kernel and states can be written; if not, resuming replays everything.
    """

    def __init__(self, ledger: Ledger, target: AnyTarget, method: object) -> None:
        self.ledger = ledger
        self.keeper = Keeper(ledger, parts_of(target) | {"method": method})
        settings = ledger.header.settings
        self.apart = bool(settings["apart"])
        self.planned_draws = int(settings["draws"])
        self.can_keep = False

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        request: Request,
        *,
        apart: bool,
        on_failure: str,
        version: str | None,
        seed_given: bool,
    ) -> Book:
        """Make a ledger for a request, or open the one that is there, if it is of the same run.

        Raises
        ------
        LedgerMismatch
            If the target, a setting or the seed is another; it says which.
        """
        target = request.target
        identity = identify(target, version)
        settings = _settings(request, on_failure) | {"draws": int(request.draws), "apart": apart}
        names = target.names
        header = Header(
            library_version=versions()["leapwise"],
            dim=target.dim,
            names=tuple(f"{names}[{i}]" for i in range(target.dim))
            if isinstance(names, str)
            else tuple(names),
            settings=settings,
            seed=request.seed,
            fingerprint=identity,
        )
        ledger = Ledger.open(path, header)
        try:
            _require_same_run(ledger, header, request.seed if seed_given else None)
            ledger.save(ASKED, {}, {"draws": int(request.draws)})
            book = cls(ledger, target, request.method)
            book.keeper.keep_method(request.method)
            return book
        except BaseException:
            ledger.close()
            raise

    @property
    def seed(self) -> int:
        """The seed of the run that began it."""
        return int(self.ledger.header.seed)

    def journal(self, lane: int, chain: int = -1) -> Journal:
        """Return a lane from its beginning."""
        journal = Journal(self.ledger, lane, chain=chain)
        if lane:
            journal.phase = "draws"
        return journal

    def warmed(self) -> dict[str, Any] | None:
        """Return what warm-up had come to, if it was kept."""
        found = self.keeper.warmed()
        self.can_keep = found is not None
        return found

    def keep_warmed(self, parts: dict[str, Any]) -> None:
        """Keep what warm-up has come to, if it can be written; and for people, how well the surrogate did."""
        report = parts["report"]
        about = {} if report is None else {"kind": report.kind, "sd": report.sd, "share": report.exact_share}
        self.ledger.save(SURROGATE, {}, {name: str(value) for name, value in about.items()})
        self.can_keep = self.keeper.keep_warmed(parts)

    def recheck(self, evaluator: Evaluator) -> None:
        """Evaluate a recorded position again, and raise if its log-density has changed."""
        rows = [
            row for row, _ in zip(self.ledger.lane(0), range(_FIRST_ROWS), strict=False) if row.status == "ok"
        ]
        if not rows:
            return
        require_unchanged(middle_row(rows), evaluator, self.ledger.path)

    def lazily(self, groups: list[ChainGroup], cost: Cost) -> Record | None:
        """Return draws that stay on disk until they are looked at; None if they are few, or not all there."""
        first = groups[0]
        chains, dim = sum(len(each.state.position) for each in groups), first.state.position.shape[1]
        shape = (chains, min(min(each.n_done, each.n_steps) for each in groups), dim)
        in_memory = any(each.n_in_memory for each in groups)
        if in_memory or chains * shape[1] * (dim + 12) * 8 < _MOST_BYTES:
            return None
        lanes = [each.lane for each in groups]
        load = _loader(self.ledger.path, lanes, shape[1], first.evaluator.target)
        return LazyRecord(load, shape, cost)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


def _settings(request: Request, on_failure: str) -> dict[str, Any]:
    """Return what decides what the program does, as JSON has it."""
    found = {
        "method": describe(request.method) | _trained(request.method),
        "chains": int(request.chains),
        "tune": None if request.tune is None else int(request.tune),
        "max_evaluations": None if request.max_evaluations is None else int(request.max_evaluations),
        "init": _digest(request.init),
        "on_failure": on_failure,
    }
    return dict(json.loads(json.dumps(found, default=str)))


def _trained(method: object) -> dict[str, str]:
    """Return the hash of a surrogate that came trained."""
    surrogate = getattr(method, "surrogate", None)
    return {"trained": fingerprint(surrogate)} if hasattr(surrogate, "potential_and_gradient") else {}


def _digest(init: ArrayLike | None) -> str | None:
    if init is None:
        return None
    return hashlib.sha256(np.ascontiguousarray(init, dtype=float).tobytes()).hexdigest()[:16]


def _require_same_run(ledger: Ledger, now: Header, seed: int | None) -> None:
    then = ledger.header
    changed = differences(then.fingerprint, now.fingerprint)
    if changed:
        raise LedgerMismatch(
            f"the ledger {ledger.path} is of another target: {'; '.join(changed)}; use the target that it is of, or "
            "start a new ledger"
        )
    for name, value in now.settings.items():
        if name in ("draws", "apart"):
            continue
        # A run that a failure has ended may go on with such points declared outside, but not the other way round.
        if name == "on_failure" and value == "reject":
            continue
        if then.settings.get(name) != value:
            changed.append(f"{name} was {_shown(then.settings.get(name))}, is {_shown(value)}")
    if seed is not None and then.seed != seed:
        changed.append(f"random_seed was {then.seed}, is {seed}")
    if changed:
        raise LedgerMismatch(
            f"the ledger {ledger.path} is of another run: {'; '.join(changed)}; ask for the same, or start a new "
            "ledger (learn_from= trains on this one)"
        )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + "..."


def _loader(
    path: str, lanes: list[int], n_steps: int, target: AnyTarget
) -> Callable[[], tuple[np.ndarray, dict[str, np.ndarray]]]:
    def load() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with Ledger.read(path) as ledger:
            keeper = Keeper(ledger, {})
            found = beside([_cut(joined(list(keeper.blocks(lane, n_steps))), n_steps) for lane in lanes])
        return in_parameters(found.positions, target), found.stats

    return load


def _cut(block: Block, n_steps: int) -> Block:
    return Block(
        block.positions[:, :n_steps], {name: each[:, :n_steps] for name, each in block.stats.items()}
    )
