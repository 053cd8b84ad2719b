"""Figure 2: force and trajectories on the banana, exact and by a small network.

A network of 40 softplus units learns from 400 accepted states of exact HMC, whose step size is chosen for the paper's
acceptance of 0.97. Several networks are trained, and the one with the median acceptance is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.dynamics import Force, PhasePoint, UnitMetric, leapfrog
from leapwise.execution import Evaluator
from leapwise.paper.cells import Cells
from leapwise.paper.figure import METHOD_COLOURS, OKABE_ITO, open_picture
from leapwise.paper.surrogate_flow import Explored, explore
from leapwise.problems import banana
from leapwise.surrogates import SoftplusNetwork
from leapwise.targets import AnyTarget

PAPER = {"exact": 0.97, "surrogate": 0.88}  # the paper's acceptance
START = (0.0, 1.0)  # of the trajectories that are drawn
WIDE, HIGH = np.linspace(-2.6, 1.9, 19), np.linspace(-2.1, 2.1, 17)  # grid of the force map
LONGEST = 30.0  # longest arrow: forces far out in the tails would hide all others


@dataclass(frozen=True)
class BananaPlan:
    """How much is measured.

    Attributes
    ----------
    n_hidden, size : int
        Hidden units and training states of a network.
    networks : int
        Number of networks, each trained on a run of its own.
    trajectories : int
        Number of trajectories to draw, all from one point.
    n_steps : int
        Steps of a trajectory that is drawn; the runs draw their number of steps from 1 to this.
    n_starts : int
        Acceptance is averaged over trajectories from this many states, two from each.
    seed : int
    """

    n_hidden: int = 40
    size: int = 400
    networks: int = 50
    trajectories: int = 6
    n_steps: int = 25
    n_starts: int = 400
    seed: int = 2

    def settings(self) -> dict[str, Any]:
        """Return everything that the cell depends on."""
        return asdict(self) | {"wanted": PAPER["exact"], "start": START}


QUICK = BananaPlan(networks=10)  # seconds


def compare_on_banana(plan: BananaPlan) -> dict[str, Any]:
    """Train the networks, and compute force and trajectories of the one with the median acceptance.

    Returns
    -------
    dict
        ``exact`` and ``acceptance`` (networks,); ``chosen``, the network that is drawn, and ``training``, its states;
        ``grid`` (points, 2) with ``exact_force`` and ``force`` there, and the exact ``potential``;
        ``exact_paths`` and ``paths`` (trajectories, steps + 1, 2); ``step_size``.
    """
    target = banana().target
    explored = explore(
        target,
        n_steps=plan.n_steps,
        size=plan.size,
        runs=max(2, plan.networks),
        seed=plan.seed,
        wanted=PAPER["exact"],
    )
    networks = [
        SoftplusNetwork(plan.n_hidden).fit(
            explored.training(run, plan.size), np.random.default_rng([plan.seed, run])
        )
        for run in range(plan.networks)
    ]
    acceptance = np.array(
        [
            explored.flow_acceptance(
                target, network, run, n_starts=plan.n_starts, repeats=2, seed=plan.seed + run
            )
            for run, network in enumerate(networks)
        ]
    )
    chosen = int(np.argsort(acceptance)[len(acceptance) // 2])
    grid = np.stack([each.ravel() for each in np.meshgrid(WIDE, HIGH)], axis=1)
    exact = exact_force(target)
    return {
        "exact": explored.exact_acceptance(target, plan.n_starts, 2, plan.seed),
        "step_size": explored.step_size,
        "acceptance": acceptance,
        "chosen": chosen,
        "training": explored.position[chosen],
        "grid": grid,
        "potential": exact(grid)[0],
        "exact_force": -exact(grid)[1],
        "force": -networks[chosen].potential_and_gradient(grid)[1],
        "exact_paths": _paths(exact, explored, plan),
        "paths": _paths(networks[chosen].potential_and_gradient, explored, plan),
    }


def exact_force(target: AnyTarget) -> Force:
    """Return the exact potential and its gradient as a force."""
    evaluator = Evaluator(target)

    def force(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = evaluator.value_and_gradient(position)
        assert found.gradient is not None
        return found.potential, found.gradient

    return force


def _paths(force: Force, explored: Explored, plan: BananaPlan) -> np.ndarray:
    """Follow trajectories from one point step by step, with momenta that depend on the seed alone."""
    n = plan.trajectories
    position = np.tile(np.array(START), (n, 1))
    momentum = np.random.default_rng(plan.seed).standard_normal((n, 2))
    point = PhasePoint(position, momentum, *force(position), np.ones(n, dtype=bool))
    step_size, one = np.full(n, explored.step_size), np.ones(n, dtype=int)
    path = [position]
    for _ in range(plan.n_steps):
        point, _ = leapfrog(force, UnitMetric(), point, step_size, one)
        path.append(point.position)
    return np.stack(path, axis=1)


@dataclass(frozen=True, eq=False)
class Figure2:
    """The numbers of figure 2.

    Attributes
    ----------
    plan : BananaPlan
    found : dict
        The result of `leapwise.paper.figure2.compare_on_banana`.
    """

    plan: BananaPlan
    found: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for exact HMC and one for each network."""
        exact = {
            "method": "HMC",
            "network": -1,
            "acceptance": self.found["exact"],
            "paper_acceptance": PAPER["exact"],
            "drawn": True,
        }
        return [exact] + [
            {
                "method": "RNS-HMC",
                "network": i,
                "acceptance": float(each),
                "paper_acceptance": PAPER["surrogate"],
                "drawn": i == self.found["chosen"],
            }
            for i, each in enumerate(self.found["acceptance"])
        ]

    @property
    def caption(self) -> str:
        """The result in words."""
        each = self.found["acceptance"]
        return (
            f"Acceptance goes from {self.found['exact']:.2f} with HMC to {np.median(each):.2f} on the flow of a "
            f"network of {self.plan.n_hidden} units trained on {self.plan.size} states (median of {len(each)} "
            f"networks, {each.min():.2f} to {each.max():.2f}); in the paper from {PAPER['exact']} to "
            f"{PAPER['surrogate']}. Inside the data its force is off by {self.force_error():.0%} of the typical force."
        )

    def force_error(self) -> float:
        """Return the median error of the force over its median size, where the density is above e^-6 of the mode's."""
        inside = self.found["potential"] - self.found["potential"].min() < 6.0
        wrong = np.linalg.norm(self.found["force"] - self.found["exact_force"], axis=1)[inside]
        return float(np.median(wrong) / np.median(np.linalg.norm(self.found["exact_force"], axis=1)[inside]))

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw the force map and two panels of trajectories. Needs the extra ``plots``."""
        file, figure = open_picture(path, 15.0, 5.0)
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        self._force_map(panels[0])
        median = float(self.found["acceptance"][self.found["chosen"]])
        titles = [
            f"{method}: acceptance {ours:.2f} (paper {theirs})"
            for method, ours, theirs in (
                ("HMC", self.found["exact"], PAPER["exact"]),
                ("RNS-HMC", median, PAPER["surrogate"]),
            )
        ]
        self._trajectories(panels[1], "exact_paths", titles[0], "hmc")
        self._trajectories(panels[2], "paths", titles[1], "rns-hmc")
        for panel in panels:
            panel.set(xlabel=r"$\theta_1$", xlim=(WIDE[0], WIDE[-1]), ylim=(HIGH[0], HIGH[-1]))
        panels[0].set_ylabel(r"$\theta_2$")
        figure.suptitle(
            f"Banana-shaped posterior: a network of {self.plan.n_hidden} softplus units, "
            f"trained on {self.plan.size} states",
            fontsize=11,
        )
        figure.savefig(file, dpi=150)
        return file

    def _force_map(self, panel: Any) -> None:
        x, y = self.found["grid"].T
        for key, colour, label, width in (
            ("exact_force", OKABE_ITO["vermillion"], "exact", 0.007),
            ("force", OKABE_ITO["blue"], "network", 0.0035),
        ):
            arrows = _shortened(self.found[key])
            panel.quiver(
                x,
                y,
                *arrows.T,
                color=colour,
                width=width,
                angles="xy",
                scale_units="xy",
                scale=130.0,
                label=label,
            )
        panel.plot(
            *self.found["training"].T, ".", color="0.6", markersize=2, zorder=0, label="training states"
        )
        _contours(panel)
        panel.set_title("force map; longer arrows are cut at one length")
        panel.legend(loc="upper right", fontsize=8, framealpha=1.0)

    def _trajectories(self, panel: Any, key: str, title: str, method: str) -> None:
        _contours(panel)
        paths = self.found[key]
        for path in paths:
            panel.plot(*path.T, color=METHOD_COLOURS[method], linewidth=1.0, marker=".", markersize=3)
        panel.plot(*START, "s", color=OKABE_ITO["vermillion"], markersize=8, label="start", zorder=5)
        panel.plot(*paths[:, -1].T, "o", color=OKABE_ITO["orange"], markersize=7, label="proposals", zorder=5)
        panel.set_title(title)
        panel.legend(loc="upper right", fontsize=8, framealpha=1.0)


def figure2(quick: bool = False, cells: Cells | None = None, *, plan: BananaPlan | None = None) -> Figure2:
    """Compare force and trajectories.

    Parameters
    ----------
    quick : bool
        Fewer networks: seconds.
    cells : Cells, optional
        Keeps the numbers.
    plan : BananaPlan, optional
        Other sizes.

    Examples
    --------
    >>> from leapwise.paper.figure2 import figure2
    >>> figure2(quick=True).rows[0]["method"]  # doctest: +SKIP
    'HMC'
    """
    plan = plan or (QUICK if quick else BananaPlan())
    cells = cells or Cells()
    cells.expect(1)
    return Figure2(plan, cells.get("fig2", plan.settings(), partial(compare_on_banana, plan)))


def _shortened(force: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(force, axis=1, keepdims=True)
    return np.asarray(force * np.minimum(1.0, LONGEST / np.maximum(size, 1e-12)))


def _contours(panel: Any) -> None:
    """Draw the contours on which the density is e^-1, e^-3, e^-6 and e^-10 of the highest."""
    wide, high = np.linspace(WIDE[0], WIDE[-1], 200), np.linspace(HIGH[0], HIGH[-1], 200)
    x, y = np.meshgrid(wide, high)
    potential, _ = exact_force(banana().target)(np.stack([x.ravel(), y.ravel()], axis=1))
    levels = (potential - potential.min()).reshape(x.shape)
    panel.contour(wide, high, levels, levels=[1, 3, 6, 10], colors="0.75", linewidths=0.9, zorder=0)
