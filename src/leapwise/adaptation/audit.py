"""Audit: a few trajectories with exact gradients, from where the walkers are.

They follow the posterior itself, so they go where a surrogate may have put a wall. What they find is held against what
was predicted before anyone learns from it. An audit can object; it certifies nothing.
"""

from __future__ import annotations

import numpy as np

from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.record import Trial, middle
from leapwise.dynamics import DenseMetric
from leapwise.kernels import HMC, SharedStream

N_TRAJECTORIES = 2
LENGTH = 1.6
MOST_STEPS = 12


def audit(explorer: Explorer) -> float:
    """Follow exact trajectories of the cold walkers; return the share of what they saw that was a surprise.

    What a surprise is, says `EvaluationRecord.is_surprise`.
    """
    walkers, candidates, record = explorer.walkers, explorer.candidates, explorer.record
    start = walkers.position[walkers.cold]
    kernel = exact_kernel(explorer)
    first, known = len(record.heard), len(record)
    state = record.state(start, walkers.potential[walkers.cold])
    streams = SharedStream(explorer.rng, len(start))
    for _ in range(N_TRAJECTORIES):
        state, _ = kernel.step(streams, state, record.evaluator)
    new = record.heard[first:]
    position = np.concatenate([each.position for each in new])
    potential = np.concatenate([each.potential for each in new])
    seen = np.isfinite(potential)
    predicted = candidates.predict(position[seen])
    found = record.discrepancies(candidates.playing)
    record.trials.append(Trial("audit", known, potential[seen], predicted))
    if not seen.any() or not len(found):
        return 1.0
    return float(record.is_surprise(potential[seen], predicted[candidates.playing], middle(found)).mean())


def exact_kernel(explorer: Explorer) -> HMC:
    """Return HMC with exact gradients in the explorer's frame."""
    step_size = max(explorer.inner_step, LENGTH / MOST_STEPS)
    factor = explorer.frame.factor
    return HMC(step_size, trajectory_length=LENGTH, metric=DenseMetric(factor @ factor.T))
