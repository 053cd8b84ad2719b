"""How tables of numbers look in a terminal and as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

#: Columns where the output is not a terminal.
PLAIN_WIDTH = 100
#: In place of a number that is not known.
UNKNOWN = "-"
#: Numbers that need more decimals are shown in scientific notation.
MOST_DECIMALS = 6


def as_text(shown: RenderableType) -> str:
    """Return what a terminal would show, without colours."""
    stream = io.StringIO()
    Console(file=stream, width=PLAIN_WIDTH, color_system=None, force_jupyter=False).print(shown)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def empty_table(first: str, *others: str) -> Table:
    """Return a table without rows: names on the left, numbers in the other columns."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold", min_width=5, vertical="bottom")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    return table


def add_rows(table: Table, labels: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Add columns of texts to a table; in a narrow terminal names are folded, numbers are not."""
    for column, texts in zip(table.columns[1:], cells, strict=True):
        column.min_width = max(map(len, texts), default=0)
    for label, *row in zip(labels, *cells, strict=True):
        table.add_row(Text(label), *row)  # names may have brackets, which are markup


def decimals(scale: np.ndarray, digits: int) -> np.ndarray:
    """Choose decimals that show `digits` digits of each scale; one choice for all if the scales are alike."""
    known = np.isfinite(scale) & (scale > 0)
    if not known.any():
        return np.full(len(scale), 3)
    if scale[known].max() < 30 * scale[known].min():  # equal decimals are easier to read
        scale = np.full(len(scale), scale[known].min())
    return np.where(known, digits - 1 - np.floor(np.log10(np.where(known, scale, 1.0))), 3).astype(int)


def fixed(values: np.ndarray, places: np.ndarray) -> list[str]:
    """Return numbers with so many decimals each."""
    return [_number(value, place) for value, place in zip(values.tolist(), places.tolist(), strict=True)]


def few_digits(value: float) -> str:
    """Return a positive number with two digits, or whole.

    Examples
    --------
    >>> few_digits(0.123), few_digits(1234.5), few_digits(12.0)
    ('0.12', '1,234', '12')
    """
    if np.isnan(value):
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 else f"{value:#.2g}"


def _number(value: float, places: int) -> str:
    if not np.isfinite(value):
        return UNKNOWN if np.isnan(value) else str(value)
    if abs(value) >= 1e7 or places > MOST_DECIMALS:
        return f"{value:.2e}"
    text = f"{value:.{max(places, 0)}f}"
    return text.removeprefix("-") if float(text) == 0 else text
