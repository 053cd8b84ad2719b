"""Audit: a few trajectories with exact gradients, from where the walkers are.

They follow the posterior itself, so they go where a surrogate may have put a wall. What they find is held against what
was foretold before anyone learns from it. An audit can object; it certifies nothing.
"""

from __future__ import annotations

import numpy as np

from understudy.dynamics import DenseMetric
from understudy.kernels import HMC, SharedStream
from understudy.warmup.rehearsal.diary import Trial, middle
from understudy.warmup.rehearsal.explore import Explorer

N_TRAJECTORIES = 2
LENGTH = 1.6
MOST_STEPS = 12


def audit(explorer: Explorer) -> float:
    """Follow exact trajectories of the cold walkers; return the share of what they saw that was a surprise.

    What a surprise is, says `Diary.is_surprise`.
    """
    walkers, candidates, diary = explorer.walkers, explorer.candidates, explorer.diary
    start = walkers.position[walkers.cold]
    kernel = exact_kernel(explorer)
    first, known = len(diary.heard), len(diary)
    state = diary.state(start, walkers.potential[walkers.cold])
    streams = SharedStream(explorer.rng, len(start))
    for _ in range(N_TRAJECTORIES):
        state, _ = kernel.step(streams, state, diary.evaluator)
    new = diary.heard[first:]
    position = np.concatenate([each.position for each in new])
    potential = np.concatenate([each.potential for each in new])
    seen = np.isfinite(potential)
    foretold = candidates.foretell(position[seen])
    found = diary.discrepancies(candidates.playing)
    diary.trials.append(Trial("audit", known, potential[seen], foretold))
    if not seen.any() or not len(found):
        return 1.0
    return float(diary.is_surprise(potential[seen], foretold[candidates.playing], middle(found)).mean())


def exact_kernel(explorer: Explorer) -> HMC:
    """Return HMC with exact gradients in the explorer's frame."""
    step_size = max(explorer.inner_step, LENGTH / MOST_STEPS)
    factor = explorer.frame.factor
    return HMC(step_size, trajectory_length=LENGTH, metric=DenseMetric(factor @ factor.T))
