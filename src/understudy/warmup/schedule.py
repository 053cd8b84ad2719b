"""What is learnt when.

For `HMC` without settings, a warm-up of n steps is

* **settle**: ten short trajectories in the identity metric, each chain with a step size of its own, so that one in
  the far tails does not hold up the others;
* **windows**, each half as long again as the one before: at the end of each a new metric from the window's draws and
  gradients (`mass`); throughout, one step size for all chains (`step_size`) and one trajectory length (`length`);
* **finish**: the last tenth (10 to 50 steps): only the step size.

Whatever the user has set stays as it is.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from understudy.dynamics import EuclideanMetric, UnitMetric
from understudy.errors import InputError
from understudy.kernels import HMC, RMHMC, Info, Kernel, State, Streams
from understudy.targets import Evaluator
from understudy.warmup.length import SPREAD, TrajectoryLength
from understudy.warmup.mass import fisher_metric
from understudy.warmup.step_size import DualAveraging, first_step_size

SETTLE = 10
LARGEST_DENSE = 200
QUARTER_TURN = 1.5
MOST_STEPS = 256


class Warmup(Protocol):
    """Holds the kernel to step with, learns from every step, and hands over a frozen kernel at the end."""

    @property
    def kernel(self) -> Kernel:
        """Kernel for the next step."""
        ...

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        ...

    def freeze(self) -> Kernel:
        """Return the kernel that draws are kept from."""
        ...


def warmup_for(method: Kernel, n_steps: int, evaluator: Evaluator, streams: Streams, state: State) -> Warmup:
    """Return the warm-up that a method needs; it may spend a few gradients on a first step size."""
    if isinstance(method, HMC):
        return HMCWarmup(method, n_steps, evaluator, streams, state)
    if isinstance(method, RMHMC):
        return RMHMCWarmup(method)
    return NoWarmup(method)


class NoWarmup:
    """For kernels that come with all their settings."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn nothing."""

    def freeze(self) -> Kernel:
        """Return the kernel as it was given."""
        return self.kernel


