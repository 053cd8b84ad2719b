"""What each stage of the adaptation is worth: turn stages off one by one and compare.

    python -m benchmarks.ablation [--problems NAME ...] [--stages NAME ...] [--seeds N] [--draws N]

Each run is one process and one file in ``out/ablation``, so the same command continues an interrupted one. A run with
all stages also records which switches the adaptation has read. A stage that was not read had no effect with that seed,
so it is not run again without it. Markdown tables are printed at the end, or with ``--kept`` from what there is.

Stages are the fields of `leapwise.adaptation.settings.StageSwitches`; they reach `sample` by ``Auto(settings=...)``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np
from arviz_stats.base import array_stats
from benchmarks.compare.cases import without_gradient
from benchmarks.compare.cells import NOT_RUN, ROOT, Cells
from benchmarks.posteriordb.cases import get_case
from benchmarks.posteriordb.registry import NAMES as POSTERIORS
from benchmarks.posteriordb.runs import CHAINS, Found, ModelClock, figures
from benchmarks.posteriordb.table import markdown, started

import leapwise as lw
from leapwise.adaptation.settings import DEFAULT, StageSwitches
from leapwise.problems import registry
from leapwise.problems.hierarchies import LONG_RUN_MEAN, LONG_RUN_SD
from leapwise.results.statistics import statistics

ALL = "all stages"
STAGES = tuple(each.name for each in fields(StageSwitches))
#: A run is wrong above these: the largest |z| over some dozens of parameters rarely exceeds 5 by chance, and chains
#: disagree above the usual limit of R-hat.
MOST_Z, MAX_RHAT = 5.0, 1.05
#: Changes of evaluations or efficiency within this factor are not marked: seeds differ by about as much.
NOISE = 1.25
#: Exact draws that a run is compared with.
REFERENCE = (10, 1000)

T = np.linspace(0.2, 4.0, 12)
DATA = 2.0 * np.exp(-0.6 * T) + 0.5 * np.exp(-3.0 * T) + 0.02 * np.sin(7.0 * T)


@dataclass(frozen=True, eq=False)
class AblationCase:
    """A posterior, and what is known of it: exact draws, or moments, or the share of the mass in one of two modes."""

    target: lw.Target | lw.ForwardTarget
    reference: np.ndarray | None = None
    moments: tuple[np.ndarray, np.ndarray] | None = None
    in_mode: Callable[[np.ndarray], np.ndarray] | None = None
    share: float = np.nan


def two_modes() -> lw.Target:
    """Return two normals eight standard deviations apart, with weights 0.7 and 0.3."""
    centres = np.array([[4.0, 0.0], [-4.0, 0.0]])

    def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = centres - x[:, None]
        logs = np.log([0.7, 0.3]) - 0.5 * (away**2).sum(axis=2)
        total = np.logaddexp(logs[:, 0], logs[:, 1])
        share = np.exp(logs - total[:, None])
        return total, (share[:, :, None] * away).sum(axis=1)

    return lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=2, vectorized=True)


def two_decays() -> lw.ForwardTarget:
    """Return a sum of two exponentials that can be exchanged: two modes of equal mass."""
    prior = lw.UniformPrior([0.0, 0.05, 0.0, 0.05], [4.0, 6.0, 4.0, 6.0])
    return lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * T) + x[2] * np.exp(-x[3] * T),
        lw.GaussianLikelihood(DATA, sd=0.05),
        prior,
        names=["a", "k", "b", "l"],
    )


def case_of(name: str) -> AblationCase:
    """Make a problem by its name; ``NAME, values`` is without its gradient."""
    if name.endswith(", values"):
        case = case_of(name.removesuffix(", values"))
        return replace(case, target=without_gradient(case.target))
    if name == "two-modes":
        return AblationCase(two_modes(), None, None, lambda x: x[..., 0] > 0, 0.7)
    if name == "two-decays":
        return AblationCase(two_decays(), None, None, lambda x: x[..., 1] > x[..., 3], 0.5)
    if name in POSTERIORS:
        found = get_case(name)
        return AblationCase(found.target, found.reference)
    problem = registry.get(name)
    if problem.draw is not None:
        drawn = problem.draw(np.random.default_rng(0), REFERENCE[0] * REFERENCE[1])
        reference = drawn.reshape(*REFERENCE, -1)
        if name == "lobes":
            share = float(np.mean(problem.draw(np.random.default_rng(1), 10**6)[:, 0] > 0))
            return AblationCase(problem.target, reference, None, lambda x: x[..., 0] > 0, share)
        return AblationCase(problem.target, reference)
    if problem.mean is not None and problem.covariance is not None:
        moments = problem.mean, np.sqrt(np.diag(problem.covariance))
        return AblationCase(problem.target, None, moments)
    if name == "poisson-gp":
        return AblationCase(problem.target, None, (LONG_RUN_MEAN, LONG_RUN_SD))
    return AblationCase(problem.target)


BUILT_IN = tuple(each.name for each in registry.listing() if not each.needs_data)
PROBLEMS = (
    *BUILT_IN,
    "gumbel, values",
    "banana, values",
    "two-modes",
    "two-modes, values",
    "two-decays",
    *POSTERIORS,
    "hmm_example-hmm_example, values",
    "mesquite-mesquite, values",
    "bball_drive_event_0-hmm_drive_0, values",
)


class _Watched(StageSwitches):
    """Switches that are all on, and remember which of them were read."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> object:
        # Other readers, such as the description of the method in the results, do not count.
        if name in STAGES and sys._getframe(1).f_globals["__name__"].startswith("leapwise.adaptation"):
            _Watched.read.add(name)
        return super().__getattribute__(name)


