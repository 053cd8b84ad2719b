"""The cost of one iteration of RNS-HMC at the paper's settings, in exact values.

An iteration is one surrogate trajectory and one exact value for each chain. Iterations and
bare values of the same batch are timed in turns, and the median ratio is printed. The ratio of multiplications bounds
it if both run at the same speed: a trajectory of L/2 steps takes s d L of them, a value of a regression N d.

    LEAPWISE_DATA=... OPENBLAS_NUM_THREADS=1 python benchmarks/surrogate_iteration.py [--chains 4] [bank ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import leapwise as lw
from leapwise.paper.experiments import EXPERIMENTS, Experiment

ROWS = {"simulated": 100_000, "bank": 40_197, "a9a": 32_561}
REPEATS, CALLS = 9, 60


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS


def measure(experiment: Experiment, n_chains: int) -> tuple[float, float]:
    """Return the iteration in values, and milliseconds of a batch of values."""
    target, rng = experiment.problem.target, np.random.default_rng(0)
    evaluator = lw.Evaluator(target)
    draws = lw.sample(target, 50, tune=150, random_seed=1, progressbar=False).draws.reshape(-1, target.dim)
    found = evaluator.value(draws)
    network = experiment.surrogate.fit(lw.TrainingSet(found.position, found.potential), rng)
    kernel = lw.SurrogateHMC(*experiment.problem.settings["hmc"], surrogate=network)
    streams = lw.Streams(1, n_chains)
    state = lw.State.from_evaluation(evaluator.value(draws[-n_chains:]))

    def iterate() -> None:
        nonlocal state
        state, _ = kernel.step(streams, state, evaluator)

    iterate()
    pairs = [(seconds(iterate), seconds(lambda: evaluator.value(state.position))) for _ in range(REPEATS)]
    return float(np.median([a / b for a, b in pairs])), float(np.median([b for _, b in pairs]) * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", default=list(EXPERIMENTS))
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args()
    for name in options.experiments:
        experiment = EXPERIMENTS[name]
        ratio, milliseconds = measure(experiment, options.chains)
        _, n_steps = experiment.problem.settings["hmc"]
        bound = (
            f", by multiplications {1 + experiment.n_hidden * (n_steps + 1) / ROWS[name]:.2f}"
            if name in ROWS
            else ""
        )
        print(
            f"{name:10s} {options.chains} chains: {ratio:.2f} exact values{bound}; "
            f"a batch of values takes {milliseconds:.2f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
