"""The efficiency of `sample(target)` on five seeds (ten for hidden mass): worst and median.

    python benchmarks/self_tuned.py efficiency|overhead|hidden|hard|values|budget [problem ...] [--seeds N]

Effective draws are the smallest over parameters, bulk; a gradient counts as one evaluation, and warm-up is included.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import leapwise as lw
from leapwise.problems import registry
from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.hierarchies import LONG_RUN_MEAN, LONG_RUN_SD
from leapwise.results.statistics import statistics

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.compare.cases import without_gradient


def _scalar_with_gradient(target: lw.ForwardTarget) -> lw.Target:
    """Return a forward target as a log-density with its gradient, without outputs."""

    def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = target.evaluate(x, gradient=True)
        return raw.log_density, raw.gradient

    return lw.Target(
        lambda x: target.evaluate(x, gradient=False).log_density,
        value_and_gradient=both,
        dim=target.dim,
        vectorized=True,
    )


EFFICIENCY = {
    "simulated": (0.80, lambda: registry.get("logistic-simulated").target),
    "bank": (0.72, lambda: registry.get("logistic-bank").target),
    "a9a": (0.68, lambda: registry.get("logistic-a9a").target),
    "pde with gradients": (0.62, lambda: _scalar_with_gradient(elliptic_pde().target)),
    "pde by outputs": (0.55, lambda: without_gradient(elliptic_pde().target)),
    "banana": (0.45, lambda: registry.get("banana").target),
    "fitzhugh-nagumo by outputs": (0.65, lambda: without_gradient(registry.get("fitzhugh-nagumo").target)),
}


def efficiency(chosen: list[str], n_seeds: int) -> None:
    print("| problem | asked | median | worst | ESS of squares | R-hat | warm-up | sd(D) | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (asked, make) in EFFICIENCY.items():
        if chosen and name not in chosen:
            continue
        target, rows = make(), []
        for seed in range(1, n_seeds + 1):
            started = time.perf_counter()
            run = lw.sample(target, random_seed=seed, progressbar=False)
            found, n = statistics(run.draws), run.cost.n_exact
            squares = statistics((run.draws - run.draws.mean(axis=(0, 1))) ** 2).ess_bulk.min() / n
            rows.append(
                (
                    found.ess_bulk.min() / n,
                    squares,
                    found.rhat.max(),
                    run.warmup.cost.n_exact,
                    run.surrogate.sd,
                    time.perf_counter() - started,
                )
            )
        each = np.array(rows)
        middle = np.median(each, axis=0)
        print(
            f"| {name} | {asked:.2f} | {middle[0]:.2f} | {each[:, 0].min():.2f} | {middle[1]:.2f} | "
            f"{each[:, 2].max():.4f} | {middle[3]:.0f} | {middle[4]:.3f} | {middle[5]:.0f} |",
            flush=True,
        )


def overhead(chosen: list[str], n_seeds: int) -> None:
    """Return the share of wall time in a target that sleeps 10 ms for each value."""
    exact = registry.get("logistic-bank").target

    def slow(x: np.ndarray) -> tuple[float, np.ndarray]:
        time.sleep(0.01)
        return value(x)

    # A quadratic of the same curvature: the model itself must cost nothing.
    rng = np.random.default_rng(0)
    root = rng.standard_normal((exact.dim, 2 * exact.dim))
    precision = root @ root.T

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        slope = precision @ x
        bend = np.log(np.cosh(x)).sum()
        return -0.5 * float(x @ slope) - bend, -slope - np.tanh(x)

    for seed in range(1, n_seeds + 1):
        target = lw.Target(lambda x: slow(x)[0], value_and_gradient=slow, dim=exact.dim)
        run = lw.sample(target, random_seed=seed, progressbar=False)
        cost = run.cost
        print(
            f"seed {seed}: {cost.model_seconds / cost.seconds:.1%} of {cost.seconds:.0f} s in the target",
            flush=True,
        )


def hidden(chosen: list[str], n_seeds: int) -> None:
    for name in chosen or ["banana", "lobes"]:
        problem = registry.get(name)
        print(f"{name}: share of the mass in each tenth or lobe, at worst off by")
        for seed in range(1, 2 * n_seeds + 1):
            run = lw.sample(problem.target, random_seed=seed, progressbar=False)
            if name == "lobes":
                exact = problem.draw(np.random.default_rng(0), 10**6)
                inside = (run.draws[..., :1] > 0).astype(float)
                mass = np.mean(exact[:, :1] > 0)
            else:
                edges, mass = _banana_tenths(problem)
                inside = (np.digitize(run.draws[..., 1], edges)[..., None] == np.arange(1, 11)).astype(float)
            found = statistics(inside)
            off = np.abs(found.mean - mass)
            errors = off / (found.sd / np.sqrt(found.ess_bulk))
            print(
                f"  seed {seed}: {off.max():.1%}, {errors.max():.1f} standard errors, "
                f"{run.summary().warnings}",
                flush=True,
            )


def _banana_tenths(problem: object) -> tuple[np.ndarray, np.ndarray]:
    """Return ten bins of the second parameter of equal mass, by quadrature of the joint density."""
    grid = np.linspace(-4, 4, 1601)
    a, b = np.meshgrid(np.linspace(-6, 6, 1201), grid, indexing="ij")
    density = np.exp(
        problem.target.evaluate(np.stack([a.ravel(), b.ravel()], axis=1), gradient=False).log_density
    )  # type: ignore[attr-defined]
    marginal = density.reshape(a.shape).sum(axis=0)
    cumulative = np.cumsum(marginal) / marginal.sum()
    edges = np.interp(np.linspace(0, 1, 11), cumulative, grid)
    edges[[0, -1]] = -np.inf, np.inf
    return edges, np.full(10, 0.1)


def hard(chosen: list[str], n_seeds: int) -> None:
    for name in chosen or ["eight-schools", "funnel", "poisson-gp"]:
        problem = registry.get(name)
        mean, sd = (LONG_RUN_MEAN, LONG_RUN_SD) if name == "poisson-gp" else _moments(problem)
        for seed in range(1, n_seeds + 1):
            line = f"{name} seed {seed}:"
            prices = []
            for method in (lw.Auto(), lw.HMC()):
                run = lw.sample(problem.target, random_seed=seed, method=method, progressbar=False)
                found = statistics(run.draws)
                z = np.abs(found.mean - mean) / (sd / np.sqrt(found.ess))
                prices.append(run.cost.n_exact / found.ess_bulk.min())
                share = "" if run.surrogate is None else f"exact share {run.surrogate.exact_share:.2f}, "
                line += f" {type(method).__name__}: {share}{len(run.summary().warnings)} warnings, |z| {z.max():.1f}, "
                line += f"sd ratio {(found.sd / sd).min():.2f}-{(found.sd / sd).max():.2f}, {prices[-1]:.0f} a draw;"
            print(f"{line} ratio of prices {prices[0] / prices[1]:.2f}", flush=True)


def _moments(problem: object) -> tuple[np.ndarray, np.ndarray]:
    draws = problem.draw(np.random.default_rng(0), 10**6)  # type: ignore[attr-defined]
    return draws.mean(axis=0), draws.std(axis=0)


def values(chosen: list[str], n_seeds: int) -> None:
    """Value-only targets: sd(D) during warm-up."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 10))
    y = rng.random(500) < 1 / (1 + np.exp(-x @ rng.standard_normal(10) * 0.7))

    def log_density(q: np.ndarray) -> np.ndarray:
        logit = q @ x.T
        return (logit * y - np.logaddexp(0, logit)).sum(axis=1) - 0.005 * (q**2).sum(axis=1)

    targets = {
        "pde by outputs": (without_gradient(elliptic_pde().target), 0.3, 200),
        "logistic, d = 10, by values": (lw.Target(log_density, dim=10, vectorized=True), 0.5, 600),
    }
    for name, (target, limit, within) in targets.items():
        for seed in range(1, n_seeds + 1):
            run = lw.sample(target, random_seed=seed, progressbar=False)
            history = run.surrogate.history
            below = history[history[:, 1] < limit, 0]
            reached = f"{below[0]:.0f}" if len(below) else "never"
            spread = _spread(run)
            print(
                f"{name} seed {seed}: sd(D) < {limit} after {reached} (asked {within}); draws {spread:.3f}",
                flush=True,
            )


def _spread(run: lw.Run) -> float:
    return float(run.summary().cost["draws"]["discrepancy_sd"])


def budget(chosen: list[str], n_seeds: int) -> None:
    for seed in range(1, n_seeds + 1):
        run = lw.sample(
            without_gradient(elliptic_pde().target), random_seed=seed, max_evaluations=300, progressbar=False
        )
        found = statistics(run.draws)
        print(
            f"seed {seed}: {run.cost.n_exact} spent, {found.ess_bulk.min():.0f} effective draws at worst, "
            f"{np.median(found.ess_bulk):.0f} in the middle, R-hat {found.rhat.max():.3f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["efficiency", "overhead", "hidden", "hard", "values", "budget"])
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    globals()[options.what](options.problems, options.seeds)
