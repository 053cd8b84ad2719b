"""The summary of a run: a table of parameters, what it cost, and warnings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from understudy.results import tables
from understudy.results.diagnostics import warnings_for
from understudy.results.plain import plain
from understudy.results.statistics import Statistics, statistics

if TYPE_CHECKING:
    from rich.console import RenderableType

    from understudy.results.run import Record, Run

MOST_SHOWN = 24
PLAIN_WIDTH = 100


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """What `Run.summary` returns: print it, or take the numbers out of it.

    Attributes
    ----------
    rows : list of dict
        One for each parameter: ``parameter, mean, sd, q5, q50, q95, mcse, ess_bulk, ess_tail, rhat``. What is
        unknown is NaN.
    cost : dict of str to dict
        Of ``"warmup"``, ``"draws"`` and ``"total"``: counts, seconds, acceptance, divergences; with a surrogate the
        standard deviation of its discrepancy from the exact potential at proposals, sd(D).
    efficiency : dict of str to float
        Effective draws per exact evaluation, warm-up included (worst parameter): ``"bulk"``, ``"tail"``.
    warnings : list of str
        What to look at before the draws are used.
    about : dict
        Chains, draws, method settings, seed, versions, complete, exact.
    """

    rows: list[dict[str, Any]]
    cost: dict[str, dict[str, float]]
    efficiency: dict[str, float]
    warnings: list[str]
    about: dict[str, Any]
    shown: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; what is not finite becomes None."""
        everything = {
            **self.about,
            "parameters": self.rows,
            "cost": self.cost,
            "effective_draws_per_exact_evaluation": self.efficiency,
            "warnings": self.warnings,
        }
        return dict(plain(everything))

    def __str__(self) -> str:
        stream = io.StringIO()
        Console(file=stream, width=PLAIN_WIDTH, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._parts()

    def _parts(self) -> Iterator[RenderableType]:
        yield tables.heading(self.about)
        if self.about["draws"]:
            yield ""
            yield tables.parameters([self.rows[i] for i in self.shown])
            yield from tables.hidden(len(self.rows) - len(self.shown))
        yield ""
        yield tables.costs(self.cost)
        yield from tables.efficiency(self.efficiency)
        if self.warnings:
            yield ""
            yield tables.warning_lines(self.warnings)


def summarise(run: Run, *, show_all: bool = False) -> Summary:
    """Compute the summary of a run."""
    found = statistics(run.draws)
    chains, n, dim = run.draws.shape
    shown = np.arange(dim) if show_all or dim <= MOST_SHOWN else found.worst_first()[:MOST_SHOWN]
    cost = {"warmup": _spent(run.warmup), "draws": _spent(run.posterior)}
    cost["total"] = {
        key: cost["warmup"][key] + cost["draws"][key]
        for key in cost["draws"]
        if key not in ("acceptance", "discrepancy_sd")
    }
    return Summary(
        rows=_rows(run.parameter_names, found),
        cost=cost,
        efficiency=_efficiency(found, run.cost.n_exact),
        warnings=warnings_for(run, found),
        about={
            "chains": chains,
            "draws": n,
            "warmup_draws": run.warmup.draws.shape[1],
            "settings": run.settings,
            "seed": run.seed,
            "complete": run.complete,
            "exact": run.exact,
            "versions": run.versions,
        },
        shown=tuple(int(i) for i in shown),
    )


def _rows(names: tuple[str, ...], found: Statistics) -> list[dict[str, Any]]:
    columns = {each.name: getattr(found, each.name).tolist() for each in fields(found)}
    return [
        {"parameter": name, **{key: values[i] for key, values in columns.items()}}
        for i, name in enumerate(names)
    ]


def _spent(record: Record) -> dict[str, float]:
    rate, cost = record.stats.get("acceptance_rate"), record.cost
    return {
        **asdict(cost),
        "n_exact": cost.n_exact,
        "model_seconds": cost.model_seconds,
        "sampler_seconds": cost.sampler_seconds,
        "n_divergences": int(np.sum(record.stats.get("diverging", 0))),
        "n_unsolved": int(np.sum(record.stats.get("unsolved", 0))),
        "acceptance": float(rate.mean()) if rate is not None and rate.size else np.nan,
        "discrepancy_sd": _spread(record.stats.get("discrepancy")),
    }


def _spread(discrepancy: np.ndarray | None) -> float:
    """Return the standard deviation of what the surrogate is wrong by at proposals, NaN if there is none."""
    if discrepancy is None:
        return np.nan
    finite = discrepancy[np.isfinite(discrepancy)]
    return float(finite.std()) if finite.size else np.nan


def _efficiency(found: Statistics, n_exact: int) -> dict[str, float]:
    known = {"bulk": found.ess_bulk, "tail": found.ess_tail}
    return {
        key: float(ess.min()) / n_exact if n_exact and np.isfinite(ess).all() else np.nan
        for key, ess in known.items()
    }
