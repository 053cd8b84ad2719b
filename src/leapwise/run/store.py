"""What a run reads from its ledger and writes to it.

Before an existing ledger is used, three things are compared with it: what identifies the target, the settings that
decide which draws are made, and the log-density at one recorded position, which is evaluated again.

Besides evaluations a ledger holds checkpoints: the end of warm-up, blocks of draws, and the states of the chains. They
save a resumed run the steps up to there. Without them it reaches the same draws by replaying every evaluation.

Three parts share the work. `leapwise.storage` writes and reads the file, and does not know what a run is. This module
decides what of a run is written, and when it may be used again. `leapwise.run.class_tags` lists the classes of which
objects in checkpoints may be.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.settings import DEFAULT
from leapwise.errors import ArchiveError, LedgerDamaged, LedgerMismatch
from leapwise.execution import Counts, Evaluation, Evaluator
from leapwise.execution.evaluator import require_unchanged
from leapwise.kernels import State, Streams
from leapwise.results import Cost, LazyRecord, Record
from leapwise.run.class_tags import pack, parts_of, unpack
from leapwise.run.recorder import Block, beside, in_parameters, joined
from leapwise.run.request import Request, describe, versions
from leapwise.storage import Header, Ledger, LedgerWarning
from leapwise.storage.replay import Replay
from leapwise.surrogates.base import fingerprint
from leapwise.targets import AnyTarget, ForwardTarget
from leapwise.targets.identity import differences, identify
from leapwise.warmup import Auto

#: A larger end of warm-up is not saved. Only the factor of a large Gaussian process exceeds it, and training that again
#: from replayed evaluations takes seconds.
MAX_WARM_UP_BYTES = 1 << 26
#: Draws and statistics larger than this stay on disk until they are used. A guess: small beside any computer's memory.
MAX_DRAWS_BYTES = 1 << 24
#: The position to evaluate again is chosen among so many rows, the first of warm-up. A guess: enough for a middle one.
_N_FIRST_ROWS = 50
#: A refusal names at most so many changed settings: more are hard to read in one sentence. A guess.
MOST_CHANGES = 3
#: Names of checkpoints.
_METHOD, _WARM_UP, _KNOWN, _ASKED, _SURROGATE = "method", "warm-up", "known", "asked", "surrogate"
_OUTPUTS = "outputs"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a chain group can continue: after `n_done` steps, before evaluation `index` of its sequence."""

    state: State
    streams: Streams
    counts: Counts
    n_done: int
    index: int
    seconds: float
    failures: list[np.ndarray]
    proven: list[bool]


