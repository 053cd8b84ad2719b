"""How errors end a command."""

from __future__ import annotations

from typing import Any

import click

from leapwise.errors import LeapwiseError

INTERRUPTED = 130  # what shells expect after Ctrl-C


class Failure(click.ClickException):
    """An error that the library raised on purpose: its sentence on one line, no traceback, exit code 2."""

    exit_code = 2


class OneLineErrors(click.Group):
    """A group of commands that turns the library's errors into `Failure`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except LeapwiseError as error:
            raise Failure(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
