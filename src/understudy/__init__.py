"""Exact MCMC for expensive posteriors."""

from understudy.dynamics import (
    DenseMetric,
    DiagonalMetric,
    HessianMetric,
    ImplicitSolver,
    LocalMetric,
    ProductMetric,
    RiemannianMetric,
    UnitMetric,
    batched_cholesky,
)
from understudy.kernels import (
    HMC,
    RMHMC,
    Leaps,
    Mixture,
    SharedStream,
    State,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
)
from understudy.results import Run
from understudy.run import inspect_ledger, resume, sample
from understudy.surrogates import (
    FITC,
    GaussianProcess,
    OutputSurrogate,
    QuadraticNetwork,
    RBFNetwork,
    SoftplusNetwork,
    TrainingSet,
    Whitening,
)
from understudy.targets import (
    Evaluation,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    NormalPrior,
    Target,
    UniformPrior,
)
from understudy.warmup import ARNSHMC, RNSHMC, RNSRMHMC, Auto

__version__ = "0.1.0"

__all__ = [
    "ARNSHMC",
    "FITC",
    "HMC",
    "RMHMC",
    "RNSHMC",
    "RNSRMHMC",
    "Auto",
    "DenseMetric",
    "DiagonalMetric",
    "Evaluation",
    "Evaluator",
    "ForwardTarget",
    "GaussianLikelihood",
    "GaussianProcess",
    "HessianMetric",
    "ImplicitSolver",
    "Leaps",
    "LocalMetric",
    "Mixture",
    "NormalPrior",
    "OutputSurrogate",
    "ProductMetric",
    "QuadraticNetwork",
    "RBFNetwork",
    "RiemannianMetric",
    "Run",
    "SharedStream",
    "SoftplusNetwork",
    "State",
    "Streams",
    "SurrogateHMC",
    "SurrogateRMHMC",
    "SurrogateTransition",
    "Target",
    "TrainingSet",
    "UniformPrior",
    "UnitMetric",
    "Whitening",
    "batched_cholesky",
    "inspect_ledger",
    "resume",
    "sample",
]
