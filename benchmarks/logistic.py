"""Time the logistic regressions: value, gradient, batches of chains, and the Fisher metric.

Machines are noisy, so read the ratios: each row is timed directly after one gradient of one chain, many times, and
medians of the times and of the ratios are printed. The iteration at the end is one `RMHMC` trajectory with the
paper's step size and number of steps, for one chain that starts in the posterior.

    LEAPWISE_DATA=folder python benchmarks/logistic.py [simulated] [bank] [a9a]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leapwise.dynamics.generalized import (
    ImplicitSolver,
    RiemannianPoint,
    evaluate_metric,
    generalized_leapfrog,
    riemannian_momentum,
)
from leapwise.problems import Problem, logistic_a9a, logistic_bank, logistic_simulated

MAKERS = {"simulated": logistic_simulated, "bank": logistic_bank, "a9a": logistic_a9a}
REPEATS = 25


def seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def compare(function: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the median time in milliseconds, and the median of its ratio to `unit`."""
    pairs = []
    for _ in range(repeats):
        unit()  # leaves the data in the cache, as the call before it does in a run
        pairs.append((seconds(unit), seconds(function)))
    units, times = np.array(pairs).T
    return 1e3 * float(np.median(times)), float(np.median(times / units))


def typical_position(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Find the mode by Newton's method, and move from there by the distance of a typical draw."""
    assert problem.metric is not None
    position = np.zeros((1, problem.target.dim))
    for _ in range(10):
        gradient = problem.target.evaluate(position, gradient=True).gradient
        assert gradient is not None
        position = position + np.linalg.solve(problem.metric.at(position).matrix[0], gradient[0])
    factor = problem.metric.at(position).cholesky[0]
    return position + np.linalg.solve(factor.T, rng.normal(size=position.shape[1]))


def iteration(problem: Problem, position: np.ndarray, rng: np.random.Generator) -> Callable[[], Any]:
    """Return one trajectory of RMHMC; metric and gradient at its start are known, as they are in a run."""
    metric = problem.metric
    assert metric is not None

    def force(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = problem.target.evaluate(points, gradient=True)
        assert raw.gradient is not None
        return -raw.log_density, -raw.gradient

    local = evaluate_metric(metric, position)
    momentum = riemannian_momentum(local, rng.normal(size=position.shape))
    start = RiemannianPoint(
        position, momentum, *force(position), local, complete=np.array([True]), unsolved=np.array([False])
    )
    step_size, n_steps = problem.settings["rmhmc"]
    sizes, steps = np.array([step_size]), np.array([n_steps])

    def run() -> None:
        end, *_ = generalized_leapfrog(force, metric, start, sizes, steps, ImplicitSolver())
        assert end.complete.all()

    return run


def report(problem: Problem) -> None:
    rng = np.random.default_rng(0)
    metric: Any = problem.metric
    position = typical_position(problem, rng)
    four, sixteen = (position + 0.01 * rng.normal(size=(n, position.shape[1])) for n in (4, 16))
    local = metric.at(position)
    velocity = rng.normal(size=position.shape)

    def evaluate(points: np.ndarray, gradient: bool = True) -> Callable[[], Any]:
        return lambda: problem.target.evaluate(points, gradient=gradient)

    gradient = evaluate(position)
    rows: dict[str, tuple[Callable[[], Any], int]] = {
        "gradient": (gradient, REPEATS),
        "value": (evaluate(position, gradient=False), REPEATS),
        "gradient, 4 chains": (evaluate(four), REPEATS),
        "gradient, 16 chains": (evaluate(sixteen), REPEATS),
        "metric at": (lambda: metric.at(position), REPEATS),
        "metric times a vector": (lambda: metric.product(position, velocity), REPEATS),
        "quadratic contraction": (lambda: local.quadratic_contraction(velocity), REPEATS),
        "trace contraction": (lambda: metric_trace(local), REPEATS),
        f"RMHMC, {problem.settings['rmhmc'][1]} steps": (iteration(problem, position, rng), 7),
    }
    print(f"{problem.description}\n{'':24s}{'ms':>9s}{'gradients':>11s}")
    for label, (function, repeats) in rows.items():
        milliseconds, ratio = compare(function, gradient, repeats)
        print(f"  {label:22s}{milliseconds:9.2f}{ratio:11.2f}")
    print()


def metric_trace(local: Any) -> np.ndarray:
    """Compute the trace contraction again, since a metric keeps its own."""
    fresh = type(local)(local.matrix, local.cholesky, local.blocks, local.slope)
    return np.asarray(fresh.trace_contraction())


def main() -> None:
    chosen = sys.argv[1:] or list(MAKERS)
    for name in chosen:
        report(MAKERS[name]())


if __name__ == "__main__":
    main()
