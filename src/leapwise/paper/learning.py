"""The runs of figures 7 and 8: HMC, RNS-HMC, and ARNS-HMC from few evaluations on.

ARNS-HMC starts with 8 exact evaluations for each parameter (200 for the bank data), or 3 if it has their gradients, and
then pays one for each draw. It is run with five ways to learn:

* ``printed``: Algorithm 4 as printed. The network of s softplus units learns the values of accepted proposals, first of
  an exploration by HMC that is just long enough, then of its own draws.
* ``proposals``: the same network learns values along the trajectories of a shorter exploration, and then the value of
  every proposal, accepted or not.
* ``refitted``: like ``proposals``, and the network is made anew from all evaluations whenever they have doubled.
  Nodes, coordinates and ridge that suited the first few evaluations do not suit many.
* ``gradients``: the network also learns the gradients of its exploration, which so costs no more than 8 evaluations for
  each parameter, and then the value of every proposal. This is what `ARNSHMC` does by default.
* ``quadratic``: a quadratic learns from the gradients of an exploration that costs about 3 evaluations for each
  parameter, and then from every proposal.

All start at the same positions (`leapwise.paper.experiments.start`), four chains in one batch that share their
surrogate. Times are wall times from there on, with exploration and training. Within the draws time is taken to pass
evenly, so the cost of a network that is made anew late is charged to early draws too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapwise.errors import InputError
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import CHAINS, AnyMethod, Experiment, finished, start
from leapwise.results import Run
from leapwise.run import sample
from leapwise.surrogates import Fitted, QuadraticNetwork, Surrogate, TrainingSet
from leapwise.warmup import ARNSHMC, RNSHMC

#: First evaluations for each parameter, without and with gradients: 8 make 200 on the bank data. 3 d gradients hold
#: 3 d^2 numbers, six times the coefficients of a quadratic.
PER_PARAMETER, WITH_GRADIENTS = 8, 3
LEARNERS = {
    "printed": "as printed: network, values of accepted proposals",
    "proposals": "network, values of all proposals",
    "refitted": "network, values of all proposals, made anew when they have doubled",
    "gradients": "network, gradients of the exploration and values of all proposals",
    "quadratic": "quadratic, gradients of a shorter exploration and values of all proposals",
}
CHECKPOINTS = 120  # times at which the mean is kept, evenly spaced on a logarithmic scale


@dataclass(frozen=True)
class LearningPlan:
    """Number of runs, and of iterations of each chain.

    Attributes
    ----------
    runs : int
        Runs of each method, with seeds 0, 1, ...
    hmc : int
        Iterations of HMC.
    explore, exploit : int
        Iterations of burn-in and draws of RNS-HMC.
    adaptive : int
        Draws of ARNS-HMC.
    """

    runs: int = 5
    hmc: int = 1250
    explore: int = 1000
    exploit: int = 1000
    adaptive: int = 2500


FULL = LearningPlan()
#: Minutes for all experiments: enough to see acceptance rise, not to compare errors.
QUICK = LearningPlan(runs=2, hmc=100, explore=150, exploit=150, adaptive=200)


@dataclass(frozen=True, eq=False)
class Refitted:
    """A trained surrogate that is made anew from all evaluations whenever their number has doubled.

    Attributes
    ----------
    recipe : Surrogate
    fitted : Fitted
        The surrogate, which is updated row by row in between.
    training : TrainingSet
        Everything it has learned from.
    n_fitted : int
        Number of evaluations when it was last made.
    seed : int
        Seed of the next one.
    """

    recipe: Surrogate
    fitted: Fitted
    training: TrainingSet
    n_fitted: int
    seed: int

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials."""
        return self.fitted.potential(position)

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        return self.fitted.potential_and_gradient(position)

    def update(self, training: TrainingSet) -> Refitted:
        """Return a surrogate that has also learned the values of further evaluations."""
        training = TrainingSet(training.position, training.potential)
        everything = self.training.join(training)
        if len(everything) < 2 * self.n_fitted:
            return replace(self, fitted=self.fitted.update(training), training=everything)
        n = len(everything)
        made = self.recipe.fit(everything, np.random.default_rng([self.seed, n]))
        return replace(self, fitted=made, training=everything, n_fitted=n)


@dataclass
class FirstFit:
    """A surrogate whose first fit uses a given number of the evaluations, and is timed.

    Attributes
    ----------
    recipe : Surrogate
    most : int
        Largest number of evaluations to learn from, evenly chosen.
    gradients : bool
        Whether to learn their gradients too.
    refitted : bool
        Whether to make it anew when the evaluations have doubled, see `Refitted`.
    seconds : float
        Time that the last fit took.
    """

    recipe: Surrogate
    most: int
    gradients: bool = False
    refitted: bool = False
    seconds: float = 0.0

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> Any:
        """Fit the surrogate."""
        started = time.perf_counter()
        chosen = np.linspace(0, len(training) - 1, min(self.most, len(training))).round().astype(int)
        some = training.rows(chosen)
        if not self.gradients:
            some = TrainingSet(some.position, some.potential)
        found: Any = self.recipe.fit(some, rng)
        if self.refitted:
            found = Refitted(self.recipe, found, some, len(some), int(rng.integers(2**32)))
        self.seconds = time.perf_counter() - started
        return found


def first_evaluations(dim: int, learner: str) -> int:
    """Return the number of exact evaluations that ARNS-HMC starts with.

    Examples
    --------
    >>> first_evaluations(25, "printed"), first_evaluations(25, "quadratic")
    (200, 75)
    """
    return dim * (WITH_GRADIENTS if learner == "quadratic" else PER_PARAMETER)


