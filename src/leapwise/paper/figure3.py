"""Figure 3: four surrogates of a narrow 32-dimensional Gaussian, against the number of observations.

The Gaussian is ten times wider along (1, ..., 1) than across. Measured are the time to train, the acceptance of the
flow, and the mean effective sample size per second of sampling (training not counted), for a full Gaussian process,
FITC with 1000 inducing points, and networks of 1000 radial or additive units. The step size keeps exact HMC's
acceptance at 0.7. The paper does not give its number of steps; here it is drawn from 1 to 20.

The Gaussian process learns its hyperparameters from all of its observations, as the paper's does; the library's default
takes only a part of them. Nothing else is tuned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.kernels import SurrogateHMC
from leapwise.paper.cells import Cells
from leapwise.paper.experiments import finished, monotone_ess
from leapwise.paper.reproductions import OKABE_ITO, SURROGATE_COLOURS, open_picture
from leapwise.paper.surrogate_flow import Explored, explore
from leapwise.problems import gaussian
from leapwise.run import sample
from leapwise.surrogates import FITC, Fitted, GaussianProcess, RBFNetwork, SoftplusNetwork, Surrogate

N_STEPS = 20  # largest number of steps; a guess, since the paper does not give its own
N_STARTS = 250  # acceptance is averaged over trajectories from this many states
SURROGATES = ("GP", "FITC", "RBF", "softplus")
TITLES = {"GP": "full GP", "FITC": "FITC", "RBF": "RBF network", "softplus": "additive network"}
MARKERS = {"GP": "o", "FITC": "s", "RBF": "^", "softplus": "D"}
BAR = (0.1, 0.9)  # quantiles: the bars hold 80 % of the runs


@dataclass(frozen=True)
class GaussianPlan:
    """How much is measured.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of observations.
    n_nodes : int
        Inducing points, or hidden units.
    runs : int
    draws : int
        Draws of each chain of a run.
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
        """Return everything that a cell depends on."""
        return asdict(self) | others | {"n_steps": N_STEPS, "n_starts": N_STARTS}


QUICK = GaussianPlan(sizes=(250, 500, 1000), runs=2, draws=250)  # a minute or two


def explore_gaussian(plan: GaussianPlan) -> dict[str, Any]:
    """Explore until each run has accepted as many states as the largest training set needs.

    ``exact`` is the acceptance of exact HMC from the same starts as the surrogates'.
    """
    target = gaussian(plan.dim).target
    found = explore(target, n_steps=N_STEPS, size=max(plan.sizes), runs=plan.runs, seed=plan.seed)
    return found.numbers() | {"exact": found.exact_acceptance(target, N_STARTS, 2, plan.seed)}


def recipe(name: str, plan: GaussianPlan, size: int) -> Surrogate:
    """Return one of the four surrogates, for `size` observations."""
    recipes: dict[str, Surrogate] = {
        "GP": GaussianProcess(use_gradients=False, max_rows=max(2, size)),
        "FITC": FITC(plan.n_nodes),
        "RBF": RBFNetwork(plan.n_nodes),
        "softplus": SoftplusNetwork(plan.n_nodes),
    }
    return recipes[name]


def run_all(plan: GaussianPlan, size: int, run: int, explored: Explored) -> dict[str, Any]:
    """Train the four surrogates on the first states of a run, and sample with each.

    Returns
    -------
    dict
        By surrogate: seconds of training; acceptance; mean over the parameters of the effective sample size; seconds of
        sampling, which include one exact value per draw.
    """
    found: dict[str, Any] = {}
    for name in SURROGATES:
        training = explored.training(run, size)
        started = time.perf_counter()
        fitted = recipe(name, plan, size).fit(training, np.random.default_rng([plan.seed, size, run]))
        fitted.potential(training.position[:1])  # some surrogates solve on first use: that counts as training
        found[f"{name} training_seconds"] = time.perf_counter() - started
        found |= {f"{name} {key}": value for key, value in _sample(fitted, plan, run, explored).items()}
    return found


def _sample(fitted: Fitted, plan: GaussianPlan, run: int, explored: Explored) -> dict[str, float]:
    target, seed = gaussian(plan.dim).target, plan.seed + run
    kept = finished(
        sample(
            target,
            plan.draws,
            tune=0,
            chains=plan.chains,
            method=SurrogateHMC(explored.step_size, N_STEPS, surrogate=fitted),
            init=explored.starts(run, plan.chains, seed),
            random_seed=seed,
            progressbar=False,
        )
    ).posterior
    return {
        "acceptance": explored.flow_acceptance(target, fitted, run, n_starts=N_STARTS, repeats=2, seed=seed),
        "ess": float(monotone_ess(kept.draws).mean()),
        "seconds": kept.cost.seconds,
    }


