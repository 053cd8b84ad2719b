"""What the user wants sampled, and the one way to evaluate it.

Two coordinate systems meet here. *Parameters* are the user's own coordinates, inside their bounds.
*Positions* are unconstrained: every bound is mapped away. A target speaks of parameters and log-densities; the
`Evaluator` turns them into positions and potentials, and everything above it knows only those.
"""

from understudy.targets.densities import Density, GaussianLikelihood, NormalPrior, UniformPrior
from understudy.targets.evaluator import Evaluation, Evaluator
from understudy.targets.forward import ForwardTarget
from understudy.targets.target import AnyTarget, Raw, Target
from understudy.targets.transforms import Transform

__all__ = [
    "AnyTarget",
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
