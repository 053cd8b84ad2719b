"""What is learnt when.

For `HMC` without settings, a warm-up of n steps is

* **settle**: ten short trajectories in the identity metric, each chain with a step size of its own, so that one in
  the far tails does not hold up the others;
* **windows**, each half as long again as the one before: at the end of each a new metric from the window's draws and
  gradients (`mass`); throughout, one step size for all chains (`step_size`) and one trajectory length (`length`);
* **finish**: the last tenth (10 to 50 steps): only the step size.

Whatever the user has set stays as it is. Only a trajectory length waits for the metric that it is measured in, and
for a step size that can afford it: until then a trajectory has 10 steps at most, and about 256 while step sizes are
learnt. Where what is rejected has mostly left the support, beyond a hard edge, it has about 8, and only those that stay
inside tell of the step size: how many leave is a matter of length, and steps made ever smaller to keep them in would be
paid for in gradients.

Which warm-up a method needs.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from leapwise.dynamics import EuclideanMetric, UnitMetric
from leapwise.execution import Evaluator
from leapwise.kernels import HMC, NUTS, RMHMC, Info, Kernel, State, Streams
from leapwise.warmup.gradient_check import check_gradient
from leapwise.warmup.tuners import (
    MOST_STEPS,
    SPREAD,
    DualAveraging,
    SupportExits,
    TrajectoryLength,
    first_step_size,
    fisher_metric,
)

SETTLE = 10
SETTLING: dict[str, Any] = {"n_steps": SETTLE, "trajectory_length": None}
LARGEST_DENSE = 200
QUARTER_TURN = 1.5

AnyHMC = TypeVar("AnyHMC", HMC, RMHMC)


class KernelTuner(Protocol):
    """Holds the kernel to step with, and learns from every step."""

    @property
    def n_adaptive(self) -> int:
        """Steps of kept draws that were made while still learning."""
        ...

    @property
    def kernel(self) -> Kernel:
        """Kernel for the next step."""
        ...

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        ...


class Warmup(KernelTuner, Protocol):
    """Learns, and hands over a frozen kernel at the end.

    `n_metrics` counts evaluations of a Riemannian metric that were spent besides the steps.
    """

    n_metrics: int

    @property
    def start(self) -> State | None:
        """Where the chains are to begin, if not where they are."""
        ...

    def freeze(self) -> Kernel:
        """Return the kernel that draws are kept from."""
        ...


class NoWarmup:
    """For kernels that come with all their settings."""

    n_metrics = n_adaptive = 0
    start = None

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn nothing."""

    def freeze(self) -> Kernel:
        """Return the kernel as it was given."""
        return self.kernel


class RMHMCWarmup:
    """Tune the step size of `RMHMC`, if it has none."""

    n_adaptive = 0
    start = None

    def __init__(self, method: RMHMC, n_metrics: int = 0) -> None:
        self.n_metrics = n_metrics
        self._has_length = method.n_steps is not None or method.trajectory_length is not None
        self._method = method if self._has_length else method.replace(trajectory_length=QUARTER_TURN)
        self._tuner = (
            DualAveraging(np.array(0.5), method.target_acceptance) if method.step_size is None else None
        )

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


