"""The summary of a run: a table of parameters, what it cost, and warnings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult

from leapwise.results import tables
from leapwise.results.diagnostics import warnings_for
from leapwise.results.discrepancy import exact_share, spread
from leapwise.results.plain import plain
from leapwise.results.statistics import Statistics, statistics
from leapwise.results.target_diagnostics import n_outside, outside

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leapwise.results.run import Record, Run

MOST_SHOWN = 24
PLAIN_WIDTH = 100


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """What `Run.summary` returns: print it, or take the numbers out of it.

    Attributes
    ----------
    rows : list of dict
        One for each parameter: ``parameter, mean, sd, q5, q50, q95, mcse, ess_bulk, ess_tail, ess_squares, rhat``.
        What is unknown is NaN.
    cost : dict of str to dict
        Of ``"warmup"``, ``"draws"`` and ``"total"``: counts, seconds, acceptance, divergences; with a surrogate the
        standard deviation of its discrepancy from the exact potential at proposals, sd(D) (at most 4), and the
        share of steps that were made with exact gradients beside it.
    effective, efficiency : dict of str to float
        Effective draws of the worst parameter, and the same per exact evaluation, warm-up included: ``"bulk"`` (for
        means), ``"tail"``, ``"squares"`` (for spreads).
    surrogate : dict or None
        Of a self-tuned run, what its `SurrogateReport` says; and the share of the draws in each of its modes.
    warnings : list of str
        What to look at before the draws are used.
    about : dict
        Chains, draws, method settings, seed, versions, complete, exact, exact evaluations allowed and spent.
    """

    rows: list[dict[str, Any]]
    cost: dict[str, dict[str, float]]
    effective: dict[str, float]
    efficiency: dict[str, float]
    surrogate: dict[str, Any] | None
    warnings: list[str]
    about: dict[str, Any]
    shown: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; what is not finite becomes None."""
        everything = {
            **self.about,
            "parameters": self.rows,
            "cost": self.cost,
            "surrogate": self.surrogate,
            "effective_draws": self.effective,
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
        yield tables.heading(self.about, self.surrogate)
        if self.about["draws"]:
            yield ""
            yield tables.parameters([self.rows[i] for i in self.shown])
            yield from tables.hidden(len(self.rows) - len(self.shown))
        yield ""
        yield tables.costs(self.cost)
        yield ""
        yield from tables.efficiency(self.effective, self.efficiency)
        yield from tables.budget(self.about)
        if self.warnings:
            yield ""
            yield tables.warning_lines(self.warnings)


def summarise(run: Run, *, show_all: bool = False) -> Summary:
    """Compute the summary of a run."""
    found = statistics(run.draws)
    chains, n, dim = run.draws.shape
    shown = np.arange(dim) if show_all or dim <= MOST_SHOWN else found.worst_first()[:MOST_SHOWN]
    effective = _effective(found)
    return Summary(
        rows=_rows(run.parameter_names, found),
        cost=_costs(run),
        effective=effective,
        efficiency={
            key: ess / run.cost.n_exact if run.cost.n_exact else np.nan for key, ess in effective.items()
        },
        surrogate=None
        if run.surrogate is None
        else asdict(run.surrogate) | {"mode_shares": _mode_shares(run)},
        warnings=warnings_for(run, found),
        about={
            "chains": chains,
            "draws": n,
            "warmup_draws": run.warmup.draws.shape[1],
            "settings": run.settings,
            "seed": run.seed,
            "complete": run.complete,
            "exact": run.exact,
            "evaluations_allowed": run.settings.get("max_evaluations"),
            "evaluations_spent": run.cost.n_exact,
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


def _costs(run: Run) -> dict[str, dict[str, float]]:
    warmup, draws = _spent(run.warmup), _spent(run.posterior)
    total = {key: warmup[key] + draws[key] for key in draws}
    for each, record in ((warmup, run.warmup), (draws, run.posterior)):
        rate = record.stats.get("acceptance_rate")
        each["acceptance"] = float(rate.mean()) if rate is not None and rate.size else np.nan
        each["discrepancy_sd"] = spread(record.stats.get("discrepancy"))
    if run.surrogate is not None:
        warmup["discrepancy_sd"] = run.surrogate.sd
    draws["exact_share"] = exact_share(run)
    return {"warmup": warmup, "draws": draws, "total": total}


def _mode_shares(run: Run) -> list[float]:
    """Return the share of draws in each mode, as far as it is known of them; nothing if there is one."""
    if run.surrogate is None or "mode" not in run.posterior.stats:
        return []
    counts = np.bincount(run.posterior.stats["mode"].ravel(), minlength=1 + run.surrogate.n_modes)[1:]
    return [float(each) for each in counts / max(counts.sum(), 1)]


def _spent(record: Record) -> dict[str, float]:
    """Return what a phase cost, in counts and seconds that add up."""
    cost = record.cost
    return {
        **asdict(cost),
        "n_exact": cost.n_exact,
        "model_seconds": cost.model_seconds,
        "sampler_seconds": cost.sampler_seconds,
        "n_divergences": int(np.sum(record.stats.get("diverging", False) & ~outside(record.stats))),
        "n_outside": n_outside(record),
        "n_unsolved": int(np.sum(record.stats.get("unsolved", 0))),
    }


def _effective(found: Statistics) -> dict[str, float]:
    """Return the effective draws of the worst parameter; NaN if they are not known of all."""
    known = {"bulk": found.ess_bulk, "tail": found.ess_tail, "squares": found.ess_squares}
    return {key: float(ess.min()) for key, ess in known.items()}
