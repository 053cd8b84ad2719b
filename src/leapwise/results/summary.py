"""The summary of a run: a table of parameters, the cost, and warnings; its numbers, and how a terminal shows them.

Tables take at most 80 columns for names of usual length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from leapwise.results.datatree import plain
from leapwise.results.diagnostics import n_outside, outside, warnings_for
from leapwise.results.estimates import Estimates
from leapwise.results.estimating import of_parameters
from leapwise.results.statistics import Statistics, exact_share, spread
from leapwise.results.tables import UNKNOWN, add_rows, as_text, decimals, empty_table, few_digits, fixed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from leapwise.results.run import Record, Run

#: Parameters that the table shows, unless all are asked for: they fit on a screen.
MOST_SHOWN = 24
#: Settings that the heading shows, and their names there.
SHOWN_SETTINGS = {
    "method": "",
    "surrogate": "",
    "inner_steps": "inner steps",
    "step_size": "step size",
    "n_steps": "number of steps",
    "trajectory_length": "trajectory length",
    "metric": "metric",
}


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """What `Run.summary` returns: print it, or read its numbers.

    Attributes
    ----------
    rows : list of dict
        One for each parameter: ``parameter, mean, sd, q5, q50, q95, mcse, ess_bulk, ess_tail, ess_squares, rhat``.
        Unknown numbers are NaN. Effective draws and R-hat are always those of the draws.
    cost : dict of str to dict
        Of ``"warmup"``, ``"draws"`` and ``"total"``: counts, seconds, acceptance, divergences. With a surrogate also
        sd(D), the standard deviation of exact minus predicted potential at proposals (at most 4), and the share of
        steps with exact gradients. Seconds in the sampler are NaN if evaluations ran in parallel (see `Cost`).
    effective, efficiency : dict of str to float
        Effective draws of the worst parameter, and the same per exact evaluation, warm-up included: ``"bulk"`` (for
        means), ``"tail"``, ``"squares"`` (for spreads).
    estimates : dict or None
        Whether mean, sd, quantiles and mcse are sharpened (`Run.estimate`), why not, in how many seconds, and what they
        are worth in independent draws: ``effective`` and ``efficiency``, as above. None without a surrogate.
    surrogate : dict or None
        The `SurrogateReport` of a self-tuned run, and the share of the draws in each of its modes.
    warnings : list of str
        What to check before the draws are used, and what to do.
    about : dict
        Chains, draws, method settings, seed, versions, complete, exact, exact evaluations allowed and spent, and the
        precision asked and reached.
    """

    rows: list[dict[str, Any]]
    cost: dict[str, dict[str, float]]
    effective: dict[str, float]
    efficiency: dict[str, float]
    estimates: dict[str, Any] | None
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
            "estimates": self.estimates,
            "warnings": self.warnings,
        }
        return dict(plain(everything))

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._parts()

    def _parts(self) -> Iterator[RenderableType]:
        yield heading(self.about, self.surrogate)
        if self.about["draws"]:
            yield ""
            sharpened = self.estimates is not None and self.estimates["sharpened"]
            yield parameters([self.rows[i] for i in self.shown], sharpened=sharpened)
            yield from hidden(len(self.rows) - len(self.shown))
            if self.estimates is not None:
                yield Text(self.estimates["about"], style="dim")
        yield ""
        yield costs(self.cost)
        yield ""
        yield from efficiency(self.effective, self.efficiency, self.estimates)
        yield from budget(self.about)
        if self.warnings:
            yield ""
            yield warning_lines(self.warnings)


def summarise(run: Run, *, show_all: bool = False, plain: bool = False) -> Summary:
    """Compute the summary of a run."""
    found, estimates = run.statistics, None if plain else of_parameters(run)
    chains, n, dim = run.draws.shape
    shown = np.arange(dim) if show_all or dim <= MOST_SHOWN else found.worst_first()[:MOST_SHOWN]
    effective = _effective(found)
    return Summary(
        rows=_rows(run.parameter_names, found, estimates),
        cost=_costs(run, 0.0 if estimates is None else estimates.seconds),
        effective=effective,
        efficiency=_per_evaluation(effective, run),
        estimates=None if estimates is None else _about(estimates, run),
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
            "precision": None if run.precision is None else run.precision._asdict(),
            "versions": run.versions,
        },
        shown=tuple(int(i) for i in shown),
    )


def _rows(names: tuple[str, ...], found: Statistics, estimates: Estimates | None) -> list[dict[str, Any]]:
    columns = {each.name: getattr(found, each.name).tolist() for each in fields(found)}
    if estimates is not None and estimates.is_sharpened:
        figures = estimates.figures
        better = (figures.mean, figures.sd, *figures.quantiles)
        columns |= {
            key: each.value.tolist()
            for key, each in zip(("mean", "sd", "q5", "q50", "q95"), better, strict=True)
        }
        columns["mcse"] = figures.mean.error.tolist()
    return [
        {"parameter": name, **{key: values[i] for key, values in columns.items()}}
        for i, name in enumerate(names)
    ]


def _about(estimates: Estimates, run: Run) -> dict[str, Any]:
    effective, about = estimates.worst(), estimates.about()
    return {
        "sharpened": estimates.is_sharpened,
        "cross_fitted": estimates.cross_fitted,
        "reason": estimates.reason,
        "about": f"{about} summary(plain=True) shows the draws alone." if estimates.is_sharpened else about,
        "seconds": estimates.seconds,
        "effective": effective,
        "efficiency": _per_evaluation(effective, run),
    }


def _per_evaluation(effective: dict[str, float], run: Run) -> dict[str, float]:
    """Return effective draws per exact evaluation, warm-up included; NaN if there were none."""
    return {key: ess / run.cost.n_exact if run.cost.n_exact else np.nan for key, ess in effective.items()}


def _costs(run: Run, estimate_seconds: float) -> dict[str, dict[str, float]]:
    warmup, draws = _spent(run.warmup), _spent(run.posterior)
    total = {key: warmup[key] + draws[key] for key in draws}
    total["in_parallel"] = warmup["in_parallel"] or draws["in_parallel"]
    for each, record in ((warmup, run.warmup), (draws, run.posterior)):
        rate = record.stats.get("acceptance_rate")
        each["acceptance"] = float(rate.mean()) if rate is not None and rate.size else np.nan
        each["discrepancy_sd"] = spread(record.stats.get("discrepancy"))
    if run.surrogate is not None:
        warmup["discrepancy_sd"] = run.surrogate.sd
    draws["exact_share"] = exact_share(run)
    total["estimate_seconds"] = estimate_seconds
    return {"warmup": warmup, "draws": draws, "total": total}


def _mode_shares(run: Run) -> list[float]:
    """Return the share of draws in each mode, of those whose mode is known; nothing if there is one mode."""
    if run.surrogate is None or "mode" not in run.posterior.stats:
        return []
    counts = np.bincount(run.posterior.stats["mode"].ravel(), minlength=1 + run.surrogate.n_modes)[1:]
    return [float(each) for each in counts / max(counts.sum(), 1)]


def _spent(record: Record) -> dict[str, float]:
    """Return the counts and seconds of a phase, which can be added to those of another."""
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
    """Return the effective draws of the worst parameter; NaN if one is unknown."""
    known = {"bulk": found.ess_bulk, "tail": found.ess_tail, "squares": found.ess_squares}
    return {key: float(ess.min()) for key, ess in known.items()}


def heading(about: dict[str, Any], surrogate: dict[str, Any] | None = None) -> Text:
    """Return a line with chains, draws and seed, and a line with the settings."""
    chains = "1 chain" if about["chains"] == 1 else f"{about['chains']} chains"
    warmup = f" after {about['warmup_draws']} of warm-up" if about["warmup_draws"] else ""
    parts = [f"{chains} x {about['draws']} draws{warmup}"]
    parts += [] if about["seed"] is None else [f"seed {about['seed']}"]
    parts += [] if about["complete"] else ["interrupted"]
    given = dict(about["settings"])
    if surrogate is not None:
        given["surrogate"] = _trusted(surrogate)
    settings = [_setting(key, given[key]) for key in SHOWN_SETTINGS if given.get(key) is not None]
    settings += ["jumps"] if given.get("jumps") else []
    text = Text(", ".join(parts), style="bold")
    return text.append("\n" + ", ".join(settings), style="not bold dim") if settings else text


def parameters(rows: list[dict[str, Any]], *, sharpened: bool = False) -> Table:
    """Return the table of parameters; sd decides how many digits are shown, and the error of sharpened estimates."""
    columns = {
        key: np.array([row[key] for row in rows], dtype=float) for key in rows[0] if key != "parameter"
    }
    table = empty_table("", "mean", "sd", "5%", "50%", "95%", "MCSE", "ESS\nbulk", "ESS\ntail", "R-hat")
    places = decimals(columns["sd"], digits=3)
    if sharpened:
        places = np.maximum(places, decimals(columns["mcse"], digits=1))
    texts = [fixed(columns[key], places) for key in ("mean", "sd", "q5", "q50", "q95")]
    texts.append(fixed(columns["mcse"], decimals(columns["mcse"], digits=2)))
    texts += [fixed(columns[key], np.zeros(len(rows), int)) for key in ("ess_bulk", "ess_tail")]
    texts.append(fixed(columns["rhat"], np.full(len(rows), 3)))
    add_rows(table, [row["parameter"] for row in rows], texts)
    return table


def hidden(count: int) -> Iterator[Text]:
    """Return a line that says how many parameters the table leaves out."""
    if count:
        yield Text(
            f"and {count} more with at least as many effective draws; summary(all=True) or --all shows them",
            style="dim",
        )


def costs(cost: dict[str, dict[str, float]]) -> Table:
    """Return the table of costs of warm-up and draws; rows of zeros are left out."""
    table = empty_table("cost", "warm-up", "draws", "total")
    sampler = "in the sampler and metric" if cost["total"]["n_metrics"] else "in the sampler"
    counts = {
        "exact values": "n_values",
        "exact gradients": "n_gradients",
        "metric evaluations": "n_metrics",
        "divergences": "n_divergences",
        "outside the support, rejected": "n_outside",
        "implicit steps unsolved, rejected": "n_unsolved",
        "failed attempts": "n_failed_attempts",
        "failures, rejected": "n_failures",
    }
    seconds = {"seconds in the model": "model_seconds", f"seconds {sampler}": "sampler_seconds"}
    for label, key in counts.items():
        if cost["total"][key] or key in ("n_values", "n_gradients"):
            table.add_row(label, *(f"{int(cost[phase][key]):,}" for phase in ("warmup", "draws", "total")))
    for label, key in seconds.items():
        table.add_row(label, *(_seconds(cost[phase][key]) for phase in ("warmup", "draws", "total")))
    if cost["total"].get("estimate_seconds"):
        table.add_row("seconds for estimates", "", "", _seconds(cost["total"]["estimate_seconds"]))
    for label, key, form in (
        ("acceptance", "acceptance", ".2f"),
        ("sd(D) of the surrogate", "discrepancy_sd", "#.2g"),
        ("steps with exact gradients", "exact_share", ".0%"),
    ):
        found = [cost[phase].get(key, np.nan) for phase in ("warmup", "draws")]
        if np.isfinite(found).any():
            table.add_row(label, *(f"{each:{form}}" if np.isfinite(each) else UNKNOWN for each in found), "")
    return table


def efficiency(
    effective: dict[str, float], each: dict[str, float], estimates: dict[str, Any] | None = None
) -> Iterator[Table]:
    """Return the figure of merit: effective draws of the worst parameter, in all and per exact evaluation."""
    if not np.isfinite([*effective.values(), *each.values()]).all():
        return
    table = empty_table("effective draws, worst parameter", *effective)
    sharpened = estimates is not None and estimates["sharpened"]
    for before, in_all, ratio in (
        ("", effective, each),
        *(
            [("sharpened, ", estimates["effective"], estimates["efficiency"])]
            if estimates and sharpened
            else []
        ),
    ):
        table.add_row(f"{before}in all", *(f"{value:,.0f}" for value in in_all.values()))
        table.add_row(
            f"{before}per exact evaluation, warm-up included",
            *(Text(few_digits(value), style="bold") for value in ratio.values()),
        )
    yield table


def budget(about: dict[str, Any]) -> Iterator[Text]:
    """Return lines that compare the exact evaluations spent with their limit, and errors with the precision."""
    if about["evaluations_allowed"] is not None:
        yield Text(
            f"{about['evaluations_spent']:,} of {about['evaluations_allowed']:,} exact evaluations allowed; "
            f"{about['draws']:,} draws of each chain"
        )
    if about["precision"] is not None:
        asked, reached = about["precision"]["asked"], about["precision"]["reached"]
        found = f"{reached:.2g}" if reached is not None and np.isfinite(reached) else "not known"
        yield Text(f"largest error of a mean or sd, in sds: {found} (precision {asked:g} was asked for)")


def warning_lines(warnings: list[str]) -> Table:
    """Return the warnings, each with a mark and indented."""
    table = Table.grid(padding=(0, 1))
    for warning in warnings:
        table.add_row(Text("!", style="bold yellow"), Text(warning, style="yellow"))
    return table


def _seconds(value: float) -> str:
    if np.isnan(value):
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _trusted(surrogate: dict[str, Any]) -> str:
    """Name the surrogate, how far it was trusted, and its modes."""
    if surrogate["exact_share"] == 1.0:
        return "HMC in place of a surrogate"
    kind = f"surrogate: {surrogate['kind']}" + (" beside HMC" if surrogate["exact_share"] else "")
    shares = surrogate.get("mode_shares", [])
    if not shares:
        return kind
    *first, last = (f"{each:.1%}" for each in shares)
    return f"{kind}, {len(shares)} separate modes found, with {', '.join(first)} and {last} of the draws"


def _setting(key: str, value: Any) -> str:
    if key == "surrogate":
        return str(value["name"] if isinstance(value, dict) else value)
    if isinstance(value, dict) and "form" in value:
        return f"{value['form']} Hessian as {key}"
    if isinstance(value, dict):  # a metric that was learned, too large to show
        return f"learned {key}"
    if isinstance(value, str):
        return value if key == "method" else f"{key} {value}"
    low, high = np.min(value), np.max(value)
    numbers = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return f"{SHOWN_SETTINGS[key]} {numbers}"
