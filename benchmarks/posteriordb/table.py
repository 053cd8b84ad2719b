"""Markdown from cells: one row for each posterior (or kind of random ones) and method.

Figures are medians over the runs that started; of R-hat, |z| and ratios of standard deviations the worst. A run whose
process failed or took too long has not started either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

#: Chains disagree above this.
MAX_RHAT = 1.05
#: Characters of a warning or an error that are shown.
WORDS = 60

_HEAD = (
    "method",
    "started",
    "warm-up",
    "evaluations",
    "ESS/eval",
    "squares/eval",
    "z of mean",
    "z of sd",
    "sd ratio - 1",
    "R-hat",
    "surrogate",
    "exact",
    "CPU s",
    "warnings",
)


def by_posterior(cells: Iterable[dict]) -> str:
    """Return the table of posteriors and methods."""
    groups = _groups(cells, lambda cell: cell["request"]["case"])
    rows = [(name, *_figures(method, runs)) for (name, method), runs in groups.items()]
    return markdown(("posterior", *_HEAD), rows)


def by_kind(cells: Iterable[dict]) -> str:
    """Return the table of random posteriors by kind, followed by a list of those with trouble."""
    cells = list(cells)
    groups = _groups(cells, lambda cell: cell["request"]["kind"])
    rows = [
        (kind, len(runs), sum(has_trouble(run) for run in runs), *_figures(method, runs))
        for (kind, method), runs in sorted(groups.items())
    ]
    table = markdown(("kind", "runs", "to look at", *_HEAD), rows)
    listed = [_trouble(cell) for cell in cells if has_trouble(cell)]
    return (
        f"{table}\n\nNot started, or R-hat above {MAX_RHAT}: {len(listed)} of {len(cells)}.\n\n"
        + "\n".join(listed)
    )


def started(cell: dict) -> bool:
    """Return whether a run has draws."""
    return cell["status"] == "ok" and cell["started"]


def has_trouble(cell: dict) -> bool:
    """Return whether a run did not start, or its chains disagree."""
    return not (started(cell) and cell["rhat"] <= MAX_RHAT)


def markdown(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; bars are replaced, since a bar inside a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(each).replace("|", "/") for each in line) + " |" for line in lines)


def _groups(cells: Iterable[dict], key) -> dict[tuple[str, str], list[dict]]:
    groups = defaultdict(list)
    for cell in cells:
        groups[key(cell), cell["request"]["method"]].append(cell)
    return groups


def _figures(method: str, runs: list[dict]) -> tuple[str, ...]:
    done = [run for run in runs if started(run)]

    def known(key: str) -> list:
        return [run[key] for run in done if run[key] is not None]

    def middle(key: str, form: str) -> str:
        return format(median(known(key)), form) if known(key) else "-"

    def worst(key: str, form: str) -> str:
        return format(max(known(key)), form) if known(key) else "-"

    return (
        method,
        f"{len(done)} of {len(runs)}",
        middle("warmup_evaluations", ",.0f"),
        middle("evaluations", ",.0f"),
        middle("per_evaluation", ".3g"),
        middle("per_evaluation_squares", ".3g"),
        worst("z_mean", ".1f"),
        worst("z_sd", ".1f"),
        worst("sd_ratio", ".3f"),
        worst("rhat", ".3f"),
        ", ".join(sorted(set(known("surrogate")))) or "-",
        middle("exact_share", ".2f"),
        middle("sampler_seconds", ".1f"),
        _said(runs),
    )


def _said(runs: list[dict]) -> str:
    """Count the warnings of all runs, and quote the first; errors of runs that did not start come before these."""
    problems = [f"; not started: {_problem(run)[:WORDS]}" for run in runs if not started(run)]
    warnings = [warning for run in runs if started(run) for warning in run["warnings"]]
    quoted = problems[:1] or [f": {warning[:WORDS]}" for warning in warnings[:1]]
    return f"{len(warnings)}{''.join(quoted)}"


def _problem(cell: dict) -> str:
    text = cell["error"] if cell["status"] == "ok" else cell["status"]
    return " ".join(text.split())


def _trouble(cell: dict) -> str:
    request = cell["request"]
    what = f"R-hat {cell['rhat']:.3f}" if started(cell) else _problem(cell)[: 4 * WORDS]
    about = f"{request['kind']}, {request['dim']} parameters"
    return f"- {request['case']} ({about}), {request['method']}, seed {request['seed']}: {what}"
