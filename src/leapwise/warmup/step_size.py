r"""The step size: a first guess, then dual averaging (Hoffman and Gelman, 2014, section 3.2).

Dual averaging drives the acceptance rate :math:`\alpha` to its target :math:`\delta` by

.. math::
    \log\epsilon_{t+1} = \mu - \frac{\sqrt{t}}{\gamma} \bar h_t, \qquad
    \bar h_t = \left(1 - \frac{1}{t + t_0}\right) \bar h_{t-1} + \frac{\delta - \alpha_t}{t + t_0},

and reports the average of the iterates weighted by :math:`t^{-\kappa}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from leapwise.dynamics import EuclideanMetric, PhasePoint, kinetic_energy, leapfrog
from leapwise.execution import Evaluator
from leapwise.kernels import State, Streams
from leapwise.kernels.guides import ExactGuide

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75
LOG_SMALLEST = -650.0  # a chain that rejects everything must not bring the step size down to 0
LARGEST_SLOPE = 1e150  # beyond which a squared gradient overflows


@dataclass
class DualAveraging:
    """Tune one step size, or one for each chain.

    Parameters
    ----------
    initial : ndarray
        First guess, shape () or (chains,).
    target : float
        Acceptance rate to reach.
    reach : float
        Multiple of the first guess that step sizes are drawn to while little is known.

    Examples
    --------
    >>> tuner = DualAveraging(np.array(1.0), target=0.8)
    >>> for _ in range(2000):
    ...     tuner.update(np.exp(-tuner.current))
    >>> bool(abs(np.exp(-tuner.average) - 0.8) < 0.01)
    True
    """

    initial: np.ndarray
    target: float
    reach: float = 10.0
    n_updates: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._mu = np.log(self.reach * self.initial)
        self._log_step = np.log(self.initial)
        self._log_average = np.log(self.initial)
        self._error = np.zeros_like(self._log_step)
        self._tried: list[np.ndarray] = []

    @property
    def current(self) -> np.ndarray:
        """Step size to try next."""
        return np.exp(self._log_step)

    @property
    def average(self) -> np.ndarray:
        """Step size to keep."""
        return np.exp(self._log_average)

    @property
    def lasting(self) -> np.ndarray:
        """Step size to keep for long: the mean (of logarithms) of all that were tried but the first third.

        `average` leans on the last `n_updates**0.75` tries, in which chains may not have come to where steps must be
        short.
        """
        if not self._tried:
            return self.average
        return np.exp(np.mean(self._tried[len(self._tried) // 3 :], axis=0))

    def update(self, acceptance: np.ndarray, largest: float = np.inf) -> None:
        """Learn from the acceptance rate of one step; never go beyond the `largest` step size."""
        self.n_updates += 1
        t = self.n_updates
        self._error += (self.target - acceptance - self._error) / (t + T0)
        step = self._mu - np.sqrt(t) / GAMMA * self._error
        self._log_step = np.clip(step, LOG_SMALLEST, np.log(largest))
        self._tried.append(self._log_step)
        self._log_average += t**-KAPPA * (self._log_step - self._log_average)


def first_step_size(
    evaluator: Evaluator, streams: Streams, state: State, metric: EuclideanMetric, target: float
) -> np.ndarray:
    """Return for each chain the largest power of two whose single step is accepted often enough.

    Each trial is one exact gradient a chain, with the momentum drawn once.
    """
    assert state.gradient is not None
    n = streams.n_chains
    momentum = metric.momentum(streams.normals(state.position.shape[1]))
    start = PhasePoint(state.position, momentum, state.potential, state.gradient, np.ones(n, dtype=bool))
    energy = state.potential + kinetic_energy(metric, momentum)
    # Newton's scale of a one-dimensional potential whose force changes by itself over one step.
    with np.errstate(over="ignore"):
        scale = np.sqrt(np.einsum("ij,ij->i", state.gradient, metric.velocity(state.gradient)))
    step_size = 2.0 ** -np.ceil(np.log2(np.clip(scale, 1.0, LARGEST_SLOPE)))
    direction = np.zeros(n)
    searching = np.ones(n, dtype=bool)
    for _ in range(50):
        steps = np.where(searching, 1, 0)
        end, _ = leapfrog(ExactGuide(evaluator).force, metric, start, step_size, steps)
        end_energy = end.potential + kinetic_energy(metric, end.momentum)
        good = end.complete & (energy - end_energy > np.log(target))
        direction = np.where(direction == 0, np.where(good, 1.0, -1.0), direction)
        turned = searching & (good != (direction > 0))
        step_size = np.where(turned & ~good, step_size / 2.0, step_size)
        searching &= ~turned
        if not searching.any():
            break
        step_size = np.where(searching, step_size * 2.0**direction, step_size)
    return step_size
