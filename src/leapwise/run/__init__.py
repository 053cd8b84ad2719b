"""Running a method on a target: `sample`, `resume`, and the records they keep."""

from leapwise.run.inspection import Inspection, inspect_ledger
from leapwise.run.resume import resume
from leapwise.run.sample import sample

__all__ = ["Inspection", "inspect_ledger", "resume", "sample"]
