"""The classes that a ledger may hold, each under a tag of its own.

This is only the list: `leapwise.storage.archive` turns objects of these classes into arrays and JSON and back, and
`leapwise.run.store` says which objects a run saves.
A ledger names a class by its tag. So a class may be renamed or moved, and earlier ledgers can still be resumed, as long
as its tag and its fields stay. A tag is never given to another class. Where fields change, a resumed run warns and
replays its evaluations instead; where that is not enough, `FORMAT_VERSION` of `leapwise.storage.file` goes up, and
earlier ledgers are refused.

A new kernel or surrogate needs a line here. Without one it works, but a resumed run replays all its evaluations.
"""

from __future__ import annotations

from leapwise.dynamics import DenseMetric, DiagonalMetric, HessianMetric, InvertedMetric, UnitMetric
from leapwise.dynamics.generalized import ImplicitSolver
from leapwise.dynamics.metrics import _Full, _Spectral
from leapwise.execution import Counts, Evaluation
from leapwise.kernels import (
    HMC,
    NUTS,
    RMHMC,
    Mixture,
    State,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
)
from leapwise.kernels.base import KnownForce
from leapwise.kernels.coordinates import Hierarchy, NonCentred
from leapwise.kernels.free_moves import FreeMoves
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.transition import Turns
from leapwise.results import Cost, Record, SurrogateReport
from leapwise.storage.archive import Archive, Stored
from leapwise.surrogates import (
    FITC,
    GaussianProcess,
    Hyperparameters,
    OutputSurrogate,
    PriorPotential,
    PseudoinverseUpdater,
    QuadraticNetwork,
    RBFNetwork,
    RowUpdater,
    SoftplusNetwork,
    TrainingSet,
    Whitening,
)
from leapwise.surrogates.base import Expansion
from leapwise.surrogates.emulator import CubicBasis, CubicForms, Emulator, OutputFeatures
from leapwise.surrogates.features import (
    RadialBasis,
    RationalQuadratic,
    SoftplusBasis,
    SquaredExponential,
    SumBasis,
)
from leapwise.surrogates.fitc import FittedFITC, SparsePosterior
from leapwise.surrogates.gp import FittedProcess, GradientKernelBasis
from leapwise.surrogates.gp_posterior import Covariance, ObservedRows, Posterior
from leapwise.surrogates.joint import (
    FittedJoint,
    FrozenLikelihood,
    JointPotential,
    JointSurrogate,
    NoPrior,
    WithPrior,
)
from leapwise.surrogates.network import FittedNetwork, LeastSquaresProblem
from leapwise.surrogates.output_space import (
    ComponentMisfit,
    OutputSpace,
    QuadraticPotential,
    SmoothPotential,
    WhitePrior,
)
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.quadratic import FittedQuadratic, QuadraticProblem
from leapwise.surrogates.ridge import PrimalSolver, RidgeSolution, RowGroups
from leapwise.surrogates.training import WhiteSet
from leapwise.surrogates.trend import Guard, QuadraticBasis, RadialTrend, TrendBasis
from leapwise.targets import AnyTarget
from leapwise.warmup import ARNSHMC, RNSHMC, RNSRMHMC, Auto

