"""What the user wants sampled: targets, their cheap densities, and the transforms of their bounds.

There are two coordinate systems. *Parameters* are the user's own coordinates, inside their bounds. *Positions* are
unconstrained: every bound is transformed away. A target knows parameters and log-densities; the `Evaluator` turns them
into positions and potentials, and everything above it knows only those.
"""

from leapwise.targets.calls import Values
from leapwise.targets.densities import Density, NormalPrior, UniformPrior
from leapwise.targets.families import (
    Beta,
    Cauchy,
    Exponential,
    Gamma,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    LogUniform,
    MultivariateNormal,
    Normal,
    StudentT,
    TruncatedNormal,
    Uniform,
)
from leapwise.targets.forward import ForwardTarget, Joint
from leapwise.targets.likelihoods import (
    BernoulliLikelihood,
    BinomialLikelihood,
    GaussianLikelihood,
    LogNormalLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from leapwise.targets.priors import Prior
from leapwise.targets.target import AnyTarget, Target
from leapwise.targets.transforms import Transform
from leapwise.targets.variables import Variable

__all__ = [
    "AnyTarget",
    "BernoulliLikelihood",
    "Beta",
    "BinomialLikelihood",
    "Cauchy",
    "Density",
    "Exponential",
    "ForwardTarget",
    "Gamma",
    "GaussianLikelihood",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "Joint",
    "LogNormal",
    "LogNormalLikelihood",
    "LogUniform",
    "MultivariateNormal",
    "NegativeBinomialLikelihood",
    "Normal",
    "NormalPrior",
    "PoissonLikelihood",
    "Prior",
    "StudentT",
    "StudentTLikelihood",
    "Target",
    "Transform",
    "TruncatedNormal",
    "Uniform",
    "UniformPrior",
    "Values",
    "Variable",
]
