"""The table, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from .cases import Case
from .methods import settings_text
from .schedule import Row

START, END = "<!-- results of make bench -->", "<!-- end of results -->"
PRECISION_START, PRECISION_END = "<!-- results of --precision -->", "<!-- end of precision -->"


def best_peer(rows: list[Row], libraries_only: bool = False) -> Row | None:
    """Return the fastest of the other methods, or of other libraries only; those whose chains agree come first."""
    peers = [
        row
        for row in rows
        if not row.method.is_main and row.done and not (libraries_only and row.method.is_ours)
    ]
    return min(peers, key=lambda row: (not row.is_trusted, row.median("seconds_to_1000")), default=None)


def to_json(tables: dict[str, list[Row]]) -> dict:
    """Return everything, runs included."""
    return {
        name: [
            {
                "method": row.method.name,
                "title": row.method.title,
                "settings": row.settings,
                "potential": row.form,
                "status": row.status,
                "medians": {key: row.median(key) for key in _MEDIANS},
                "runs": row.runs,
            }
            for row in rows
        ]
        for name, rows in tables.items()
    }


def to_markdown(tables: dict[str, list[Row]], cases: dict[str, Case]) -> str:
    """Return the summary and a table for each problem."""
    parts = [_summary(tables, cases)]
    parts += [_table(cases[name].title, rows) for name, rows in tables.items()]
    return "\n\n".join(parts) + "\n"


def put_into(page: Path, text: str, start: str = START, end: str = END) -> None:
    """Replace the text between the two marks of a page."""
    before, rest = page.read_text().split(start)
    after = rest.split(end)[1]
    page.write_text(f"{before}{start}\n\n{text}\n{end}{after}")


def precision_table(tables: dict[str, list[Row]], cases: dict[str, Case]) -> str:
    """Return what it costs to reach a precision: each library on each problem, with its best settings."""
    head = ["problem", "method", "evaluations (median)", "of each seed", "times ours", "seconds"]
    lines = []
    for name, rows in tables.items():
        done = [row for row in rows if row.done]
        ours = min((_evaluations(row) for row in done if row.method.is_ours), default=None)
        for row in sorted(done, key=_evaluations):
            each = ", ".join(f"{run['evaluations_to_precision']:,.0f}" for run in row.done)
            lines.append(
                [
                    cases[name].title,
                    f"{row.method.title} {settings_text(row.settings)}".strip(),
                    f"{_evaluations(row):,.0f}",
                    each,
                    "-" if ours is None else _number(_evaluations(row) / ours),
                    _number(row.median("seconds_to_precision")),
                ]
            )
    return _grid(head, lines) + "\n"


def _evaluations(row: Row) -> float:
    found = row.median("evaluations_to_precision")
    return float("inf") if found is None else found


def write(folder: Path, tables: dict[str, list[Row]], cases: dict[str, Case]) -> str:
    """Write both forms into a folder; return the Markdown."""
    text = to_markdown(tables, cases)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.md").write_text(text)
    (folder / "benchmarks.json").write_text(json.dumps(to_json(tables), indent=1))
    return text


_MEDIANS = (
    "values",
    "gradients",
    "seconds",
    "compile_seconds",
    "ess",
    "ess_squares",
    "rhat",
    "per_evaluation",
    "per_evaluation_squares",
    "seconds_to_1000",
    "seconds_to_1000_squares",
    "z_of_mean",
)


def _summary(tables: dict[str, list[Row]], cases: dict[str, Case]) -> str:
    head = [
        "problem",
        "effective draws per evaluation",
        "of the best peer",
        "s to 1000 effective draws",
        "best peer",
        "its s to 1000",
        "times faster",
        "times faster than the best other library",
    ]
    lines = []
    for name, rows in tables.items():
        ours = next((row for row in rows if row.method.name == "leapwise"), None)
        if ours is None or not ours.done:
            continue
        seconds = ours.median("seconds_to_1000")
        peer, library = best_peer(rows), best_peer(rows, libraries_only=True)
        thriftiest = max(
            (row.median("per_evaluation") for row in rows if not row.method.is_main and row.done),
            default=None,
        )
        lines.append(
            [
                cases[name].title,
                _number(ours.median("per_evaluation")),
                _number(thriftiest),
                _number(seconds),
                "-" if peer is None else peer.method.title + " (chains disagree)" * (not peer.is_trusted),
                "-" if peer is None else _number(peer.median("seconds_to_1000")),
                "-" if peer is None else _number(peer.median("seconds_to_1000") / seconds),
                "-" if library is None else _number(library.median("seconds_to_1000") / seconds),
            ]
        )
    return _grid(head, lines)


def _table(title: str, rows: list[Row]) -> str:
    head = [
        "method",
        "values",
        "gradients",
        "seconds",
        "compiling",
        "ESS of means",
        "of squares",
        "R-hat",
        "ESS per evaluation",
        "s to 1000",
        "by squares",
        "times the best peer's speed",
        "seeds",
    ]
    peer = best_peer(rows)
    ordered = sorted(rows, key=lambda row: row.median("seconds_to_1000") or float("inf"))
    return f"### {title}\n\n" + _grid(head, [_line(row, peer) for row in ordered])


def _line(row: Row, peer: Row | None) -> list[str]:
    labels = [
        row.method.title,
        settings_text(row.settings),
        "potential in NumPy" if row.form == "numpy" else "",
    ]
    name = f"**{labels[0]}**" if row.method.is_main else labels[0]
    name += f" ({', '.join(filter(None, labels[1:]))})" if any(labels[1:]) else ""
    if not row.done:
        return [name, row.status.replace("|", "/"), *[""] * 11]
    seconds = row.median("seconds_to_1000")
    n_failed = len(row.runs) - len(row.done)
    seeds = f"{len(row.done)}" + (f" ({n_failed} {row.status})" if n_failed else "")
    return [
        name,
        f"{row.median('values'):,.0f}",
        f"{row.median('gradients'):,.0f}",
        _number(row.median("seconds")),
        _number(row.median("compile_seconds")) if row.median("compile_seconds") else "-",
        f"{row.median('ess'):,.0f}",
        f"{row.median('ess_squares'):,.0f}",
        "-" if row.worst("rhat") is None else f"{row.worst('rhat'):.3f}",
        _number(row.median("per_evaluation")),
        _number(seconds),
        _number(row.median("seconds_to_1000_squares")),
        "-" if peer is None else _number(peer.median("seconds_to_1000") / seconds),
        seeds.replace("|", "/"),
    ]


def _number(x: float | None) -> str:
    """Write a number with two or three digits, if possible without powers of ten."""
    if x is None:
        return "-"
    if x >= 100:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.2g}"


def _grid(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
