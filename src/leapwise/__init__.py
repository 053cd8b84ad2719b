"""Exact MCMC for expensive posteriors."""

from leapwise.dynamics import (
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
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import (
    HMC,
    NUTS,
    RMHMC,
    Jumps,
    Mixture,
    SharedStream,
    State,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
)
from leapwise.results import Run
from leapwise.run import inspect_ledger, resume, sample
from leapwise.surrogates import (
    FITC,
    GaussianProcess,
    OutputSurrogate,
    QuadraticNetwork,
    RBFNetwork,
    SoftplusNetwork,
    TrainingSet,
    Whitening,
)
from leapwise.targets import ForwardTarget, GaussianLikelihood, NormalPrior, Target, UniformPrior
from leapwise.warmup import ARNSHMC, RNSHMC, RNSRMHMC, Auto

__version__ = "0.1.0"

__all__ = [
    "ARNSHMC",
    "FITC",
    "HMC",
    "NUTS",
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
    "Jumps",
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
