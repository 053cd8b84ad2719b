"""Stand-ins of the potential, all linear in their trained weights."""

from understudy.surrogates.fitc import FITC
from understudy.surrogates.gp import GaussianProcess
from understudy.surrogates.gp_likelihood import Hyperparameters
from understudy.surrogates.online import RowUpdater
from understudy.surrogates.pseudoinverse import PseudoinverseUpdater

__all__ = [
    "FITC",
    "GaussianProcess",
    "Hyperparameters",
    "PseudoinverseUpdater",
    "RowUpdater",
]
