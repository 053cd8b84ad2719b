"""Sharpened estimates and the evidence: what exact draws and their surrogate say together, at no further evaluation.

Draws are arrays here: this package does not know what a `Run` is. `leapwise.results.estimates` brings the two together.
"""

from leapwise.estimates.sharpen import (
    Columns,
    Figure,
    Figures,
    Part,
    corrected,
    figures,
    means,
    monte_carlo_errors,
)
from leapwise.estimates.sharpening import ExactDraws, Sharpening, log_evidence, sharpening

__all__ = [
    "Columns",
    "ExactDraws",
    "Figure",
    "Figures",
    "Part",
    "Sharpening",
    "corrected",
    "figures",
    "log_evidence",
    "means",
    "monte_carlo_errors",
    "sharpening",
]
