r"""One run in its own process: a method on a posterior with a seed. Its figures are a JSON file.

python -m benchmarks.posteriordb.runs \
    '{"case": "arK-arK", "method": "auto", "seed": 0, "draws": 1000, "settings": {}}' result.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from arviz_stats.base import array_stats

import leapwise as lw
from leapwise.results.statistics import exact_share, statistics

from .cases import Case, get_case, transformed

CHAINS = 4
START_RADIUS = 2.0
#: A start of log-density -inf is drawn again this many times, as Stan does.
ATTEMPTS = 100


@dataclass(frozen=True)
class Found:
    """Draws ``(chains, draws, dim)`` and their cost; `notes` are further figures."""

    draws: np.ndarray
    warmup_evaluations: int
    evaluations: int
    notes: dict = field(default_factory=dict)


def main(request: dict) -> dict:
    """Run a request. An error of the sampler is a result too: ``started`` is False, and ``error`` says why."""
    settings = dict(request["settings"])
    radius = settings.pop("init_radius", START_RADIUS)
    case = changed(get_case(request["case"]), **settings)
    try:
        found = METHODS[request["method"]](case, request["seed"], request["draws"], radius)
    except Exception as error:
        return {"started": False, "error": f"{type(error).__name__}: {error}"}
    return {"started": True, **figures(found, case.reference)}


def changed(case: Case, rescale: float = 1.0, shift: float = 0.0, permute: int | None = None) -> Case:
    """Return the case in the coordinates that the options ask for; itself if they ask for none."""
    if rescale == 1.0 and shift == 0.0 and permute is None:
        return case
    order = None if permute is None else np.random.default_rng(permute).permutation(case.target.dim)
    return transformed(case, rescale, shift, order)


def starts(target: lw.Target, seed: int, n: int, radius: float) -> np.ndarray:
    """Draw starts ``(n, dim)`` as `sample` does, uniformly between -radius and radius."""
    found = np.empty((n, target.dim))
    for row, rng in zip(found, lw.Streams(seed, n).generators, strict=True):
        for _ in range(ATTEMPTS):
            row[:] = rng.uniform(-radius, radius, target.dim)
            if np.isfinite(target.evaluate(row[None], gradient=False).log_density[0]):
                break
    return found


class ModelClock:
    """CPU seconds inside a target, from now on.

    The run itself counts wall time, which on a busy machine is more than the process used.
    """

    def __init__(self, target: lw.Target) -> None:
        self.seconds = 0.0
        self._evaluate = target.evaluate
        target.evaluate = self._timed  # type: ignore[method-assign]

    def _timed(self, *args, **settings):
        began = time.process_time()
        try:
            return self._evaluate(*args, **settings)
        finally:
            self.seconds += time.process_time() - began


# Methods: functions of case, seed, draws and the radius of starts.


def _ours(method: str | None, gradient: bool = True) -> Callable[..., Found]:
    def run(case: Case, seed: int, draws: int, radius: float) -> Found:
        target = case.target if gradient else case.values
        init = None if radius == START_RADIUS else starts(target, seed, CHAINS, radius)
        clock, began = ModelClock(target), time.process_time()
        found = lw.sample(
            target,
            draws,
            chains=CHAINS,
            random_seed=seed,
            init=init,
            method=None if method is None else getattr(lw, method)(),
            progressbar=False,
        )
        seconds = time.process_time() - began - clock.seconds
        notes = {"sampler_seconds": seconds, "warnings": list(found.summary().warnings)}
        if found.surrogate is not None:
            notes |= {"surrogate": found.surrogate.kind, "exact_share": exact_share(found)}
        return Found(found.draws, found.warmup.cost.n_exact, found.cost.n_exact, notes)

    return run


def _peer(module: str, **settings: object) -> Callable[..., Found]:
    def run(case: Case, seed: int, draws: int, radius: float) -> Found:
        from benchmarks.compare.exact import use_double_precision

        from .peers import Given

        use_double_precision()
        peer = import_module(f"benchmarks.compare.{module}")
        outcome = peer.run(Given(case.target, radius), seed, draws, **settings)
        divergences = outcome.notes["divergences"]
        notes = {"warnings": [f"{divergences} divergences"] if divergences else []}
        return Found(outcome.draws, outcome.notes["warm-up evaluations"], outcome.n_gradients, notes)

    return run


METHODS: dict[str, Callable[..., Found]] = {
    "auto": _ours(None),
    "auto-values": _ours(None, gradient=False),
    "hmc": _ours("HMC"),
    "nuts": _ours("NUTS"),
    "numpyro": _peer("numpyro_nuts", tune=1000, dense=True, chains=CHAINS),
    "numpyro-diag": _peer("numpyro_nuts", tune=1000, dense=False, chains=CHAINS),
    "nutpie": _peer("nutpie_nuts", tune=None, low_rank=False, chains=CHAINS),
}


def available() -> list[str]:
    """Return the methods that can be run here."""
    there = {"nuts": hasattr(lw, "NUTS"), "nutpie": find_spec("nutpie") is not None}
    numpyro = find_spec("numpyro") is not None
    return [name for name in METHODS if there.get(name, numpyro or not name.startswith("numpyro"))]


def figures(found: Found, reference: np.ndarray | None) -> dict:
    """Return the figures of the table; unknown ones are None.

    Effective draws are the smallest over parameters (bulk, of means and of squares), per evaluation of the whole run,
    warm-up included. A z divides a difference from the reference by the Monte Carlo errors of both.
    """
    here = statistics(found.draws)
    result = {
        "warmup_evaluations": found.warmup_evaluations,
        "evaluations": found.evaluations,
        "per_evaluation": _smallest(here.ess_bulk) / found.evaluations,
        "per_evaluation_squares": _smallest(here.ess_squares) / found.evaluations,
        "rhat": _largest(here.rhat),
        **dict.fromkeys(("z_mean", "z_sd", "sd_ratio")),
        **{"warnings": [], "surrogate": None, "exact_share": None, "sampler_seconds": None},
        **found.notes,
    }
    if reference is not None:
        there = statistics(reference)
        result["z_mean"] = _largest((here.mean - there.mean) / np.hypot(here.mcse, there.mcse))
        errors = [
            array_stats.mcse(x, method="sd", chain_axis=0, draw_axis=1) for x in (found.draws, reference)
        ]
        result["z_sd"] = _largest((here.sd - there.sd) / np.hypot(*errors))
        result["sd_ratio"] = _largest(here.sd / there.sd - 1.0)
    return result


def _largest(values: np.ndarray) -> float:
    """Return the largest absolute value; infinite if one is unknown, for example of a chain that never moved."""
    return float(np.abs(np.where(np.isnan(values), np.inf, values)).max())


def _smallest(values: np.ndarray) -> float:
    """Return the smallest; an unknown number of effective draws counts as zero."""
    return float(np.nan_to_num(values, nan=0.0).min())


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(sys.argv[1]))))
