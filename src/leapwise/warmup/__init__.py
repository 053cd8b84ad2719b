"""Before draws are kept: find a finite start, learn step size, metric and trajectory length, train a surrogate.

What is left behind is a frozen kernel. Only `ARNSHMC` goes on learning while draws are kept, and its results say so.
"""

from leapwise.warmup.learning import require_tuning_steps, tuner_for, warmup_for
from leapwise.warmup.methods import ARNSHMC, RNSHMC, RNSRMHMC, Auto, Training
from leapwise.warmup.schedule import KernelTuner, Warmup
from leapwise.warmup.start import find_start

__all__ = [
    "ARNSHMC",
    "RNSHMC",
    "RNSRMHMC",
    "Auto",
    "KernelTuner",
    "Training",
    "Warmup",
    "find_start",
    "require_tuning_steps",
    "tuner_for",
    "warmup_for",
]
