"""Running a method on a target: `sample`, `resume` and `inspect_ledger`.

`sample` checks its arguments (`request`) and starts a `Runner`, which warms up (`automatic` for the default method) and
draws (`production`). `store` is the ledger of the run, `reuse` takes evaluations from other ledgers.
"""

from leapwise.run.inspect import Inspection, inspect_ledger
from leapwise.run.sample import resume, sample

__all__ = ["Inspection", "inspect_ledger", "resume", "sample"]
