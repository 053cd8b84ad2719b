"""The rehearsal of a self-tuned run, as separate small parts.

=============== ======================================================================
`find`, `design` get to the typical set: by descent, by outputs, by values alone
`basins`        more starts, and none of the basins they find is lost again
`candidates`    which surrogates are in training, and which of them plays
`explore`       walkers on the surrogate; every exact evaluation is a test, then a lesson
`scout`         look where the surrogate is unsure and may be too high
`audit`         a few trajectories with exact gradients
`frontier`      without them, a few values beyond the outermost draws
`plan`, `law`   when to stop: what a surrogate of given quality is worth
`freeze`        choose the inner steps of the draws, on the surrogate alone
`trust`         how many exact steps the draws need beside it
`rehearsal`     all of it in order
=============== ======================================================================
"""

from understudy.warmup.rehearsal.diary import Diary
from understudy.warmup.rehearsal.frontier import n_probes
from understudy.warmup.rehearsal.plan import Plan
from understudy.warmup.rehearsal.rehearsal import Outcome, rehearse
from understudy.warmup.rehearsal.trust import Trust, judge, require_use

__all__ = ["Diary", "Outcome", "Plan", "Trust", "judge", "n_probes", "rehearse", "require_use"]
