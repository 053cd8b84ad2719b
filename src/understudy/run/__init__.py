"""Running a method on a target: `sample`, `resume`, and the records they keep."""

from understudy.run.inspection import Inspection, inspect_ledger
from understudy.run.resume import resume
from understudy.run.sample import sample

__all__ = ["Inspection", "inspect_ledger", "resume", "sample"]
