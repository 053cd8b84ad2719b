"""What figure 3 measures: four surrogates of the narrow 32-dimensional Gaussian, from more and more observations.

The process learns its hyperparameters from all of its observations, as the paper's does, not from a part of them, which
is the library's default. Nothing else is tuned.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.kernels import SurrogateHMC
from leapwise.paper.ess import monotone_ess
from leapwise.paper.experiments import finished
from leapwise.paper.surrogate_flow import Explored, code_of_flows, explore
from leapwise.problems import gaussian
from leapwise.run import sample
from leapwise.surrogates import FITC, Fitted, GaussianProcess, RBFNetwork, SoftplusNetwork, Surrogate

N_STEPS = 20
N_STARTS = 250  # of the trajectories that acceptance is averaged over
SURROGATES = ("GP", "FITC", "RBF", "softplus")


@dataclass(frozen=True)
class Race:
    """How much is measured.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of observations.
    n_nodes : int
        Inducing points, or hidden units.
    runs : int
    draws : int
        Of each chain of a run.
    chains : int
    dim : int
    seed : int
    """

    sizes: tuple[int, ...] = (250, 500, 700, 1000, 1500, 2000)
    n_nodes: int = 1000
    runs: int = 10
    draws: int = 1250
    chains: int = 4
    dim: int = 32
    seed: int = 3

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return all that a cell depends on."""
        return asdict(self) | others | {"n_steps": N_STEPS, "n_starts": N_STARTS, "code": code_of_flows()}


QUICK = Race(sizes=(250, 500, 1000), runs=2, draws=250)


def explore_gaussian(race: Race) -> dict[str, Any]:
    """Explore until each run has accepted as many states as the largest training set needs.

    Besides what was explored, ``exact`` is the acceptance of exact HMC from the same starts as the surrogates'.
    """
    target = gaussian(race.dim).target
    found = explore(target, n_steps=N_STEPS, size=max(race.sizes), runs=race.runs, seed=race.seed)
    return found.numbers() | {"exact": found.exact_acceptance(target, N_STARTS, 2, race.seed)}


def recipe(name: str, race: Race, size: int) -> Surrogate:
    """Return one of the four, for so many observations."""
    recipes: dict[str, Surrogate] = {
        "GP": GaussianProcess(use_gradients=False, max_rows=max(2, size)),
        "FITC": FITC(race.n_nodes),
        "RBF": RBFNetwork(race.n_nodes),
        "softplus": SoftplusNetwork(race.n_nodes),
    }
    return recipes[name]


def run_all(race: Race, size: int, run: int, explored: Explored) -> dict[str, Any]:
    """Train the four surrogates on the first states of a run, and sample with them, one after the other.

    Returns
    -------
    dict
        By surrogate: seconds of training; acceptance; mean over the parameters of the effective sample size; seconds of
        sampling, which include one exact value a draw.
    """
    found: dict[str, Any] = {}
    for name in SURROGATES:
        training = explored.training(run, size)
        started = time.perf_counter()
        fitted = recipe(name, race, size).fit(training, np.random.default_rng([race.seed, size, run]))
        fitted.potential(training.position[:1])  # what is solved when first asked for counts as training
        found[f"{name} training_seconds"] = time.perf_counter() - started
        found |= {f"{name} {key}": value for key, value in _sample(fitted, race, run, explored).items()}
    return found


def _sample(fitted: Fitted, race: Race, run: int, explored: Explored) -> dict[str, float]:
    target, seed = gaussian(race.dim).target, race.seed + run
    kept = finished(
        sample(
            target,
            race.draws,
            tune=0,
            chains=race.chains,
            method=SurrogateHMC(explored.step_size, N_STEPS, surrogate=fitted),
            init=explored.starts(run, race.chains, seed),
            random_seed=seed,
            progressbar=False,
        )
    ).posterior
    return {
        "acceptance": explored.flow_acceptance(target, fitted, run, n_starts=N_STARTS, repeats=2, seed=seed),
        "ess": float(monotone_ess(kept.draws).mean()),
        "seconds": kept.cost.seconds,
    }
