"""Surrogates of the potential, all linear in their trained weights."""

from leapwise.surrogates.base import Fitted, Surrogate
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess
from leapwise.surrogates.gp_likelihood import Hyperparameters
from leapwise.surrogates.network import RBFNetwork, SoftplusNetwork
from leapwise.surrogates.online import PseudoinverseUpdater, RowUpdater
from leapwise.surrogates.output_space import prior_potential
from leapwise.surrogates.outputs import OutputSurrogate
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.quality import Choice, choose, discrepancy_variance
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening

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
