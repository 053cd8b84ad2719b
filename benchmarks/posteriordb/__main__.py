"""Run methods on the posteriors of posteriordb, or on random ones, and print a table.

Every run is kept in a file, so the same command continues where an earlier one ended.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.compare.cells import NOT_RUN, ROOT, Cells

from .cases import RANDOM
from .generator import random_posterior
from .registry import NAMES
from .runs import METHODS, START_RADIUS, available
from .table import by_kind, by_posterior

WORKER = "benchmarks.posteriordb.runs"


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    # One BLAS thread: matrices are small, and two runs may share the cores.
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    cells = Cells(options.folder, options.timeout, frozenset(options.fresh), options.kept, WORKER)
    wanted = requests(options)

    def run(request: dict) -> dict:
        cell = cells.get(request)
        what = cell["status"] if cell["status"] != "ok" else cell.get("error", "ok")[:80]
        print(f"{request['case']:30s} {request['method']:12s} seed {request['seed']}: {what}", flush=True)
        return cell

    with ThreadPoolExecutor(options.jobs) as pool:
        found = [cell for cell in pool.map(run, wanted) if cell["status"] != NOT_RUN]
    print("\n" + (by_kind if options.random else by_posterior)(found))


def requests(options: argparse.Namespace) -> list[dict]:
    """Return all runs, posterior by posterior; options that change nothing are left out of their settings."""
    usual = {"rescale": 1.0, "shift": 0.0, "init_radius": START_RADIUS, "permute": None}
    settings = {key: getattr(options, key) for key, value in usual.items() if getattr(options, key) != value}
    if options.random:
        found = [random_posterior(seed) for seed in range(1, options.random + 1)]
        # The kind is part of the request, since a run that is stopped cannot report it.
        cases = [{"case": f"{RANDOM}{each.seed}", "kind": each.kind, "dim": each.dim} for each in found]
    else:
        cases = [{"case": name} for name in options.posteriors]
    seeds = options.seeds or (1 if options.random else 5)
    return [
        {**case, "method": method, "seed": seed, "draws": options.draws, "settings": settings}
        for case in cases
        for method in options.methods
        for seed in range(seeds)
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.posteriordb", description=__doc__)
    add, names = parser.add_argument, {"nargs": "+", "metavar": "NAME"}
    add(
        "--posteriors",
        choices=NAMES,
        default=list(NAMES),
        help="by default all: " + ", ".join(NAMES),
        **names,
    )
    add("--methods", choices=list(METHODS), default=available(), help=", ".join(METHODS), **names)
    add("--seeds", type=int, help="runs of each method on each posterior; 5, or 1 of random posteriors")
    add("--draws", type=int, default=1000, help="of each of four chains")
    add(
        "--random", type=int, default=0, metavar="N", help="run the random posteriors of seeds 1 to N instead"
    )
    add("--rescale", type=float, default=1.0, help="multiply all parameters")
    add("--shift", type=float, default=0.0, help="move all parameters by so many standard deviations")
    add(
        "--init-radius",
        type=float,
        default=START_RADIUS,
        help="starts are uniform between -RADIUS and RADIUS",
    )
    add("--permute", type=int, metavar="SEED", help="put the parameters into a random order")
    add("--timeout", type=float, default=900.0, help="seconds for one run")
    add("--jobs", type=int, default=1, help="runs at the same time")
    add("--fresh", choices=list(METHODS), default=[], help="methods to run again", **names)
    add("--kept", action="store_true", help="run nothing, print what there is")
    add("--folder", type=Path, default=ROOT / "out" / "posteriordb", help="where results are kept")
    return parser


if __name__ == "__main__":
    main()
