"""The adaptation of a self-tuned run, as separate small parts.

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
`modes`         jumps between those that chains of the surrogate do not pass between
`parts`         jumps along a mode that is bent, where many inner steps would be needed
`reach`         how wide the posterior is along each axis, or whether it has no end
`pilot`         a few moves of the draws themselves, where walkers may have been too kind a test
`trust`         how many exact steps the draws need beside it
`adaptation`     all of it in order
=============== ======================================================================
"""

from leapwise.adaptation.adapt import Outcome, learn_from, run_adaptation
from leapwise.adaptation.coverage import n_probes
from leapwise.adaptation.curvature import refuse_absurd_width
from leapwise.adaptation.explore import pilot
from leapwise.adaptation.initialise import Start
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates, is_beyond_numbers
from leapwise.adaptation.stopping import USELESS, Plan
from leapwise.adaptation.trust import Trust, judge, require_use

__all__ = [
    "USELESS",
    "Candidates",
    "EvaluationRecord",
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
    "require_use",
    "run_adaptation",
]
