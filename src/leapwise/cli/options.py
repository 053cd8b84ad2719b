"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]
_FILE = click.Path(path_type=Path)


def evaluating(command: Command) -> Command:
    """Add options of how exact evaluations are made; a run may be resumed with others."""
    return _with(
        command,
        click.option(
            "--retries", default=1, show_default=True, help="How often a failing evaluation is tried again."
        ),
        click.option(
            "--timeout", type=float, help="Seconds that one evaluation may take.  [default: no limit]"
        ),
        click.option("--cores", type=int, help="Evaluate in so many processes."),
        click.option(
            "--version", metavar="TEXT", help="Of the model, kept in the ledger: change it with the model."
        ),
    )


def reporting(command: Command) -> Command:
    """Add options of what is shown and written in the end."""
    return _with(
        command,
        click.option("--output", "file", type=_FILE, metavar="FILE.nc", help="Save draws as netCDF."),
        click.option("--plot", "picture", type=_FILE, metavar="FILE.png", help="Draw a picture of them."),
        click.option("--all", "show_all", is_flag=True, help="Show every parameter, however many."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the summary as JSON, and nothing else on stdout."
        ),
        click.option("--quiet", is_flag=True, help="No progress, no summary: only warnings and errors."),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Apply options so that the help lists them in this order."""
    return reduce(lambda made, option: option(made), reversed(options), command)
