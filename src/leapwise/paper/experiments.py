r"""The paper's four experiments (section 5), its settings of the four methods, and the figures it printed (Table 1).

The paper runs one chain: 5000 iterations of burn-in and 5000 that are kept. The burn-in after the first 1000 iterations
gives the training set (the values of accepted proposals). Here four chains move together and share that work: 1250 +
1250 iterations each, and nothing is collected in the first 250.
All methods start at the same positions, the last draws of a short run of `HMC()`, which tunes itself (`start`): the
paper's step sizes are unstable from random positions. That run is not counted for any method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from scipy import fft

from leapwise.errors import InputError
from leapwise.kernels import HMC, RMHMC
from leapwise.paper.cells import Cells
from leapwise.problems import elliptic_pde, logistic_a9a, logistic_bank, logistic_simulated
from leapwise.problems.registry import Problem
from leapwise.results import Run
from leapwise.run import sample
from leapwise.surrogates import SoftplusNetwork
from leapwise.warmup import ARNSHMC, RNSHMC, RNSRMHMC

CHAINS = 4  # they share the iterations of the paper's one chain
METHODS = ("hmc", "rmhmc", "rns-hmc", "rns-rmhmc")  # of Table 1
METHOD_TITLES = {
    "hmc": "HMC",
    "rmhmc": "RMHMC",
    "rns-hmc": "RNS-HMC",
    "rns-rmhmc": "RNS-RMHMC",
    "arns-hmc": "ARNS-HMC",
}
MAX_TRAINING = 5000  # more than the burn-in collects, so it never binds
START_TUNE, START_DRAWS, START_SEED = 150, 20, 1  # of the short run before all methods (a guess)

AnyMethod = HMC | RMHMC | RNSHMC | RNSRMHMC | ARNSHMC


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's Table 1.

    Attributes
    ----------
    acceptance : float
    ess : (float, float, float)
        Smallest, median and largest over the parameters, of 5000 draws.
    seconds : float
        Time of one iteration on the authors' machine.
    min_ess_rate : float
        Smallest ESS divided by the time of all kept draws.
    speed_up : float
        `min_ess_rate` divided by that of HMC.
    """

    acceptance: float
    ess: tuple[float, float, float]
    seconds: float
    min_ess_rate: float
    speed_up: float


@dataclass(frozen=True)
class Experiment:
    """One of the paper's four posteriors, with the paper's settings and results.

    Attributes
    ----------
    name : str
        Its name on the command line.
    title : str
        Its name in the paper's table.
    maker : callable
        Makes the problem.
    n_hidden : int
        Hidden units of the surrogate, s in the paper.
    form : {"full", "diagonal"}
        The form of the surrogate's Hessian that RNS-RMHMC uses as its metric.
    paper : dict of str to PaperRow
        The paper's printed figures, by method.
    """

    name: str
    title: str
    maker: Callable[[], Problem]
    n_hidden: int
    form: Literal["full", "diagonal"]
    paper: dict[str, PaperRow]

    @property
    def problem(self) -> Problem:
        """The posterior, made on first use."""
        return _made(self.maker)

    @property
    def surrogate(self) -> SoftplusNetwork:
        """The paper's surrogate: s random softplus units."""
        return SoftplusNetwork(self.n_hidden)

    def method(self, name: str, **changes: Any) -> AnyMethod:
        """Make one of the methods with the paper's settings and collection rule.

        Parameters
        ----------
        name : {"hmc", "rmhmc", "rns-hmc", "rns-rmhmc", "arns-hmc"}
        **changes
            Other settings of a surrogate method, such as ``collect="all"`` or ``freeze_after=100``.
        """
        hmc = HMC(*self.problem.settings["hmc"])
        step_size, n_steps = self.problem.settings["rmhmc"]
        fixed = (
            n_steps,
            n_steps,
        )  # a fixed number of steps: only then do the paper's effective sample sizes fit
        training: dict[str, Any] = {
            "collect": "accepted",
            "max_training": MAX_TRAINING,
            "explore": hmc,
        } | changes
        if name == "hmc":
            return hmc
        if name == "rmhmc":
            return RMHMC(step_size, fixed, metric=self.problem.metric)
        if name == "rns-hmc":
            return RNSHMC(self.surrogate, hmc.step_size, hmc.n_steps, **training)
        if name == "arns-hmc":
            return ARNSHMC(self.surrogate, hmc.step_size, hmc.n_steps, **training)
        if name == "rns-rmhmc":
            return RNSRMHMC(self.surrogate, step_size, fixed, form=self.form, **training)
        raise InputError(f"there is no method {name!r}; the known ones are {', '.join(METHODS)} and arns-hmc")


EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(
            "simulated",
            "LR (simulated)",
            logistic_simulated,
            2000,
            "full",
            {
                "hmc": PaperRow(0.76, (4351, 5000, 5000), 0.061, 14.17, 1),
                "rmhmc": PaperRow(0.80, (1182, 1496, 1655), 3.794, 0.06, 0.004),
                "rns-hmc": PaperRow(0.76, (4449, 4999, 5000), 0.007, 123.56, 8.72),
                "rns-rmhmc": PaperRow(0.82, (1116, 1471, 1662), 0.103, 2.17, 0.15),
            },
        ),
        Experiment(
            "bank",
            "LR (bank marketing)",
            logistic_bank,
            1000,
            "full",
            {
                "hmc": PaperRow(0.70, (2005, 2454, 3368), 0.061, 6.52, 1),
                "rmhmc": PaperRow(0.92, (1769, 2128, 2428), 0.631, 0.56, 0.09),
                "rns-hmc": PaperRow(0.70, (1761, 2358, 3378), 0.007, 52.22, 8.01),
                "rns-rmhmc": PaperRow(0.90, (1974, 2254, 2457), 0.027, 14.41, 2.21),
            },
        ),
        Experiment(
            "a9a",
            "LR (a9a, 60 dimensions)",
            logistic_a9a,
            2500,
            "full",
            {
                "hmc": PaperRow(0.72, (1996, 2959, 3564), 0.033, 11.96, 1),
                "rmhmc": PaperRow(0.82, (5000, 5000, 5000), 3.492, 0.29, 0.02),
                "rns-hmc": PaperRow(0.68, (1835, 2650, 3203), 0.005, 81.80, 6.84),
                "rns-rmhmc": PaperRow(0.79, (4957, 5000, 5000), 0.370, 2.68, 0.22),
            },
        ),
        Experiment(
            "elliptic",
            "Elliptic PDE",
            partial(elliptic_pde, observations="paper"),
            1000,
            "diagonal",
            {
                "hmc": PaperRow(0.91, (4533, 5000, 5000), 0.775, 1.17, 1),
                "rmhmc": PaperRow(0.80, (5000, 5000, 5000), 4.388, 0.23, 0.20),
                "rns-hmc": PaperRow(0.75, (2306, 3034, 3516), 0.066, 7.10, 6.07),
                "rns-rmhmc": PaperRow(0.66, (2126, 4052, 5000), 0.097, 4.38, 3.74),
            },
        ),
    )
}


@lru_cache(maxsize=1)  # the largest holds 40 MB
def _made(maker: Callable[[], Problem]) -> Problem:
    return maker()


def get_experiment(name: str) -> Experiment:
    """Return the experiment called `name`.

    Examples
    --------
    >>> get_experiment("bank").n_hidden
    1000
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; the known ones are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def start(experiment: Experiment, cells: Cells, chains: int = CHAINS) -> np.ndarray:
    """Return the positions ``(chains, dim)`` at which all methods start; they are a cell of their own."""

    def compute() -> dict[str, Any]:
        run = finished(
            sample(
                experiment.problem.target,
                START_DRAWS,
                tune=START_TUNE,
                chains=chains,
                method=HMC(),
                random_seed=START_SEED,
                progressbar=cells.progressbar,
            )
        )
        return {"position": run.draws[:, -1].copy()}

    settings = {"tune": START_TUNE, "draws": START_DRAWS, "chains": chains, "seed": START_SEED}
    found: np.ndarray = cells.get(f"start · {experiment.name}", settings, compute)["position"]
    return found


def finished(run: Run) -> Run:
    """Return the run if it is complete.

    `sample` turns an interrupt into a shorter run. Half a cell must not be kept, so the interrupt is raised again.
    """
    if not run.complete:
        raise KeyboardInterrupt
    return run


def monotone_ess(draws: np.ndarray) -> np.ndarray:
    r"""Return the effective sample size of each parameter as the paper measures it, summed over chains.

    For B draws of one chain, :math:`\mathrm{ESS} = B\,[1 + 2 \sum_{k=1}^{K} \gamma(k)]^{-1}` with sample
    autocorrelations :math:`\gamma(k)`, summed by Geyer's initial monotone sequence (Geyer 1992, section 3.3): pairs
    :math:`\Gamma_j = \gamma(2j) + \gamma(2j + 1)` are positive, decreasing and convex for a reversible chain, so the
    sum ends before the first pair that is not positive, and no pair may exceed the one before it. The paper's figures
    never exceed B, so these may not either.

    Use it for comparison with the paper only. It looks at each chain alone, so it cannot see chains that disagree;
    ``run.summary()`` has a better one.

    Parameters
    ----------
    draws : ndarray of shape (chains, draws, dim)

    Returns
    -------
    ndarray of shape (dim,)
        Between the number of chains and the number of draws. A chain that never moved counts as one draw.

    Examples
    --------
    >>> draws = np.random.default_rng(1).normal(size=(2, 1000, 1))
    >>> bool(monotone_ess(draws)[0] > 1800)
    True
    """
    n = draws.shape[1]
    gamma = autocorrelations(draws)
    pairs = gamma[:, : n - n % 2].reshape(len(draws), n // 2, 2, -1).sum(axis=2)
    usable = np.logical_and.accumulate(pairs > 0, axis=1)
    pairs = np.minimum.accumulate(np.where(usable, pairs, 0.0), axis=1)
    # 1 + 2 sum_{k>0} gamma(k) = 2 sum_j Gamma_j - gamma(0)
    time = np.clip(2.0 * pairs.sum(axis=1) - 1.0, 1.0, n)
    return np.asarray((n / time).sum(axis=0))


def autocorrelations(draws: np.ndarray) -> np.ndarray:
    """Return autocorrelations ``(chains, lags, dim)`` about each chain's own mean; all one if it never moved."""
    n = draws.shape[1]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = fft.rfft(centred, fft.next_fast_len(2 * n, real=True), axis=1)
    covariance = fft.irfft(np.abs(spectrum) ** 2, fft.next_fast_len(2 * n, real=True), axis=1)[:, :n]
    moving = (draws != draws[:, :1]).any(axis=1, keepdims=True)
    return np.where(moving, covariance / np.where(moving, covariance[:, :1], 1.0), 1.0)
