"""The adaptation of a self-tuned run: train a surrogate on as few exact evaluations as possible.

The stages, in the order in which `adapt` runs them; 2 to 5 repeat until enough is learned:

================== ================================== ==================================================================
stage              where                              what it does
================== ================================== ==================================================================
1. initialise      `initialise`                       finds the typical set: by descent, or on emulated outputs
2a. explore        `explore`                          moves chains on the surrogate; exact evaluations test the moves
2b. select         `selection`                        trains several surrogates, and uses the one that predicts best
3. search          `modes`                            looks for other modes, and keeps chains in the known ones
4. cover           `coverage`, `tails`                evaluates beyond the outermost draws, for mass that was missed
5. stop            `stopping`                         says whether it pays to learn on
6. tune            `tune`, `modes.find_jumps`         chooses the kernel of the draws, and its jumps
7. moves           `explore.sd_at_moves`              by values: tests moves of that kernel, and learns from them
8. tails           `tails.hidden_in_tails`            looks once more for tails that draws of that kernel would cut
================== ================================== ==================================================================

Helpers, which several stages use:

================== =====================================================================================================
`adapt`            calls the stages, and returns the kernel of the draws
`settings`         every constant with its reason, and switches of the stages
`record`           the exact evaluations of warm-up, and how well they were predicted
`minimise`         BFGS from any start, and the curvature at the minimum (`measure_curvature`)
`surrogate_chains` chains on the surrogate alone: step sizes, draws of the surrogate, and the frame
`trust`            the share of exact steps that the draws need; `leapwise.run.automatic` calls it after the adaptation
================== =====================================================================================================

Words that all of them use:

- U is the potential, and D the *discrepancy*: the exact minus the predicted potential.
- The *frame* is the `Whitening` in which the posterior is about standard normal. Lengths and distances are in its
  units; `white` in a name means coordinates of a frame.
- *Cold* chains target the posterior, *tempered* ones a flattened one; both move on the surrogate.
- The *height* of a position is its potential minus the lowest one known. A position has *mass* if its height is that of
  draws (`settings.HeightSettings` has the limits).
- A *surprise* is an exact potential clearly below the prediction, at a position with mass.
- A *wall* is a region where the surrogate is far too high, so that its chains never enter it.
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
from leapwise.adaptation.trust import Trust, judge, refuse_heavy_tails, require_use

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
    "refuse_heavy_tails",
    "require_use",
    "run_adaptation",
]
