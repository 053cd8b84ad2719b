"""Run the quick tier of the exactness tests, draw its largest |z| with those of planted mistakes, and print tables.

It draws and prints the numbers that the tests report; nothing is measured a second time.

    OPENBLAS_NUM_THREADS=1 python benchmarks/exactness.py [--picture docs/figures/exactness.png]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest

TESTS = Path(__file__).parents[1] / "tests" / "exactness"
SOUND, LIE, PLANTED = "#1b6ca8", "#5aa469", "#c0392b"


#: Table, row, column, largest |z| (None where no chain has moved), and number of chains.
Cell = tuple[str, str, str, float | None, int]


class Listener:
    """Keeps the numbers that tests report."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.thresholds: list[float] = []
        self.mutations: dict[str, str] = {}

    def largest(self, word: str, place: int, name: str) -> list[float]:
        """Return the largest |z| of one row or column of the table that has a word in its title."""
        return [
            cell[3] for cell in self.cells if word in cell[0] and cell[place] == name and cell[3] is not None
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = dict(report.user_properties)
        if report.when != "call":
            return
        if "invariance" in found:
            self.cells.append(found["invariance"])
            self.thresholds.append(found["threshold"])
        if "mutation" in found and report.passed:
            self.mutations[found["mutation"]] = found["caught_by"]


def draw(heard: Listener, path: Path) -> None:
    """Draw all largest |z|, of sound kernels and of planted mistakes, on one axis."""
    found = {name: re.search(r"\|z\| = ([\d.]+)", words) for name, words in heard.mutations.items()}
    caught = {name: float(z[1]) for name, z in found.items() if z}
    mistakes = sorted(caught, key=lambda name: caught[name])
    rows = list(dict.fromkeys(cell[1] for cell in heard.cells if "target" in cell[0]))
    kernels = list(dict.fromkeys(cell[2] for cell in heard.cells if "lie" in cell[0]))
    labels, points = [], []
    for name in mistakes:
        labels.append(name)
        points.append(([caught[name]], PLANTED))
    for name in reversed(kernels):
        labels.append(f"every lie to {name}")
        points.append((heard.largest("lie", 2, name), LIE))
    for name in reversed(rows):
        labels.append(f"{name}, on every target")
        points.append((heard.largest("target", 1, name), SOUND))
    figure, axes = plt.subplots(figsize=(8.0, 0.19 * len(labels) + 1.0), layout="constrained")
    for height, (values, color) in enumerate(points):
        axes.plot(values, [height] * len(values), "o", color=color, markersize=4.5, alpha=0.75, mew=0)
    axes.axvline(min(heard.thresholds), color="0.3", lw=1, ls="--")
    axes.text(
        min(heard.thresholds) * 1.06, len(labels) - 1, "a check fails", fontsize=8, va="center", color="0.3"
    )
    axes.axhline(len(mistakes) - 0.5, color="0.8", lw=0.8)
    axes.set(xscale="log", xlim=(0.5, 1000), ylim=(-0.8, len(labels) - 0.2), xlabel="largest |z| of a check")
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.set_yticks(range(len(labels)), labels, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.92")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=130)


def print_table(cells: Iterable[Cell]) -> None:
    """Print the largest |z| as a table in Markdown."""
    found = {(row, column): z for _, row, column, z, _ in cells}
    columns = list(dict.fromkeys(column for _, column in found))
    print(f"\n| | {' | '.join(columns)} |\n|---{'|---:' * len(columns)}|")
    for row in dict.fromkeys(row for row, _ in found):
        cells_of_row = (words(found[row, column]) if (row, column) in found else "slow" for column in columns)
        print(f"| {row} | {' | '.join(cells_of_row)} |")


def words(z: float | None) -> str:
    return "stays" if z is None else f"{z:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=Path("out/exactness.png"))
    options = parser.parse_args()
    heard = Listener()
    tests = [str(TESTS / f"test_{name}.py") for name in ("invariance", "lies", "mutations")]
    code = pytest.main([*tests, "-q"], plugins=[heard])
    for title in dict.fromkeys(cell[0] for cell in heard.cells):
        print_table([cell for cell in heard.cells if cell[0] == title])
    print("\n| mistake | seen by |\n|---|---|")
    for name, how in heard.mutations.items():
        print(f"| {name} | {how.replace('|z|', 'z')} |")
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(heard, options.picture)
    print(f"\nwrote {options.picture}; pytest ended with code {int(code)}")


if __name__ == "__main__":
    main()
