"""What a run found and what it cost: draws, statistics, summary, warnings, files, pictures.

Nothing here samples. A `Run` holds arrays; everything else is computed from them when asked for.
"""

from leapwise.results.diagnostics import logged_warnings, warnings_for
from leapwise.results.run import Cost, LazyRecord, Record, Run, SurrogateReport, TargetReport, load
from leapwise.results.summary import Summary

__all__ = [
    "Cost",
    "LazyRecord",
    "Record",
    "Run",
    "Summary",
    "SurrogateReport",
    "TargetReport",
    "load",
    "logged_warnings",
    "warnings_for",
]