class RunStore:
    """The ledger of one run.

    Parameters
    ----------
    ledger : Ledger
    target : Target or ForwardTarget, optional
        The run's target; needed to read or write kernels and states.
    method : object, optional
        The method as the user gave it; a kernel may hold parts of it.

    Attributes
    ----------
    apart : bool
        Whether the draws of each chain are a sequence of their own.
    planned_draws : int
        Draws that were asked for when the run began.
    saves_states : bool
        Whether kernel and states can be written. If not, a resumed run replays everything.
    """

    def __init__(self, ledger: Ledger, target: AnyTarget | None = None, method: object = None) -> None:
        self.ledger, self.target = ledger, target
        self.apart = bool(ledger.header.settings["apart"])
        self.planned_draws = int(ledger.header.settings["draws"])
        self.saves_states = False
        self._target_parts = {} if target is None else parts_of(target)
        self._references = self._target_parts | {"method": method}

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
    ) -> RunStore:
        """Make a ledger for a request, or open the existing one if it belongs to the same run.

        Raises
        ------
        LedgerMismatch
            If the target, a setting or the seed differs; it says which.
        """
        target = request.target
        names = target.names
        header = Header(
            library_version=versions()["leapwise"],
            dim=target.dim,
            names=tuple(f"{names}[{i}]" for i in range(target.dim))
            if isinstance(names, str)
            else tuple(names),
            settings=_settings(request, on_failure) | {"draws": request.planned_draws, "apart": apart},
            seed=request.seed,
            fingerprint=identify(target, version),
        )
        ledger = Ledger.open(path, header)
        try:
            _require_same_run(ledger, header, request.seed if seed_given else None)
            precision = None if request.precision is None else float(request.precision)
            ledger.save(_ASKED, {}, {"draws": int(request.draws), "precision": precision})
            store = cls(ledger, target, request.method)
            with suppress(ArchiveError):  # a method with parts of the user's own must be given again
                ledger.save(_METHOD, *pack(request.method, store._target_parts))
            return store
        except BaseException:
            ledger.close()
            raise

    @property
    def seed(self) -> int:
        """Seed of the call that began the run."""
        return int(self.ledger.header.seed)

    @property
    def asked(self) -> tuple[int, float | None]:
        """Draws and precision that the last call asked for."""
        found = self._meta(_ASKED)
        return int(found.get("draws", self.planned_draws)), found.get("precision")

    def save_end(self, n_draws: int) -> None:
        """Note that the last call ended with so many draws, which may be fewer than it asked for."""
        self.ledger.save(_ASKED, {}, dict(self._meta(_ASKED)) | {"end": n_draws})

    def is_complete(self, n_draws: int) -> bool:
        """Whether so many draws are all that the last call asked for."""
        return n_draws >= self._meta(_ASKED).get("end", self.asked[0])

    @property
    def about_surrogate(self) -> dict[str, Any]:
        """Kind and quality of the surrogate as text, for people; empty if there is none."""
        return self._meta(_SURROGATE)

    def method(self) -> Any:
        """Return the run's method, or None if it could not be written."""
        found = self.ledger.load(_METHOD)
        return None if found is None else unpack(*found, self._target_parts)

    def replay(self, sequence: int, chain: int = -1) -> Replay:
        """Return a sequence from its beginning."""
        replay = Replay(self.ledger, sequence, chain)
        if sequence:
            replay.phase = "draws"
        return replay

    def recheck(self, evaluator: Evaluator) -> None:
        """Evaluate a recorded position again, and raise if its log-density has changed."""
        first = zip(self.ledger.rows(0), range(_N_FIRST_ROWS), strict=False)
        rows = [row for row, _ in first if row.status == "ok"]
        if rows:
            require_unchanged(rows, evaluator, self.ledger.path)

    def save_warm_up(self, parts: dict[str, Any]) -> None:
        """Save the end of warm-up, if it can be written and is not too large."""
        report = parts["report"]
        about = {} if report is None else {"kind": report.kind, "sd": report.sd, "share": report.exact_share}
        self.ledger.save(_SURROGATE, {}, {name: str(value) for name, value in about.items()})
        with suppress(ArchiveError):
            arrays, meta = pack(parts, self._references)
            if sum(each.nbytes for each in arrays.values()) <= MAX_WARM_UP_BYTES:
                self.ledger.save(_WARM_UP, arrays, meta)
                self._refer_to_kernel(parts["kernel"])

    def warm_up(self) -> dict[str, Any] | None:
        """Return the end of warm-up, if it was saved."""
        found = self.ledger.load(_WARM_UP)
        if found is None:
            return None
        try:
            parts = dict(unpack(*found, self._references))
        except ArchiveError as error:
            self._warn_of_replay(error)
            return None
        self._refer_to_kernel(parts["kernel"])
        return parts

    def save_known(self, known: list[Evaluation]) -> None:
        """Save the evaluations that are learned from, because the other ledgers may change or disappear."""
        self.ledger.save(_KNOWN, *pack(known))

    def known(self) -> list[Evaluation] | None:
        """Return the evaluations of other ledgers, if they were saved."""
        found = self.ledger.load(_KNOWN)
        return None if found is None else unpack(*found)

    def save_draws(self, sequence: int, first: int, block: Block, checkpoint: Checkpoint) -> None:
        """Save a block of draws that begins at step `first`, and the checkpoint after it, in one transaction."""
        state, meta = pack(dict(vars(checkpoint)), self._references)
        stats = {f"stats {name}": each for name, each in block.stats.items()}
        with self.ledger.transaction():
            outputs = {} if block.outputs is None else {"outputs": block.outputs}
            arrays = {"positions": block.positions, **outputs, **stats}
            self.ledger.save(_block_name(sequence, first), arrays, {})
            self.ledger.save(f"state {sequence}", state, {"n_done": checkpoint.n_done, "archive": meta})

    def checkpoint(self, sequence: int) -> Checkpoint | None:
        """Return the last checkpoint of a chain group, if there is one; `warm_up` must have been called before."""
        found = self.ledger.load(f"state {sequence}")
        if found is None:
            return None
        try:
            return Checkpoint(**unpack(found[0], found[1]["archive"], self._references))
        except (ArchiveError, TypeError) as error:
            self._warn_of_replay(error)
            return None

    def blocks(self, sequence: int, n_steps: int | None = None) -> Iterator[Block]:
        """Yield the blocks of a chain group from its first step on.

        With `n_steps`, yield the blocks of that many steps, and raise `LedgerDamaged` if one is missing.
        """
        done = 0
        while n_steps is None or done < n_steps:
            arrays = dict((self.ledger.load(_block_name(sequence, done)) or ({}, {}))[0])
            positions = arrays.pop("positions", np.empty((0, 0, 0)))
            if not positions.shape[1] and n_steps is None:
                return
            if not positions.shape[1]:
                raise LedgerDamaged(
                    f"the ledger {self.ledger.path} lacks the draws of sequence {sequence} from step {done} on, though "
                    "its checkpoint says that they were made; go back to a backup"
                )
            outputs = arrays.pop("outputs", None)
            stats = {name.removeprefix("stats "): each for name, each in arrays.items()}
            yield Block(positions, stats, outputs)
            done += positions.shape[1]

    def outputs_every(self, every: int) -> int:
        """Return every how many draws outputs are kept: as the first call of this run said."""
        known = self._meta(_OUTPUTS)
        if not known:
            self.ledger.save(_OUTPUTS, {}, {"every": every})
        return int(known.get("every", every))

    def lazy_record(
        self, sequences: Sequence[int], n_chains: int, n_steps: int, cost: Cost, every: int = 0
    ) -> Record | None:
        """Return saved draws that stay on disk until they are used; None if they are few."""
        target = self.target
        assert target is not None
        n_statistics = 12  # about as many as kernels have
        n_numbers = target.dim + n_statistics
        if every and isinstance(target, ForwardTarget):
            n_numbers += sum(each.size for each in target.output_variables) // every
        if n_chains * n_steps * n_numbers * 8 < MAX_DRAWS_BYTES:
            return None
        path = self.ledger.path

        def load() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None]:
            step = max(every, 1)
            with Ledger.read(path) as ledger:
                store = RunStore(ledger)
                blocks = [
                    joined(list(store.blocks(each, n_steps))).first(n_steps, step) for each in sequences
                ]
            found = beside(blocks, step)
            return in_parameters(found.positions, target), found.stats, found.outputs

        return LazyRecord(load, (n_chains, n_steps, target.dim), cost, every)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def _refer_to_kernel(self, kernel: object) -> None:
        """Let states refer to parts of the kernel: what they know of a surrogate is known of that very object."""
        self._references["kernel"] = kernel
        self.saves_states = True

    def _meta(self, name: str) -> dict[str, Any]:
        found = self.ledger.load(name)
        return {} if found is None else found[1]

    def _warn_of_replay(self, error: Exception) -> None:
        warnings.warn(
            f"a checkpoint in the ledger {self.ledger.path} cannot be read, so its evaluations are replayed: {error}",
            LedgerWarning,
            stacklevel=3,
        )


