"""Our own methods: `sample` with its defaults, exact HMC, and the paper's RNS-HMC."""

from __future__ import annotations

from dataclasses import replace

import leapwise as lw
from leapwise.paper.experiments import get_experiment

from .exact import Exact
from .figures import PRECISION
from .outcome import Outcome, Watch


def run(exact: Exact, seed: int, draws: int, cores: int | None = None) -> Outcome:
    """Call `sample` with its defaults."""
    return _outcome(lambda: lw.sample(exact.target, draws=draws, chains=4, random_seed=seed, cores=cores))


def run_to_precision(exact: Exact, seed: int, draws: int) -> Outcome:
    """Call `sample` with a precision, and at most ten times as many draws."""
    found = _outcome(
        lambda: lw.sample(exact.target, 10 * draws, precision=PRECISION, chains=4, random_seed=seed)
    )
    return replace(found, is_precise=bool(found.notes["precision reached"]))


def run_hmc(exact: Exact, seed: int, draws: int, *, tune: int) -> Outcome:
    """Sample with exact gradients."""
    return _outcome(
        lambda: lw.sample(exact.target, draws, tune=tune, chains=4, random_seed=seed, method=lw.HMC())
    )


def run_rns(
    exact: Exact, seed: int, draws: int, *, settings: str, tune: int, n_hidden: int = 1000
) -> Outcome:
    """Sample with the paper's RNS-HMC: at the paper's settings, or at those of its exploration.

    Exploration is by the self-tuned ``HMC()`` in both: from random starts the paper's steps are unstable.
    """
    if exact.case.paper is not None:
        n_hidden = get_experiment(exact.case.paper).n_hidden
    network = lw.SoftplusNetwork(n_hidden)
    if settings == "paper":
        step_size, n_steps = exact.problem.settings["hmc"]
        method = lw.RNSHMC(
            network,
            step_size,
            n_steps,
            metric=lw.UnitMetric(),
            explore=lw.HMC(),
            collect="accepted",
            max_training=5000,
        )
    else:
        method = lw.RNSHMC(network)
    return _outcome(
        lambda: lw.sample(exact.target, draws, tune=tune, chains=4, random_seed=seed, method=method)
    )


def _outcome(call) -> Outcome:
    watch = Watch()
    with watch.part("all"):
        run = call()
    summary = run.summary()
    return Outcome(
        draws=run.draws,
        n_values=run.cost.n_values,
        n_gradients=run.cost.n_gradients,
        seconds=watch.seconds,
        warmup_seconds=run.warmup.cost.seconds,
        notes={
            "warnings": list(summary.warnings),
            "exact": run.exact,
            "seconds in the model": run.cost.value_seconds + run.cost.gradient_seconds,
            "precision reached": run.precision is not None and run.precision.is_reached,
            "sharpened": bool(summary.estimates and summary.estimates["sharpened"]),
            "warm-up evaluations": run.warmup.cost.n_values + run.warmup.cost.n_gradients,
        },
    )
