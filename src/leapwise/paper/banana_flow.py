"""What figure 2 measures: the force and the trajectories of small networks on the banana."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leapwise.dynamics import Force, PhasePoint, UnitMetric, leapfrog
from leapwise.execution import Evaluator
from leapwise.paper.surrogate_flow import Explored, code_of_flows, explore
from leapwise.problems import banana
from leapwise.surrogates import SoftplusNetwork
from leapwise.targets import AnyTarget

WANTED = 0.97  # exact HMC's acceptance in the paper
START = (0.0, 1.0)  # of the trajectories that are drawn
WIDE, HIGH = np.linspace(-2.6, 1.9, 19), np.linspace(-2.1, 2.1, 17)  # of the force map


@dataclass(frozen=True)
class Sketch:
    """How much is measured.

    Attributes
    ----------
    n_hidden, size : int
        Hidden units and training states of a network.
    networks : int
        So many are trained, each on a run of its own.
    trajectories : int
        To draw, all from one point.
    n_steps : int
        Of a trajectory that is drawn; those of runs have 1 to so many.
    n_starts : int
        Trajectories to average acceptance over begin at so many states, twice at each.
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
        """Return all that the cell depends on."""
        return asdict(self) | {"wanted": WANTED, "start": START, "code": code_of_flows()}


def compare_on_banana(sketch: Sketch) -> dict[str, Any]:
    """Train the networks, and draw the force and trajectories of the one with the median acceptance.

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
        n_steps=sketch.n_steps,
        size=sketch.size,
        runs=max(2, sketch.networks),
        seed=sketch.seed,
        wanted=WANTED,
    )
    networks = [
        SoftplusNetwork(sketch.n_hidden).fit(
            explored.training(run, sketch.size), np.random.default_rng([sketch.seed, run])
        )
        for run in range(sketch.networks)
    ]
    acceptance = np.array(
        [
            explored.flow_acceptance(
                target, network, run, n_starts=sketch.n_starts, repeats=2, seed=sketch.seed + run
            )
            for run, network in enumerate(networks)
        ]
    )
    chosen = int(np.argsort(acceptance)[len(acceptance) // 2])
    grid = np.stack([each.ravel() for each in np.meshgrid(WIDE, HIGH)], axis=1)
    exact = exact_force(target)
    return {
        "exact": explored.exact_acceptance(target, sketch.n_starts, 2, sketch.seed),
        "step_size": explored.step_size,
        "acceptance": acceptance,
        "chosen": chosen,
        "training": explored.position[chosen],
        "grid": grid,
        "potential": exact(grid)[0],
        "exact_force": -exact(grid)[1],
        "force": -networks[chosen].potential_and_gradient(grid)[1],
        "exact_paths": _paths(exact, explored, sketch),
        "paths": _paths(networks[chosen].potential_and_gradient, explored, sketch),
    }


def exact_force(target: AnyTarget) -> Force:
    """Return the exact potential and its gradient as a force."""
    evaluator = Evaluator(target)

    def force(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = evaluator.value_and_gradient(position)
        assert found.gradient is not None
        return found.potential, found.gradient

    return force


def _paths(force: Force, explored: Explored, sketch: Sketch) -> np.ndarray:
    """Follow trajectories from one point, with momenta that depend on the seed alone, step by step."""
    n = sketch.trajectories
    position = np.tile(np.array(START), (n, 1))
    momentum = np.random.default_rng(sketch.seed).standard_normal((n, 2))
    point = PhasePoint(position, momentum, *force(position), np.ones(n, dtype=bool))
    step_size, one = np.full(n, explored.step_size), np.ones(n, dtype=int)
    path = [position]
    for _ in range(sketch.n_steps):
        point, _ = leapfrog(force, UnitMetric(), point, step_size, one)
        path.append(point.position)
    return np.stack(path, axis=1)
