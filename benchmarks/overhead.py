"""The cost of the sampler itself, as ratios within one run.

1. HMC: wall time of a 4-chain vectorised run on the bank data over the time spent inside the exact gradient.
2. RMHMC: time of one iteration of two steps on the simulated data over the time of one exact gradient, one chain, and
   its parts.

    LEAPWISE_DATA=... python benchmarks/overhead.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

import leapwise as lw
from leapwise.problems import registry


def hmc_overhead(repeats):
    target = registry.get("logistic-bank").target
    ratios = []
    for seed in range(repeats):
        cost = lw.sample(
            target, 200, tune=100, chains=4, method=lw.HMC(), random_seed=seed, progressbar=False
        ).cost
        ratios.append(cost.seconds / cost.model_seconds)
    print(
        f"HMC, bank, 4 chains: wall time / time in the gradient = {median(ratios):.3f}",
        sorted(np.round(ratios, 3)),
    )


class Timed:
    """A metric that times its own calls."""

    def __init__(self, metric):
        self.metric, self.seconds, self.calls = metric, {}, {}

    def _time(self, name, function, *arguments):
        started = time.perf_counter()
        result = function(*arguments)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.calls[name] = self.calls.get(name, 0) + 1
        return result

    def at(self, position):
        local = self._time("at", self.metric.at, position)
        return _TimedLocal(local, self)

    def product(self, position, velocity):
        return self._time("product", self.metric.product, position, velocity)


class _TimedLocal:
    def __init__(self, local, owner):
        self.local, self.owner = local, owner
        self.matrix, self.cholesky = local.matrix, local.cholesky

    def quadratic_contraction(self, velocity):
        return self.owner._time("quadratic", self.local.quadratic_contraction, velocity)

    def trace_contraction(self):
        return self.owner._time("trace", self.local.trace_contraction)


def rmhmc_cost(repeats):
    problem = registry.get("logistic-simulated")
    start = lw.sample(
        problem.target, 20, tune=100, chains=1, method=lw.HMC(), random_seed=1, progressbar=False
    ).draws[:, -1]
    evaluator = lw.Evaluator(problem.target)
    state = lw.State.from_evaluation(evaluator.value_and_gradient(start))
    metric = Timed(problem.metric)
    kernel = lw.RMHMC(problem.settings["rmhmc"][0], (2, 2), metric=metric)
    streams = lw.Streams(1, 1)
    ratios, shares = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(10):
            evaluator.value_and_gradient(state.position)
        gradient = (time.perf_counter() - started) / 10
        metric.seconds, metric.calls = {}, {}
        started = time.perf_counter()
        for _ in range(5):
            state, _ = kernel.step(streams, state, evaluator)
        iteration = (time.perf_counter() - started) / 5
        ratios.append(iteration / gradient)
        shares.append({name: seconds / 5 / iteration for name, seconds in metric.seconds.items()})
    print(
        f"RMHMC, simulated, L = 2: one iteration / one gradient = {median(ratios):.1f}",
        sorted(np.round(ratios, 1)),
    )
    print(
        f"  one gradient {1000 * gradient:.2f} ms; calls an iteration:",
        {k: v / 5 for k, v in metric.calls.items()},
    )
    print("  share of the time:", {k: round(median(s[k] for s in shares), 3) for k in shares[0]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    hmc_overhead(options.repeats)
    rmhmc_cost(options.repeats)


if __name__ == "__main__":
    main()
