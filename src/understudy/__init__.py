"""Exact MCMC for expensive posteriors."""

from understudy.dynamics import (
    DenseMetric,
    DiagonalMetric,
    ImplicitSolver,
    LocalMetric,
    ProductMetric,
    RiemannianMetric,
    UnitMetric,
    batched_cholesky,
)
from understudy.kernels import HMC, RMHMC, SharedStream, State, Streams
from understudy.results import Run
from understudy.run import sample
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

__all__ = [
    "HMC",
    "RMHMC",
    "DenseMetric",
    "DiagonalMetric",
    "Evaluation",
    "Evaluator",
    "ForwardTarget",
    "GaussianLikelihood",
    "ImplicitSolver",
    "LocalMetric",
    "NormalPrior",
    "ProductMetric",
    "RiemannianMetric",
    "Run",
    "SharedStream",
    "State",
    "Streams",
    "Target",
    "UniformPrior",
    "UnitMetric",
    "batched_cholesky",
    "sample",
]
