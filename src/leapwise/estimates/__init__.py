"""Sharpened estimates and the evidence: what exact draws and their surrogate say together, at no further evaluation.

Draws are arrays here: this package does not know what a `Run` is. `leapwise.results.estimates` brings the two together.
"""

from leapwise.estimates.figure import Figure, Figures, figures, means
from leapwise.estimates.parts import ExactDraws, Sharpening, find_parts, log_evidence
from leapwise.estimates.series import Columns, Part, corrected, monte_carlo_errors

__all__ = [
    "Columns",
    "ExactDraws",
    "Figure",
    "Figures",
    "Part",
    "Sharpening",
    "corrected",
    "figures",
    "find_parts",
    "log_evidence",
    "means",
    "monte_carlo_errors",
]
