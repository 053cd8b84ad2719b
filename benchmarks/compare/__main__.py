"""The command line of the comparison; see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import report
from .cases import CASES, STANDARD
from .cells import ROOT, Cells
from .methods import METHODS
from .schedule import Schedule, chosen

#: Methods whose cost to a precision is compared, by the beginnings of their names.
_PRECISE = ("leapwise-precision", "numpyro", "nutpie", "emcee")


def main() -> None:
    options = _parser().parse_args()
    cells = Cells(options.folder / "runs", options.timeout, frozenset(options.fresh), options.kept)
    if options.precision:
        return _precision(options, cells)
    schedule = Schedule(cells, options.seeds, options.draws, options.prune, say=_say)
    tables = {}
    for name in options.problems:
        tables[name] = schedule.rows(CASES[name], chosen(options.methods))
        # After every problem, so that an interrupted comparison leaves a report of the finished ones.
        text = report.write(options.folder, tables, CASES)
    from .picture import draw

    draw(options.folder / "benchmarks.png", tables, CASES)
    if options.docs:
        docs = ROOT / "docs"
        report.put_into(docs / "benchmarks.md", text)
        draw(docs / "figures" / "benchmarks.png", tables, CASES)
    print(f"\n{text}\nwritten to {options.folder}")


def _precision(options: argparse.Namespace, cells: Cells) -> None:
    """Compare what a stated precision costs."""
    schedule = Schedule(
        cells, options.seeds, options.draws, options.prune, say=_say, figure="evaluations_to_precision"
    )
    methods = chosen(options.methods or [name for name in METHODS if name.startswith(_PRECISE)])
    tables = {name: schedule.rows(CASES[name], methods) for name in options.problems}
    text = report.precision_table(tables, CASES)
    if options.docs:
        page = ROOT / "docs" / "benchmarks.md"
        report.put_into(page, text, report.PRECISION_START, report.PRECISION_END)
    print(f"\n{text}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Compare this library with its peers on the same exact potential.",
    )
    parser.add_argument("--problems", nargs="+", choices=list(CASES), default=list(STANDARD), metavar="NAME")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), metavar="NAME", help=", ".join(METHODS)
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=1000, help="of each of four chains")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")
    parser.add_argument("--prune", type=float, default=4.0, help="peers so many times slower are run less")
    parser.add_argument(
        "--fresh", nargs="*", choices=list(METHODS), default=[], metavar="NAME", help="run again"
    )
    parser.add_argument("--kept", action="store_true", help="run nothing, only report finished runs")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument(
        "--precision",
        action="store_true",
        help="compare evaluations until the errors of all means and sds are sd / sqrt(1000)",
    )
    parser.add_argument("--docs", action="store_true", help="put table and picture into docs/benchmarks.md")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
