"""Warm-up of all methods except `Auto`: a start, step size, metric and trajectory length, and the paper's surrogates.

The result of a warm-up is a frozen kernel. Only `ARNSHMC` keeps learning while draws are kept, and its results say so.
The warm-up of `Auto` is the adaptation, in `leapwise.adaptation`.

================  ====================================================================================
`start`           where chains begin; a descent from far above the posterior
`gradient_check`  does the gradient belong to the log-density?
`tuners`          step size, metric, trajectory length: how each is learned
`hmc`             the schedule: what is learned when, for HMC, NUTS and RMHMC
`methods`         the settings of the paper's methods and of `Auto`
`learning`        exploration and training for the paper's methods; which warm-up a method needs
================  ====================================================================================
"""

from leapwise.warmup.hmc import KernelTuner, NoWarmup, Warmup
from leapwise.warmup.learning import require_tuning_steps, tuner_for, warmup_for
from leapwise.warmup.methods import ARNSHMC, RNSHMC, RNSRMHMC, Auto, Training
from leapwise.warmup.start import find_start

__all__ = [
    "ARNSHMC",
    "RNSHMC",
    "RNSRMHMC",
    "Auto",
    "KernelTuner",
    "NoWarmup",
    "Training",
    "Warmup",
    "find_start",
    "require_tuning_steps",
    "tuner_for",
    "warmup_for",
]
