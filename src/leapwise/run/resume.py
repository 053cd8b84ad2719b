"""Go on with a run of which only the ledger and the target are at hand."""

from __future__ import annotations

from os import PathLike
from typing import Any

from leapwise.errors import InputError, LedgerMismatch
from leapwise.results import Run
from leapwise.run.book import ASKED
from leapwise.run.keeper import Keeper
from leapwise.run.sample import sample
from leapwise.storage import Ledger
from leapwise.targets import AnyTarget

#: What may differ from call to call.
MAY_DIFFER = {"version", "executor", "cores", "timeout", "retries", "on_failure", "progressbar"}


def resume(path: str | PathLike[str], target: AnyTarget, *, draws: int | None = None, **options: Any) -> Run:
    """Go on with the run of a ledger, with the settings that it began with.

    Parameters
    ----------
    path : path
        Of the ledger.
    target : Target or ForwardTarget
        What it is of.
    draws : int, optional
        Draws to keep of each chain, if not as many as asked for last.
    **options
        What may differ from call to call, as for `sample`: `version`, `executor`, `cores`, `timeout`, `retries`,
        `on_failure` (from "raise" to "reject") and `progressbar`.

    Examples
    --------
    >>> import tempfile
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = lw.sample(target, draws=50, chains=2, random_seed=1, ledger=f"{folder}/run.db")
    ...     more = lw.resume(f"{folder}/run.db", target, draws=80)
    >>> more.draws.shape, bool((more.draws[:, :50] == run.draws).all())
    ((2, 80, 2), True)
    """
    unknown_options = sorted(set(options) - MAY_DIFFER)
    if unknown_options:
        raise InputError(
            f"{unknown_options[0]}= is what the run in {path} began with and cannot be given anew; leave it out, or "
            "call sample() to begin another"
        )
    with Ledger.read(path) as ledger:
        settings = ledger.header.settings
        method = Keeper(ledger, {"target": target}).method()
        asked = ledger.load(ASKED)
    for name, unknown in (("method", method is None), ("init", settings["init"] is not None)):
        if unknown:
            raise LedgerMismatch(
                f"the {name} of the run in {path} is not in its ledger; resume it by the call that began it, "
                f"sample(..., {name}=..., ledger={str(path)!r})"
            )
    return sample(
        target,
        int(asked[1]["draws"] if draws is None and asked is not None else draws or settings["draws"]),
        tune=settings["tune"],
        chains=settings["chains"],
        method=method,
        max_evaluations=settings["max_evaluations"],
        ledger=path,
        **{"on_failure": settings["on_failure"]} | options,
    )
