"""The rehearsal of a self-tuned run, as separate small parts.

=============== ======================================================================
`find`, `design` get to the typical set: by descent, by outputs
`minimise`, `curvature` a descent that survives any scale, and how wide the posterior is where it ends
`arrive`, `descent` trust regions on emulated outputs
`basins`        more starts, and none of the basins they find is lost again
`candidates`    which surrogates are in training, and which of them plays
`explore`       walkers on the surrogate; every exact evaluation is a test, then a lesson
`spacing`       places that keep their distance from one another
`scout`         look where the surrogate is unsure and may be too high
`elsewhere`     descents from all over the prior, where outputs make them cheap
`audit`         a few trajectories with exact gradients
`frontier`, `crest` a few values beyond the outermost draws, round bends too
`coverage`      far out along the tails of each parameter, on its profile
`plan`, `law`   when to stop: what a surrogate of given quality is worth
`freeze`        choose the inner steps of the draws, on the surrogate alone
`modes`         leaps between those that chains of the surrogate do not pass between
`parts`         leaps along a mode that is bent, where many inner steps would be needed
`reach`         how wide the posterior is along each axis, or whether it has no end
`pilot`         a few moves of the draws themselves, where walkers may have been too kind a test
`trust`         how many exact steps the draws need beside it
`rehearsal`     all of it in order
=============== ======================================================================
"""

from understudy.warmup.rehearsal.candidates import Candidates, is_beyond_numbers
from understudy.warmup.rehearsal.diary import Diary
from understudy.warmup.rehearsal.find import Start
from understudy.warmup.rehearsal.frontier import n_probes
from understudy.warmup.rehearsal.law import USELESS
from understudy.warmup.rehearsal.pilot import pilot
from understudy.warmup.rehearsal.plan import Plan
from understudy.warmup.rehearsal.reach import refuse_absurd_width
from understudy.warmup.rehearsal.rehearsal import Outcome, learn_from, rehearse
from understudy.warmup.rehearsal.trust import Trust, judge, require_use

__all__ = [
    "USELESS",
    "Candidates",
    "Diary",
    "Outcome",
    "Plan",
    "Start",
    "Trust",
    "is_beyond_numbers",
    "judge",
    "learn_from",
    "n_probes",
    "pilot",
    "refuse_absurd_width",
    "rehearse",
    "require_use",
]
