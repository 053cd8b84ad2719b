r"""Means and standard deviations of every parameter with their Monte-Carlo errors, and the runs they come from.

The reference of each experiment is a long run of the self-tuned ``HMC()``, the most efficient exact sampler here. What
is held against it: RNS-HMC and RNS-RMHMC at the paper's settings, trained by the paper's rule on the burn-in of
Table 1, and ARNS-HMC with the paper's network, which learns from a short exploration, gradients too, and from its
first draws, and is then frozen. Only draws of frozen kernels count.

Effective sample size as the paper measures it.

For B draws of one chain, :math:`\mathrm{ESS} = B\,[1 + 2 \sum_{k=1}^{K} \gamma(k)]^{-1}` with sample autocorrelations
:math:`\gamma(k)`, summed by Geyer's initial monotone sequence (Geyer 1992, section 3.3): pairs
:math:`\Gamma_j = \gamma(2j) + \gamma(2j + 1)` are positive, decreasing and convex for a reversible chain, so the sum
ends before the first pair that is not positive, and no pair may exceed the one before it. The paper's figures never
exceed B, so ours may not either.

It is kept for comparison with the paper. It looks at each chain alone, so it cannot see chains that disagree;
``run.summary()`` has the better one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.errors import InputError
from leapwise.kernels import HMC
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import Experiment, finished, start
from leapwise.paper.table1 import FULL, QUICK, hmc_cell
from leapwise.results import Run
from leapwise.run import sample
from leapwise.surrogates import TrainingSet
from leapwise.warmup import RNSHMC, RNSRMHMC

CHAINS, SEED = 4, 3
CHECKED = ("rns-hmc", "rns-rmhmc", "arns-hmc")
LARGE = ("simulated", "a9a")  # where RNS-RMHMC is slowest, and its fixed lengths are far from half a turn
TOO_FEW = 4  # draws; arviz-stats answers NaN below this


@dataclass(frozen=True)
class Length:
    """Draws of each chain: of the reference, and of the methods that are held against it.

    Attributes
    ----------
    reference : int
    kept : dict of str to int
        By method.
    learning : int
        Of ARNS-HMC before it is frozen.
    """

    reference: int
    kept: dict[str, int]
    learning: int

    @classmethod
    def of(cls, quick: bool) -> Length:
        """Return the standard lengths."""
        if quick:
            return cls(500, {"hmc": 250, "rns-hmc": 1000, "rns-rmhmc": 250, "arns-hmc": 500}, 100)
        return cls(5000, {"hmc": 1250, "rns-hmc": 5000, "rns-rmhmc": 5000, "arns-hmc": 5000}, 250)


@dataclass(frozen=True, eq=False)
class Moments:
    """What draws say of each parameter; arrays ``(dim,)``.

    Attributes
    ----------
    mean, sd : ndarray
    mean_error, sd_error : ndarray
        Their Monte-Carlo standard errors, which know how correlated the draws are.
    ess : ndarray
        Effective draws, for the bulk of the distribution.
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray
    ess: np.ndarray


def moments(draws: np.ndarray) -> Moments:
    """Describe draws ``(chains, draws, dim)``.

    Examples
    --------
    >>> found = moments(np.random.default_rng(1).normal(3.0, 1.0, size=(4, 2500, 2)))
    >>> found.mean.round(1), found.mean_error.round(2), found.sd_error.round(3)
    (array([3., 3.]), array([0.01, 0.01]), array([0.007, 0.007]))
    """
    from arviz_stats.base import array_stats  # takes a second to import

    draws = np.asarray(draws, dtype=float)
    if draws.ndim != 3 or draws.shape[1] < TOO_FEW:
        raise InputError(
            f"draws must have shape (chains, draws, dim) with at least {TOO_FEW} draws of each chain, "
            f"got {draws.shape}"
        )
    axes = {"chain_axis": 0, "draw_axis": 1}
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1), ddof=1)
    # Not mcse(method="sd"): it takes the effective draws of the mean, far too many for antithetic chains.
    variance_error = array_stats.mcse(np.square(draws - mean), method="mean", **axes)
    return Moments(
        mean,
        sd,
        array_stats.mcse(draws, method="mean", **axes),
        variance_error / (2.0 * sd),
        array_stats.ess(draws, method="bulk", **axes),
    )


