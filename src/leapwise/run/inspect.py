"""Look inside a ledger, also while a run writes to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from leapwise.results.statistics import spread, statistics
from leapwise.run.recorder import Block, beside, joined
from leapwise.run.store import RunStore
from leapwise.storage import Ledger, Tally

#: Effective draws are estimated from this many draws of each chain on. A guess: fewer say nothing.
_MIN_DRAWS = 20


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
            phase="complete" if kept and kept >= store.asked_draws else "draws" if began else "warm-up",
            evaluations=evaluations,
            n_failed_attempts=len(failures),
            last_failure=failures[-1].message if failures else "",
            draws_asked=store.asked_draws,
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
