"""`leapwise reproduce`: compute, show and save the paper's tables and figures."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from leapwise.cli import output
from leapwise.errors import InputError
from leapwise.paper import registry
from leapwise.paper.cells import Cells
from leapwise.paper.figure import save_table
from leapwise.results.datatree import require_writable

MOST_ROWS = 40


def reproduce_all(
    names: Sequence[str], only: dict[str, str], quick: bool, folder: Path, fresh: bool, quiet: bool
) -> None:
    """Reproduce what is named, one after the other.

    What was asked for with `only` (an experiment, a method) goes to those that know it. Asked of a single one that
    does not, it is an error.
    """
    makers = {name: registry.get(name).load() for name in names}
    for name in names:
        require_writable(folder / f"{name}.csv")
        if name != "table1":  # which has no picture
            output.Files(picture=folder / f"{name}.png").check()
        unknown = [f"--{option}" for option in only if option not in _options(makers[name])]
        if unknown and len(names) == 1:
            raise InputError(f"{name} has no {' and no '.join(unknown)}; leave it out, or reproduce table1")
    cells = Cells(folder, fresh, None if quiet else _teller())
    try:
        for name, maker in makers.items():
            chosen = {option: value for option, value in only.items() if option in _options(maker)}
            cells.expect(0)  # not every one knows how many pieces it has: the last one's number must not stay
            try:
                found = maker(quick=quick, cells=cells, **chosen)
            except InputError as error:  # such as a sampler that this one does not know
                if len(names) == 1:
                    raise
                click.echo(f"Left out {name}: {error}", err=True)
                continue
            _finish(name, found, folder)
    except KeyboardInterrupt:
        click.echo(
            f"What is finished is kept in {folder / 'cells'}; the same command goes on from there.", err=True
        )
        raise


def _finish(name: str, found: Any, folder: Path) -> None:
    """Show and save the results of one table or figure."""
    output.show(found if hasattr(found, "__rich__") else rows_table(found.rows, found.caption))
    saved = [save_table(found.rows, folder / f"{name}.csv")]
    if hasattr(found, "save_markdown"):
        saved.append(found.save_markdown(folder / f"{name}.md"))
    if hasattr(found, "draw"):
        saved.append(found.draw(folder / f"{name}.png"))
    click.echo(f"Saved {' and '.join(map(str, saved))}", err=True)


def rows_table(rows: list[dict[str, Any]], caption: str) -> Group:
    """Tabulate the numbers of a figure, the first of them if there are many, above what they say."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading, value in rows[0].items():
        table.add_column(heading.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    more = [Text(f"and {len(rows) - MOST_ROWS} more rows", style="dim")] if len(rows) > MOST_ROWS else []
    return Group(table, *more, Text(""), Text(caption))


def _options(maker: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(maker).parameters)


def _teller() -> Callable[[str], None]:
    """Return what writes progress to stderr, with the minutes since the beginning."""
    started = time.monotonic()

    def tell(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        click.echo(f"{minutes:3d}:{seconds:02d} {text}", err=True)

    return tell