def run(request: dict) -> dict:
    """Make one run; an error of the sampler is a result too."""
    case, stage = case_of(request["case"]), request["method"]
    stages = _Watched() if stage == ALL else replace(DEFAULT.stages, **{stage: False})
    method = lw.Auto(settings=replace(DEFAULT, stages=stages))
    clock, began = ModelClock(case.target), time.process_time()
    try:
        found = lw.sample(
            case.target,
            request["draws"],
            chains=CHAINS,
            random_seed=request["seed"],
            method=method,
            progressbar=False,
        )
    except Exception as error:
        return {
            "started": False,
            "error": f"{type(error).__name__}: {error}",
            "stages": sorted(_Watched.read),
        }
    notes = {
        "sampler_seconds": time.process_time() - began - clock.seconds,
        "warnings": list(found.summary().warnings),
        "stages": sorted(_Watched.read),
        "share": None,
        "z_share": None,
    }
    if case.in_mode is not None:
        inside = case.in_mode(found.draws)[..., None].astype(float)
        notes["share"] = float(inside.mean())
        # At least the error of independent draws: chains that never leave a mode have an estimated error of zero.
        least = np.sqrt(case.share * (1.0 - case.share) / inside.size)
        error = float(np.nan_to_num(statistics(inside).mcse[0]))
        notes["z_share"] = abs(notes["share"] - case.share) / max(error, least)
    result = figures(Found(found.draws, found.warmup.cost.n_exact, found.cost.n_exact, notes), case.reference)
    if case.moments is not None:
        here, (mean, sd) = statistics(found.draws), case.moments
        error_of_sd = array_stats.mcse(found.draws, method="sd", chain_axis=0, draw_axis=1)
        result["z_mean"] = float(np.abs((here.mean - mean) / here.mcse).max())
        result["z_sd"] = float(np.abs((here.sd - sd) / error_of_sd).max())
    # Antithetic chains know means better than spreads: the smaller of both counts.
    result["least_per_evaluation"] = min(result["per_evaluation"], result["per_evaluation_squares"])
    return {"started": True, **result}


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    cells = Cells(options.folder, options.timeout, frozenset(), options.kept, "benchmarks.ablation")
    whole: dict[tuple[str, int], dict] = {}
    pairs: dict[str, dict[str, list[tuple[dict, dict]]]] = {stage: {} for stage in options.stages}
    for seed in range(options.seeds):
        for stage in (ALL, *options.stages):
            for name in options.problems:
                if stage != ALL and stage not in whole[name, seed].get("stages", ()):
                    continue
                cell = _get(cells, {"case": name, "method": stage, "seed": seed, "draws": options.draws})
                if stage == ALL:
                    whole[name, seed] = cell
                elif NOT_RUN not in (cell["status"], whole[name, seed]["status"]):
                    pairs[stage].setdefault(name, []).append((whole[name, seed], cell))
    print(f"\n{summary(pairs)}\n\n{details(pairs)}\n\n{baseline(whole.values())}")


def _get(cells: Cells, request: dict) -> dict:
    cell = cells.get(request)
    if not cells.kept:
        what = cell["status"] if cell["status"] != "ok" else cell.get("error", "ok")[:80]
        took = f"{cell['wall_seconds']:.0f} s"
        print(
            f"{request['case']:42s} {request['method']:20s} seed {request['seed']}: {what}, {took}",
            flush=True,
        )
    return cell


def is_wrong(cell: dict) -> bool:
    """Whether a run did not start, or its draws are not those of the posterior."""
    if not started(cell):
        return True
    z = max(cell[key] or 0.0 for key in ("z_mean", "z_sd", "z_share"))
    return not (z <= MOST_Z and cell["rhat"] <= MAX_RHAT)


def ratio(pairs: Iterable[tuple[dict, dict]], key: str) -> float:
    """Return the median over runs of a figure without the stage relative to that with it; NaN if unknown."""
    both = [(a[key], b[key]) for a, b in pairs if started(a) and started(b)]
    found = [b / a for a, b in both if a and b is not None]
    return median(found) if found else np.nan