ARCHIVE = Archive(
    {
        # methods and kernels
        "auto": Stored(Auto),
        "rns-hmc": Stored(RNSHMC),
        "rns-rmhmc": Stored(RNSRMHMC),
        "arns-hmc": Stored(ARNSHMC),
        "hmc": Stored(HMC),
        "nuts": Stored(NUTS),
        "rmhmc": Stored(RMHMC),
        "surrogate-hmc": Stored(SurrogateHMC),
        "surrogate-rmhmc": Stored(SurrogateRMHMC),
        "surrogate-transition": Stored(SurrogateTransition),
        "jumps": Stored(Jumps),
        "mixture": Stored(Mixture),
        "free-moves": Stored(FreeMoves),
        "turns": Stored(Turns),
        "non-centred": Stored(NonCentred),
        "hierarchy": Stored(Hierarchy),
        "implicit-solver": Stored(ImplicitSolver),
        # metrics
        "unit-metric": Stored(UnitMetric),
        "diagonal-metric": Stored(DiagonalMetric),
        "dense-metric": Stored(DenseMetric, ("covariance", "_momentum_factor", "_mass_matrix")),
        "hessian-metric": Stored(HessianMetric),
        "hessian-metric-full": Stored(_Full),
        "hessian-metric-spectral": Stored(_Spectral),
        "inverted-metric": Stored(InvertedMetric),
        # states and results
        "streams": Stored(Streams, ("generators", "shared", "n_chains")),
        "state": Stored(State),
        "known-force": Stored(KnownForce),
        "evaluation": Stored(Evaluation),
        "counts": Stored(Counts),
        "cost": Stored(Cost),
        "record": Stored(Record),
        "surrogate-report": Stored(SurrogateReport),
        # surrogates that are not trained yet
        "softplus-network": Stored(SoftplusNetwork),
        "rbf-network": Stored(RBFNetwork),
        "quadratic-network": Stored(QuadraticNetwork),
        "gaussian-process": Stored(GaussianProcess),
        "fitc": Stored(FITC),
        "output-surrogate": Stored(OutputSurrogate),
        "hyperparameters": Stored(Hyperparameters),
        # trained surrogates
        "fitted-network": Stored(FittedNetwork, solved=("expansion",)),
        "fitted-quadratic": Stored(FittedQuadratic, solved=("expansion",)),
        "fitted-process": Stored(FittedProcess, solved=("expansion",)),
        "fitted-fitc": Stored(FittedFITC, solved=("expansion",)),
        "fitted-outputs": Stored(FittedOutputs, solved=("emulator",)),
        # parts of trained surrogates
        "training-set": Stored(TrainingSet),
        "white-set": Stored(WhiteSet),
        "whitening": Stored(Whitening, solved=("inverse",)),
        "expansion": Stored(Expansion),
        "softplus-basis": Stored(SoftplusBasis),
        "radial-basis": Stored(RadialBasis),
        "gradient-kernel-basis": Stored(GradientKernelBasis),
        "sum-basis": Stored(SumBasis),
        "quadratic-basis": Stored(QuadraticBasis),
        "cubic-basis": Stored(CubicBasis),
        "trend-basis": Stored(TrendBasis),
        "radial-trend": Stored(RadialTrend),
        "guard": Stored(Guard),
        "squared-exponential": Stored(SquaredExponential),
        "rational-quadratic": Stored(RationalQuadratic),
        "least-squares-problem": Stored(LeastSquaresProblem),
        "quadratic-problem": Stored(QuadraticProblem),
        "ridge-solution": Stored(RidgeSolution),
        "primal-solver": Stored(PrimalSolver),
        "row-groups": Stored(RowGroups),
        "row-updater": Stored(RowUpdater),
        "pseudoinverse-updater": Stored(PseudoinverseUpdater),
        "covariance": Stored(Covariance),
        "posterior": Stored(Posterior),
        "observed-rows": Stored(ObservedRows),
        "sparse-posterior": Stored(SparsePosterior),
        "emulator": Stored(Emulator),
        "cubic-forms": Stored(CubicForms),
        "output-features": Stored(OutputFeatures),
        "output-space": Stored(OutputSpace),
        "component-misfit": Stored(ComponentMisfit),
        "quadratic-potential": Stored(QuadraticPotential),
        "smooth-potential": Stored(SmoothPotential),
        "prior-potential": Stored(PriorPotential),
        "white-prior": Stored(WhitePrior),
        "joint-surrogate": Stored(JointSurrogate),
        "fitted-joint": Stored(FittedJoint),
        "joint-potential": Stored(JointPotential),
        "frozen-likelihood": Stored(FrozenLikelihood),
        "no-prior": Stored(NoPrior),
        "with-prior": Stored(WithPrior),
    }
)
pack, unpack = ARCHIVE.pack, ARCHIVE.unpack


def parts_of(target: AnyTarget) -> dict[str, object]:
    """Return a target and its cheap parts, which surrogates of its outputs refer to."""
    names = (
        ("likelihood", "prior", "joint", "transform") if target.emulates_outputs else ("prior", "transform")
    )
    parts = {name: getattr(target, name) for name in names}
    return {"target": target, **{name: part for name, part in parts.items() if part is not None}}
