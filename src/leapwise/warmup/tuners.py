"""What a warm-up learns: step size, metric, trajectory length, and which kind of trajectories is cheaper.

* The step size: a first guess (`first_step_size`), then dual averaging towards a target acceptance (`DualAveraging`).
* The metric (`fisher_metric`), from draws and their gradients.
* The trajectory length (`TrajectoryLength`) that costs the fewest gradients for an effective draw.
* The kind of trajectories, of a single length or trees (`Efficiency`), by the same measure of cost.
* Why trajectories are rejected: energy errors need smaller steps, a hard edge (`SupportExits`) and a chain that cannot
  move at all (`StuckChains`) do not.

The schedule, what is learned when, is in `leapwise.warmup.hmc`.
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

#: Constants of dual averaging, as in the paper of Hoffman and Gelman.
GAMMA, T0, KAPPA = 0.05, 10.0, 0.75
#: Smallest logarithm of a step size: a chain that rejects everything must not bring it down to 0, which is at about
#: -745.
LOG_SMALLEST = -650.0
#: Largest gradient norm that is squared without overflow, which is at about 1e154.
LARGEST_SLOPE = 1e150
#: Doublings or halvings of the first step size at most: a factor of 1e15.
MOST_DOUBLINGS = 50


@dataclass
class DualAveraging:
    r"""Tunes one step size, or one for each chain.

    Dual averaging (Hoffman and Gelman, 2014, section 3.2) drives the acceptance rate :math:`\alpha` to its target
    :math:`\delta` by

    .. math::
        \log\epsilon_{t+1} = \mu - \frac{\sqrt{t}}{\gamma} \bar h_t, \qquad
        \bar h_t = \left(1 - \frac{1}{t + t_0}\right) \bar h_{t-1} + \frac{\delta - \alpha_t}{t + t_0},

    and reports the average of the iterates weighted by :math:`t^{-\kappa}`.

    Parameters
    ----------
    initial : ndarray
        First guess, shape () or (chains,).
    target : float
        Acceptance rate to reach.
    reach : float
        Multiple of the first guess that the first iterates are drawn towards.

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
        """Step size to keep for all draws: the geometric mean of all but the first third of those tried.

        `average` depends mostly on the last `n_updates**0.75` tries, in which chains may not have visited the regions
        that need short steps.
        """
        if not self._tried:
            return self.average
        return np.exp(np.mean(self._tried[len(self._tried) // 3 :], axis=0))

    def update(self, acceptance: np.ndarray, largest: float = np.inf) -> None:
        """Learn from the acceptance rate of one step; stay below the `largest` step size."""
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
    """Return for each chain the largest power of two for which a single step is accepted often enough.

    Each trial costs one exact gradient for each chain. The momentum is drawn once.
    """
    assert state.gradient is not None
    n = streams.n_chains
    momentum = metric.momentum(streams.normals(state.position.shape[1]))
    start = PhasePoint(state.position, momentum, state.potential, state.gradient, np.ones(n, dtype=bool))
    energy = state.potential + kinetic_energy(metric, momentum)
    # In a quadratic well of curvature 1 the gradient is the distance from the minimum, so this step reaches about it.
    with np.errstate(over="ignore"):
        scale = np.sqrt(np.einsum("ij,ij->i", state.gradient, metric.velocity(state.gradient)))
    step_size = 2.0 ** -np.ceil(np.log2(np.clip(scale, 1.0, LARGEST_SLOPE)))
    direction = np.zeros(n)
    searching = np.ones(n, dtype=bool)
    for _ in range(MOST_DOUBLINGS):
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


#: Weight of the identity in a covariance of as many draws as dimensions or fewer. A guess.
SHRINKAGE = 1e-2


def fisher_metric(
    position: np.ndarray, gradient: np.ndarray, shape: str, current: EuclideanMetric | None = None
) -> EuclideanMetric | None:
    r"""Return the metric that fits draws ``(n, dim)`` and their gradients, or None if there is too little variation.

    For a Gaussian posterior of covariance :math:`\Sigma` the gradients are :math:`\Sigma^{-1}(q - \mu)`, so any set of
    draws with covariance :math:`C`, typical or not, has gradients with covariance
    :math:`S = \Sigma^{-1} C \Sigma^{-1}`, and

    .. math:: \Sigma\, S\, \Sigma = C

    gives :math:`\Sigma` back exactly as soon as there are more draws than dimensions, even if the draws have not spread
    like the posterior yet. In general its solution, the geometric mean of :math:`C` and :math:`S^{-1}`, minimises the
    Fisher divergence between the posterior and a normal; nutpie tunes its metric in this way. The diagonal solution is
    :math:`\mathrm{sd}(q_i) / \mathrm{sd}(g_i)`. With few draws both covariances are shrunk towards the identity, in
    coordinates in which the current metric is the identity (at first, the diagonal solution). So directions that no
    draw has explored keep the metric they had, and a very ill-conditioned posterior is resolved in a few windows.

    Parameters
    ----------
    position, gradient : ndarray of shape (n, dim)
        Of all chains together.
    shape : {"diagonal", "dense"}
    current : EuclideanMetric, optional
        A dense metric is shrunk towards this one, if that is dense too; by default towards the diagonal solution.

    Examples
    --------
    Draws from a region that is far too narrow still give the covariance of a Gaussian:

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
    """Return the covariance of the rows plus a multiple of the identity, which is smaller for more rows."""
    n, dim = rows.shape
    centred = rows - rows.mean(axis=0)
    covariance = centred.T @ centred / n
    weight = SHRINKAGE * (dim / (n + dim)) ** 3  # hardly any if draws outnumber dimensions
    return np.asarray(covariance + weight * np.trace(covariance) / dim * np.eye(dim))


def _geometric_mean_with_inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r"""Return the positive definite solution X of X b X = a.

    With :math:`b = L L^T` it is :math:`L^{-T} (L^T a L)^{1/2} L^{-1}`.
    """
    factor = np.linalg.cholesky(b)
    values, vectors = eigh(factor.T @ a @ factor)
    half = solve_triangular(factor, vectors, lower=True, trans="T")
    return np.asarray((half * np.sqrt(np.maximum(values, 0.0))) @ half.T)


#: Relative half-width of the range of trajectory times in warm-up. A guess: a factor of four from shortest to longest.
SPREAD = 0.6
#: Ranges of trajectory times that are compared: one more than a parabola needs. And the fewest trajectories in each
#: range, a guess.
N_RANGES, FEWEST = 4, 10


class TrajectoryLength:
    r"""Finds the trajectory length of best measured efficiency, window by window.

    For a statistic :math:`f` of the position, trajectories that end at :math:`q'` and are accepted with probability
    :math:`\alpha` have the lag-one autocorrelation :math:`\rho` given by

    .. math:: c = 1 - \rho = \frac{E[\alpha\,(f(q') - f(q))^2]}{2 \mathrm{Var} f},

    so each gives :math:`(1 - \rho)/(1 + \rho) = c / (2 - c)` effective draws. Two statistics are used: the position
    itself (the mean over all directions, in the current metric), and its squared distance from the posterior mean,
    whose :math:`c` is the ChEES criterion (Hoffman, Radul and Sountsov, 2021) up to scale. The best length costs the
    fewest gradients for one effective draw of each. Neither is credited with more than one draw for each trajectory,
    because what helps means beyond that hurts variances. For a standard normal the best length is about a quarter
    period. The usual method follows a derivative, which is noisy for long trajectories. Here the warm-up varies the
    time :math:`t` anyway, so the cost is measured directly: in each window over four ranges of :math:`t`, with a
    parabola (in logarithms) through them.

    Parameters
    ----------
    initial : float
        First guess.
    most : float
        Largest c of means that a trajectory is credited with. Beyond 1 it ends on the other side of the mean.
    """

    def __init__(self, initial: float, most: float = 1.0) -> None:
        self.current, self._most = initial, most
        self._seen: list[tuple[State, Info]] = []

    def add(self, before: State, info: Info) -> None:
        """Store one step of all chains."""
        self._seen.append((before, info))

    def renew(self, metric: EuclideanMetric) -> None:
        """Set the length to the best one according to the steps since the last renewal, and forget them."""
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
    """Return the time of lowest cost for an effective draw, within the range of times tried."""
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
    """Return the effective draws of a trajectory with this c, see `TrajectoryLength`."""
    c = min(max(forgotten, LEAST_FORGOTTEN), most)
    return c / (2.0 - c)


def _squared(metric: EuclideanMetric, rows: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", rows, metric.mass_times(rows))


#: Smallest share that a trajectory is said to forget: less cannot be told from nothing in so few steps. A guess.
LEAST_FORGOTTEN = 1e-6


class Efficiency:
    """Compares the cost of two kinds of trajectories from steps made with each.

    The cost is the gradients for one effective draw of the slowest mean and one of the slowest square, over all
    parameters and the potential, with the formula of `TrajectoryLength` for effective draws. Taking the slowest keeps a
    slow quantity, such as the spread of a hierarchy, from being averaged away.
    """

    def __init__(self) -> None:
        self.forget()

    def add(self, kind: str, before: State, after: State, info: Info) -> None:
        """Store one step of all chains."""
        old, new = (np.column_stack([each.position, each.potential]) for each in (before, after))
        self._seen.setdefault(kind, []).append((old, new, info.n_steps))
        assert info.left is not None
        self._diverging.append(info.diverging & ~info.left)

    @property
    def n_steps(self) -> int:
        """Steps of the kind that has fewer; 0 if there are not two kinds."""
        return min(map(len, self._seen.values())) if len(self._seen) > 1 else 0

    def forget(self) -> None:
        """Forget all steps."""
        self._seen: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._diverging: list[np.ndarray] = []

    @property
    def diverging(self) -> float:
        """Share of all steps that diverged inside the support."""
        return float(np.mean(self._diverging))

    def doublings(self, kind: str) -> np.ndarray:
        """Return the depths of the trees of a kind, or what they would be for its numbers of steps."""
        return np.log2(1.0 + np.concatenate([n_steps for _, _, n_steps in self._seen[kind]]))

    def prices(self) -> dict[str, float]:
        """Return for each kind the gradients for one effective draw of the slowest mean and of the slowest square."""
        rows = {
            kind: [np.concatenate(each) for each in zip(*steps, strict=True)]
            for kind, steps in self._seen.items()
        }
        everything = np.concatenate([after for _, after, _ in rows.values()])
        mean = everything.mean(axis=0)
        return {
            kind: float(
                n_steps.mean()
                * sum(
                    1.0
                    / _slowest_effective(
                        (before - mean) ** power, (after - mean) ** power, (everything - mean) ** power
                    )
                    for power in (1, 2)
                )
            )
            for kind, (before, after, n_steps) in rows.items()
        }


def _slowest_effective(before: np.ndarray, after: np.ndarray, everything: np.ndarray) -> float:
    """Return the effective draws per step of the slowest of some statistics, at most one."""
    variance = everything.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        forgotten = np.where(variance > 0, ((after - before) ** 2).mean(axis=0) / (2.0 * variance), 0.0)
    slowest = float(np.clip(forgotten, LEAST_FORGOTTEN, 1.0).min())
    return slowest / (2.0 - slowest)


#: Largest number of steps of a trajectory while step sizes are tuned, in general and near a hard edge. Guesses: the
#: first is a tree of depth 8; near an edge longer trajectories leave the support anyway.
MOST_STEPS, EDGE_STEPS = 256, 8
#: There is a hard edge if more than this share of rejected trajectories has left the support.
MOSTLY = 0.5
#: Factor by which old rejections lose weight at each step, so that about the last 20 count; and the (weighted) number
#: of rejections needed for a verdict. Guesses.
MEMORY, ENOUGH_REJECTED = 0.95, 0.5
#: Share of trajectories that must stay inside, so that they alone can tune the step size. A guess.
FEW_INSIDE = 0.25


class SupportExits:
    """Estimates how many trajectories are rejected, and how many of these because they left the support.

    Smaller steps reduce the energy error. They do not help a trajectory that leaves the support beyond a hard edge,
    which depends on its length. A step size that shrinks until few trajectories leave would shrink until they hardly
    move, at one gradient a step.
    """

    def __init__(self) -> None:
        self._rejected = self._left = 0.0

    def add(self, info: Info) -> None:
        """Learn from one step of all chains."""
        assert info.left is not None
        self._rejected = MEMORY * self._rejected + float(1.0 - info.acceptance_rate.mean())
        self._left = MEMORY * self._left + float(info.left.mean())

    @property
    def at_an_edge(self) -> bool:
        """Whether most rejected trajectories have left the support."""
        return self._rejected > ENOUGH_REJECTED and self._left > MOSTLY * self._rejected

    @property
    def most_steps(self) -> int:
        """Largest number of steps of a trajectory."""
        return EDGE_STEPS if self.at_an_edge else MOST_STEPS

    def rate(self, info: Info, target: float) -> float:
        """Return the acceptance rate to tune the step size with: near an edge, that of trajectories that stay inside.

        If hardly any stays inside, all of them count, because steps that are too large may have led them out.
        """
        assert info.left is not None
        if not self.at_an_edge or self._left * (1.0 - MEMORY) > 1.0 - FEW_INSIDE:
            return float(info.acceptance_rate.mean())
        inside = info.acceptance_rate[~info.left]
        return float(inside.mean()) if inside.size else target


#: Steps without a move after which a chain may be stuck, and the acceptance rate of the others from which on it is.
#: Guesses: at such a rate steps are far shorter than the others need.
STILL, NEARLY_ALL = 20, 0.99


class StuckChains:
    """Finds chains that do not move with steps of any size, for example where energies are lost in rounding.

    All chains share one step size. One of four that never moves keeps the mean acceptance rate at 0.75 at most.
    So the step size would shrink without end, and stop the others too. (With a step size of its own, as in Stan, it
    would be stuck alone.)

    Parameters
    ----------
    n_chains : int
    """

    def __init__(self, n_chains: int) -> None:
        self._still = np.zeros(n_chains, dtype=int)

    def add(self, before: State, after: State) -> None:
        """Learn from one step of all chains."""
        moved = (before.position != after.position).any(axis=1)
        self._still = np.where(moved, 0, self._still + 1)

    def rate(self, rates: np.ndarray, shared: float) -> float:
        """Return the acceptance rate to tune with: `shared`, or that of the others if a chain is stuck."""
        others = rates[self._still < STILL]
        if 0 < others.size < rates.size and others.mean() > NEARLY_ALL:
            return float(others.mean())
        return shared