def one_chain(state: State, chain: int) -> State:
    """Return the state of one chain, without what is known of a surrogate or metric: its first step computes that."""
    rows = slice(chain, chain + 1)
    gradient = None if state.gradient is None else np.array(state.gradient[rows])
    outputs = None if state.outputs is None else np.array(state.outputs[rows])
    return State(np.array(state.position[rows]), np.array(state.potential[rows]), gradient, outputs=outputs)


def _block_name(sequence: int, first: int) -> str:
    return f"draws {sequence} {first:012d}"


def _settings(request: Request, on_failure: str) -> dict[str, Any]:
    """Return the settings that decide which draws are made, as JSON holds them."""
    surrogate = getattr(request.method, "surrogate", None)
    trained = (
        {"trained surrogate": fingerprint(surrogate)} if hasattr(surrogate, "potential_and_gradient") else {}
    )
    found = {
        "method": describe(request.method) | trained,
        "chains": int(request.chains),
        "tune": None if request.tune is None else int(request.tune),
        "max_evaluations": None if request.max_evaluations is None else int(request.max_evaluations),
        "init": _digest(request.init),
        "on_failure": on_failure,
    }
    return dict(json.loads(json.dumps(found, default=str)))


def _digest(init: ArrayLike | None) -> str | None:
    if init is None:
        return None
    return hashlib.sha256(np.ascontiguousarray(init, dtype=float).tobytes()).hexdigest()[:16]


