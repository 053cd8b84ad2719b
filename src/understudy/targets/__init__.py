"""What the user wants sampled, and the one way to evaluate it.

Two coordinate systems meet here. *Parameters* are the user's own coordinates, inside their bounds.
*Positions* are unconstrained: every bound is mapped away. A target speaks of parameters and log-densities;
the `Evaluator` turns them into positions and potentials, and everything above it knows only those.
"""

from understudy.targets.densities import Density, GaussianLikelihood, NormalPrior, UniformPrior
from understudy.targets.evaluator import Counts, Evaluation, Evaluator
from understudy.targets.forward import ForwardTarget
from understudy.targets.raw import Raw
from understudy.targets.target import AnyTarget, Target
from understudy.targets.transforms import Transform

__all__ = [
    "AnyTarget",
    "Counts",
    "Density",
    "Evaluation",
    "Evaluator",
    "ForwardTarget",
    "GaussianLikelihood",
    "NormalPrior",
    "Raw",
    "Target",
    "Transform",
    "UniformPrior",
]
