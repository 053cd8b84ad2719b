"""The adaptation of a self-tuned run: train a surrogate on as few exact evaluations as possible.

================== ===================================================================================
`adapt`            the stages in order
`settings`         every constant with its reason, and switches of the stages
`record`           exact evaluations, and how well they were predicted
`initialise`       find the typical set: by descent, or on emulated outputs
`minimise`         BFGS from any start, and the curvature at the minimum
`surrogate_chains` chains on the surrogate alone
`explore`          chains that move on the surrogate and are tested by exact evaluations
`selection`        which surrogates are trained, and which one is used
`coverage`         evaluations beyond the outermost draws, along curved ridges too
`tails`            far out along the profiles of single parameters
`modes`            search for separate modes, and jumps between them
`stopping`         what a surrogate of given quality is worth, and when to stop
`tune`             the kernel of the draws, and the components it jumps between
`trust`            how many exact steps the draws need beside the surrogate
================== ===================================================================================

Words: U is the potential, D = U - U~ its discrepancy from the surrogate. The *frame* is a `Whitening`, coordinates in
which the posterior is about standard normal. *Cold* chains explore the posterior itself, *tempered* ones a flatter one.
"""

from leapwise.adaptation.adapt import AdaptationResult, learn_from, run_adaptation
from leapwise.adaptation.coverage import n_probes
from leapwise.adaptation.explore import check_support
from leapwise.adaptation.initialise import Start
from leapwise.adaptation.minimise import refuse_absurd_width
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates, is_numerical
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings
from leapwise.adaptation.stopping import AdaptationPlan
from leapwise.adaptation.trust import Trust, judge, require_use

__all__ = [
    "DEFAULT",
    "AdaptationPlan",
    "AdaptationResult",
    "AdaptationSettings",
    "Candidates",
    "EvaluationRecord",
    "Start",
    "Trust",
    "check_support",
    "is_numerical",
    "judge",
    "learn_from",
    "n_probes",
    "refuse_absurd_width",
    "require_use",
    "run_adaptation",
]
