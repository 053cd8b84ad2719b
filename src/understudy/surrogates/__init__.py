"""Stand-ins of the potential, all linear in their trained weights."""

from understudy.surrogates.base import Fitted, Surrogate
from understudy.surrogates.discrepancy import Choice, choose, discrepancy_variance
from understudy.surrogates.fitc import FITC
from understudy.surrogates.gp import GaussianProcess
from understudy.surrogates.gp_likelihood import Hyperparameters
from understudy.surrogates.network import RBFNetwork, SoftplusNetwork
from understudy.surrogates.online import RowUpdater
from understudy.surrogates.output_prior import prior_potential
from understudy.surrogates.outputs import OutputSurrogate
from understudy.surrogates.pseudoinverse import PseudoinverseUpdater
from understudy.surrogates.quadratic import QuadraticNetwork
from understudy.surrogates.training import TrainingSet
from understudy.surrogates.whitening import Whitening

__all__ = [
    "FITC",
    "Choice",
    "Fitted",
    "GaussianProcess",
    "Hyperparameters",
    "OutputSurrogate",
    "PseudoinverseUpdater",
    "QuadraticNetwork",
    "RBFNetwork",
    "RowUpdater",
    "SoftplusNetwork",
    "Surrogate",
    "TrainingSet",
    "Whitening",
    "choose",
    "discrepancy_variance",
    "prior_potential",
]
