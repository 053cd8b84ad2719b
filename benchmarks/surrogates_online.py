"""The cost of one online row, and the drift of row updates from a solution for all rows at once.

Costs are ratios in one process to a bare product of an s x s matrix with a vector, medians of interleaved repeats; rows
are appended one at a time, and processed in blocks. Drift is the largest difference of predictions for 500
unseen rows, relative to their spread. Whole surrogates are timed as an adaptive sampler uses them: one new
evaluation at every iteration, and the weights once in a while.

    python benchmarks/surrogates_online.py [--size 2000] [--rows 10000] [--drift-rows 100000]

On a busy machine set OPENBLAS_NUM_THREADS=1: threads that wait for each other are most of the noise.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from scipy.linalg import qr, solve_triangular

from leapwise import QuadraticNetwork, RBFNetwork, SoftplusNetwork, TrainingSet
from leapwise.surrogates.online import PseudoinverseUpdater, RowUpdater


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def append_each(updater, features, targets):
    for i in range(len(features)):
        updater = updater.append(features[i : i + 1], targets[i : i + 1])
    return updater


def costs(size, n_rows, repeats=15):
    """Print the cost of a row early and late, of asking for weights, and of the proposition."""
    rng = np.random.default_rng(0)
    matrix, vector = rng.standard_normal((size, size)), rng.standard_normal(size)
    features, targets = rng.standard_normal((64, size)), rng.standard_normal(64)
    early = RowUpdater.start(size, 1e-6).append(features[:10], targets[:10])
    late = early
    for _ in range(n_rows // 64):
        late = late.append(rng.standard_normal((64, size)), rng.standard_normal(64))
    literal = PseudoinverseUpdater.from_rows(features, targets)
    taken = {name: [] for name in ("product", "early", "late", "weights", "proposition")}
    for _ in range(repeats):
        taken["product"].append(median(seconds(lambda: matrix @ vector) for _ in range(32)))
        taken["early"].append(seconds(lambda: append_each(early, features, targets)) / 64)
        taken["late"].append(seconds(lambda: append_each(late, features, targets)) / 64)
        asked = late.append(features[:1], targets[:1])
        taken["weights"].append(seconds(lambda asked=asked: asked.weights))
        taken["proposition"].append(seconds(lambda: literal.append(features[0], targets[0])))
    figures = {name: median(values) for name, values in taken.items()}
    print(f"s = {size}: one product {1e3 * figures['product']:.2f} ms")
    for name in ("early", "late", "weights", "proposition"):
        print(f"  {name:12s} {figures[name] / figures['product']:7.2f} products")
    print(f"  row {n_rows} against row 10: {figures['late'] / figures['early']:.3f}")


def adaptive(repeats=5, n=64, every=100):
    """Print the cost of `update` by one value, and of learning if the weights are used once in a while."""
    rng = np.random.default_rng(0)
    for name, recipe, dim in (
        ("softplus", SoftplusNetwork(2000, ridge=1e-6), 50),
        ("rbf", RBFNetwork(2000, ridge=1e-6), 50),
        ("quadratic", QuadraticNetwork(ridge=1e-3), 60),
        ("quadratic + 500 nodes", QuadraticNetwork(500, ridge=1e-3), 50),
    ):
        x = rng.standard_normal((200 + n, dim))
        training = TrainingSet(x, 0.5 * (x**2).sum(axis=1) + np.log1p(np.exp(x[:, 0])))
        # The factor that takes further rows is made at the first update, once.
        fitted = recipe.fit(training.rows(slice(0, 199)), rng).update(training.rows(slice(199, 200)))
        each = [training.rows(slice(i, i + 1)) for i in range(200, 200 + n)]
        size = len(fitted.trained_weights)
        matrix, vector = rng.standard_normal((size, size)), rng.standard_normal(size)

        def learn(fitted=fitted, each=each):
            for one in each:
                fitted = fitted.update(one)
            return fitted

        rows, uses = [], []
        for _ in range(repeats):
            product = median(seconds(lambda m=matrix, v=vector: m @ v) for _ in range(32))
            rows.append(seconds(learn) / n / product)
            updated = learn().update(each[0])
            uses.append(seconds(lambda updated=updated: updated.weights) / product)
        row, use = median(rows), median(uses)
        print(
            f"  {name:22s} {size} weights: update {row:.2f} products, first use {use:.1f}; "
            f"used at every {every}th, {row + use / every:.2f} a row"
        )


def drift(size, n_rows, condition, duplicated, ridge=1e-8):
    """Drift after single-row updates from an empty start."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
    scale = np.logspace(0.0, -np.log10(condition), size)
    features = (rng.standard_normal((n_rows, size)) * scale) @ turn.T
    targets = features @ (turn @ rng.standard_normal(size)) + 0.1 * rng.standard_normal(n_rows)
    if duplicated:
        chosen = rng.integers(n_rows // 2, size=n_rows - n_rows // 2)
        features[n_rows // 2 :], targets[n_rows // 2 :] = features[chosen], targets[chosen]
    stacked = np.zeros((n_rows + size, size + 1), order="F")
    stacked[:size, :size] = np.sqrt(ridge) * np.eye(size)
    stacked[size:, :size], stacked[size:, size] = features, targets
    triangle = qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:size]
    unseen = (rng.standard_normal((500, size)) * scale) @ turn.T
    expected = unseen @ solve_triangular(triangle[:, :size], triangle[:, size])
    weights = append_each(RowUpdater.start(size, ridge), features, targets).weights
    return np.abs(unseen @ weights - expected).max() / expected.std()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--drift-rows", type=int, default=100_000)
    options = parser.parse_args()
    costs(options.size, options.rows)
    print("whole surrogates, one value at a time")
    adaptive()
    print(f"drift after {options.drift_rows} single rows, ridge 1e-8")
    for size in (50, 500):
        for condition in (1e2, 1e12):
            for duplicated in (False, True):
                figure = drift(size, options.drift_rows, condition, duplicated)
                print(
                    f"  s={size} cond={condition:.0e} {'half repeated' if duplicated else 'plain':14s} {figure:.1e}"
                )


if __name__ == "__main__":
    main()
