"""What a command prints and writes: results on stdout, talk on stderr."""

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
from rich.console import Console, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from leapwise.problems.problem import Problem
    from leapwise.results import Run
    from leapwise.run.inspect import Inspection


def show(renderable: RenderableType) -> None:
    """Print to stdout, in colour if it is a terminal, without trailing blanks if it is not."""
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.capture() as captured:
        console.print(renderable)
    lines = captured.get().splitlines()
    click.echo("\n".join(lines if console.is_terminal else map(str.rstrip, lines)))


def problem_table(entries: Iterable[Any]) -> Table:
    """Tabulate the built-in problems."""
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
    """Where the results of a run go: draws, a picture of them, a picture of the surrogate; None for not at all."""

    draws: Path | None = None
    picture: Path | None = None
    surrogate: Path | None = None

    def check(self) -> None:
        """Raise now, before anything is evaluated, if they could not be written in the end."""
        if self.draws is not None:
            from leapwise.results.datatree import require_netcdf, require_writable

            require_netcdf()
            require_writable(self.draws)
        for picture in (self.picture, self.surrogate):
            if picture is not None:
                from leapwise.results.plots import require_picture

                require_picture(picture)

    def keep(self, problem: Problem, run: Run) -> None:
        """Write those that were asked for, if there is anything to write."""
        if not run.draws.shape[1]:
            if any((self.draws, self.picture, self.surrogate)):
                click.echo("There are no draws to save.", err=True)
            return
        if self.draws is not None:
            click.echo(f"Saved the draws to {run.save(self.draws)}", err=True)
        if self.picture is not None:
            draw_picture(problem, run, self.picture)
            click.echo(f"Saved the picture to {self.picture}", err=True)
        if self.surrogate is not None:
            click.echo(
                f"Saved the picture of the surrogate to {run.plot_surrogate(self.surrogate)}", err=True
            )


def kept(problem: Problem, files: Files, make: Callable[[], Run]) -> Run:
    """Make a run; if the model fails, what was drawn by then is written before the error goes on.

    What a run logs of its draws is kept quiet: `report` says the same.
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
            files.keep(problem, error.run)
        raise
    finally:
        log.setLevel(level)


def inspection_table(found: Inspection) -> Table:
    """Tabulate what a ledger holds."""
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
    table.add_row("kept", f"{found.draws_kept:,} of {found.draws_asked:,} draws of each chain on disk")
    if found.sd is not None:
        table.add_row("surrogate", f"{found.surrogate}, sd(D) {found.sd:.2g}")
    if found.min_ess is not None:
        table.add_row("so far", f"min ESS {found.min_ess:,.0f}, max R-hat {found.max_rhat:.3f}")
    return table


def report(run: Run, *, show_all: bool, as_json: bool, quiet: bool) -> None:
    """Print the summary, in the form that was asked for."""
    summary = run.summary(all=show_all)
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2, allow_nan=False))
    elif quiet:
        for warning in summary.warnings:
            click.echo(f"Warning: {warning}", err=True)
    else:
        show(summary)


def draw_picture(problem: Problem, run: Run, picture: Path) -> None:
    """Draw what the problem is about, if it knows how, or else its marginals and traces."""
    from leapwise.problems.elliptic.problem import EllipticProblem

    if isinstance(problem, EllipticProblem):
        from leapwise.problems.elliptic.plots import plot_field

        plot_field(problem, run.draws, picture)
    else:
        from leapwise.results.plots import plot_draws

        plot_draws(run, picture)


@contextmanager
def stdout_to_stderr(wanted: bool) -> Iterator[None]:
    """Keep stdout clean: what models print, and the programs that they start, goes to stderr."""
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
