r"""Warm-up where the length of trajectories is free: of `NUTS()`, and of `HMC()`, which may become either.

Before the first step, chains that are far above the posterior descend (`descent`). Then, in the windows of `schedule`,

* **settle**: ten short trees, each chain with a step size of its own;
* **windows**: a new metric from each, and one step size for all chains. For `HMC()`, trajectories of a length that is
  being learnt and trees take turns, each with a step size of its own;
* **choice**, before the last and longest window: what has cost fewer gradients for an effective draw of what mixes
  slowest (`efficiency`) goes on alone. One length is the best for posteriors of one scale; trees are where it varies;
* **finish**: only the step size.

What a gradient buys: two ways to make trajectories, compared while both are tuned.

A statistic :math:`f` with lag-one autocorrelation :math:`\rho` has :math:`(1 - \rho) / (1 + \rho)` effective draws a
step, and :math:`1 - \rho = E (f(q') - f(q))^2 / (2 \mathrm{Var} f)` is a mean over steps. The price of a
way is the gradients for one effective draw of the slowest mean and one of the slowest square, over all parameters and
the potential: what mixes slowly, such as the spread of a hierarchy, is not averaged away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leapwise.dynamics import EuclideanMetric, UnitMetric
from leapwise.execution import Evaluator
from leapwise.kernels import HMC, NUTS, Info, State, Streams
from leapwise.warmup.descent import descend
from leapwise.warmup.gradient_check import check_gradient
from leapwise.warmup.schedule import LARGEST_DENSE, QUARTER_TURN, metric_shape, shortened, window_edges
from leapwise.warmup.tuners import (
    SPREAD,
    DualAveraging,
    SupportExits,
    TrajectoryLength,
    first_step_size,
    fisher_metric,
)

#: What is credited at least: less cannot be told from nothing.
LEAST_FORGOTTEN = 1e-6


class Efficiency:
    """Remembers steps of several ways to make trajectories, and says what each costs."""

    def __init__(self) -> None:
        self.forget()

    def add(self, way: str, before: State, after: State, info: Info) -> None:
        """Remember one step of all chains."""
        old, new = (np.column_stack([each.position, each.potential]) for each in (before, after))
        self._seen.setdefault(way, []).append((old, new, info.n_steps))
        assert info.left is not None
        self._diverging.append(info.diverging & ~info.left)

    @property
    def n_steps(self) -> int:
        """How many steps are remembered of the way that has fewest; 0 if there are not two ways."""
        return min(map(len, self._seen.values())) if len(self._seen) > 1 else 0

    def forget(self) -> None:
        """Begin again."""
        self._seen: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._diverging: list[np.ndarray] = []

    @property
    def diverging(self) -> float:
        """Share of all steps that have diverged, inside the support."""
        return float(np.mean(self._diverging))

    def doublings(self, way: str) -> np.ndarray:
        """Return how often the trees of a way were doubled, or would have been."""
        return np.log2(1.0 + np.concatenate([n_steps for _, _, n_steps in self._seen[way]]))

    def prices(self) -> dict[str, float]:
        """Return the gradients that each way takes for an effective draw of the slowest mean and square."""
        rows = {
            way: [np.concatenate(each) for each in zip(*steps, strict=True)]
            for way, steps in self._seen.items()
        }
        everything = np.concatenate([after for _, after, _ in rows.values()])
        mean = everything.mean(axis=0)
        return {
            way: float(
                n_steps.mean()
                * sum(
                    1.0
                    / _effective(
                        (before - mean) ** power, (after - mean) ** power, (everything - mean) ** power
                    )
                    for power in (1, 2)
                )
            )
            for way, (before, after, n_steps) in rows.items()
        }


def _effective(before: np.ndarray, after: np.ndarray, everything: np.ndarray) -> float:
    """Return effective draws a step of the slowest of some statistics, at most one."""
    variance = everything.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        forgotten = np.where(variance > 0, ((after - before) ** 2).mean(axis=0) / (2.0 * variance), 0.0)
    slowest = float(np.clip(forgotten, LEAST_FORGOTTEN, 1.0).min())
    return slowest / (2.0 - slowest)


#: Doublings of the trees of `HMC()`: as many steps as a trajectory of one length may have. Where more would be needed,
#: on steps and improper tails, they would take minutes and still not mix.
DEEPEST = 8
#: Doublings of trees while chains settle, and while step sizes are learnt.
SETTLING_DEPTH, TUNING_DEPTH = 5, 8
#: One of so many steps, after the last metric, is for the step size alone: it must see all of the posterior.
FINISH = 5
#: How much longer steps are tried where a good step size is known already.
NEAR = 2.0
#: What one trajectory may forget of means: up to 1.5 effective draws, as trees have, and yet one of squares.
BEYOND = 1.2
#: Steps of each kind, at least, before one is chosen.
FEWEST = 20
#: No single length, or step size, fits where the standard deviation of the doublings of trees is above this (of normal
#: distributions it is 0.3 to 0.7), or where more than this share of steps diverges.
DIFFER, DIVERGE = 0.75, 0.01
#: There what mixes slowly may hardly be seen in so few steps, so trees are chosen unless they cost so many times what
#: one length costs; elsewhere they would have to cost so much less, since one length costs half as much as a rule.
CLEARLY_MORE, CLEARLY_LESS = 2.0, 0.75
#: And there so many steps are to be accepted, so that they are short enough where no chain is at the time.
CAREFUL = 0.9


class TrajectoryWarmup:
    """Learn the metric and the step size, and for `HMC` the kind of trajectories and their length.

    Parameters
    ----------
    method : HMC or NUTS
        An `HMC` has neither step size nor length.
    n_steps : int
        Steps of warm-up.
    evaluator, streams, state
        Of the chains that begin.

    Attributes
    ----------
    start : State
        Where the chains are to begin: those that were far away have come nearer.
    """

    n_metrics = n_adaptive = 0

    def __init__(
        self, method: HMC | NUTS, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        dim = state.position.shape[1]
        self._dim, self._shape, self._edges = (
            dim,
            metric_shape(method, dim),
            window_edges(n_steps, max(10, n_steps // FINISH)),
        )
        self.start = state
        self._metric: EuclideanMetric = UnitMetric()
        if isinstance(method.metric, EuclideanMetric):
            self._metric = method.metric
        elif self._shape != "fixed" and dim <= LARGEST_DENSE:
            self.start, self._metric = descend(evaluator, state, self._shape)
        self._trees = (
            method
            if isinstance(method, NUTS)
            else NUTS(target_acceptance=method.target_acceptance, max_depth=DEEPEST)
        )
        self._tree_step: DualAveraging | None = None
        if method.step_size is None:
            first = first_step_size(evaluator, streams, self.start, self._metric, method.target_acceptance)
            self._tree_step = DualAveraging(first, method.target_acceptance)
            check_gradient(evaluator, self.start, self._metric, first)
        self._hmc = method if isinstance(method, HMC) else None
        self._hmc_step: DualAveraging | None = None
        self._length: TrajectoryLength | None = None
        self._chosen = "trees" if self._hmc is None else None
        self._efficiency, self._losses, self._tree_losses = Efficiency(), SupportExits(), SupportExits()
        self._has_metric, self._done = False, 0
        self._window: list[State] = [self.start]

    @property
    def kernel(self) -> HMC | NUTS:
        """The kernel whose turn it is, as learnt so far."""
        if self._turn == "length":
            assert self._hmc_step is not None
            return self._with_length(self._hmc_step.current, jitter=SPREAD)
        depth = TUNING_DEPTH if self._has_settled else SETTLING_DEPTH
        kernel = self._with_trees(None if self._tree_step is None else self._tree_step.current)
        return kernel.replace(max_depth=min(depth, kernel.max_depth))

    def freeze(self) -> HMC | NUTS:
        """Return what was chosen, with averaged step size and length."""
        if self._chosen == "length":
            assert self._hmc_step is not None
            return self._with_length(self._hmc_step.lasting)
        return self._with_trees(None if self._tree_step is None else self._tree_step.lasting)

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        way = self._turn
        self._done += 1
        self._window.append(state)
        if way == "length":
            assert self._hmc_step is not None and self._length is not None
            self._losses.add(info)
            longest = self._length.current * (1 + SPREAD)
            self._hmc_step.update(np.asarray(self._losses.rate(info, self._hmc_step.target)), longest)
            self._length.add(before, info)
        elif self._tree_step is not None:
            self._tree_losses.add(info)
            rate = rate_inside(info) if self._tree_losses.at_an_edge else info.acceptance_rate
            self._tree_step.update(np.asarray(rate if self._tree_step.current.ndim else rate.mean()))
        if self._chosen is None and self._length is not None:
            self._efficiency.add(way, before, state, info)
        if self._done in self._edges:
            self._close_window()

    @property
    def _has_settled(self) -> bool:
        return self._done >= self._edges[0]

    @property
    def _turn(self) -> str:
        """Who makes the next step."""
        if self._chosen is not None:
            return self._chosen
        return "length" if self._length is not None and self._done % 2 else "trees"

    def _close_window(self) -> None:
        """Renew the metric, and start tuning again from what it implies; choose when it is time to."""
        if self._length is not None and self._chosen != "trees":
            self._length.renew(self._metric)
        is_first = self._renew_metric()
        if self._tree_step is not None:
            if is_first:
                self._tree_step = DualAveraging(np.array(self._dim**-0.25), self._tree_step.target)
            else:
                self._tree_step = again(self._tree_step)
        if self._hmc is not None:
            if self._hmc_step is None or self._length is None or is_first:
                assert self._tree_step is not None
                self._hmc_step = again(self._tree_step)
                self._length = TrajectoryLength(QUARTER_TURN, BEYOND)
            else:
                self._hmc_step = again(self._hmc_step)
            self._choose()
        self._window = self._window[-1:]

    def _choose(self) -> None:
        """Choose before the last window, or after it if that is soon; until then, forget what is long ago."""
        if self._chosen is not None:
            return
        left = len(self._edges) - 1 - self._edges.index(self._done)
        if left > 2:
            self._efficiency.forget()
        if left > 1 or (left == 1 and self._efficiency.n_steps < FEWEST):
            return
        if not self._efficiency.n_steps:
            self._chosen = "trees"
            return
        assert self._tree_step is not None and self._hmc_step is not None
        prices = self._efficiency.prices()
        efficiency = self._efficiency
        differ = efficiency.doublings("trees").std() > DIFFER or efficiency.diverging > DIVERGE
        differ = (
            differ and not self._tree_losses.at_an_edge
        )  # which ends trees early, whatever the posterior's scales
        least = CLEARLY_MORE if differ else CLEARLY_LESS
        self._chosen = "length" if prices["trees"] > least * prices["length"] else "trees"
        if differ:
            for step in (self._tree_step, self._hmc_step):
                step.target = max(step.target, CAREFUL)

    def _renew_metric(self) -> bool:
        """Learn the metric from the window; return whether it is the first that could be learnt."""
        if self._shape == "fixed":
            return False
        position = np.concatenate([state.position for state in self._window])
        gradient = np.concatenate([state.gradient for state in self._window if state.gradient is not None])
        metric = fisher_metric(position, gradient, self._shape, self._metric)
        if metric is None:
            return False
        is_first = not self._has_metric
        self._metric, self._has_metric = metric, True
        return is_first

    def _with_trees(self, step_size: np.ndarray | None) -> NUTS:
        changes: dict[str, Any] = {"metric": self._metric}
        if step_size is not None:
            changes["step_size"] = step_size if step_size.ndim else float(step_size)
        return self._trees.replace(**changes)

    def _with_length(self, step_size: np.ndarray, **changes: Any) -> HMC:
        assert self._hmc is not None and self._length is not None
        kernel = self._hmc.replace(
            step_size=float(step_size), trajectory_length=self._length.current, metric=self._metric, **changes
        )
        return shortened(kernel, self._losses.most_steps)


def again(step: DualAveraging) -> DualAveraging:
    """Tune on, in another metric, from what was found: one step size for all chains, the mean of their own."""
    shared = np.exp(np.log(step.average).mean())
    return DualAveraging(np.array(shared), step.target, reach=NEAR)


def rate_inside(info: Info) -> np.ndarray:
    """Return the acceptance rates of trees without the leaves at which they left the support, if they have others.

    Nearly every tree reaches a hard edge that is near, with steps of any size: that says nothing of their size.
    """
    assert info.left is not None
    others = np.maximum(info.n_steps - info.left, 1)
    return np.asarray(np.minimum(1.0, info.acceptance_rate * info.n_steps / others))
