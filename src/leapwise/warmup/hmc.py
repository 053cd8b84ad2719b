r"""Warm-up of HMC, NUTS and RMHMC: what is learned, and when.

A warm-up of n steps has three phases.

* **first steps**: ten short trajectories, each chain with a step size of its own, so that a chain in the far tails does
  not slow down the others.
* **windows**, each half as long again as the one before. At the end of each, a new metric is learned from the window's
  draws and gradients (`fisher_metric`). Throughout, one step size for all chains (`DualAveraging`) and one trajectory
  length (`TrajectoryLength`) are tuned.
* **finish**: the last steps tune only the step size.

Settings that the user has given do not change. There are two exceptions, which both end with the warm-up: a trajectory
length is used only once there is a metric to measure it in, and until then a trajectory has at most 10 steps; and
trajectories are cut to 256 steps while step sizes are tuned. Where most rejected trajectories have left the support
(beyond a hard edge), trajectories are cut to 8 steps, and only those that stay inside tune the step size. How many
leave depends on their length: ever smaller steps would not keep them in, and would cost gradients.

`HMCWarmup` is for an `HMC` with some settings given. `TrajectoryWarmup` is for `NUTS`, and for `HMC()` without any
settings, which may become either:

* before the first step, chains that are far above the posterior descend (`descend`);
* for `HMC()`, trajectories of a single, tuned length and trees take turns in the windows, each with its own step size;
* before the last and longest window, the one that has cost fewer gradients for an effective draw (`Efficiency`) is
  chosen. A single length is best for posteriors with one scale; trees are best where the scale varies.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from leapwise.dynamics import EuclideanMetric, UnitMetric
from leapwise.execution import Evaluator
from leapwise.kernels import HMC, NUTS, RMHMC, Info, Kernel, State, Streams
from leapwise.warmup.gradient_check import check_gradient
from leapwise.warmup.start import descend
from leapwise.warmup.tuners import (
    MOST_STEPS,
    SPREAD,
    DualAveraging,
    Efficiency,
    StuckChains,
    SupportExits,
    TrajectoryLength,
    first_step_size,
    fisher_metric,
)

#: Steps of the first phase, and the longest trajectory in it. A guess: enough to leave a bad start.
FIRST_STEPS = 10
FIRST_TRAJECTORIES: dict[str, Any] = {"n_steps": FIRST_STEPS, "trajectory_length": None}
#: Largest dimension for which a dense metric is learned by default. A guess: beyond, a warm-up has too few draws for
#: it.
LARGEST_DENSE = 200
#: Trajectory length at first, in a metric that makes the posterior a standard normal: pi/2 is a quarter period, after
#: which a trajectory has forgotten its start; a little less costs less.
QUARTER_PERIOD = 1.5
#: First step size of `RMHMC`, in standard deviations. A guess: in such a metric 0.2 to 0.5 suit most posteriors.
FIRST_RIEMANNIAN_STEP = 0.5

#: Largest depth of the trees of `HMC()`: 2^8 = 256 leaves, as many as the steps of a trajectory of a single length.
#: Posteriors that need more (steps, improper tails) would take minutes and still not mix.
DEEPEST = 8
#: Largest depth of trees in the first phase, and while step sizes are tuned. Guesses: 32 and 256 leaves.
FIRST_DEPTH, TUNING_DEPTH = 5, 8
#: The last 1/FINISH of the steps of `TrajectoryWarmup` tune only the step size. A guess: chains must have seen all of
#: the posterior in them.
FINISH = 5
#: Dual averaging first tries step sizes near this multiple of the last one, when a good one is known from the window
#: before. (From scratch it is 10, as in the paper of Hoffman and Gelman.) A guess.
NEAR = 2.0
#: Limit of what one trajectory of a single length is credited for means, see `TrajectoryLength`: 1.2 / (2 - 1.2) = 1.5
#: effective draws, which is what trees reach, while squares are still credited with at most one.
BEYOND = 1.2
#: Steps of each kind needed before one is chosen. A guess: the cheapest number that tells a factor of two.
FEWEST_COMPARED = 20
#: No single length or step size fits if the standard deviation of the depth of trees exceeds the first number
#: (measured: 0.3 to 0.7 for normal distributions), or if more than the second share of steps diverges (a guess).
DIFFER, DIVERGE = 0.75, 0.01
#: Then slow mixing may hardly show in so few steps, so trees are chosen unless they cost this many times more than a
#: single length.
CLEARLY_MORE = 2.0
#: Otherwise trees are chosen only if they cost this much less: as a rule a single length costs half as much. A guess.
CLEARLY_LESS = 0.75
#: Target acceptance where the scale varies. Then steps are short enough also where no chain is at the time. A guess.
CAREFUL = 0.9

AnyHMC = TypeVar("AnyHMC", HMC, RMHMC)


class KernelTuner(Protocol):
    """Holds the kernel to step with, and adapts it after every step."""

    @property
    def n_adaptive(self) -> int:
        """Number of kept draws that were made while the kernel still changed."""
        ...

    @property
    def kernel(self) -> Kernel:
        """Kernel for the next step."""
        ...

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        ...


class Warmup(KernelTuner, Protocol):
    """A tuner that returns a frozen kernel at the end.

    `n_metrics` counts evaluations of a Riemannian metric outside the steps.
    """

    n_metrics: int

    @property
    def start(self) -> State | None:
        """State to begin with, if it is not the one that was given."""
        ...

    def freeze(self) -> Kernel:
        """Return the kernel of the kept draws."""
        ...


class NoWarmup:
    """The warm-up of kernels that have all their settings."""

    n_metrics = n_adaptive = 0
    start = None

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def learn(self, before: State, state: State, info: Info) -> None:
        """Do nothing."""

    def freeze(self) -> Kernel:
        """Return the kernel as it was given."""
        return self.kernel


class RMHMCWarmup:
    """Tunes the step size of `RMHMC`, if it has none."""

    n_adaptive = 0
    start = None

    def __init__(self, method: RMHMC, n_metrics: int = 0) -> None:
        self.n_metrics = n_metrics
        self._has_length = method.n_steps is not None or method.trajectory_length is not None
        self._method = method if self._has_length else method.replace(trajectory_length=QUARTER_PERIOD)
        self._tuner: DualAveraging | None = None
        if method.step_size is None:
            self._tuner = DualAveraging(np.array(FIRST_RIEMANNIAN_STEP), method.target_acceptance)

    @property
    def kernel(self) -> RMHMC:
        """The method with its current step size."""
        if self._tuner is None:
            return self._method
        return shortened(self._method.replace(step_size=float(self._tuner.current)))

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from the acceptance rate."""
        if self._tuner is not None:
            length = self._method.trajectory_length
            longest = np.inf if length is None else length * (1 + self._method.jitter)
            self._tuner.update(info.acceptance_rate.mean(), longest)

    def freeze(self) -> RMHMC:
        """Return the method with its averaged step size."""
        if self._tuner is None:
            return self._method
        method = self._method.replace(step_size=float(self._tuner.average))
        return method if self._has_length else shortened(method)


