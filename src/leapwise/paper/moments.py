"""Means and standard deviations of every parameter with their Monte-Carlo errors, and the runs they come from.

The reference of each experiment is a long run with the default settings of `sample`. Compared with it are RNS-HMC and
RNS-RMHMC at the paper's settings, trained by the paper's rule on the burn-in of Table 1, and ARNS-HMC with the paper's
network. ARNS-HMC learns from a short exploration with gradients and from its first draws, and is then frozen. Only
draws of frozen kernels count.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.errors import InputError
from leapwise.kernels import HMC
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import CHAINS, Experiment, finished, start
from leapwise.paper.table1 import FULL as TABLE1_FULL
from leapwise.paper.table1 import QUICK as TABLE1_QUICK
from leapwise.paper.table1 import hmc_cell
from leapwise.results import Run
from leapwise.run import sample
from leapwise.surrogates import TrainingSet
from leapwise.warmup import RNSHMC, RNSRMHMC

SEED = 3  # of all runs here; another than Table 1's
CHECKED = ("rns-hmc", "rns-rmhmc", "arns-hmc")
#: Experiments on which RNS-RMHMC runs half as long: it is slowest there, and its fixed trajectories mix slowly.
LARGE = ("simulated", "a9a")
MIN_DRAWS = 4  # arviz-stats returns NaN for fewer


@dataclass(frozen=True)
class MomentsPlan:
    """Draws of each chain: of the reference, and of the methods that are compared with it.

    Attributes
    ----------
    reference : int
    kept : dict of str to int
        By method.
    learning : int
        Draws of ARNS-HMC before it is frozen.
    """

    reference: int
    kept: dict[str, int]
    learning: int


#: With 20,000 draws a standard deviation is known to about 1 %, well below the limit of 5 %.
FULL = MomentsPlan(5000, {"hmc": 1250, "rns-hmc": 5000, "rns-rmhmc": 5000, "arns-hmc": 5000}, 250)
QUICK = MomentsPlan(500, {"hmc": 250, "rns-hmc": 1000, "rns-rmhmc": 250, "arns-hmc": 500}, 100)


@dataclass(frozen=True, eq=False)
class PosteriorMoments:
    """Mean and standard deviation of each parameter, from draws; arrays ``(dim,)``.

    Attributes
    ----------
    mean, sd : ndarray
    mean_error, sd_error : ndarray
        Their Monte-Carlo standard errors, which account for the correlation of the draws.
    ess : ndarray
        Effective draws (bulk).
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray
    ess: np.ndarray


def moments(draws: np.ndarray) -> PosteriorMoments:
    """Return the moments of draws ``(chains, draws, dim)``.

    Examples
    --------
    >>> found = moments(np.random.default_rng(1).normal(3.0, 1.0, size=(4, 2500, 2)))
    >>> found.mean.round(1), found.mean_error.round(2), found.sd_error.round(3)
    (array([3., 3.]), array([0.01, 0.01]), array([0.007, 0.007]))
    """
    from arviz_stats.base import array_stats  # takes a second to import

    draws = np.asarray(draws, dtype=float)
    if draws.ndim != 3 or draws.shape[1] < MIN_DRAWS:
        raise InputError(
            f"draws must have shape (chains, draws, dim) with at least {MIN_DRAWS} draws of each chain, "
            f"got {draws.shape}"
        )
    axes = {"chain_axis": 0, "draw_axis": 1}
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1), ddof=1)
    # Not mcse(method="sd"): it uses the effective draws of the mean, which are far too many for antithetic chains.
    variance_error = array_stats.mcse(np.square(draws - mean), method="mean", **axes)
    return PosteriorMoments(
        mean,
        sd,
        array_stats.mcse(draws, method="mean", **axes),
        variance_error / (2.0 * sd),
        array_stats.ess(draws, method="bulk", **axes),
    )


def reference(experiment: Experiment, quick: bool, cells: Cells) -> PosteriorMoments:
    """Return the moments of a long run of exact HMC that tunes itself: no surrogate has a part in it."""
    n_draws = (QUICK if quick else FULL).reference

    def compute() -> dict[str, Any]:
        run = finished(
            sample(
                experiment.problem.target,
                n_draws,
                chains=CHAINS,
                method=HMC(),
                random_seed=SEED,
                progressbar=False,
            )
        )
        return asdict(moments(run.draws))

    settings = {"draws": n_draws, "chains": CHAINS, "seed": SEED}
    return PosteriorMoments(**cells.get(f"reference · {experiment.name}", settings, compute))


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
    plan = QUICK if quick else FULL
    kept = plan.kept[method]
    if method == "rns-rmhmc" and experiment.name in LARGE:
        kept //= 2
    position = start(experiment, cells)
    explored: dict[str, Any] = {}
    if method.startswith("rns"):
        explored = hmc_cell(experiment, TABLE1_QUICK if quick else TABLE1_FULL, position, cells)

    def compute() -> dict[str, Any]:
        if method == "hmc":
            run = _sample(experiment, experiment.method(method), kept, position)
        elif method == "arns-hmc":
            run = _adaptive(experiment, plan, position)
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
        "learning": plan.learning if method == "arns-hmc" else 0,
        "chains": CHAINS,
        "seed": SEED,
        "keep": list(keep),
    }
    return cells.get(f"moments · {experiment.name} · {method}", settings, compute)


def moments_of(cell: dict[str, Any]) -> PosteriorMoments:
    """Return the moments in a cell."""
    return PosteriorMoments(**{name: cell[name] for name in PosteriorMoments.__dataclass_fields__})


def _trained(experiment: Experiment, method: str, kept: int, explored: dict[str, Any]) -> Run:
    """Run RNS-HMC or RNS-RMHMC, trained on the burn-in of HMC."""
    recipe = experiment.method(method)
    assert isinstance(recipe, RNSHMC | RNSRMHMC)
    training = TrainingSet(explored["training_position"], explored["training_potential"])
    surrogate = recipe.surrogate.fit(training, np.random.default_rng(SEED))
    kernel = recipe.kernel(surrogate, HMC(*experiment.problem.settings["hmc"]), training)
    return _sample(experiment, kernel, kept, explored["end"])


def _adaptive(experiment: Experiment, plan: MomentsPlan, position: np.ndarray) -> Run:
    """Run ARNS-HMC from a short exploration; it learns for a while and is then frozen."""
    few = 8 * experiment.problem.target.dim
    method = experiment.method(
        "arns-hmc", collect="all", skip=0, max_training=few, freeze_after=plan.learning
    )
    return _sample(experiment, method, plan.learning + plan.kept["arns-hmc"], position, plan.learning)


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