class HMCWarmup:
    """Learn what an `HMC` was not given."""

    n_metrics = n_adaptive = 0
    start = None

    def __init__(
        self, method: HMC, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        dim = state.position.shape[1]
        self._method, self._dim = method, dim
        self._shape = metric_shape(method, dim)
        self._learns_length = method.n_steps is None and method.trajectory_length is None
        self._metric = method.metric if isinstance(method.metric, EuclideanMetric) else UnitMetric()
        self._has_metric = self._shape == "fixed"
        self._step: DualAveraging | None = None
        if method.step_size is None:
            first = first_step_size(evaluator, streams, state, self._metric, method.target_acceptance)
            self._step = DualAveraging(first, method.target_acceptance)
            check_gradient(evaluator, state, self._metric, first)
        self._length: TrajectoryLength | None = None
        self._edges = window_edges(n_steps)
        self._losses, self._done = SupportExits(), 0
        self._window: list[State] = [state]

    @property
    def kernel(self) -> HMC:
        """The method as learnt so far, with widely varied trajectories."""
        spread = {} if self._length is None else {"jitter": SPREAD}
        method = self._with(None if self._step is None else self._step.current, **spread)
        if self._length is not None:
            return shortened(method, self._losses.most_steps)
        if self._step is None or method.n_steps is not None:
            return method
        return shortened(method) if self._has_metric else method.replace(**SETTLING)

    def freeze(self) -> HMC:
        """Return the method with averaged step size and length."""
        if self._step is not None and self._step.current.ndim:
            self._share_step()
        method = self._with(None if self._step is None else self._step.average)
        return shortened(method, self._losses.most_steps) if self._learns_length else method

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        self._done += 1
        self._window.append(state)
        self._losses.add(info)
        if self._step is not None:
            shared = self._step.current.ndim == 0
            rate = self._losses.rate(info, self._step.target) if shared else info.acceptance_rate
            self._step.update(np.asarray(rate), self._longest_step())
        if self._length is not None:
            self._length.add(before, info)
        if self._done in self._edges:
            self._close_window()

    def _close_window(self) -> None:
        """Renew the metric, and start tuning the step size again from what it implies."""
        if self._length is not None:
            self._length.renew(self._metric)
        first_metric = self._renew_metric()
        if self._step is not None:
            if first_metric:
                self._step = DualAveraging(np.array(self._dim**-0.25), self._step.target)
            elif self._step.current.ndim:
                self._share_step()
            else:
                self._step = DualAveraging(self._step.average, self._step.target)
        if self._learns_length and (first_metric or self._length is None):
            step = float(np.min(np.asarray(self.kernel.step_size)))
            self._length = TrajectoryLength(QUARTER_TURN if first_metric else 0.5 * SETTLE * step)
        self._window = self._window[-1:]

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

    def _longest_step(self) -> float:
        """Return the longest trajectory: a longer step changes nothing, so acceptance could not hold it back."""
        if self._length is not None:
            return self._length.current * (1 + SPREAD)
        length = self._method.trajectory_length if self._has_metric else None
        return np.inf if length is None else length * (1 + self._method.jitter)

    def _share_step(self) -> None:
        """Go on with one step size for all chains: the geometric mean of their own."""
        assert self._step is not None
        shared = np.exp(np.log(self._step.average).mean())
        self._step = DualAveraging(np.array(shared), self._step.target)

    def _with(self, step_size: np.ndarray | None, **changes: Any) -> HMC:
        changes["metric"] = self._metric
        if step_size is not None:
            changes["step_size"] = step_size if step_size.ndim else float(step_size)
        if self._length is not None:
            changes["trajectory_length"] = self._length.current
        elif self._learns_length:
            changes |= SETTLING
        return self._method.replace(**changes)


def shortened(method: AnyHMC, most_steps: int = MOST_STEPS) -> AnyHMC:
    """Cut trajectories to what can be afforded, however small their steps may be for now."""
    longest = most_steps * float(np.min(np.asarray(method.step_size)))
    if method.trajectory_length is None or method.trajectory_length <= longest:
        return method
    return method.replace(trajectory_length=longest)


def window_edges(n_steps: int, finish: int | None = None) -> list[int]:
    """Return the steps at which windows close; the last steps of all, `finish` of them, are in none.

    Examples
    --------
    >>> window_edges(500)
    [10, 25, 47, 80, 130, 205, 450]
    """
    last = n_steps - (min(50, max(10, n_steps // 10)) if finish is None else finish)
    edges, width = [SETTLE], 1.5 * SETTLE
    while edges[-1] + width + 1.5 * width <= last:
        edges.append(int(edges[-1] + width))
        width *= 1.5
    return [*edges, max(last, edges[-1] + 1)]


def metric_shape(method: HMC | NUTS, dim: int) -> str:
    """Return "diagonal" or "dense" if the metric is to be learnt, else "fixed"."""
    if isinstance(method.metric, EuclideanMetric) or method.metric == "unit":
        return "fixed"
    if method.metric is None:
        if method.step_size is not None:
            return "fixed"
        return "dense" if dim <= LARGEST_DENSE else "diagonal"
    return method.metric
