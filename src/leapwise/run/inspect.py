"""A look inside a ledger, also while a run is writing to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from leapwise.results.statistics import spread, statistics
from leapwise.run.recorder import Block, beside, joined
from leapwise.run.store import ASKED, SURROGATE, Keeper
from leapwise.storage import Ledger, Tally

#: Effective draws are told from so many draws of each chain on.
_ENOUGH = 20


@dataclass(frozen=True)
class Inspection:
    """What a ledger holds.

    Attributes
    ----------
    path, created, library_version : str
    names : tuple of str
        Of the parameters.
    seed : int
    method : str
    phase : {"warm-up", "draws", "complete"}
        How far the run has come.
    evaluations : list of Tally
        By phase, kind and status.
    n_failed_attempts : int
    last_failure : str
        Empty if nothing failed.
    draws_asked : int
        Of each chain, in the last call.
    draws_kept : int
        Of each chain, on disk. Those since, at most 10 seconds' worth, come again from the evaluations.
    surrogate : str
        Which kind; empty if there is none.
    sd : float or None
        sd(D) of the draws so far, or of warm-up.
    min_ess, max_rhat : float or None
        Over the parameters, of the draws kept.
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
        """All evaluations, settled."""
        return sum(each.n for each in self.evaluations)

    @property
    def model_seconds(self) -> float:
        """Time inside the model."""
        return sum(each.seconds for each in self.evaluations)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        return asdict(self) | {"n_exact": self.n_exact, "model_seconds": self.model_seconds}


def inspect_ledger(path: str | PathLike[str]) -> Inspection:
    """Read what a ledger holds, without its target and without getting in the way of a run.

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
        header = ledger.header
        settings = header.settings
        asked = int(_meta(ledger, ASKED).get("draws", settings.get("draws", 0)))
        surrogate = _meta(ledger, SURROGATE)
        block = _drawn(ledger, range(1, int(settings["chains"]) + 1) if settings["apart"] else range(1))
        failures = ledger.failures()
        kept = 0 if block is None else block.n_steps
        evaluations = ledger.count(verify=False)
        began = bool(kept) or any(each.phase == "draws" for each in evaluations)
        measured = None if block is None or kept < _ENOUGH else statistics(block.positions)
        return Inspection(
            path=str(ledger.path),
            created=header.created,
            library_version=header.library_version,
            names=header.names,
            seed=int(header.seed),
            method=str(settings["method"]["method"]),
            phase="complete" if kept and kept >= asked else "draws" if began else "warm-up",
            evaluations=evaluations,
            n_failed_attempts=len(failures),
            last_failure=failures[-1].message if failures else "",
            draws_asked=asked,
            draws_kept=kept,
            surrogate=str(surrogate.get("kind", "")),
            sd=_sd(block, surrogate),
            min_ess=None if measured is None else float(measured.ess.min()),
            max_rhat=None if measured is None else float(measured.rhat.max()),
        )


def _meta(ledger: Ledger, name: str) -> dict[str, Any]:
    found = ledger.load(name)
    return {} if found is None else found[1]


def _drawn(ledger: Ledger, lanes: range) -> Block | None:
    """Return the draws on disk, as many as every chain has."""
    keeper = Keeper(ledger, {})
    groups = [list(keeper.all_blocks(lane)) for lane in lanes]
    return beside([joined(blocks) for blocks in groups]) if all(groups) else None


def _sd(block: Block | None, surrogate: dict[str, Any]) -> float | None:
    if block is not None and "discrepancy" in block.stats:
        found = spread(block.stats["discrepancy"].ravel())
    else:
        found = float(surrogate.get("sd", np.nan))
    return float(found) if np.isfinite(found) else None
