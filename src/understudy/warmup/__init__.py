"""Before draws are kept: find a finite start, and learn step size, metric and trajectory length.

Nothing here runs while draws are kept; what it leaves behind is a frozen kernel.
"""

from understudy.warmup.schedule import Warmup, require_tuning_steps, warmup_for
from understudy.warmup.start import find_start

__all__ = ["Warmup", "find_start", "require_tuning_steps", "warmup_for"]