@dataclass(frozen=True, eq=False)
class Figure3:
    """The numbers of figure 3.

    Attributes
    ----------
    plan : GaussianPlan
    found : dict of (str, int) to dict
        By surrogate and number of observations: arrays with one entry for each run.
    exact : float
        Acceptance of exact HMC.
    """

    plan: GaussianPlan
    found: dict[tuple[str, int], dict[str, np.ndarray]]
    exact: float

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each surrogate and number of observations: medians, and ends of the 80 % bars."""
        rows = []
        for (name, size), cell in self.found.items():
            row: dict[str, Any] = {"surrogate": name, "observations": size, "runs": self.plan.runs}
            for quantity, of in _QUANTITIES.items():
                low, middle, high = _median_and_bar(of(cell))
                row |= {quantity: middle, f"{quantity}_low": low, f"{quantity}_high": high}
            rows.append(row)
        return rows

    @property
    def caption(self) -> str:
        """The result in words."""
        sizes = self.plan.sizes
        first = {name: self._median(name, sizes[0], "acceptance") for name in SURROGATES}
        last = {name: self._median(name, sizes[-1], "acceptance") for name in SURROGATES}
        slower = self._median("GP", sizes[-1], "training_seconds") / self._median(
            "softplus", sizes[-1], "training_seconds"
        )
        best = max(SURROGATES, key=lambda name: max(self._median(name, n, "ess_rate") for n in sizes))
        peak = max(sizes, key=lambda n: self._median("GP", n, "ess_rate"))
        return (
            f"From {sizes[0]} observations the networks have an acceptance of {first['softplus']:.2f} (additive) and "
            f"{first['RBF']:.2f} (RBF), the processes {first['GP']:.2f} (full) and {first['FITC']:.2f} (FITC); from "
            f"{sizes[-1]} it is {last['softplus']:.2f}, {last['RBF']:.2f}, {last['GP']:.2f} and {last['FITC']:.2f}, "
            f"and the full process takes {slower:.0f} times as long to train as the additive network. The most "
            f"effective draws a second come from the {TITLES[best]}; the full process has its best at {peak} "
            f"(medians of {self.plan.runs} runs; exact HMC: {self.exact:.2f})."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw medians with 80 % bars. Needs the extra ``plots``."""
        file, figure = open_picture(path, 14.0, 4.8)
        panels = figure.subplots(1, 3)
        for panel, of in zip(panels, _QUANTITIES.values(), strict=True):
            for k, name in enumerate(SURROGATES):
                self._curve(panel, name, of, shift=1.0 + 0.012 * (k - 1.5))
            panel.set(xlabel="observations", xscale="log")
            panel.set_xticks(self.plan.sizes, [str(n) for n in self.plan.sizes])
            panel.minorticks_off()
            panel.grid(color="0.92")
        left, middle, right = panels
        left.set(title="time to train", ylabel="seconds", yscale="log")
        middle.set(title="acceptance", ylabel="acceptance probability", ylim=(-0.02, 1.0))
        middle.axhline(self.exact, color=OKABE_ITO["black"], linestyle="--", label="exact HMC")
        right.set(title="efficiency, training not counted", ylabel="mean ESS for each second of sampling")
        right.set_ylim(bottom=0.0)
        figure.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        figure.suptitle(
            f"Surrogates of a {self.plan.dim}-dimensional Gaussian, {self.plan.n_nodes} inducing points or units "
            f"(medians and 80 % bars of {self.plan.runs} runs)",
            fontsize=11,
        )
        figure.savefig(file, dpi=150)
        return file

    def _curve(self, panel: Any, name: str, of: _Quantity, shift: float) -> None:
        low, middle, high = np.transpose(
            [_median_and_bar(of(self.found[name, size])) for size in self.plan.sizes]
        )
        panel.errorbar(
            np.array(self.plan.sizes) * shift,  # a little apart, so that bars do not overlap
            middle,
            [middle - low, high - middle],
            color=SURROGATE_COLOURS[name],
            marker=MARKERS[name],
            markersize=5,
            capsize=3,
            label=TITLES[name],
        )

    def _median(self, name: str, size: int, quantity: str) -> float:
        return float(np.median(_QUANTITIES[quantity](self.found[name, size])))


def figure3(quick: bool = False, cells: Cells | None = None, *, plan: GaussianPlan | None = None) -> Figure3:
    """Compare the surrogates.

    Parameters
    ----------
    quick : bool
        Fewer sizes, runs and draws: a minute or two.
    cells : Cells, optional
        Keeps finished pieces, one for each number of observations and run.
    plan : GaussianPlan, optional
        Other sizes.

    Examples
    --------
    >>> from leapwise.paper.figure3 import figure3
    >>> figure3(quick=True).rows[0]["surrogate"]  # doctest: +SKIP
    'GP'
    """
    plan = plan or (QUICK if quick else GaussianPlan())
    cells = cells or Cells()
    cells.expect(1 + plan.runs * len(plan.sizes))
    exploration = cells.get("fig3 · exploration", plan.settings(), partial(explore_gaussian, plan))
    explored = Explored.from_numbers(exploration)
    parts = {
        (size, run): cells.get(
            f"fig3 · {size} observations · run {run + 1}",
            plan.settings(size=size, run=run),
            partial(run_all, plan, size, run, explored),
        )
        for size in plan.sizes
        for run in range(plan.runs)
    }
    found = {
        (name, size): {
            key: np.array([parts[size, run][f"{name} {key}"] for run in range(plan.runs)])
            for key in ("training_seconds", "acceptance", "ess", "seconds")
        }
        for name in SURROGATES
        for size in plan.sizes
    }
    return Figure3(plan, found, float(exploration["exact"]))


_Quantity = Callable[[dict[str, np.ndarray]], np.ndarray]
_QUANTITIES: dict[str, _Quantity] = {
    "training_seconds": lambda cell: cell["training_seconds"],
    "acceptance": lambda cell: cell["acceptance"],
    "ess_rate": lambda cell: cell["ess"] / cell["seconds"],
}


def _median_and_bar(runs: np.ndarray) -> tuple[float, float, float]:
    low, middle, high = np.quantile(runs, (BAR[0], 0.5, BAR[1]))
    return float(low), float(middle), float(high)
