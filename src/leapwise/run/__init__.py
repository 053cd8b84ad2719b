"""Running a method on a target: `sample`, `resume` and `inspect_ledger`.

============ ===========================================================================================================
`sample`     the functions `sample` and `resume`: from arguments to a `Runner`
`request`    what `sample` was asked for, and the checks before anything is evaluated
`runner`     one run: warm-up, then draws, then the result
`automatic`  warm-up of the default method: adapt a surrogate, judge it, fall back on HMC, retry
`production` the draws to keep: chain groups, and the loop that steps them
`recorder`   what each step leaves: its position and its statistics, as arrays
`store`      what a run reads from its ledger and writes to it
`class_tags` the classes that a ledger may hold, each under a tag
`ledgers`    ledgers of other runs: what one holds, for people; their evaluations as training data (``learn_from=``)
`progress`   the progress bar
============ ===========================================================================================================

Three names are alike. The *record* of `leapwise.adaptation` holds the exact evaluations of warm-up, on which surrogates
are trained. A *recorder* holds what each step leaves, of warm-up or of the draws. A `leapwise.results.Record` is what
the user gets: all steps of a recorder, in the user's parameters, with their cost.
"""

from leapwise.run.ledgers import Inspection, inspect_ledger
from leapwise.run.sample import resume, sample

__all__ = ["Inspection", "inspect_ledger", "resume", "sample"]