def marks(pairs: list[tuple[dict, dict]]) -> list[str]:
    """Return what a stage changes on one problem beyond noise; an empty list if nothing."""
    found, n = [], len(pairs)
    with_it, without = (sum(map(is_wrong, each)) for each in zip(*pairs, strict=True))
    if with_it != without:
        found.append(f"wrong in {without} of {n} without it, {with_it} with it")
    for key, words in (("evaluations", "evaluations"), ("least_per_evaluation", "ESS per evaluation")):
        value = ratio(pairs, key)
        if not 1.0 / NOISE < value < NOISE and np.isfinite(value):
            found.append(f"{words} x {value:.2f}")
    return found


def summary(pairs: dict[str, dict[str, list[tuple[dict, dict]]]]) -> str:
    """Return one row for each stage: where it acts, and what is different without it."""
    head = (
        "without",
        "acts on",
        "wrong only without it",
        "wrong only with it",
        "warm-up",
        "all evaluations",
        "ESS/eval",
        "own CPU",
        "changes beyond noise",
    )
    rows = []
    for stage, problems in pairs.items():
        every = [pair for each in problems.values() for pair in each]
        lost = sum(is_wrong(b) and not is_wrong(a) for a, b in every)
        gained = sum(is_wrong(a) and not is_wrong(b) for a, b in every)
        keys = (
            "warmup_evaluations",
            "evaluations",
            "least_per_evaluation",
            "sampler_seconds",
        )
        medians = [_median([ratio(each, key) for each in problems.values()]) for key in keys]
        changed = sum(bool(marks(each)) for each in problems.values())
        of = f"{len(problems)} ({len(every)} runs)"
        rows.append((stage, of, lost, gained, *medians, f"{changed} of {len(problems)}"))
    return markdown(head, rows)


def _median(values: list[float]) -> str:
    known = [each for each in values if np.isfinite(each)]
    return f"x {median(known):.2f}" if known else "-"


def details(pairs: dict[str, dict[str, list[tuple[dict, dict]]]]) -> str:
    """Return the problems on which a stage changes something beyond noise."""
    head = ("without", "problem", "what changes", "worst z", "R-hat", "share of a mode")
    rows = []
    for stage, problems in pairs.items():
        for name, each in problems.items():
            if found := marks(each):
                rows.append((stage, name, "; ".join(found), *(_both(each, f) for f in (_z, _rhat, _share))))
    return markdown(head, rows)


def _both(pairs: list[tuple[dict, dict]], form: Callable[[list[dict]], str]) -> str:
    with_it, without = ([cell for cell in each if started(cell)] for each in zip(*pairs, strict=True))
    return f"{form(with_it)} -> {form(without)}"


def _z(cells: list[dict]) -> str:
    known = [max(cell["z_mean"] or 0.0, cell["z_sd"] or 0.0) for cell in cells if cell["z_mean"] is not None]
    return f"{max(known):.1f}" if known else "-"


def _rhat(cells: list[dict]) -> str:
    return f"{max(cell['rhat'] for cell in cells):.2f}" if cells else "-"


def _share(cells: list[dict]) -> str:
    known = [cell["share"] for cell in cells if cell.get("share") is not None]
    return ", ".join(f"{each:.2f}" for each in known) or "-"


def baseline(cells: Iterable[dict]) -> str:
    """Return the figures of runs with all stages: medians, and the worst z and R-hat."""
    groups: dict[str, list[dict]] = {}
    for cell in cells:
        if cell["status"] != NOT_RUN:
            groups.setdefault(cell["request"]["case"], []).append(cell)
    head = (
        "problem",
        "started",
        "warm-up",
        "evaluations",
        "ESS/eval",
        "squares/eval",
        "worst z",
        "R-hat",
        "share of a mode",
        "own CPU s",
    )
    rows = []
    for name, each in groups.items():
        done = [cell for cell in each if started(cell)]

        def middle(key: str, form: str, done: list[dict] = done) -> str:
            return format(median(cell[key] for cell in done), form) if done else "-"

        rows.append(
            (
                name,
                f"{len(done)} of {len(each)}",
                middle("warmup_evaluations", ",.0f"),
                middle("evaluations", ",.0f"),
                middle("per_evaluation", ".2g"),
                middle("per_evaluation_squares", ".2g"),
                *(form(done) for form in (_z, _rhat, _share)),
                middle("sampler_seconds", ".1f"),
            )
        )
    return markdown(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    add, names = parser.add_argument, {"nargs": "+", "metavar": "NAME"}
    add("--problems", choices=PROBLEMS, default=list(PROBLEMS), help=", ".join(PROBLEMS), **names)
    add("--stages", choices=STAGES, default=list(STAGES), help=", ".join(STAGES), **names)
    add("--seeds", type=int, default=3, help="runs with each stage on each problem")
    add("--draws", type=int, default=250, help="of each of four chains")
    add("--timeout", type=float, default=900.0, help="seconds for one run")
    add("--kept", action="store_true", help="run nothing, print what there is")
    add("--folder", type=Path, default=ROOT / "out" / "ablation", help="where results are kept")
    return parser


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("{"):  # as `Cells` starts it
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        Path(sys.argv[2]).write_text(json.dumps(run(json.loads(sys.argv[1]))))
    else:
        main()
