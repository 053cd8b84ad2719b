"""What a run found and what it cost: draws, statistics, summary, warnings, files, pictures.

Nothing here samples. A `Run` holds arrays; everything else is computed from them when asked for.
"""

from understudy.results.diagnostics import unseen_elsewhere, warnings_for
from understudy.results.lazy import LazyRecord
from understudy.results.run import Cost, Record, Run
from understudy.results.summary import Summary
from understudy.results.surrogate_report import SurrogateReport
from understudy.results.target_report import TargetReport

__all__ = [
    "Cost",
    "LazyRecord",
    "Record",
    "Run",
    "Summary",
    "SurrogateReport",
    "TargetReport",
    "unseen_elsewhere",
    "warnings_for",
]