class WindowMetric:
    """The metric, and the states of the current window that the next one is learned from.

    Parameters
    ----------
    shape : {"fixed", "diagonal", "dense"}
    metric : EuclideanMetric
        To begin with.
    state : State
        Where the chains begin.

    Attributes
    ----------
    current : EuclideanMetric
    is_learned : bool
        Whether it is final or has been learned from a window.
    """

    def __init__(self, shape: str, metric: EuclideanMetric, state: State) -> None:
        self.shape, self.current = shape, metric
        self.is_learned = shape == "fixed"
        self._states = [state]

    def add(self, state: State) -> None:
        """Add a state to the window."""
        self._states.append(state)

    def renew(self) -> bool:
        """Learn the metric from the window and begin the next; return whether it is the first one learned."""
        states, self._states = self._states, self._states[-1:]
        if self.shape == "fixed":
            return False
        position = np.concatenate([state.position for state in states])
        gradient = np.concatenate([state.gradient for state in states if state.gradient is not None])
        metric = fisher_metric(position, gradient, self.shape, self.current)
        if metric is None:
            return False
        is_first = not self.is_learned
        self.current, self.is_learned = metric, True
        return is_first


class HMCWarmup:
    """Learns the settings that an `HMC` was not given."""

    n_metrics = n_adaptive = 0
    start = None

    def __init__(
        self, method: HMC, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        dim = state.position.shape[1]
        self._method, self._dim = method, dim
        self._learns_length = method.n_steps is None and method.trajectory_length is None
        metric = method.metric if isinstance(method.metric, EuclideanMetric) else UnitMetric()
        self._metric = WindowMetric(metric_shape(method, dim), metric, state)
        self._step: DualAveraging | None = None
        if method.step_size is None:
            first = first_step_size(evaluator, streams, state, metric, method.target_acceptance)
            self._step = DualAveraging(first, method.target_acceptance)
            check_gradient(evaluator, state, metric, first)
        self._length: TrajectoryLength | None = None
        self._edges = window_edges(n_steps)
        self._exits, self._done = SupportExits(), 0

    @property
    def kernel(self) -> HMC:
        """The method as learned so far, with trajectory times spread widely."""
        spread = {} if self._length is None else {"jitter": SPREAD}
        method = self._with(None if self._step is None else self._step.current, **spread)
        if self._length is not None:
            return shortened(method, self._exits.most_steps)
        if self._step is None or method.n_steps is not None:
            return method
        return shortened(method) if self._metric.is_learned else method.replace(**FIRST_TRAJECTORIES)

    def freeze(self) -> HMC:
        """Return the method with averaged step size and length."""
        if self._step is not None and self._step.current.ndim:
            self._step = shared(self._step)
        method = self._with(None if self._step is None else self._step.average)
        return shortened(method, self._exits.most_steps) if self._learns_length else method

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        self._done += 1
        self._metric.add(state)
        self._exits.add(info)
        if self._step is not None:
            is_shared = self._step.current.ndim == 0
            rate = self._exits.rate(info, self._step.target) if is_shared else info.acceptance_rate
            self._step.update(np.asarray(rate), self._longest_step())
        if self._length is not None:
            self._length.add(before, info)
        if self._done in self._edges:
            self._close_window()

    def _close_window(self) -> None:
        """Renew the metric, and restart the tuning of the step size in it."""
        if self._length is not None:
            self._length.renew(self._metric.current)
        is_first = self._metric.renew()
        if self._step is not None:
            if is_first:
                self._step = DualAveraging(np.array(self._dim**-0.25), self._step.target)
            elif self._step.current.ndim:
                self._step = shared(self._step)
            else:
                self._step = DualAveraging(self._step.average, self._step.target)
        if self._learns_length and (is_first or self._length is None):
            step = float(np.min(np.asarray(self.kernel.step_size)))
            self._length = TrajectoryLength(QUARTER_PERIOD if is_first else 0.5 * FIRST_STEPS * step)

    def _longest_step(self) -> float:
        """Return the longest trajectory: a larger step size has no effect, so acceptance could not limit it."""
        if self._length is not None:
            return self._length.current * (1 + SPREAD)
        length = self._method.trajectory_length if self._metric.is_learned else None
        return np.inf if length is None else length * (1 + self._method.jitter)

    def _with(self, step_size: np.ndarray | None, **changes: Any) -> HMC:
        changes["metric"] = self._metric.current
        if step_size is not None:
            changes["step_size"] = step_size if step_size.ndim else float(step_size)
        if self._length is not None:
            changes["trajectory_length"] = self._length.current
        elif self._learns_length:
            changes |= FIRST_TRAJECTORIES
        return self._method.replace(**changes)


class TrajectoryWarmup:
    """Learns the metric and the step size, and for `HMC()` the kind of trajectories and their length.

    Parameters
    ----------
    method : HMC or NUTS
        An `HMC` must have neither step size nor length.
    n_steps : int
        Steps of warm-up.
    evaluator, streams, state
        Of the chains at the start.

    Attributes
    ----------
    start : State
        State to begin with: chains that were far above the posterior have descended.
    """

    n_metrics = n_adaptive = 0

    def __init__(
        self, method: HMC | NUTS, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        dim, target = state.position.shape[1], method.target_acceptance
        self._dim, self._edges = dim, window_edges(n_steps, max(10, n_steps // FINISH))
        shape = metric_shape(method, dim)
        self.start, metric = state, UnitMetric()  # type: State, EuclideanMetric
        if isinstance(method.metric, EuclideanMetric):
            metric = method.metric
        elif shape != "fixed" and dim <= LARGEST_DENSE:
            self.start, metric = descend(evaluator, state, shape)
        self._metric = WindowMetric(shape, metric, self.start)
        self._hmc = method if isinstance(method, HMC) else None
        self._trees = (
            method if isinstance(method, NUTS) else NUTS(target_acceptance=target, max_depth=DEEPEST)
        )
        self._tree_step: DualAveraging | None = None
        if method.step_size is None:
            first = first_step_size(evaluator, streams, self.start, metric, target)
            self._tree_step = DualAveraging(first, target)
            check_gradient(evaluator, self.start, metric, first)
        self._hmc_step: DualAveraging | None = None
        self._length: TrajectoryLength | None = None
        self._chosen = "trees" if self._hmc is None else None
        self._efficiency, self._exits, self._tree_exits = Efficiency(), SupportExits(), SupportExits()
        self._stuck = StuckChains(len(state.position))
        self._done = 0

    @property
    def kernel(self) -> HMC | NUTS:
        """The kernel of the next step, as learned so far."""
        if self._next_kind == "length":
            assert self._hmc_step is not None
            return self._with_length(self._hmc_step.current, jitter=SPREAD)
        depth = TUNING_DEPTH if self._done >= self._edges[0] else FIRST_DEPTH
        kernel = self._with_trees(None if self._tree_step is None else self._tree_step.current)
        return kernel.replace(max_depth=min(depth, kernel.max_depth))

    def freeze(self) -> HMC | NUTS:
        """Return the chosen kernel, with averaged step size and length."""
        if self._chosen == "length":
            assert self._hmc_step is not None
            return self._with_length(self._hmc_step.lasting)
        return self._with_trees(None if self._tree_step is None else self._tree_step.lasting)

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        kind = self._next_kind
        self._done += 1
        self._metric.add(state)
        self._stuck.add(before, state)
        if kind == "length":
            assert self._hmc_step is not None and self._length is not None
            self._exits.add(info)
            longest = self._length.current * (1 + SPREAD)
            shared_rate = self._exits.rate(info, self._hmc_step.target)
            self._hmc_step.update(np.asarray(self._stuck.rate(info.acceptance_rate, shared_rate)), longest)
            self._length.add(before, info)
        elif self._tree_step is not None:
            self._tree_exits.add(info)
            rate = rate_inside(info) if self._tree_exits.at_an_edge else info.acceptance_rate
            if not self._tree_step.current.ndim:
                rate = np.asarray(self._stuck.rate(rate, float(rate.mean())))
            self._tree_step.update(rate)
        if self._chosen is None and self._length is not None:
            self._efficiency.add(kind, before, state, info)
        if self._done in self._edges:
            self._close_window()

    @property
    def _next_kind(self) -> str:
        """Kind of the next step's trajectories: "trees" or "length"."""
        if self._chosen is not None:
            return self._chosen
        return "length" if self._length is not None and self._done % 2 else "trees"

    def _close_window(self) -> None:
        """Renew the metric, restart the tuning of step sizes in it, and choose the kind when it is time."""
        if self._length is not None and self._chosen != "trees":
            self._length.renew(self._metric.current)
        is_first = self._metric.renew()
        if self._tree_step is not None:
            if is_first:
                self._tree_step = DualAveraging(np.array(self._dim**-0.25), self._tree_step.target)
            else:
                self._tree_step = shared(self._tree_step, NEAR)
        if self._hmc is not None:
            if self._hmc_step is None or self._length is None or is_first:
                assert self._tree_step is not None
                self._hmc_step = shared(self._tree_step, NEAR)
                self._length = TrajectoryLength(QUARTER_PERIOD, BEYOND)
            else:
                self._hmc_step = shared(self._hmc_step, NEAR)
            self._choose()

    def _choose(self) -> None:
        """Choose before the last window, or after it if too few steps were compared by then."""
        if self._chosen is not None:
            return
        windows_left = len(self._edges) - 1 - self._edges.index(self._done)
        if windows_left > 2:
            self._efficiency.forget()  # steps long ago were made with other settings
        if windows_left > 1 or (windows_left == 1 and self._efficiency.n_steps < FEWEST_COMPARED):
            return
        if not self._efficiency.n_steps:
            self._chosen = "trees"
            return
        assert self._tree_step is not None and self._hmc_step is not None
        efficiency, prices = self._efficiency, self._efficiency.prices()
        differ = efficiency.doublings("trees").std() > DIFFER or efficiency.diverging > DIVERGE
        # A hard edge ends trees early, whatever the scales of the posterior.
        differ = differ and not self._tree_exits.at_an_edge
        limit = CLEARLY_MORE if differ else CLEARLY_LESS
        self._chosen = "length" if prices["trees"] > limit * prices["length"] else "trees"
        if differ:
            for step in (self._tree_step, self._hmc_step):
                step.target = max(step.target, CAREFUL)

    def _with_trees(self, step_size: np.ndarray | None) -> NUTS:
        changes: dict[str, Any] = {"metric": self._metric.current}
        if step_size is not None:
            changes["step_size"] = step_size if step_size.ndim else float(step_size)
        return self._trees.replace(**changes)

    def _with_length(self, step_size: np.ndarray, **changes: Any) -> HMC:
        assert self._hmc is not None and self._length is not None
        kernel = self._hmc.replace(
            step_size=float(step_size),
            trajectory_length=self._length.current,
            metric=self._metric.current,
            **changes,
        )
        return shortened(kernel, self._exits.most_steps)


def shared(step: DualAveraging, reach: float = 10.0) -> DualAveraging:
    """Restart tuning with one step size for all chains, the geometric mean of what was found."""
    mean = np.exp(np.log(step.average).mean())
    return DualAveraging(np.array(mean), step.target, reach=reach)


def rate_inside(info: Info) -> np.ndarray:
    """Return the acceptance rates of trees without the leaves at which they left the support, if they have others.

    Near a hard edge nearly every tree leaves the support, with steps of any size, so this says nothing about the size.
    """
    assert info.left is not None
    others = np.maximum(info.n_steps - info.left, 1)
    return np.asarray(np.minimum(1.0, info.acceptance_rate * info.n_steps / others))


def shortened(method: AnyHMC, most_steps: int = MOST_STEPS) -> AnyHMC:
    """Return the method with trajectories of at most this many steps, however small its steps are at the moment."""
    longest = most_steps * float(np.min(np.asarray(method.step_size)))
    if method.trajectory_length is None or method.trajectory_length <= longest:
        return method
    return method.replace(trajectory_length=longest)


def window_edges(n_steps: int, finish: int | None = None) -> list[int]:
    """Return the steps at which windows end. The last `finish` steps of all are in none.

    By default these are a tenth of the steps, at least 10 and at most 50.

    Examples
    --------
    >>> window_edges(500)
    [10, 25, 47, 80, 130, 205, 450]
    """
    last = n_steps - (min(50, max(10, n_steps // 10)) if finish is None else finish)
    edges, width = [FIRST_STEPS], 1.5 * FIRST_STEPS
    while edges[-1] + width + 1.5 * width <= last:
        edges.append(int(edges[-1] + width))
        width *= 1.5
    return [*edges, max(last, edges[-1] + 1)]


def metric_shape(method: HMC | NUTS, dim: int) -> str:
    """Return "diagonal" or "dense" if the metric is to be learned, else "fixed"."""
    if isinstance(method.metric, EuclideanMetric) or method.metric == "unit":
        return "fixed"
    if method.metric is None:
        if method.step_size is not None:
            return "fixed"
        return "dense" if dim <= LARGEST_DENSE else "diagonal"
    return method.metric
