"""Running a method on a target: `sample`, `resume`, and the records they keep."""

from leapwise.run.inspect import Inspection, inspect_ledger
from leapwise.run.sample import resume, sample

__all__ = ["Inspection", "inspect_ledger", "resume", "sample"]
