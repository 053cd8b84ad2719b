"""The command line: `leapwise problems`, `sample`, `resume`, `inspect` and `reproduce`.

Results go to stdout; progress, notes and errors to stderr. An error that the library raises on purpose is one line,
with exit code 2. An interrupted run still shows and saves its draws so far, with exit code 130.
"""

from leapwise.cli.commands import main

__all__ = ["main"]
