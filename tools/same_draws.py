"""Print hashes of the draws, statistics and counts of seeded runs, one line each.

    python tools/same_draws.py [name ...] > before.txt     # then change the code
    python tools/same_draws.py [name ...] | diff before.txt -

A change that only moves, renames or rewrites code leaves every line as it was. Hashes hold for one machine: another
processor or another BLAS rounds differently. The script uses only public names, so that it works after a redesign.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Several threads may sum in another order. This must be set before NumPy is imported.
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

import leapwise as lw
from leapwise.errors import EvaluationError
from leapwise.problems import registry

T = np.linspace(0.2, 4.0, 12)
DATA = 2.0 * np.exp(-0.6 * T) + 0.5 * np.exp(-3.0 * T) + 0.02 * np.sin(7.0 * T)


def gumbel_value(x: np.ndarray) -> float:
    """Return the log-density of three correlated Gumbel variables: skewed, smooth, never normal."""
    z = x - 0.5 * np.roll(x, 1)
    return -float((z + np.exp(-z)).sum())


def gumbel_gradient(x: np.ndarray) -> np.ndarray:
    slope = np.exp(-(x - 0.5 * np.roll(x, 1))) - 1.0
    return slope - 0.5 * np.roll(slope, -1)


def gumbel(gradient: bool = True) -> lw.Target:
    return lw.Target(gumbel_value, gumbel_gradient if gradient else None, dim=3)


def two_modes() -> lw.Target:
    """Return two normals eight standard deviations apart, with weights 0.7 and 0.3."""
    centre = np.array([4.0, 0.0])

    def both(x: np.ndarray) -> tuple[float, np.ndarray]:
        logs = np.array([np.log(0.7), np.log(0.3)]) - 0.5 * np.array(
            [((x - centre) ** 2).sum(), ((x + centre) ** 2).sum()]
        )
        total = np.logaddexp(*logs)
        share = np.exp(logs - total)
        return float(total), share[0] * (centre - x) + share[1] * (-centre - x)

    return lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=2)


def bounded() -> lw.Target:
    """Return a gamma and a beta distribution, with bounds."""
    return lw.Target(
        lambda x: 2.0 * np.log(x[0]) - x[0] + np.log(x[1]) + 3.0 * np.log1p(-x[1]),
        lambda x: np.array([2.0 / x[0] - 1.0, 1.0 / x[1] - 3.0 / (1.0 - x[1])]),
        dim=2,
        bounds=[(0, None), (0, 1)],
    )


def solve(x: np.ndarray) -> np.ndarray:
    """Two exponentials that can be exchanged: the posterior has two modes."""
    return x[0] * np.exp(-x[1] * T) + x[2] * np.exp(-x[3] * T)


def decays() -> lw.ForwardTarget:
    prior = lw.UniformPrior([0.0, 0.05, 0.0, 0.05], [4.0, 6.0, 4.0, 6.0])
    return lw.ForwardTarget(solve, lw.GaussianLikelihood(DATA, sd=0.05), prior, names=["a", "k", "b", "l"])


def one_decay() -> lw.ForwardTarget:
    return lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * T),
        lw.GaussianLikelihood(DATA, sd=0.05),
        lw.NormalPrior([2.0, 0.7], 1.0),
        names=["a", "k"],
    )


class SkewMetric:
    """A Riemannian metric for the Gumbel target: diagonal, and different everywhere."""

    def at(self, position: np.ndarray) -> SkewedAt:
        return SkewedAt(position)


class SkewedAt:
    def __init__(self, position: np.ndarray) -> None:
        self.bend = np.exp(-position)
        self.matrix = np.eye(position.shape[1]) * (1.0 + self.bend)[:, None, :]
        self.cholesky = np.linalg.cholesky(self.matrix)

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        return -self.bend * velocity**2

    def trace_contraction(self) -> np.ndarray:
        return -self.bend / (1.0 + self.bend)


def draw(target: lw.Target | lw.ForwardTarget, draws: int = 200, **settings: object) -> lw.Run:
    return lw.sample(target, draws, random_seed=1, progressbar=False, **settings)  # type: ignore[arg-type]


def on_threads() -> lw.Run:
    with ThreadPoolExecutor(3) as pool:
        return draw(gumbel(), executor=pool)


def resumed(**settings: object) -> lw.Run:
    """End in an error in the middle of the draws, then resume from the ledger."""
    n_calls = 0

    def fails_once(x: np.ndarray) -> float:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 400:
            raise RuntimeError("the model has failed")
        return gumbel_value(x)

    with tempfile.TemporaryDirectory() as folder:
        settings |= {"ledger": Path(folder) / "run.db", "version": "1", "retries": 0}
        try:
            draw(lw.Target(fails_once, gumbel_gradient, dim=3), **settings)
        except EvaluationError:
            return draw(lw.Target(fails_once, gumbel_gradient, dim=3), **settings)
    raise RuntimeError("the first run was to fail")


#: One run for each part of the library that a redesign may break. Each takes seconds.
RUNS: dict[str, Callable[[], lw.Run]] = {
    "auto, gradient": lambda: draw(gumbel()),
    "auto, values": lambda: draw(gumbel(gradient=False)),
    "auto, logistic": lambda: draw(registry.get("logistic-simulated").target, 100),
    "auto, outputs": lambda: draw(one_decay()),
    "auto, PDE": lambda: draw(registry.get("elliptic-pde").target, 100),
    "auto, two modes": lambda: draw(two_modes()),
    "auto, outputs with two modes": lambda: draw(decays()),
    "auto, banana": lambda: draw(registry.get("banana").target, 300),
    "auto, bounds": lambda: draw(bounded()),
    "auto, budget": lambda: draw(gumbel(), max_evaluations=250),
    "auto, fall-back": lambda: draw(registry.get("funnel").target),
    "auto, fall-back, hierarchy": lambda: draw(registry.get("eight-schools").target),
    "auto, softplus network": lambda: draw(gumbel(), method=lw.Auto(lw.SoftplusNetwork(60))),
    "auto, Gaussian process": lambda: draw(gumbel(), method=lw.Auto(lw.GaussianProcess())),
    "auto, FITC": lambda: draw(gumbel(), method=lw.Auto(lw.FITC(20))),
    "HMC": lambda: draw(gumbel(), method=lw.HMC()),
    "NUTS": lambda: draw(gumbel(), method=lw.NUTS()),
    "RMHMC": lambda: draw(gumbel(), method=lw.RMHMC(0.5, 3, metric=SkewMetric()), tune=100),
    "RNSHMC": lambda: draw(gumbel(), method=lw.RNSHMC(lw.SoftplusNetwork(50))),
    "RNSHMC, RBF": lambda: draw(gumbel(), method=lw.RNSHMC(lw.RBFNetwork(50))),
    "RNSRMHMC": lambda: draw(gumbel(), 60, method=lw.RNSRMHMC(lw.SoftplusNetwork(50), 0.4, 3), tune=150),
    "ARNSHMC": lambda: draw(gumbel(), method=lw.ARNSHMC(lw.SoftplusNetwork(50))),
    "threads": on_threads,
    "processes": lambda: draw(gumbel(), cores=2),
    "resumed": resumed,
    "resumed, threads": lambda: resumed(executor=lambda: ThreadPoolExecutor(2)),
}


def fingerprint(run: lw.Run) -> str:
    """Return hashes of draws and statistics, warm-up included, and the counts."""
    draws, stats = hashlib.sha256(), hashlib.sha256()
    for record in (run.warmup, run.posterior):
        draws.update(np.ascontiguousarray(record.draws).tobytes())
        for name in sorted(record.stats):
            stats.update(np.ascontiguousarray(record.stats[name]).tobytes())
    counts = f"{run.warmup.cost.n_exact}+{run.posterior.cost.n_exact}"
    return f"{draws.hexdigest()[:12]} {stats.hexdigest()[:12]} {counts}"


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.disable()
    for name in names or RUNS:
        try:
            found = fingerprint(RUNS[name]())
        except lw.errors.LeapwiseError as error:  # ends in the same way are the same, too
            found = hashlib.sha256(str(error).encode()).hexdigest()[:12] + f" {type(error).__name__}"
        print(f"{name:30s} {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
