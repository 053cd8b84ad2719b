"""The accuracy and the cost of Gaussian processes as surrogates of the elliptic PDE.

sd(D) is the standard deviation of the exact potential minus the surrogate's, on 500 draws of exact HMC. Processes
learn from values and gradients at draws of other chains, whitened by these alone. Several training sets are
tried; the median is printed with the range. Times are ratios within this process, because machines are noisy: of a
fit to one Cholesky factorisation of as many rows, and of an evaluation to its bare matrix products.

    python benchmarks/surrogates_gp.py [--repeats 3] [--sizes 100 200]

Draws are kept in the temporary folder for the next run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cholesky

import leapwise as lw
from leapwise.problems.elliptic import elliptic_pde
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess
from leapwise.surrogates.training import TrainingSet

N_FRESH = 500


def exact_draws() -> tuple[TrainingSet, TrainingSet]:
    """Return draws to learn from and fresh ones, from different chains, with potentials and gradients."""
    path = Path(tempfile.gettempdir()) / "leapwise_elliptic_chains.npz"
    if not path.exists():
        target = elliptic_pde(observations="paper").target
        run = lw.sample(target, draws=1500, tune=500, chains=4, random_seed=7, progressbar=False)
        draws = run.draws[:, ::3].reshape(-1, target.dim)
        raw = target.evaluate(draws, gradient=True)
        np.savez(path, position=draws, potential=-raw.log_density, gradient=-raw.gradient)
    with np.load(path) as file:
        everything = TrainingSet(file["position"], file["potential"], file["gradient"])
    half = len(everything) // 2
    return everything.rows(np.arange(half)), everything.rows(half + 2 * np.arange(N_FRESH))


def seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def accuracy(
    name: str, recipe: Any, sizes: list[int], repeats: int, pool: TrainingSet, fresh: TrainingSet
) -> None:
    for n in sizes:
        spread, cost = [], []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            training = pool.rows(rng.permutation(len(pool))[:n])
            started = time.perf_counter()
            fitted = recipe.fit(training, rng)
            cost.append(time.perf_counter() - started)
            spread.append(float(np.std(fresh.potential - fitted.potential(fresh.position))))
        print(
            f"{name:44s} {n:5d} {np.median(spread):8.3f}   [{min(spread):.3f}, {max(spread):.3f}]"
            f" {np.median(cost):8.1f} s   {getattr(fitted, 'hyperparameters', '')}",
            flush=True,
        )


def costs(n: int, draws: TrainingSet) -> None:
    rng = np.random.default_rng(0)
    recipe = GaussianProcess("rational_quadratic", trend="radial", max_rows=600)
    fitted = recipe.fit(draws.rows(np.arange(n)), rng)
    again = GaussianProcess("rational_quadratic", trend="radial", hyperparameters=fitted.hyperparameters)
    size = n * (draws.dim + 1)
    matrix = np.eye(size) + 0.1
    more = draws.rows(np.array([n]))
    fits, updates = [], []
    for _ in range(3):
        bare = seconds(lambda: cholesky(matrix, lower=True, check_finite=False))
        fits.append(seconds(lambda: again.fit(draws.rows(np.arange(n)), rng)) / bare)
        updates.append(seconds(lambda: fitted.update(more)) / bare)
    print(f"{size} rows: fit with given hyperparameters / bare Cholesky {np.median(fits):.2f}", flush=True)
    print(f"{size} rows: update by one evaluation / bare Cholesky {np.median(updates):.2f}", flush=True)
    centres, lean = draws.position[:n], draws.gradient[:n]
    for chains in (4, 64):
        where = draws.position[n : n + chains]

        def products(where: np.ndarray = where) -> Any:
            wide = np.ones((len(where), n))
            return where @ centres.T, where @ lean.T, wide @ centres, wide @ lean

        def force(where: np.ndarray = where) -> Any:
            return fitted.potential_and_gradient(where)

        force(), products()
        pairs = np.array([(seconds(force), seconds(products)) for _ in range(501)])
        ratio, first = np.median(pairs[:, 0] / pairs[:, 1]), 1e6 * np.median(pairs[:, 0])
        print(f"{chains} chains: force / its four bare products {ratio:.1f} ({first:.0f} us)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200])
    arguments = parser.parse_args()
    pool, fresh = exact_draws()
    print(f"{'values and gradients':44s} {'n':>5s}   sd(D)   [range]           median time")
    radial = GaussianProcess("rational_quadratic", trend="radial")
    accuracy("rational quadratic, radial trend", radial, arguments.sizes, arguments.repeats, pool, fresh)
    plain = GaussianProcess("squared_exponential", trend="quadratic")
    accuracy("squared exponential, quadratic trend", plain, arguments.sizes, arguments.repeats, pool, fresh)
    accuracy(
        "FITC, 50 inducing points, values only", FITC(50), arguments.sizes, arguments.repeats, pool, fresh
    )
    costs(min(arguments.sizes), pool)


if __name__ == "__main__":
    main()
