"""Ledgers of other runs: look inside one (`inspect_ledger`), and train on their evaluations (``learn_from=``).

A ledger can also be inspected while a run writes to it. Evaluations of earlier runs of the same target are training
data at no cost, and chains can start among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from leapwise.errors import InputError, LedgerMismatch
from leapwise.execution import Evaluation, Evaluator
from leapwise.execution.evaluator import require_unchanged
from leapwise.results.statistics import spread, statistics
from leapwise.run.recorder import Block, beside, joined
from leapwise.run.store import RunStore
from leapwise.storage import Ledger, Row, Tally
from leapwise.targets import AnyTarget
from leapwise.targets.identity import differences, identify

#: Effective draws are estimated from this many draws of each chain on. A guess: fewer say nothing.
_MIN_DRAWS = 20
#: At most this many evaluations are trained on, those with gradients first. A guess: with more, training takes longer
#: than the evaluations that it saves.
MAX_EVALUATIONS = 1000
#: Starts are moved by this share of the difference of two known positions, so that no two are the same. A guess.
_JITTER = 0.1


@dataclass(frozen=True)
class Inspection:
    """What a ledger holds.

    Attributes
    ----------
    path, created, library_version : str
        Path of the file, when it was made, and by which version of the library.
    names : tuple of str
        Names of the parameters.
    seed : int
    method : str
    phase : {"warm-up", "draws", "complete"}
        How far the run is.
    evaluations : list of Tally
        Evaluations by phase, kind and status.
    n_failed_attempts : int
    last_failure : str
        Message of the last failed attempt; empty if there was none.
    draws_asked : int
        Draws of each chain that the last call asked for.
    draws_kept : int
        Draws of each chain on disk. Later ones, of at most 10 seconds, are replayed from their evaluations.
    surrogate : str
        Kind of the surrogate; empty if there is none.
    sd : float or None
        sd(D) of the draws so far, or of warm-up.
    min_ess, max_rhat : float or None
        Over the parameters, of the draws on disk.
    """

    path: str
    created: str
    library_version: str
    names: tuple[str, ...]
    seed: int
    method: str
    phase: str
    evaluations: list[Tally]
    n_failed_attempts: int
    last_failure: str
    draws_asked: int
    draws_kept: int
    surrogate: str
    sd: float | None
    min_ess: float | None
    max_rhat: float | None

    @property
    def n_exact(self) -> int:
        """Number of all evaluations."""
        return sum(each.n for each in self.evaluations)

    @property
    def model_seconds(self) -> float:
        """Time inside the model."""
        return sum(each.seconds for each in self.evaluations)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return asdict(self) | {"n_exact": self.n_exact, "model_seconds": self.model_seconds}


def inspect_ledger(path: str | PathLike[str]) -> Inspection:
    """Return what a ledger holds; this needs no target and does not disturb a run that writes to it.

    Examples
    --------
    >>> import tempfile
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = lw.sample(target, draws=50, chains=2, random_seed=1, ledger=f"{folder}/run.db")
    ...     found = inspect_ledger(f"{folder}/run.db")
    >>> found.phase, found.draws_kept, found.n_exact == run.cost.n_exact
    ('complete', 50, True)
    """
    with Ledger.read(path) as ledger:
        header, store = ledger.header, RunStore(ledger)
        surrogate = store.about_surrogate
        block = _drawn(store, range(1, int(header.settings["chains"]) + 1) if store.apart else range(1))
        failures = ledger.failures()
        kept = 0 if block is None else block.n_steps
        evaluations = ledger.count(verify=False)
        began = bool(kept) or any(each.phase == "draws" for each in evaluations)
        measured = None if block is None or kept < _MIN_DRAWS else statistics(block.positions)
        return Inspection(
            path=str(ledger.path),
            created=header.created,
            library_version=header.library_version,
            names=header.names,
            seed=store.seed,
            method=str(header.settings["method"]["method"]),
            phase="complete" if kept and store.is_complete(kept) else "draws" if began else "warm-up",
            evaluations=evaluations,
            n_failed_attempts=len(failures),
            last_failure=failures[-1].message if failures else "",
            draws_asked=store.asked[0],
            draws_kept=kept,
            surrogate=str(surrogate.get("kind", "")),
            sd=_sd(block, surrogate),
            min_ess=None if measured is None else float(measured.ess.min()),
            max_rhat=None if measured is None else float(measured.rhat.max()),
        )


def _drawn(store: RunStore, sequences: range) -> Block | None:
    """Return the draws on disk, as many as every chain has."""
    groups = [list(store.blocks(sequence)) for sequence in sequences]
    return beside([joined(blocks) for blocks in groups]) if all(groups) else None


def _sd(block: Block | None, surrogate: dict[str, Any]) -> float | None:
    if block is not None and "discrepancy" in block.stats:
        found = spread(block.stats["discrepancy"].ravel())
    else:
        found = float(surrogate.get("sd", np.nan))
    return float(found) if np.isfinite(found) else None


def read_evaluations(
    paths: Sequence[str | PathLike[str]], evaluator: Evaluator, version: str | None = None
) -> list[Evaluation]:
    """Return the evaluations in the ledgers of earlier runs of the same target.

    One recorded position of each ledger is evaluated again, and counted, to check that the target is the same.

    Raises
    ------
    LedgerMismatch
        If a ledger belongs to another target; it says what differs.
    """
    if isinstance(paths, (str, PathLike)):
        raise InputError(f"learn_from must be a list of ledgers, got {paths!r}; write learn_from=[{paths!r}]")
    target, rows = evaluator.target, list[Row]()
    for path in paths:
        with Ledger.read(path) as ledger:
            # A target with a gradient and the same one without are one target.
            changed = differences(ledger.header.fingerprint, identify(target, version), ignore=("gradient",))
            if changed:
                raise LedgerMismatch(
                    f"the ledger {ledger.path} belongs to another target: {'; '.join(changed)}; "
                    "leave it out of learn_from="
                )
            here = [row for row in ledger.rows() if row.status == "ok" and row.log_density > -np.inf]
        if here:
            require_unchanged(here, evaluator, str(path))
            rows += here
    return as_evaluations(_selected(rows), target)


def _selected(rows: list[Row]) -> list[Row]:
    """Return at most `MAX_EVALUATIONS` rows: the last ones with gradients, then evenly spaced ones without."""
    gradients, values = (
        [row for row in rows if (row.gradient is not None) == kind] for kind in (True, False)
    )
    room = max(MAX_EVALUATIONS - len(gradients), 0)
    spaced = np.unique(np.linspace(0, max(len(values) - 1, 0), min(room, len(values))).astype(int))
    return gradients[-MAX_EVALUATIONS:] + [values[i] for i in spaced]


def as_evaluations(rows: Iterable[Row], target: AnyTarget) -> list[Evaluation]:
    """Return rows as an evaluator would: one batch of those without gradients, one of those with."""
    found, transform = [], target.transform
    for kind in (False, True):
        group = [row for row in rows if (row.gradient is not None) == kind]
        if not group:
            continue
        position = np.stack([row.position for row in group])
        with np.errstate(all="ignore"):
            density = np.array([row.log_density for row in group])
            potential = -(density + transform.log_jacobian(position))
            slopes = np.stack([row.gradient for row in group]) if kind else None  # type: ignore[misc]
            gradient = None if slopes is None else -transform.pull_back(position, slopes)
        usable = np.isfinite(potential)
        if gradient is not None:
            usable &= np.isfinite(gradient).all(axis=1)
        outputs = _outputs(group)
        found.append(
            Evaluation(
                position[usable],
                potential[usable],
                None if gradient is None else gradient[usable],
                None if outputs is None else outputs[usable],
            )
        )
    return found


def starts(known: Sequence[Evaluation], n_chains: int, target: AnyTarget, seed: int) -> np.ndarray | None:
    """Return parameters to start chains from, near known positions of high density; None if there are few of them."""
    position = np.concatenate([each.position for each in known])
    potential = np.concatenate([each.potential for each in known])
    dim = position.shape[1]
    height = potential - potential.min(initial=np.inf)
    # Of a normal, U less its least value has mean d/2 and standard deviation sqrt(d/2); 2 more for few parameters.
    near = np.flatnonzero(height < 0.5 * dim + 3.0 * np.sqrt(0.5 * dim) + 2.0)
    if len(near) < max(2 * n_chains, 10):
        return None
    rng = np.random.default_rng(seed)
    first, second, third = (position[rng.choice(near, n_chains, replace=False)] for _ in range(3))
    return np.array(target.transform.to_parameters(first + _JITTER * (second - third)))


def _outputs(rows: Sequence[Row]) -> np.ndarray | None:
    width = next((len(row.outputs) for row in rows if row.outputs is not None), None)
    if width is None:
        return None
    return np.stack([np.full(width, np.nan) if row.outputs is None else row.outputs for row in rows])
