r"""The trajectory length, learnt across chains by the ChEES criterion (Hoffman, Radul and Sountsov, 2021).

A trajectory is worth its length when it changes the squared distance from the posterior mean,

.. math:: \mathrm{ChEES}(T) = \tfrac14 E\left[\left(\|q' - m\|^2 - \|q - m\|^2\right)^2\right],

for where that forgets its past, the slowest scale of the posterior has been crossed. Its derivative with respect to
:math:`\log T`, for a trajectory of time :math:`t \propto T` that ends with velocity :math:`v'`, is estimated by

.. math:: t \left(\|q' - m\|^2 - \|q - m\|^2\right) \langle q' - m, v' \rangle,

averaged over chains with weights of their acceptance rates, and followed uphill by Adam. Distances are measured in
the current metric, in which :math:`\langle q' - m, v' \rangle` is :math:`(q' - m) \cdot p'`.
"""

from __future__ import annotations

import numpy as np

from understudy.dynamics import EuclideanMetric
from understudy.kernels import Info, State

LEARNING_RATE = 0.05
SECOND_MOMENT_DECAY = 0.95
LARGEST_CHANGE = 0.35


class TrajectoryLength:
    """Climb the ChEES criterion.

    Parameters
    ----------
    initial : float
        First guess of the length.
    """

    def __init__(self, initial: float) -> None:
        self._log_length = self._log_average = np.log(initial)
        self._second_moment = 0.0
        self._n_updates = 0

    @property
    def current(self) -> float:
        """Length to try next."""
        return float(np.exp(self._log_length))

    @property
    def average(self) -> float:
        """Length to keep."""
        return float(np.exp(self._log_average))

    def update(
        self, before: State, info: Info, mean: np.ndarray, metric: EuclideanMetric, largest: float
    ) -> None:
        """Learn from one step of all chains; never go beyond the `largest` length."""
        ended = np.isfinite(info.energy_error)
        weight = np.where(ended, info.acceptance_rate, 0.0)
        if weight.sum() < 1e-3:
            return
        start, end = before.position[ended] - mean, info.proposal[ended] - mean
        change = _squared(metric, end) - _squared(metric, start)
        time = (info.step_size * info.n_steps)[ended]
        slope = time * change * np.einsum("ij,ij->i", end, info.proposal_momentum[ended])
        gradient = float(weight[ended] @ slope / weight.sum())
        self._climb(gradient, largest)

    def _climb(self, gradient: float, largest: float) -> None:
        self._n_updates += 1
        t, decay = self._n_updates, SECOND_MOMENT_DECAY
        self._second_moment = decay * self._second_moment + (1 - decay) * gradient**2
        scale = np.sqrt(self._second_moment / (1 - decay**t)) + 1e-12
        change = np.clip(LEARNING_RATE * gradient / scale, -LARGEST_CHANGE, LARGEST_CHANGE)
        self._log_length = min(self._log_length + change, np.log(largest))
        self._log_average += t**-0.5 * (self._log_length - self._log_average)


def _squared(metric: EuclideanMetric, rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, metric.mass_times(rows))
