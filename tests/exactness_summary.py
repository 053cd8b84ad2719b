"""Summary of the exactness tests: tables of the largest |z|, and the mutation score.

It is loaded with all tests, because the summary is written where the results of several processes meet.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    ended = [
        (report, dict(report.user_properties))
        for outcome in ("passed", "failed", "xfailed")
        for report in stats.get(outcome, [])
        if getattr(report, "when", "") == "call"
    ]
    cells = [properties["invariance"] for _, properties in ended if "invariance" in properties]
    alarms = [properties["false_alarm"] for _, properties in ended if "false_alarm" in properties]
    mutations = [(report, found) for report, found in ended if "mutation" in found]
    if not alarms and not mutations:
        return
    terminalreporter.section("exactness")
    for title in dict.fromkeys(cell[0] for cell in cells):
        _write_table(terminalreporter, title, [cell[1:] for cell in cells if cell[0] == title])
    if cells:
        largest = max(cell[3] for cell in cells if cell[3] is not None)
        threshold = min(found["threshold"] for _, found in ended if "threshold" in found)
        terminalreporter.write_line(f"largest |z| of all: {largest:.2f}; a check fails above {threshold:.2f}")
    if alarms:
        terminalreporter.write_line(
            f"false-alarm rate of all {len(alarms)} statistical checks together: {sum(alarms):.1e}"
        )
    if mutations:
        _write_mutations(terminalreporter, mutations)


def _write_table(
    terminalreporter: pytest.TerminalReporter, title: str, cells: Iterable[tuple[str, str, float | None, int]]
) -> None:
    """Write the largest |z| of each row and column, with the number of chains; a dash where no chain has moved."""
    found: dict[tuple[str, str], float] = {}
    chains: dict[str, set[int]] = {}
    columns: dict[str, int] = {}  # and how wide they are
    for row, column, z, n_chains in cells:
        if z is not None:
            found[row, column] = max(z, found.get((row, column), 0.0))
        columns[column] = max(len(column), 4)
        chains.setdefault(row, set()).add(n_chains)
    width = max(map(len, chains))
    write = terminalreporter.write_line
    write(f"largest |z| of {title}")
    write(" " * (2 + width) + "".join(f"  {name:>{wide}}" for name, wide in columns.items()) + "  chains")
    for row, counts in chains.items():
        values = {name: f"{found[row, name]:.2f}" if (row, name) in found else "-" for name in columns}
        body = "".join(f"  {values[name]:>{wide}}" for name, wide in columns.items())
        write(f"  {row:<{width}}{body}  {', '.join(f'{n:.0e}' for n in sorted(counts))}")


def _write_mutations(terminalreporter: pytest.TerminalReporter, mutations: list) -> None:
    caught = [report for report, _ in mutations if report.outcome == "passed"]
    terminalreporter.write_line(f"mutation score: {len(caught)}/{len(mutations)}")
    for report, found in mutations:
        how = found.get("caught_by", "") if report in caught else "NOT CAUGHT"
        terminalreporter.write_line(f"  {found['mutation']}: {how}")