class RMHMCWarmup:
    """Tune the step size of `RMHMC`, if it has none."""

    def __init__(self, method: RMHMC) -> None:
        length = QUARTER_TURN if method.n_steps is None and method.trajectory_length is None else None
        self._method = method if length is None else method.replace(trajectory_length=length)
        self._tuner = (
            DualAveraging(np.array(0.5), method.target_acceptance) if method.step_size is None else None
        )

    @property
    def kernel(self) -> RMHMC:
        """The method with its current step size."""
        return (
            self._method
            if self._tuner is None
            else self._method.replace(step_size=float(self._tuner.current))
        )

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from the acceptance rate."""
        if self._tuner is not None:
            self._tuner.update(info.acceptance_rate.mean())

    def freeze(self) -> RMHMC:
        """Return the method with its averaged step size."""
        return (
            self._method
            if self._tuner is None
            else self._method.replace(step_size=float(self._tuner.average))
        )


class HMCWarmup:
    """Learn what an `HMC` was not given."""

    def __init__(
        self, method: HMC, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        dim = state.position.shape[1]
        self._method, self._dim = method, dim
        self._shape = _metric_shape(method, dim)
        self._learns_length = method.n_steps is None and method.trajectory_length is None
        self._metric = method.metric if isinstance(method.metric, EuclideanMetric) else UnitMetric()
        self._step: DualAveraging | None = None
        if method.step_size is None:
            first = first_step_size(evaluator, streams, state, self._metric, method.target_acceptance)
            self._step = DualAveraging(first, method.target_acceptance)
        self._length: TrajectoryLength | None = None
        self._edges = window_edges(n_steps)
        self._done = 0
        self._window: list[State] = [state]

    @property
    def kernel(self) -> HMC:
        """The method as learnt so far, with widely varied trajectories."""
        method = self._with(None if self._step is None else self._step.current)
        return method if self._length is None else method.replace(jitter=SPREAD)

    def freeze(self) -> HMC:
        """Return the method with averaged step size and length."""
        if self._step is not None and self._step.current.ndim:
            self._share_step()
        return self._with(None if self._step is None else self._step.average)

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        self._done += 1
        self._window.append(state)
        if self._step is not None:
            shared = self._step.current.ndim == 0
            # A step longer than the longest trajectory changes nothing, so acceptance could not hold it back.
            longest = np.inf if self._length is None else self._length.current * (1 + SPREAD)
            self._step.update(info.acceptance_rate.mean() if shared else info.acceptance_rate, longest)
        if self._length is not None:
            self._length.add(before, info)
        if self._done in self._edges:
            self._close_window(first=self._done == self._edges[0])

    def _close_window(self, first: bool) -> None:
        """Renew the metric, and start tuning the step size again from what it implies."""
        if self._length is not None:
            self._length.renew(self._metric)
        learnt = self._renew_metric() if self._shape != "fixed" else False
        if self._step is not None:
            if first and learnt:
                self._step = DualAveraging(np.array(self._dim**-0.25), self._step.target)
            elif self._step.current.ndim:
                self._share_step()
            else:
                self._step = DualAveraging(self._step.average, self._step.target)
        if first and self._learns_length:
            step = float(np.min(np.asarray(self.kernel.step_size)))
            self._length = TrajectoryLength(QUARTER_TURN if learnt else 0.5 * SETTLE * step)
        self._window = self._window[-1:]

    def _renew_metric(self) -> bool:
        position = np.concatenate([state.position for state in self._window])
        gradient = np.concatenate([state.gradient for state in self._window if state.gradient is not None])
        metric = fisher_metric(position, gradient, self._shape, self._metric)
        if metric is None:
            return False
        self._metric = metric
        return True

    def _share_step(self) -> None:
        """Go on with one step size for all chains: the geometric mean of their own."""
        assert self._step is not None
        shared = np.exp(np.log(self._step.average).mean())
        self._step = DualAveraging(np.array(shared), self._step.target)

    def _with(self, step_size: np.ndarray | None) -> HMC:
        changes: dict[str, Any] = {"metric": self._metric}
        if step_size is not None:
            changes["step_size"] = step_size if step_size.ndim else float(step_size)
        if self._length is not None:
            smallest = self._method.step_size if step_size is None else step_size
            changes["trajectory_length"] = min(
                self._length.current, MOST_STEPS * float(np.min(np.asarray(smallest)))
            )
        elif self._learns_length:
            changes["n_steps"] = SETTLE
        return self._method.replace(**changes)


def window_edges(n_steps: int) -> list[int]:
    """Return the steps at which windows close.

    Examples
    --------
    >>> window_edges(500)
    [10, 25, 47, 80, 130, 205, 450]
    """
    last = n_steps - min(50, max(10, n_steps // 10))
    edges, width = [SETTLE], 1.5 * SETTLE
    while edges[-1] + width + 1.5 * width <= last:
        edges.append(int(edges[-1] + width))
        width *= 1.5
    return [*edges, max(last, edges[-1] + 1)]


def _metric_shape(method: HMC, dim: int) -> str:
    """Return "diagonal" or "dense" if the metric is to be learnt, else "fixed"."""
    if isinstance(method.metric, EuclideanMetric) or method.metric == "unit":
        return "fixed"
    if method.metric is None:
        if method.step_size is not None:
            return "fixed"
        return "dense" if dim <= LARGEST_DENSE else "diagonal"
    return method.metric


def require_tuning_steps(method: Kernel, n_steps: int) -> None:
    """Raise if a method that has something to learn is given too few steps to learn it."""
    if isinstance(method, HMC):
        learns = not method.is_set or method.metric in ("diagonal", "dense")
    else:
        learns = isinstance(method, RMHMC) and method.step_size is None
    if learns and n_steps < 2 * SETTLE:
        raise InputError(
            f"tune must be at least {2 * SETTLE} steps to learn the method's settings, got {n_steps}; "
            "use tune=500, or give the method its step_size and n_steps"
        )
