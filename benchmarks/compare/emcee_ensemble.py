"""emcee's ensemble of walkers, for posteriors without a gradient."""

from __future__ import annotations

import emcee
import numpy as np

from .exact import Exact
from .outcome import Outcome, Watch

MOVES = {
    "stretch": lambda: None,
    # The moves that emcee's documentation advises for posteriors on which the default is slow.
    "differential": lambda: [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)],
}


def run(exact: Exact, seed: int, draws: int, *, moves: str, tune: int) -> Outcome:
    """Move all walkers together, for as many kept steps as other methods have draws in a chain, twice over.

    Walkers depend on each other, so effective draws are steps times walkers over emcee's autocorrelation time.
    """
    walkers = max(32, 2 * exact.dim + 2)
    sampler = emcee.EnsembleSampler(
        walkers,
        exact.dim,
        lambda position: -exact.evaluator.value(position).potential,
        moves=MOVES[moves](),
        vectorize=True,
    )
    start = emcee.State(exact.starts(seed, walkers), random_state=np.random.RandomState(seed).get_state())
    watch = Watch()
    with watch.part("warmup"):
        state = sampler.run_mcmc(start, tune, store=False)
    with watch.part("draws"):
        sampler.run_mcmc(state, 2 * draws)
    chain = sampler.get_chain()  # (steps, walkers, dim)
    squares = (chain - chain.mean(axis=(0, 1))) ** 2
    times = [emcee.autocorr.integrated_time(each, tol=0) for each in (chain, squares)]
    return Outcome(
        draws=np.moveaxis(chain, 0, 1),
        n_values=exact.evaluator.counts.n_values,
        n_gradients=0,
        seconds=watch.seconds,
        warmup_seconds=watch.parts["warmup"],
        ess=(chain.shape[0] * walkers / times[0], chain.shape[0] * walkers / times[1]),
        notes={"walkers": walkers, "autocorrelation time": float(times[0].max())},
    )
