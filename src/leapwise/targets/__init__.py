"""What the user wants sampled: targets, their cheap densities, and the transforms of their bounds.

There are two coordinate systems. *Parameters* are the user's own coordinates, inside their bounds. *Positions* are
unconstrained: every bound is transformed away. A target knows parameters and log-densities; the `Evaluator` turns them
into positions and potentials, and everything above it knows only those.
"""

from leapwise.targets.densities import Density, GaussianLikelihood, NormalPrior, UniformPrior
from leapwise.targets.forward import ForwardTarget
from leapwise.targets.returns import Values
from leapwise.targets.target import AnyTarget, Target
from leapwise.targets.transforms import Transform

__all__ = [
    "AnyTarget",
    "Density",
    "ForwardTarget",
    "GaussianLikelihood",
    "NormalPrior",
    "Target",
    "Transform",
    "UniformPrior",
    "Values",
]
