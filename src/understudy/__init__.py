"""Exact MCMC for expensive posteriors."""

from understudy.targets import (
    Evaluation,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    NormalPrior,
    Target,
    UniformPrior,
)

__version__ = "0.1.0"

__all__ = ["Evaluation", "Evaluator", "ForwardTarget", "GaussianLikelihood", "NormalPrior", "Target", "UniformPrior"]
