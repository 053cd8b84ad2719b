r"""Figures 1 and 2: surrogates in one and two dimensions, where they can be seen.

**Figure 1: four surrogates of a parabola.** A full Gaussian process, FITC with 5 inducing points, and random networks
of 5 RBF or 5 softplus nodes learn the potential :math:`\frac12 x^2` of a standard normal from N = 10, 20 and 40 nested
noisy observations (the authors' own). Random surrogates are repeated and averaged. The paper's claim is that random
networks generalise better from few points. It is measured by the error inside the range of the data and outside it.

**Figure 2: force and trajectories on the banana, exact and by a small network.** A network of 40 softplus
units learns from 400 accepted states of exact HMC, whose step size is chosen for the paper's acceptance of 0.97.
Several networks are trained, and the one with the median acceptance is drawn.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.checks import require_whole
from leapwise.dynamics import Force, PhasePoint, UnitMetric, leapfrog
from leapwise.execution import Evaluator
from leapwise.paper.cells import Cells
from leapwise.paper.reproductions import METHOD_COLOURS, OKABE_ITO, SURROGATE_COLOURS, open_picture
from leapwise.paper.surrogate_flow import Explored, explore
from leapwise.problems import banana
from leapwise.problems.datasets import load_mat
from leapwise.surrogates import FITC, GaussianProcess, RBFNetwork, SoftplusNetwork, Surrogate, TrainingSet
from leapwise.targets import AnyTarget

SIZES = (10, 20, 40)  # observations, as in the paper
SMALL = 5  # inducing points or hidden units, as in the paper
GRID = np.linspace(-4.0, 4.0, 161)  # where curves are compared and drawn
REPEATS, QUICK_REPEATS = 100, 10  # of random surrogates


@dataclass(frozen=True, eq=False)
class Figure1:
    """The numbers of figure 1.

    Attributes
    ----------
    data : dict of int to (ndarray, ndarray)
        The observations, by their number.
    curves : dict of (int, str) to ndarray
        The average surrogate on `GRID`, by number of observations and name.
    rows : list of dict
        For each curve, root mean square errors: of the average curve and of one surrogate (the median over repeats),
        inside the range of the data and outside it, up to 4.
    """

    data: dict[int, tuple[np.ndarray, np.ndarray]]
    curves: dict[tuple[int, str], np.ndarray]
    rows: list[dict[str, Any]]

    @property
    def caption(self) -> str:
        """The surrogates in the order of their errors outside the data, for the fewest and the most points."""
        said = []
        for size in (SIZES[0], SIZES[-1]):
            found = {
                row["surrogate"]: row["average_outside"] for row in self.rows if row["observations"] == size
            }
            errors = ", ".join(
                f"{name} {error:.2g}" for name, error in sorted(found.items(), key=lambda x: x[1])
            )
            said.append(f"with N = {size} it is {errors}")
        return (
            "All four fit the parabola where there are data. Outside, up to |x| = 4, the root mean square error of "
            f"the average curve differs: {'; '.join(said)}."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw one panel for each number of observations. Needs the extra ``plots``."""
        file, figure = open_picture(path)
        for panel, size in zip(figure.subplots(1, len(SIZES), sharey=True), SIZES, strict=True):
            panel.plot(GRID, 0.5 * GRID**2, color="black", linestyle=":", label=r"truth, $x^2/2$")
            for name, colour in SURROGATE_COLOURS.items():
                panel.plot(GRID, self.curves[size, name], color=colour, label=name)
            panel.plot(*self.data[size], "o", color="black", markersize=3.5, label="observations")
            panel.set(title=f"N = {size}", xlabel="x", xlim=(-4, 4), ylim=(-0.8, 8.5))
        figure.axes[0].set_ylabel("potential")
        figure.axes[0].legend(frameon=False, loc="upper center")
        figure.savefig(file, dpi=150)
        return file


def figure1(
    quick: bool = False, cells: Cells | None = None, *, repeats: int | None = None, seed: int = 0
) -> Figure1:
    """Fit the surrogates of figure 1.

    Parameters
    ----------
    quick : bool
        Make each random surrogate 10 times instead of 100.
    cells : Cells, optional
        Keeps finished fits.
    repeats : int, optional
        How often each random surrogate is made, if neither 10 nor 100.
    seed : int
        Seed of the random nodes.

    Examples
    --------
    >>> from leapwise.paper import figure1
    >>> figure1(quick=True).rows[0]["surrogate"]  # doctest: +SKIP
    'GP'
    """
    repeats = (QUICK_REPEATS if quick else REPEATS) if repeats is None else repeats
    require_whole("repeats", repeats, 1)
    cells = cells or Cells()
    cells.expect(len(SIZES))
    data, curves = {}, {}
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        settings = {"size": size, "repeats": repeats, "seed": seed}
        found = cells.get(f"fig1 · N = {size}", settings, partial(_fits, size, repeats, seed))
        data[size] = x, _ = found["x"], found["y"]
        inside = (x.min() <= GRID) & (x.max() >= GRID)
        for name in SURROGATE_COLOURS:
            curves[size, name] = found[name].mean(axis=0)
            rows.append({"observations": size, "surrogate": name, **_errors(found[name], inside)})
    return Figure1(data, curves, rows)


def _fits(size: int, repeats: int, seed: int) -> dict[str, np.ndarray]:
    """Return the observations, and the potentials of each surrogate's fits on `GRID`."""
    loaded = load_mat(f"surrogate_fit_n{size}.mat")
    x, y = loaded["X"].ravel(), loaded["Y"].ravel()
    training = TrainingSet(x[:, None], y)
    found = {"x": x, "y": y}
    for name, surrogate in _surrogates().items():
        rng = np.random.default_rng(seed)
        n = 1 if name == "GP" else repeats
        found[name] = np.array([surrogate.fit(training, rng).potential(GRID[:, None]) for _ in range(n)])
    return found


def _surrogates() -> dict[str, Surrogate]:
    return {
        "GP": GaussianProcess(use_gradients=False),
        "FITC": FITC(SMALL),
        "RBF": RBFNetwork(SMALL),
        "softplus": SoftplusNetwork(SMALL, gain=1.0),  # few nodes: each must bend
    }


def _errors(fits: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """Return root mean square errors of the average of the fits, and the median error of single fits."""
    wrong = fits - 0.5 * GRID**2
    average = {
        f"average_{where}": float(np.sqrt(np.mean(wrong[:, chosen].mean(axis=0) ** 2)))
        for where, chosen in (("inside", inside), ("outside", ~inside))
    }
    single = {
        f"single_{where}": float(np.median(np.sqrt(np.mean(wrong[:, chosen] ** 2, axis=1))))
        for where, chosen in (("inside", inside), ("outside", ~inside))
    }
    return average | single


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
        The result of `leapwise.paper.figures1_2.compare_on_banana`.
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
    >>> from leapwise.paper.figures1_2 import figure2
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