def run_cell(
    experiment: Experiment, method: str, plan: LearningPlan, seed: int, position: np.ndarray, cells: Cells
) -> dict[str, Any]:
    """Return one run of a method from `position`.

    Parameters
    ----------
    method : {"hmc", "rns-hmc", "printed", "proposals", "refitted", "gradients", "quadratic"}
        The last five are ARNS-HMC, see `LEARNERS`.

    Returns
    -------
    dict
        ``acceptance`` (draws,) after exploration, averaged over chains; ``seconds`` and ``mean`` (checkpoints, dim):
        the sample mean of all chains and iterations up to then; ``explored``, the exact evaluations of exploration;
        ``began``, the seconds of exploration and training, and ``fit_seconds``, those of training alone.
    """

    def compute() -> dict[str, Any]:
        recipe, explore, draws = _prepared(experiment, method, plan)
        run = finished(
            sample(
                experiment.problem.target,
                draws,
                tune=explore,
                chains=CHAINS,
                method=recipe,
                init=position,
                random_seed=seed,
                progressbar=False,
            )
        )
        training = recipe.surrogate if isinstance(recipe, RNSHMC) else None
        return _numbers(run, training.seconds if isinstance(training, FirstFit) else 0.0)

    settings = {
        "chains": CHAINS,
        "seed": seed,
        "first": first_evaluations(1, method),
        **_lengths(method, plan),
    }
    return cells.get(f"learning · {experiment.name} · {method} · run {seed + 1}", settings, compute)


def _lengths(method: str, plan: LearningPlan) -> dict[str, int]:
    if method == "hmc":
        return {"draws": plan.hmc}
    if method == "rns-hmc":
        return {"explore": plan.explore, "draws": plan.exploit}
    return {"draws": plan.adaptive}


def _prepared(experiment: Experiment, method: str, plan: LearningPlan) -> tuple[AnyMethod, int, int]:
    """Return a method, its iterations of exploration, and its draws."""
    if method == "hmc":
        return experiment.method("hmc"), 0, plan.hmc
    if method == "rns-hmc":
        found = experiment.method("rns-hmc")
        assert isinstance(found, RNSHMC)
        timed = replace(found, surrogate=FirstFit(found.surrogate, plan.explore * CHAINS))
        return timed, plan.explore, plan.exploit
    return *_adaptive(experiment, method), plan.adaptive


def _adaptive(experiment: Experiment, learner: str) -> tuple[ARNSHMC, int]:
    """Return ARNS-HMC with one of the ways to learn, and its iterations of exploration."""
    if learner not in LEARNERS:
        raise InputError(
            f"there is no method {learner!r} here; the known ones are hmc, rns-hmc, {', '.join(LEARNERS)}"
        )
    first = first_evaluations(experiment.problem.target.dim, learner)
    collect = "accepted" if learner == "printed" else "all"
    found = experiment.method("arns-hmc", collect=collect, skip=0, max_training=100 * first)
    assert isinstance(found, ARNSHMC)
    _, n_steps = experiment.problem.settings["hmc"]
    if learner in ("gradients", "quadratic"):  # a gradient for each step
        explore = -(-2 * first // (CHAINS * (n_steps + 1)))
        recipe = QuadraticNetwork() if learner == "quadratic" else found.surrogate
        return replace(found, surrogate=FirstFit(recipe, first, gradients=True)), explore
    # About 0.7 of the proposals are accepted, one value each. With all evaluations, two values per trajectory suffice.
    explore = -(-16 * first // (10 * CHAINS)) if learner == "printed" else -(-first // (2 * CHAINS))
    return replace(found, surrogate=FirstFit(found.surrogate, first, refitted=learner == "refitted")), explore


def _numbers(run: Run, fit_seconds: float) -> dict[str, Any]:
    """Return the numbers to keep of a run; time passes evenly within exploration and within draws."""
    explored, kept = run.warmup.draws.shape[1], run.draws.shape[1]
    exploring = max(run.warmup.cost.seconds - fit_seconds, 0.0)
    began = run.warmup.cost.seconds
    times = np.concatenate(
        [
            exploring * np.arange(1, explored + 1) / max(explored, 1),
            began + run.posterior.cost.seconds * np.arange(1, kept + 1) / kept,
        ]
    )
    draws = np.concatenate([run.warmup.draws, run.draws], axis=1).mean(axis=0)
    means = np.cumsum(draws, axis=0) / np.arange(1, len(draws) + 1)[:, None]
    kept_rows = np.unique(np.geomspace(1, len(draws), CHECKPOINTS).round().astype(int)) - 1
    return {
        "acceptance": run.posterior.stats["acceptance_rate"].mean(axis=0),
        "explored": run.warmup.cost.n_exact,
        "began": began,
        "fit_seconds": fit_seconds,
        "seconds": times[kept_rows],
        "mean": means[kept_rows],
    }


def all_runs(
    experiments: list[Experiment], methods: list[str], plan: LearningPlan, cells: Cells
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return all runs by experiment and method; methods take turns, so that other load slows all of them alike."""
    cells.expect(len(experiments) * (1 + len(methods) * plan.runs))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for experiment in experiments:
        position = start(experiment, cells)
        for seed in range(plan.runs):
            for method in methods:
                cell = run_cell(experiment, method, plan, seed, position, cells)
                found.setdefault((experiment.name, method), []).append(cell)
    return found
