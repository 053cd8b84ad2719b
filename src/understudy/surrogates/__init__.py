"""Stand-ins of the potential, all linear in their trained weights."""

from understudy.surrogates.online import RowUpdater
from understudy.surrogates.pseudoinverse import PseudoinverseUpdater

__all__ = [
    "PseudoinverseUpdater",
    "RowUpdater",
]
