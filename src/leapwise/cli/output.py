"""What commands print and write: results go to stdout, notes and errors to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from leapwise.problems.registry import Problem
    from leapwise.results import Run
    from leapwise.run.ledgers import Inspection

#: Rows of a figure's table that are shown; all of them are in its CSV file.
MOST_ROWS = 40


def show(renderable: RenderableType) -> None:
    """Print to stdout, in colour if it is a terminal, without trailing blanks if it is not."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.capture() as captured:
        console.print(renderable)
    lines = captured.get().splitlines()
    click.echo("\n".join(lines if console.is_terminal else map(str.rstrip, lines)))


def problem_table(entries: Iterable[Any]) -> Table:
    """Return a table of the built-in problems."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("dim", justify="right")
    table.add_column("data")
    table.add_column("what it is")
    for entry in entries:
        table.add_row(entry.name, str(entry.dim), "needed" if entry.needs_data else "-", entry.description)
    return table


@dataclass(frozen=True)
class Files:
    """Files that a run is written to: draws, a plot of them, a plot of the surrogate; None if not asked for."""

    draws: Path | None = None
    plot: Path | None = None
    surrogate_plot: Path | None = None

    def check(self) -> None:
        """Raise, before anything is evaluated, if a file cannot be written."""
        if self.draws is not None:
            from leapwise.results.datatree import require_netcdf

            require_netcdf(self.draws)
        for plot in (self.plot, self.surrogate_plot):
            if plot is not None:
                from leapwise.results.plots import require_picture

                require_picture(plot)

    def write(self, problem: Problem, run: Run) -> None:
        """Write the files that were asked for, if there are draws."""
        if not run.draws.shape[1]:
            if any((self.draws, self.plot, self.surrogate_plot)):
                click.echo("There are no draws to save.", err=True)
            return
        if self.draws is not None:
            click.echo(f"Saved the draws to {run.save(self.draws)}", err=True)
        if self.plot is not None:
            write_plot(problem, run, self.plot)
            click.echo(f"Saved the plot to {self.plot}", err=True)
        if self.surrogate_plot is not None:
            path = run.plot_surrogate(self.surrogate_plot)
            click.echo(f"Saved the plot of the surrogate to {path}", err=True)


def saving_on_failure(problem: Problem, files: Files, make: Callable[[], Run]) -> Run:
    """Make a run; if the model fails, write the draws so far before the error ends the command.

    Warnings that the run logs about its draws are silenced, because `report` shows them.
    """
    from leapwise.errors import EvaluationError

    log = logging.getLogger("leapwise.draws")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return make()
    except EvaluationError as error:
        if error.run is not None:
            made = error.run.draws.shape[1]
            click.echo(f"The model failed after {made} draws of each chain.", err=True)
            files.write(problem, error.run)
        raise
    finally:
        log.setLevel(level)


def _saved(kept: int, asked: int) -> str:
    """Compare the draws in checkpoints with those that the last call asked for, which may have been fewer."""
    if kept > asked:
        return f"{kept:,} draws of each chain; the last call asked for {asked:,}"
    rest = (
        "" if kept == asked else "; the rest is replayed from the recorded evaluations, or still to be made"
    )
    return f"in checkpoints: {kept:,} of {asked:,} draws of each chain{rest}"


def inspection_table(found: Inspection) -> Table:
    """Return a table of what a ledger holds."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("ledger", f"{found.path}, begun {found.created}, leapwise {found.library_version}")
    n = len(found.names)
    table.add_row("run", f"{found.method}, seed {found.seed}, {n} parameter{'s' if n > 1 else ''}")
    table.add_row("phase", found.phase)
    for each in sorted(found.evaluations, key=lambda each: each.phase == "draws"):
        kind = "values" if each.kind == "value" else "values with gradients"
        what = "" if each.status == "ok" else f", {each.status}"
        table.add_row(each.phase, f"{each.n:,} {kind}{what}, {each.seconds:,.1f} s in the model")
    failed = f"{found.n_failed_attempts:,} attempts, the last: {found.last_failure}"
    table.add_row("failures", failed if found.n_failed_attempts else "none")
    table.add_row("saved", _saved(found.draws_kept, found.draws_asked))
    if found.sd is not None:
        table.add_row("surrogate", f"{found.surrogate}, sd(D) {found.sd:.2g}")
    if found.min_ess is not None:
        table.add_row("so far", f"min ESS {found.min_ess:,.0f}, max R-hat {found.max_rhat:.3f}")
    return table


def report(run: Run, *, show_all: bool, as_json: bool, quiet: bool) -> None:
    """Print the summary: as text, as JSON, or its warnings alone."""
    summary = run.summary(all=show_all)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2, allow_nan=False))
    elif quiet:
        for warning in summary.warnings:
            click.echo(f"Warning: {warning}", err=True)
    else:
        show(summary)


def write_plot(problem: Problem, run: Run, path: Path) -> None:
    """Plot the field of the elliptic problem, or the marginals and traces of any other."""
    from leapwise.problems.elliptic.problem import EllipticProblem

    if isinstance(problem, EllipticProblem):
        from leapwise.problems.elliptic.problem import plot_field

        plot_field(problem, run.draws, path)
    else:
        from leapwise.results.plots import plot_draws

        plot_draws(run, path)


@contextmanager
def stdout_to_stderr(wanted: bool) -> Iterator[None]:
    """Send to stderr what the model, or a program that it starts, prints to stdout."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def show_and_save(name: str, found: Any, folder: Path) -> None:
    """Show and save a table or figure of the paper."""
    from leapwise.paper.reproductions import save_table

    show(found if hasattr(found, "__rich__") else rows_table(found.rows, found.caption))
    saved = [save_table(found.rows, folder / f"{name}.csv")]
    if hasattr(found, "save_markdown"):
        saved.append(found.save_markdown(folder / f"{name}.md"))
    if hasattr(found, "draw"):
        saved.append(found.draw(folder / f"{name}.png"))
    click.echo(f"Saved {' and '.join(map(str, saved))}", err=True)


def rows_table(rows: list[dict[str, Any]], caption: str) -> Group:
    """Return a table of a figure's numbers, the first of them if there are many, above its caption."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading, value in rows[0].items():
        table.add_column(heading.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    more = [Text(f"and {len(rows) - MOST_ROWS} more rows", style="dim")] if len(rows) > MOST_ROWS else []
    return Group(table, *more, Text(""), Text(caption))
