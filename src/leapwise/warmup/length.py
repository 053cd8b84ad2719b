r"""The trajectory length, learnt across chains from how much of the past a trajectory forgets.

For a statistic :math:`f` of the position, a trajectory that ends at :math:`q'` and is accepted with probability
:math:`\alpha` leaves an autocorrelation :math:`\rho` given by

.. math:: c = 1 - \rho = \frac{E[\alpha\,(f(q') - f(q))^2]}{2 \mathrm{Var} f},

and so buys :math:`(1 - \rho)/(1 + \rho) = c / (2 - c)` effective draws. Two statistics matter: the position itself
(the mean over all directions, in the current metric), and its squared distance from the posterior mean, whose
:math:`c` is the ChEES criterion (Hoffman, Radul and Sountsov, 2021) up to scale. The best length costs the fewest
gradients for one effective draw of each; neither is credited with more than one draw a trajectory, since what helps
means beyond that hurts variances. For a standard normal it is about a quarter turn.

Following a derivative uphill, as is usual, is noisy for long trajectories, where it grows with the length while
its sign is random. But warm-up varies the time :math:`t` anyway, so the cost is simply measured: in each window over
four ranges of :math:`t`, through which a parabola (in logarithms) finds the best.
"""

from __future__ import annotations

import numpy as np

from leapwise.dynamics import EuclideanMetric
from leapwise.kernels import Info, State

SPREAD = 0.6  # relative half-width of trajectory times in warm-up
N_RANGES = 4
FEWEST = 10  # trajectories in each range


class TrajectoryLength:
    """Find the trajectory length of best measured efficiency, window by window.

    Parameters
    ----------
    initial : float
        First guess.
    most : float
        What a trajectory may forget of means, at most, to be credited with it: beyond 1, it goes to the other side.
    """

    def __init__(self, initial: float, most: float = 1.0) -> None:
        self.current, self._most = initial, most
        self._seen: list[tuple[State, Info]] = []

    def add(self, before: State, info: Info) -> None:
        """Remember one step of all chains."""
        self._seen.append((before, info))

    def renew(self, metric: EuclideanMetric) -> None:
        """Move to the best length that the steps since the last renewal tell of, and forget them."""
        if not self._seen or len(self._seen) * len(self._seen[0][1].n_steps) < N_RANGES * FEWEST:
            return
        start = np.concatenate([before.position for before, _ in self._seen])
        end = np.concatenate([info.proposal for _, info in self._seen])
        time = np.concatenate([info.step_size * info.n_steps for _, info in self._seen])
        cost = np.concatenate([info.n_steps for _, info in self._seen]).astype(float)
        rate = np.concatenate([info.acceptance_rate for _, info in self._seen])
        self._seen = []
        mean = start.mean(axis=0)
        squared = _squared(metric, start - mean)
        if squared.var() > 0:
            with np.errstate(over="ignore", invalid="ignore"):
                change = _squared(metric, end - mean) - squared
                of_squares = np.where(rate > 0, rate * change**2 / (2.0 * squared.var()), 0.0)
                of_means = np.where(
                    rate > 0, rate * _squared(metric, end - start) / (2.0 * squared.mean()), 0.0
                )
            self.current = _best_time(time, of_means, of_squares, cost, self._most)


def _best_time(
    time: np.ndarray, of_means: np.ndarray, of_squares: np.ndarray, cost: np.ndarray, most: float
) -> float:
    """Return the time of lowest cost for an effective draw, within the range of those tried."""
    ranges = np.array_split(np.argsort(time), N_RANGES)
    centre = np.array([np.log(time[rows]).mean() for rows in ranges])
    draws = [
        np.array([_effective(forgotten[rows].mean(), most_forgotten) for rows in ranges])
        for forgotten, most_forgotten in ((of_means, most), (of_squares, 1.0))
    ]
    price = np.log([cost[rows].mean() for rows in ranges]) + np.log(1.0 / draws[0] + 1.0 / draws[1])
    curvature, slope, _ = np.polyfit(centre - centre.mean(), price, 2)
    if curvature <= 0:
        return float(np.exp(centre[np.argmin(price)]))
    return float(np.exp(np.clip(centre.mean() - 0.5 * slope / curvature, centre[0], centre[-1])))


def _effective(forgotten: float, most: float) -> float:
    """Effective draws of one trajectory that forgets this share of the past."""
    c = min(max(forgotten, 1e-6), most)
    return c / (2.0 - c)


def _squared(metric: EuclideanMetric, rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, metric.mass_times(rows))
