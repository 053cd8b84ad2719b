"""Acceptance of exact HMC and RMHMC at the paper's settings (its Table 1, column AP).

Chains are brought to the posterior by HMC() and then run with the paper's step size and number of steps L, in the
identity metric (HMC) or the Fisher metric (RMHMC). The paper says that HMC draws its number of steps from {1..L}; for
RMHMC it does not say, but three of its four effective sample sizes fit only a fixed L, so L is fixed here. For RMHMC
the share of unsolved implicit steps and the number of metric evaluations per iteration are shown too.

    LEAPWISE_DATA=... python benchmarks/paper_settings.py [--iterations 2000] [--rmhmc-iterations 200] [problem ...]
"""

from __future__ import annotations

import argparse

import leapwise as lw
from leapwise.problems import registry
from leapwise.problems.elliptic import elliptic_pde

PAPER = {
    "logistic-simulated": (0.76, 0.80),
    "logistic-bank": (0.70, 0.92),
    "logistic-a9a": (0.72, 0.82),
    "elliptic-pde": (0.91, 0.80),
}
CHAINS = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PAPER))
    parser.add_argument("--iterations", type=int, default=2000, help="of HMC, all chains together")
    parser.add_argument("--rmhmc-iterations", type=int, default=200, help="of RMHMC, all chains together")
    options = parser.parse_args()
    for name in options.problems:
        problem = elliptic_pde(observations="paper") if name == "elliptic-pde" else registry.get(name)
        start = lw.sample(problem.target, 20, tune=150, chains=CHAINS, method=lw.HMC(), random_seed=1).draws[
            :, -1
        ]
        hmc = lw.HMC(*problem.settings["hmc"])
        step_size, n_steps = problem.settings["rmhmc"]
        rmhmc = lw.RMHMC(step_size, (n_steps, n_steps), metric=problem.metric)
        for method, n, paper in zip(
            (hmc, rmhmc), (options.iterations, options.rmhmc_iterations), PAPER[name], strict=True
        ):
            run = lw.sample(
                problem.target, n // CHAINS, tune=0, chains=CHAINS, init=start, method=method, random_seed=2
            )
            stats, cost = run.posterior.stats, run.posterior.cost
            print(
                f"{name:20s} {type(method).__name__:6s} step {method.step_size} steps {method.n_steps}: "
                f"acceptance {stats['accepted'].mean():.3f} (paper {paper:.2f}), "
                f"{cost.seconds / n:.4f} s an iteration and chain",
                f", {cost.n_metrics / n:.1f} metrics, unsolved {stats['unsolved'].mean():.4f}"
                if "unsolved" in stats
                else "",
                flush=True,
            )


if __name__ == "__main__":
    main()