def _require_same_run(ledger: Ledger, now: Header, seed: int | None) -> None:
    then = ledger.header
    changed = differences(then.fingerprint, now.fingerprint)
    if changed:
        raise LedgerMismatch(
            f"the ledger {ledger.path} belongs to another target: {'; '.join(changed)}; use the target of the ledger, "
            "or start a new ledger"
        )
    changed = _changed_settings(then.settings, now.settings)
    if seed is not None and then.seed != seed:
        changed.append(f"random_seed: {then.seed} -> {seed}")
    if changed:
        more = f"; and {len(changed) - MOST_CHANGES} more" if len(changed) > MOST_CHANGES else ""
        learn = " and learn_from= this one" if now.settings["method"]["method"] == "Auto" else ""
        raise LedgerMismatch(
            f"the ledger {ledger.path} belongs to another run: {'; '.join(changed[:MOST_CHANGES])}{more}; use the same "
            f"settings, or give a new ledger{learn}"
        )


def _changed_settings(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name the settings that decide which draws are made and have changed."""
    changed = []
    for name, value in now.items():
        if name in ("draws", "apart", "method"):
            continue
        # A run that a failure has ended may continue with such points rejected, but not the other way round.
        if name == "on_failure" and value == "reject":
            continue
        changed += _changes(name, then.get(name), value)
    old, new = _with_defaults(then["method"]), _with_defaults(now["method"])
    if old["method"] != new["method"]:  # then all its settings differ, too
        return [*_changes("method", old["method"], new["method"]), *changed]
    return changed + _changes("", old, new)


def _with_defaults(method: dict[str, Any]) -> dict[str, Any]:
    """Write out the settings of `Auto` that were left out, so that single ones can be compared."""
    if method["method"] != "Auto" or method.get("settings") is not None:
        return method
    return method | {"settings": json.loads(json.dumps(describe(Auto(settings=DEFAULT))["settings"]))}


def _changes(name: str, then: Any, now: Any) -> list[str]:
    """Return the entries in which two mappings, or mappings in them, differ, each as ``path: then -> now``."""
    if then == now:
        return []
    if not (isinstance(then, dict) and isinstance(now, dict)):
        return [f"{name}: {_shown(then)} -> {_shown(now)}"]
    return [
        change
        for key in dict.fromkeys([*then, *now])
        for change in _changes(f"{name}.{key}" if name else key, then.get(key), now.get(key))
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:80] + "..."
