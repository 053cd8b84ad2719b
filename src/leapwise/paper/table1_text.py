"""Table 1 in words: for the terminal, for a page of documentation, and what to know when reading it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leapwise.paper.experiments import EXPERIMENTS, METHOD_TITLES
from leapwise.paper.table1_cells import CHAINS, FULL, Plan

Row = dict[str, Any]

ACCEPTANCE_TOLERANCE = 0.06
BUSY = 1.25  # wall seconds for each CPU second

#: Headings and their widths: the tables of all experiments line up.
HEADINGS = {
    "method": 10,
    "AP": 4,
    "ESS of 5000\nmin / median / max": 18,
    "s/iter": 8,
    "min\nESS/s": 6,
    "speed-up": 8,
    "burn-in\nincluded": 8,
    "against two\ngradients": 11,
    "ESS/exact\nevaluation": 10,
}


def terminal(rows: list[Row], notes: list[str]) -> RenderableType:
    """Lay the table out for a terminal of 100 columns, the paper's figures below ours."""
    parts: list[RenderableType] = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        chosen = [row for row in rows if row["experiment"] == name]
        parts += [_section(chosen, with_headings=not parts), Text("")]
    return Group(*parts, *(Text(note + "\n") for note in notes))


def _section(rows: list[Row], with_headings: bool) -> Table:
    """Lay out one experiment."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim", show_header=with_headings)
    table.title, table.title_justify, table.title_style = _title(rows[0]), "left", "bold"
    for heading, width in HEADINGS.items():
        table.add_column(heading, justify="left" if heading == "method" else "right", width=width)
    for row in rows:
        table.add_row(METHOD_TITLES[row["method"]], *ours(row))
        table.add_row(*(Text(cell, style="dim") for cell in ("  paper", *papers(row))))
    return table


def markdown(rows: list[Row], notes: list[str]) -> str:
    """Write the table as Markdown, the paper's figures in parentheses."""
    headings = ["experiment", *(" ".join(heading.split("\n")) for heading in HEADINGS)]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for row in rows:
        cells = [
            f"{mine} ({theirs})" if theirs else mine
            for mine, theirs in zip(ours(row), (*papers(row), "", "", ""), strict=True)
        ]
        lines.append(f"| {_title(row)} | {METHOD_TITLES[row['method']]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "In parentheses: the paper's figure.", "", *(f"{n}\n" for n in notes)])


def ours(row: Row) -> list[str]:
    """Return our figures, as many as there are columns after the method."""
    return [
        f"{row['acceptance']:.2f}",
        three(row),
        short(row["seconds"]),
        short(row["min_ess_rate"]),
        short(row["speed_up"]),
        short(row["speed_up_all"]),
        short(row["speed_up_two_gradients"]),
        short(row["ess_per_exact"]),
    ]


def papers(row: Row) -> list[str]:
    """Return the paper's figures, for the columns that it has."""
    return [
        f"{row['paper_acceptance']:.2f}",
        three(row, "paper_"),
        short(row["paper_seconds"]),
        short(row["paper_min_ess_rate"]),
        short(row["paper_speed_up"]),
    ]


def short(value: float) -> str:
    """Write a number with the three digits that count.

    Examples
    --------
    >>> [short(value) for value in (0.00412, 0.0725, 1, 8.719, 123.56, 4351)]
    ['0.00412', '0.0725', '1', '8.72', '124', '4351']
    """
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def three(row: Row, prefix: str = "") -> str:
    """Write the smallest, median and largest ESS."""
    return " / ".join(f"{row[f'{prefix}ess_{which}']:.0f}" for which in ("min", "median", "max"))


def caption(rows: list[Row]) -> str:
    """Say what was found: the speed-ups of the surrogate methods beside the paper's."""
    said = []
    for method, name in (("rns-hmc", "RNS-HMC"), ("rns-rmhmc", "RNS-RMHMC")):
        chosen = [row for row in rows if row["method"] == method]
        if chosen:
            found = ", ".join(
                f"{short(row['speed_up'])} on {row['experiment']} (paper {short(row['paper_speed_up'])})"
                for row in chosen
            )
            said.append(f"{name} gives so many times HMC's effective draws a second: {found}.")
    return " ".join(said) or "Exact methods only: nothing is sped up."


def notes(plan: Plan, rows: list[Row]) -> list[str]:
    """Say how it was run, and what was cut short."""
    kept = ", ".join(f"{METHOD_TITLES[name]} {CHAINS * n}" for name, n in plan.kept.items())
    found = [
        f"{CHAINS} chains in one batch. Iterations of all chains together: {CHAINS * plan.burn_in} of burn-in "
        f"(nothing is collected in the first fifth); kept: {kept}. Seconds are wall seconds over all of them.",
        "All methods begin at the last draws of a short self-tuned HMC run, which is counted for none. HMC evaluates "
        "one gradient a leapfrog step; 'against two gradients' is the speed-up over an HMC that spends that time "
        "twice, as the authors' code does. 'Burn-in included' adds burn-in and training for a run of the paper's "
        "size; exact RMHMC's burn-in is charged at the price of its kept draws.",
    ]
    return [*found, *_about_training(plan, rows), *_about_agreement(rows), *_about_time(rows)]


def _about_training(plan: Plan, rows: list[Row]) -> Iterator[str]:
    trained = {row["experiment"]: row["n_training"] for row in rows if row["n_training"]}
    if trained:
        sizes = ", ".join(f"{name} {n}" for name, n in trained.items())
        yield f"Surrogates are trained on the values of accepted proposals alone: {sizes}."
    if trained and plan.burn_in < FULL.burn_in:
        yield "The training set is smaller than the paper's: surrogates are worse than they need be."
    if plan != FULL:
        yield (
            "Quick: fewer iterations than the paper's 5000 + 5000, so effective sample sizes, above all RMHMC's, "
            "are rough; --full is the paper's size."
        )


def _about_agreement(rows: list[Row]) -> Iterator[str]:
    """Say where acceptance is not the paper's, and how well the means agree with HMC's."""
    apart = [
        f"{row['experiment']} {METHOD_TITLES[row['method']]} {row['acceptance']:.2f} ({row['paper_acceptance']:.2f})"
        for row in rows
        if abs(row["acceptance"] - row["paper_acceptance"]) > ACCEPTANCE_TOLERANCE
    ]
    if apart:
        yield f"Acceptance more than {ACCEPTANCE_TOLERANCE} from the paper's: {', '.join(apart)}."
    others = [row for row in rows if row["method"] != "hmc"]
    if others:
        worst = max(others, key=lambda row: row["largest_z"])
        yield (
            f"Posterior means differ from HMC's by at most {worst['largest_z']:.1f} combined standard errors "
            f"({worst['experiment']}, {METHOD_TITLES[worst['method']]})."
        )


def _about_time(rows: list[Row]) -> Iterator[str]:
    """Say so if other work disturbed the measured times."""
    slowest = max(row["seconds"] / row["cpu_seconds"] for row in rows)
    if slowest > BUSY:
        others = [row for row in rows if row["method"] != "hmc"]
        found = ", ".join(
            f"{row['experiment']} {METHOD_TITLES[row['method']]} {short(row['speed_up_cpu'])}"
            for row in others
        )
        yield (
            f"The machine was busy: wall seconds are up to {slowest:.1f} times CPU seconds, so take times with a "
            f"pinch of salt. Speed-ups by CPU time: {found or 'none'}."
        )


def _title(row: Row) -> str:
    experiment = EXPERIMENTS[row["experiment"]]
    return f"{experiment.title}, s = {experiment.n_hidden}"
