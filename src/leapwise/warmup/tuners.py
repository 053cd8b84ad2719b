r"""The step size: a first guess, then dual averaging (Hoffman and Gelman, 2014, section 3.2).

Dual averaging drives the acceptance rate :math:`\alpha` to its target :math:`\delta` by

.. math::
    \log\epsilon_{t+1} = \mu - \frac{\sqrt{t}}{\gamma} \bar h_t, \qquad
    \bar h_t = \left(1 - \frac{1}{t + t_0}\right) \bar h_{t-1} + \frac{\delta - \alpha_t}{t + t_0},

and reports the average of the iterates weighted by :math:`t^{-\kappa}`.

The metric, from draws and their gradients.

For a Gaussian posterior of covariance :math:`\Sigma` the gradients are :math:`\Sigma^{-1}(q - \mu)`, so any set of
draws with covariance :math:`C`, typical or not, has gradients with covariance :math:`S = \Sigma^{-1} C
\Sigma^{-1}`, and

.. math:: \Sigma\, S\, \Sigma = C

gives :math:`\Sigma` back exactly as soon as there are more draws than dimensions: no need to wait until the draws
themselves have spread like the posterior. In general its solution, the geometric mean of :math:`C` and
:math:`S^{-1}`, minimises the Fisher divergence between the posterior and a normal; nutpie tunes its
metric in this way. With a diagonal metric it is :math:`\mathrm{sd}(q_i) / \mathrm{sd}(g_i)`.

With few draws both covariances are shrunk towards the identity, in coordinates in which the current metric is the
identity (at first, the diagonal solution). Directions that no draw has seen keep the metric they had, and a
posterior too ill-conditioned to be resolved in one go is resolved in a few.

The trajectory length, learnt across chains from how much of the past a trajectory forgets.

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

SupportExits: why trajectories are rejected.

Smaller steps mend an energy that is not kept. They do nothing for a trajectory that leaves the support beyond a hard
edge: that is a matter of its length. A step size that is made smaller until few trajectories leave would shrink until
they go next to nowhere, in as many steps as they may have, and each step costs a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh, solve_triangular

from leapwise.dynamics import (
    DenseMetric,
    DiagonalMetric,
    EuclideanMetric,
    PhasePoint,
    kinetic_energy,
    leapfrog,
)
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Info, State, Streams
from leapwise.kernels.trajectory import ExactForce

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
        end, _ = leapfrog(ExactForce(evaluator).evaluate, metric, start, step_size, steps)
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


SHRINKAGE = 1e-2


def fisher_metric(
    position: np.ndarray, gradient: np.ndarray, shape: str, current: EuclideanMetric | None = None
) -> EuclideanMetric | None:
    """Return the metric that fits draws ``(n, dim)`` and their gradients, or None if they tell nothing.

    Parameters
    ----------
    position, gradient : ndarray of shape (n, dim)
        Of all chains together.
    shape : {"diagonal", "dense"}
    current : EuclideanMetric, optional
        What a dense metric is shrunk towards, if it is dense too; by default its diagonal solution.

    Examples
    --------
    Draws from far too narrow a region still give the covariance of a Gaussian:

    >>> rng = np.random.default_rng(0)
    >>> covariance = np.array([[4.0, 1.0], [1.0, 1.0]])
    >>> draws = 0.01 * rng.standard_normal((200, 2))
    >>> metric = fisher_metric(draws, draws @ np.linalg.inv(covariance), "dense")
    >>> bool(np.allclose(metric.covariance, covariance, rtol=1e-3))
    True
    """
    if not (np.ptp(position, axis=0) > 0).all() or not (np.ptp(gradient, axis=0) > 0).all():
        return None  # the standard deviation of a constant may be a rounding error instead of 0
    with np.errstate(all="ignore"):
        variance = position.std(axis=0) / gradient.std(axis=0)
    if not (np.isfinite(variance) & (variance > 0)).all():
        return None
    if shape == "diagonal":
        return DiagonalMetric(variance)
    if isinstance(current, DenseMetric):
        scale = np.linalg.cholesky(np.asarray(current.covariance))
    else:
        scale = np.diag(np.sqrt(variance))
    draws = _shrunk_covariance(solve_triangular(scale, position.T, lower=True).T)
    slopes = _shrunk_covariance(gradient @ scale)
    covariance = scale @ _geometric_mean_with_inverse(draws, slopes) @ scale.T
    try:
        return DenseMetric(0.5 * (covariance + covariance.T))
    except InputError:  # too ill-conditioned for floating point
        return None


def _shrunk_covariance(rows: np.ndarray) -> np.ndarray:
    """Covariance of the rows plus a small multiple of the identity, smaller the more rows there are."""
    n, dim = rows.shape
    centred = rows - rows.mean(axis=0)
    covariance = centred.T @ centred / n
    weight = SHRINKAGE * (dim / (n + dim)) ** 3  # draws that outnumber the dimensions need next to none
    return np.asarray(covariance + weight * np.trace(covariance) / dim * np.eye(dim))


def _geometric_mean_with_inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r"""Return the positive definite solution X of X b X = a.

    With :math:`b = L L^T` it is :math:`L^{-T} (L^T a L)^{1/2} L^{-1}`.
    """
    factor = np.linalg.cholesky(b)
    values, vectors = eigh(factor.T @ a @ factor)
    half = solve_triangular(factor, vectors, lower=True, trans="T")
    return np.asarray((half * np.sqrt(np.maximum(values, 0.0))) @ half.T)


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


#: Steps that a trajectory may have while step sizes are learnt, and the same at an edge.
MOST_STEPS, EDGE_STEPS = 256, 8
#: There is an edge if so large a share of rejections has left the support.
MOSTLY = 0.5
#: Weight of the past, a step, in what is remembered of rejections; and how many of them it takes to judge.
MEMORY, ENOUGH_LOST = 0.95, 0.5
#: Share of trajectories that must stay inside for them to speak for the others.
FEW_INSIDE = 0.25


class SupportExits:
    """Remembers how much is rejected, and how much of it because the trajectory has left the support."""

    def __init__(self) -> None:
        self._lost = self._left = 0.0

    def add(self, info: Info) -> None:
        """Learn from one step of all chains."""
        assert info.left is not None
        self._lost = MEMORY * self._lost + float(1.0 - info.acceptance_rate.mean())
        self._left = MEMORY * self._left + float(info.left.mean())

    @property
    def at_an_edge(self) -> bool:
        """Whether what is rejected has mostly left the support."""
        return self._lost > ENOUGH_LOST and self._left > MOSTLY * self._lost

    @property
    def most_steps(self) -> int:
        """Steps that a trajectory may have."""
        return EDGE_STEPS if self.at_an_edge else MOST_STEPS

    def rate(self, info: Info, target: float) -> float:
        """Return the acceptance rate that tells of the step size: at an edge, of trajectories that stay inside.

        Where hardly any does they count as well: it may be too large a step that has led them out.
        """
        assert info.left is not None
        if not self.at_an_edge or self._left * (1.0 - MEMORY) > 1.0 - FEW_INSIDE:
            return float(info.acceptance_rate.mean())
        inside = info.acceptance_rate[~info.left]
        return float(inside.mean()) if inside.size else target