def reference(experiment: Experiment, quick: bool, cells: Cells) -> Moments:
    """Return the moments of a long run of the self-tuned ``HMC()``."""
    n_draws = Length.of(quick).reference

    def compute() -> dict[str, Any]:
        run = finished(
            sample(experiment.problem.target, n_draws, chains=CHAINS, random_seed=SEED, progressbar=False)
        )
        return asdict(moments(run.draws))

    settings = {"draws": n_draws, "chains": CHAINS, "seed": SEED}
    return Moments(**cells.get(f"reference · {experiment.name}", settings, compute))


def method_cell(
    experiment: Experiment, method: str, quick: bool, cells: Cells, keep: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return the moments of a method's exact draws, its acceptance, and the draws of some parameters.

    Parameters
    ----------
    method : {"hmc", "rns-hmc", "rns-rmhmc", "arns-hmc"}
    keep : tuple of int
        Parameters whose draws to return, ``(chains, draws, len(keep))``.
    """
    length = Length.of(quick)
    kept = length.kept[method]
    if method == "rns-rmhmc" and experiment.name in LARGE:
        kept //= 2
    position = start(experiment, cells, CHAINS)
    explored: dict[str, Any] = {}
    if method.startswith("rns"):
        explored = hmc_cell(experiment, QUICK if quick else FULL, position, cells)

    def compute() -> dict[str, Any]:
        if method == "hmc":
            run = _sample(experiment, experiment.method(method), kept, position)
        elif method == "arns-hmc":
            run = _adaptive(experiment, length, position)
        else:
            run = _trained(experiment, method, kept, explored)
        found = asdict(moments(run.exact_draws))
        accepted = run.posterior.stats["accepted"][:, run.n_adaptive :]
        return {
            **found,
            "n_draws": int(accepted.size),
            "acceptance": float(accepted.mean()),
            "draws": run.exact_draws[:, :, list(keep)],
        }

    settings = {
        "kept": kept,
        "learning": length.learning if method == "arns-hmc" else 0,
        "chains": CHAINS,
        "seed": SEED,
        "keep": list(keep),
    }
    return cells.get(f"moments · {experiment.name} · {method}", settings, compute)


def moments_of(cell: dict[str, Any]) -> Moments:
    """Return the moments that a cell holds."""
    return Moments(**{name: cell[name] for name in Moments.__dataclass_fields__})


def _trained(experiment: Experiment, method: str, kept: int, explored: dict[str, Any]) -> Run:
    """Run RNS-HMC or RNS-RMHMC, trained on what HMC's burn-in found."""
    recipe = experiment.method(method)
    assert isinstance(recipe, RNSHMC | RNSRMHMC)
    training = TrainingSet(explored["training_position"], explored["training_potential"])
    surrogate = recipe.surrogate.fit(training, np.random.default_rng(SEED))
    kernel = recipe.kernel(surrogate, HMC(*experiment.problem.settings["hmc"]), training)
    return _sample(experiment, kernel, kept, explored["end"])


def _adaptive(experiment: Experiment, length: Length, position: np.ndarray) -> Run:
    """Run ARNS-HMC from a short exploration; it learns for a while and is then frozen."""
    few = 8 * experiment.problem.target.dim
    method = experiment.method(
        "arns-hmc", collect="all", skip=0, max_training=few, freeze_after=length.learning
    )
    return _sample(experiment, method, length.learning + length.kept["arns-hmc"], position, length.learning)


def _sample(experiment: Experiment, method: Any, kept: int, position: np.ndarray, tune: int = 0) -> Run:
    return finished(
        sample(
            experiment.problem.target,
            kept,
            tune=tune,
            chains=CHAINS,
            method=method,
            init=position,
            random_seed=SEED,
            progressbar=False,
        )
    )
