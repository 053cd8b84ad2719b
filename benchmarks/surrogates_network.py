"""Time random networks: evaluation against bare matrix products, training against bare Gram products, growth in rows.

Machines are noisy, so every figure is a ratio: both sides are timed directly after each other, many times, and the
median of the ratios is printed. On a busy machine set OPENBLAS_NUM_THREADS=1: threads that wait for each other
blur the comparison.

    python benchmarks/surrogates_network.py [--quick]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leapwise.surrogates.network import RBFNetwork, SoftplusNetwork
from leapwise.surrogates.ridge import solve_ridge
from leapwise.surrogates.training import TrainingSet

N_HIDDEN, DIM, N_ROWS = 2000, 50, 4000


def seconds(function: Callable[[], Any], calls: int = 1) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - started) / calls


def compare(a: Callable[[], Any], b: Callable[[], Any], repeats: int, calls: int) -> tuple[float, float]:
    """Return the median of time(a) / time(b), and the median of time(b) in milliseconds."""
    a(), b()
    pairs = np.array([(seconds(a, calls), seconds(b, calls)) for _ in range(repeats)])
    return float(np.median(pairs[:, 0] / pairs[:, 1])), 1e3 * float(np.median(pairs[:, 1]))


def evaluations(rng: np.random.Generator, n: int, dim: int = DIM, *, gradient: bool = False) -> TrainingSet:
    x = rng.standard_normal((n, dim))
    potential = (np.logaddexp(0.0, -2.0 * x) + x + 0.25 * x**2).sum(axis=1)
    slope = 0.5 * x - 2.0 / (1.0 + np.exp(2.0 * x)) + 1.0
    return TrainingSet(x, potential, slope if gradient else None)


def evaluation(rng: np.random.Generator, repeats: int) -> None:
    """Compare potential_and_gradient with (n, d) x (d, s) and (n, s) x (s, d), in the faster memory layout."""
    training = evaluations(rng, 200)
    for name, recipe in (("softplus", SoftplusNetwork(N_HIDDEN)), ("rbf", RBFNetwork(N_HIDDEN))):
        network = recipe.fit(training, rng)
        weights = rng.standard_normal((N_HIDDEN, DIM))
        columns = np.ascontiguousarray(weights.T)
        for chains, limit, calls in ((4, 2.5, 50), (64, 3.0, 10)):
            position, hidden = rng.standard_normal((chains, DIM)), rng.standard_normal((chains, N_HIDDEN))
            ratio, base = compare(
                lambda q=position, f=network.potential_and_gradient: f(q),
                lambda q=position, h=hidden, c=columns, w=weights: (q @ c, h @ w),
                repeats,
                calls,
            )
            goal = f"wanted <= {limit}" if name == "softplus" else "no goal"
            print(f"{name:8} {chains:3} chains: {ratio:5.2f} x two bare products of {base:.3f} ms ({goal})")


def training_cost(rng: np.random.Generator, repeats: int) -> None:
    """Compare a fit with choice of the ridge with the Gram product of its features."""
    training = evaluations(rng, N_ROWS)
    features = SoftplusNetwork(N_HIDDEN, ridge=1.0).fit(training, rng).basis.features(training.position)
    recipe = SoftplusNetwork(N_HIDDEN)
    for name, fit in (
        ("solve_ridge with leave-one-out", lambda: solve_ridge(features, training.potential)),
        ("SoftplusNetwork.fit, everything", lambda: recipe.fit(training, rng)),
    ):
        ratio, base = compare(fit, lambda: features.T @ features, repeats, 1)
        print(f"{name:32}: {ratio:5.2f} x a bare Gram product of {base:.0f} ms (wanted <= 6)")


def growth(rng: np.random.Generator, repeats: int) -> None:
    """Fit the exponent of the training time in the number of evaluations."""
    recipe = SoftplusNetwork(600)
    counts = np.array([4000, 8000, 16000, 32000])
    sets = [evaluations(rng, int(n), 20) for n in counts]
    times = np.median(
        [[seconds(lambda t=training: recipe.fit(t, rng)) for training in sets] for _ in range(repeats)],
        axis=0,
    )
    exponent = np.polyfit(np.log(counts), np.log(times), 1)[0]
    print(f"growth of SoftplusNetwork(600).fit with N = {counts.tolist()}: N^{exponent:.2f} (wanted 1)")


def gradient_rows(rng: np.random.Generator, repeats: int) -> None:
    """Compare training on values and gradients with training on values alone."""
    both = evaluations(rng, N_ROWS, gradient=True)
    values = TrainingSet(both.position, both.potential)
    recipe = SoftplusNetwork(1000)
    ratio, _ = compare(lambda: recipe.fit(both, rng), lambda: recipe.fit(values, rng), repeats, 1)
    print(f"{N_ROWS} values and {N_ROWS * DIM} gradient rows: {ratio:5.2f} x the fit to values alone")


def main() -> None:
    rng, quick = np.random.default_rng(0), "--quick" in sys.argv
    evaluation(rng, 10 if quick else 40)
    training_cost(rng, 1 if quick else 5)
    growth(rng, 1 if quick else 3)
    gradient_rows(rng, 1 if quick else 3)


if __name__ == "__main__":
    main()
