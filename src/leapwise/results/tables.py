"""How a summary looks in a terminal: at most 80 columns for ordinary names, plain when there is no colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
MOST_DECIMALS = 6
SHOWN_SETTINGS = {
    "method": "",
    "surrogate": "",
    "inner_steps": "inner steps",
    "step_size": "step size",
    "n_steps": "number of steps",
    "trajectory_length": "trajectory length",
    "metric": "metric",
}


def heading(about: dict[str, Any], surrogate: dict[str, Any] | None = None) -> Text:
    """Say in one line what was run, in another with what settings."""
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


def parameters(rows: list[dict[str, Any]]) -> Table:
    """Tabulate parameters; each number to the digits that its spread or error makes meaningful."""
    columns = {
        key: np.array([row[key] for row in rows], dtype=float) for key in rows[0] if key != "parameter"
    }
    table = _table("", "mean", "sd", "5%", "50%", "95%", "MCSE", "ESS\nbulk", "ESS\ntail", "R-hat")
    decimals = _decimals(columns["sd"], digits=3)
    texts = [_fixed(columns[key], decimals) for key in ("mean", "sd", "q5", "q50", "q95")]
    texts.append(_fixed(columns["mcse"], _decimals(columns["mcse"], digits=2)))
    texts += [_fixed(columns[key], np.zeros(len(rows), int)) for key in ("ess_bulk", "ess_tail")]
    texts.append(_fixed(columns["rhat"], np.full(len(rows), 3)))
    for column, cells in zip(table.columns[1:], texts, strict=True):
        column.min_width = max(map(len, cells))  # in a narrow terminal names fold, numbers do not
    for row, *cells in zip(rows, *texts, strict=True):
        table.add_row(Text(row["parameter"]), *cells)
    return table


def hidden(count: int) -> Iterator[Text]:
    """Say how many parameters the table leaves out."""
    if count:
        yield Text(
            f"and {count} more, no worse than these; summary(all=True) or --all shows them", style="dim"
        )


def costs(cost: dict[str, dict[str, float]]) -> Table:
    """Tabulate what was spent, warm-up and draws apart; what did not occur is left out."""
    table = _table("cost", "warm-up", "draws", "total")
    elsewhere = "in the sampler and metric" if cost["total"]["n_metrics"] else "in the sampler"
    counts = {
        "exact values": "n_values",
        "exact gradients": "n_gradients",
        "metric evaluations": "n_metrics",
        "divergences": "n_divergences",
        "outside the support, rejected": "n_outside",
        "implicit steps unsolved, rejected": "n_unsolved",
        "failures, rejected": "n_failures",
    }
    seconds = {"seconds in the model": "model_seconds", f"seconds {elsewhere}": "sampler_seconds"}
    for label, key in counts.items():
        if cost["total"][key] or key in ("n_values", "n_gradients"):
            table.add_row(label, *(f"{int(cost[phase][key]):,}" for phase in ("warmup", "draws", "total")))
    for label, key in seconds.items():
        table.add_row(label, *(_seconds(cost[phase][key]) for phase in ("warmup", "draws", "total")))
    for label, key, form in (
        ("acceptance", "acceptance", ".2f"),
        ("sd(D) of the surrogate", "discrepancy_sd", "#.2g"),
        ("steps with exact gradients", "exact_share", ".0%"),
    ):
        found = [cost[phase].get(key, np.nan) for phase in ("warmup", "draws")]
        if np.isfinite(found).any():
            table.add_row(label, *(f"{each:{form}}" if np.isfinite(each) else UNKNOWN for each in found), "")
    return table


def efficiency(effective: dict[str, float], each: dict[str, float]) -> Iterator[Table]:
    """State the figure of merit: effective draws of the worst parameter, and what they cost."""
    if np.isfinite([*effective.values(), *each.values()]).all():
        table = _table("effective draws, worst parameter", *effective)
        table.add_row("in all", *(f"{value:,.0f}" for value in effective.values()))
        table.add_row(
            "per exact evaluation, warm-up included",
            *(Text(f"{value:#.2g}", style="bold") for value in each.values()),
        )
        yield table


def budget(about: dict[str, Any]) -> Iterator[Text]:
    """Say what a limited number of exact evaluations has bought."""
    if about["evaluations_allowed"] is not None:
        yield Text(
            f"{about['evaluations_spent']:,} of {about['evaluations_allowed']:,} exact evaluations allowed; "
            f"{about['draws']:,} draws of each chain"
        )


def warning_lines(warnings: list[str]) -> Table:
    """List warnings, each with a mark and its lines indented."""
    table = Table.grid(padding=(0, 1))
    for warning in warnings:
        table.add_row(Text("!", style="bold yellow"), Text(warning, style="yellow"))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold", min_width=5, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


def _decimals(scale: np.ndarray, digits: int) -> np.ndarray:
    """Choose decimals that show `digits` digits of each scale; one choice for all if the scales are alike."""
    known = np.isfinite(scale) & (scale > 0)
    if not known.any():
        return np.full(len(scale), 3)
    if scale[known].max() < 30 * scale[known].min():  # a straight column is easier to read
        scale = np.full(len(scale), scale[known].min())
    return np.where(known, digits - 1 - np.floor(np.log10(np.where(known, scale, 1.0))), 3).astype(int)


def _fixed(values: np.ndarray, decimals: np.ndarray) -> list[str]:
    return [_number(value, places) for value, places in zip(values.tolist(), decimals.tolist(), strict=True)]


def _number(value: float, places: int) -> str:
    if not np.isfinite(value):
        return UNKNOWN if np.isnan(value) else str(value)
    if abs(value) >= 1e7 or places > MOST_DECIMALS:
        return f"{value:.2e}"
    text = f"{value:.{max(places, 0)}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _trusted(surrogate: dict[str, Any]) -> str:
    """Name the surrogate and how far it was trusted."""
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
    if isinstance(value, dict):  # a metric that was learnt, too large to show
        return f"learnt {key}"
    if isinstance(value, str):
        return value if key == "method" else f"{key} {value}"
    low, high = np.min(value), np.max(value)
    numbers = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    return f"{SHOWN_SETTINGS[key]} {numbers}"
