"""Surrogates: learned approximations of the potential that trajectories run on.

==================  =================================================================================================
`base`              interfaces `Surrogate` and `Fitted`; sums of features
`training`          exact evaluations as training data
`whitening`         whitened coordinates, in which all surrogates are trained
`features`, `trend` features: hidden units, kernel nodes, quadratic and radial terms, the guard
`ridge`, `online`   ridge regression with a chosen strength; adding rows to a solved regression
`network`           random-basis networks of the paper: softplus and radial
`quadratic`         a quadratic with radial terms and hidden units
`gp`, `fitc`        Gaussian processes, full and sparse
`outputs`           emulated outputs of a forward model, with `emulator` and `output_space`
`compiled`          any fitted surrogate as two quick functions for trajectories
`quality`           sd(D), the measure of how good a surrogate is
==================  =================================================================================================

A new kind of surrogate touches four places: its own file, with a recipe and its fitted form (see `base`); `compiled`,
for quick functions along trajectories (without a form there its own methods are called); `leapwise.run.class_tags`,
for a tag under which a ledger stores it (without one a resumed run replays its evaluations); and
`leapwise.adaptation.selection`, if `Auto` shall try it by default.

Notation: q position, z whitened position, d dimension, m and F mean and factor of the whitening, U exact and U~
predicted potential, D = U - U~ discrepancy, v output weights, w_i and d_i input weights and biases of hidden units
(d with an index is a bias). A file in which D, U or H is something else says so.
"""

from leapwise.surrogates.base import Fitted, Surrogate
from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess
from leapwise.surrogates.gp_posterior import Hyperparameters
from leapwise.surrogates.network import RBFNetwork, SoftplusNetwork
from leapwise.surrogates.online import PseudoinverseUpdater, RowUpdater
from leapwise.surrogates.output_space import PriorPotential
from leapwise.surrogates.outputs import OutputSurrogate
from leapwise.surrogates.quadratic import QuadraticNetwork
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening

__all__ = [
    "FITC",
    "Fitted",
    "GaussianProcess",
    "Hyperparameters",
    "OutputSurrogate",
    "PriorPotential",
    "PseudoinverseUpdater",
    "QuadraticNetwork",
    "RBFNetwork",
    "RowUpdater",
    "SoftplusNetwork",
    "Surrogate",
    "TrainingSet",
    "Whitening",
]
