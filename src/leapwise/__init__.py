"""Exact MCMC for expensive posteriors: cheap trajectories on a learned surrogate, one exact evaluation for each draw.

===================================  ==================================================================================
`targets`, `surrogates`, `dynamics`  the posterior to sample; learned approximations of it; integrators and metrics
`storage`, `execution`               the ledger, evaluations on disk; the `Evaluator`, the one way to call the target
`kernels`                            one step of the Markov chains: propose, then accept or reject
`warmup`, `adaptation`               what is learned before the draws: by steps of the kernel; by `Auto`
`results`, `run`                     the `Run` that is handed back, and its diagnostics; `sample` and `resume`
`problems`, `paper`                  built-in posteriors; the experiments of the paper
`testing`, `cli`                     tests of exactness for any kernel; the command line
===================================  ==================================================================================

A package imports only from those in lines above its own, and from those before it in its own line.

``sample(target)`` goes through these steps. It checks its arguments (`run.request`) and opens the ledger, if there is
one (`run.store`). It adapts a surrogate (`Auto`, the default: `run.automatic`), or warms up another method (`warmup`).
`Auto` then judges its surrogate; where that is not trusted, steps of `HMC` with exact gradients are mixed in, or take
over. A frozen kernel makes the draws (`run.production`; only `ARNSHMC` keeps learning). `sample` hands back a `Run`.

Words. A *position* q is unconstrained: bounds are transformed away. The *potential* U(q) is minus the log-density at q,
with the log-Jacobian of that transform included. An *evaluation* is a value of U, or a value with its gradient, from
the user's model. It is called *exact*, in contrast to what a surrogate *predicts*. A *surrogate* U~ is a cheap function
that was trained on evaluations. The *discrepancy* D = U - U~ is the exact minus the predicted potential.

*The paper* is Zhang, Shahbaba, Zhao, "Hamiltonian Monte Carlo acceleration using surrogate functions with random
bases", Statistics and Computing 27, 2017. Its names: RNS-HMC, random network surrogate HMC (`RNSHMC`); ARNS-HMC, the
adaptive one (`ARNSHMC`); RMHMC, Riemannian manifold HMC (`RMHMC`, and with a surrogate `RNSRMHMC`).
"""

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
from leapwise.results import Run, load
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
from leapwise.targets import (
    BernoulliLikelihood,
    Beta,
    BinomialLikelihood,
    Cauchy,
    Exponential,
    ForwardTarget,
    Gamma,
    GaussianLikelihood,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    LogNormalLikelihood,
    LogUniform,
    MultivariateNormal,
    NegativeBinomialLikelihood,
    Normal,
    NormalPrior,
    PoissonLikelihood,
    Prior,
    StudentT,
    StudentTLikelihood,
    Target,
    TruncatedNormal,
    Uniform,
    UniformPrior,
)
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
    "BernoulliLikelihood",
    "Beta",
    "BinomialLikelihood",
    "Cauchy",
    "DenseMetric",
    "DiagonalMetric",
    "Evaluation",
    "Evaluator",
    "Exponential",
    "ForwardTarget",
    "Gamma",
    "GaussianLikelihood",
    "GaussianProcess",
    "HalfCauchy",
    "HalfNormal",
    "HessianMetric",
    "ImplicitSolver",
    "InverseGamma",
    "Jumps",
    "LocalMetric",
    "LogNormal",
    "LogNormalLikelihood",
    "LogUniform",
    "Mixture",
    "MultivariateNormal",
    "NegativeBinomialLikelihood",
    "Normal",
    "NormalPrior",
    "OutputSurrogate",
    "PoissonLikelihood",
    "Prior",
    "ProductMetric",
    "QuadraticNetwork",
    "RBFNetwork",
    "RiemannianMetric",
    "Run",
    "SharedStream",
    "SoftplusNetwork",
    "State",
    "Streams",
    "StudentT",
    "StudentTLikelihood",
    "SurrogateHMC",
    "SurrogateRMHMC",
    "SurrogateTransition",
    "Target",
    "TrainingSet",
    "TruncatedNormal",
    "Uniform",
    "UniformPrior",
    "UnitMetric",
    "Whitening",
    "batched_cholesky",
    "inspect_ledger",
    "load",
    "resume",
    "sample",
]
