"""The no-U-turn sampler: trajectories that choose their own length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from leapwise.dynamics import EuclideanMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import progressive
from leapwise.kernels.state import Info, State
from leapwise.kernels.streams import AnyStreams, Numbers
from leapwise.kernels.trajectory import (
    ExactGuide,
    Guide,
    read_step_size,
    require_acceptance,
    require_euclidean,
    unknown_gradients,
)

#: Energies of one tree may differ by this much; beyond, the trajectory has diverged.
MAX_ENERGY_RANGE = 1000.0
#: Trees of more doublings than this are never finished.
LARGEST_DEPTH = 20

POSITION, MOMENTUM, GRADIENT, VELOCITY = range(4)
#: What a checkpoint holds: the velocity at its leaf and at the leaf before; sums of momenta of the sub-tree up to the
#: leaf before the leaf before, up to the leaf before, and up to its leaf.
HERE, BEFORE, SUM_BEFORE_THAT, SUM_BEFORE, SUM = range(5)


@dataclass(frozen=True, eq=False)
class NUTS:
    r"""The no-U-turn sampler, multinomial and with the generalised U-turn (Hoffman and Gelman, 2014; Betancourt, 2017).

    A trajectory is a balanced binary tree of leapfrog steps, the *leaves*, with the chain's point as its first one.
    The tree is doubled again and again, forwards or backwards in time as a fair coin says, until it makes a U-turn;
    then the chain moves to one of its leaves. So the length of trajectories follows the posterior, where no single
    length fits: funnels, hierarchies, heavy tails.

    **Why it leaves the posterior invariant.** Momenta are drawn from :math:`N(0, M)`, so let :math:`x` be a point in
    phase space, of weight :math:`w(x) = e^{-H(x)}`. Leapfrog preserves volume and can be reversed, so the orbit of
    :math:`x` is a sequence of points, and a tree of depth :math:`j` is :math:`2^j` successive ones.

    1. *All leaves of a tree* :math:`T` *lead to it with the same probability.* From any leaf exactly one sequence of
       :math:`j` coins gives :math:`T`: probability :math:`2^{-j}`. Growth does not stop before, if all sub-trees of
       :math:`T` (its halves, their halves, ...) pass the test for U-turns, if energies of :math:`T` differ by no more
       than 1000, and if all its leaves have mass. These are properties of :math:`T`, the same for all its leaves.
    2. *It ends there with the same probability*: either T itself turns, or has the largest depth, which is a
       property of :math:`T`; or the next doubling is refused as a whole, which depends on its coin and on T alone.
    3. *Within* :math:`T` *the move is in detailed balance.* Let the doubling at which :math:`x` and :math:`y` come
       together join the sub-trees :math:`A \ni x` and :math:`B \ni y`. The chain moves to :math:`y` with probability
       :math:`\min(1, w(B)/w(A))\, w(y)/w(B)` and is not moved on by later doublings with a probability that is the same
       for both. The flow :math:`w(x)\, w(y) \min(1/w(B), 1/w(A))` is symmetric.

    The test for U-turns of a sub-tree: the velocity at each end must point along the sum of all its momenta; and, where
    two halves meet, that holds for each half together with the nearest leaf of the other.

    Chains step together: all trees that still grow take their next leapfrog step in one evaluation. A chain's draws
    depend on its own stream alone: one number seeds all choices within its tree (`Numbers`).

    Settings left out are learnt in the warm-up of `sample`; with `step_size` given and `metric` left out, the
    metric is the identity.

    Parameters
    ----------
    step_size : float or array_like of shape (chains,), optional
        Size of a leapfrog step.
    metric : EuclideanMetric or {"unit", "diagonal", "dense"}, optional
        Distribution of momenta; a word asks warm-up to learn one of that shape. Left out: dense up to 200 dimensions.
    max_depth : int
        A tree is doubled so many times at most.
    target_acceptance : float
        What the step size is tuned for: the mean over all leaves of their Metropolis probability.

    Examples
    --------
    >>> from leapwise import Evaluator, State, Streams, Target, UnitMetric
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> state = State.from_evaluation(evaluator.value_and_gradient(np.zeros((4, 2))))
    >>> state, info = NUTS(0.5, metric=UnitMetric()).step(Streams(1, 4), state, evaluator)
    >>> state.position.shape, info.n_exact.sum() == evaluator.counts.n_gradients - 4
    ((4, 2), np.True_)
    """

    step_size: ArrayLike | None = None
    metric: EuclideanMetric | Literal["unit", "diagonal", "dense"] | None = None
    max_depth: int = 10
    target_acceptance: float = 0.8

    is_exact = True

    def __post_init__(self) -> None:
        if self.step_size is not None:
            object.__setattr__(self, "step_size", read_step_size(self.step_size))
        require_euclidean(self.metric)
        whole = isinstance(self.max_depth, (int, np.integer)) and not isinstance(self.max_depth, bool)
        if not whole or not 1 <= self.max_depth <= LARGEST_DEPTH:
            raise InputError(
                f"max_depth must be a whole number from 1 to {LARGEST_DEPTH}, got {self.max_depth!r}"
            )
        require_acceptance(self.target_acceptance)

    @property
    def is_set(self) -> bool:
        """Whether trajectories can be drawn."""
        return self.step_size is not None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some settings changed."""
        return replace(self, **changes)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Grow a tree from every chain, and move each to one of its leaves."""
        if self.step_size is None:
            raise InputError("NUTS has no settings to step with; give step_size, or let sample() tune it")
        if self.metric is None or isinstance(self.metric, str):
            raise InputError(
                "NUTS has no metric to step with; give metric=UnitMetric(), or let sample() tune it"
            )
        step_size = np.asarray(self.step_size, dtype=float)
        if step_size.shape not in ((), (streams.n_chains,)):
            raise InputError(
                f"step_size must be one number, or one for each of the {streams.n_chains} chains, "
                f"got {step_size.size}"
            )
        guide = ExactGuide(evaluator)
        unknown = unknown_gradients(state)
        momentum = self.metric.momentum(streams.normals(state.position.shape[1]))
        numbers = Numbers(streams.uniforms())
        state, potential, gradient = guide.begin(state)
        step_size = np.array(np.broadcast_to(step_size, len(momentum)))
        start = np.stack([state.position, momentum, gradient, self.metric.velocity(momentum)], axis=1)
        trees = Trees(self.metric, guide, numbers, start, potential, step_size, self.max_depth)
        while trees.grow():
            pass
        return trees.result(state, step_size, unknown)


class Trees:
    """The trees of all chains, grown leaf by leaf; every array has a row for each chain whose tree still grows.

    A doubling is built without recursion. Leaf i of it (from 0) closes as many sub-trees as there are ones at the end
    of i in binary, and these began at i with so many of its last ones removed, all of them even. So even leaves are
    kept, as checkpoints, each at the level that counts its ones: there it stays until no sub-tree that is open has
    begun with it. Where the second half of a sub-tree begins, at its next one, is kept at the next level.
    """

    def __init__(
        self,
        metric: EuclideanMetric,
        guide: Guide,
        numbers: Numbers,
        start: np.ndarray,
        potential: np.ndarray,
        step_size: np.ndarray,
        max_depth: int,
    ) -> None:
        n, _, dim = start.shape
        self.metric, self.guide, self.max_depth = metric, guide, max_depth
        energy = potential + 0.5 * dots(start[:, MOMENTUM], start[:, VELOCITY])
        self.found = Found(n, dim)
        self.rows, self.numbers, self.step_size, self.energy = np.arange(n), numbers, step_size, energy
        self.lowest = self.highest = energy
        self.rates, self.n_leaves, self.n_exact = (
            np.zeros(n),
            np.zeros(n, dtype=np.int64),
            np.zeros(n, dtype=int),
        )
        self.depth = np.zeros(n, dtype=np.int64)
        # The whole tree: its first and last leaf, its sum of momenta, its weight and the leaf chosen from it.
        self.ends = np.stack([start, start], axis=1)
        self.total = start[:, MOMENTUM].copy()
        self.log_weight = np.zeros(n)
        self.chosen, self.chosen_energies = start[:, :VELOCITY].copy(), np.stack([potential, energy], axis=1)
        # The doubling under way: which way it goes, its last leaf, the number of that, and the same as of the tree.
        self.forward = np.zeros(n, dtype=np.int64)
        self.leaf, self.number = np.empty_like(start), np.empty(n, dtype=np.int64)
        self.sum, self.new_log_weight = np.empty((n, dim)), np.empty(n)
        self.new, self.new_energies = np.empty_like(self.chosen), np.empty((n, 2))
        self.checkpoints = np.zeros((n, 1, 5, dim))
        usable = np.isfinite(energy) & np.isfinite(start).all(axis=(1, 2))
        self._begin_doubling(np.arange(n))
        if not usable.all():  # so wild a momentum, or a start without mass, leads nowhere
            self._finish(~usable, diverging=~usable, left=np.zeros(n, dtype=bool))

    def grow(self) -> bool:
        """Add one leaf to every tree that grows; return whether there was any."""
        if not self.rows.size:
            return False
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            last = self.leaf
            potential = self._leapfrog()
            momentum, velocity = self.leaf[:, MOMENTUM], self.leaf[:, VELOCITY]
            energy = potential + 0.5 * dots(momentum, velocity)
            error = energy - self.energy
            self.number += 1
            self.n_leaves += 1
            diverging = self._diverge(energy)
            # The leaf at which a tree is given up has no chance, also where energy is lost: smaller steps help.
            self.rates += np.where(diverging, 0.0, np.exp(-np.maximum(error, 0.0)))
            self._weigh(-error, potential, energy)
            turning = self._sub_trees_turn(last, momentum, velocity)
            ended = diverging | turning
            whole = ~ended & (self.number + 1 == 1 << self.depth)
            if whole.any():
                ended[whole] = self._join(np.flatnonzero(whole))
        if ended.any():
            self._finish(ended, diverging, np.isposinf(potential))
        return True

    def result(self, state: State, step_size: np.ndarray, unknown: np.ndarray) -> tuple[State, Info]:
        """Return where the chains are now; `unknown` are those whose gradient was paid for at the start."""
        found = self.found
        moved = (found.chosen[:, POSITION] != state.position).any(axis=1)
        proposal = State(found.chosen[:, POSITION], found.energies[:, 0], found.chosen[:, GRADIENT])
        return state.accept(moved, proposal), Info(
            accepted=moved,
            acceptance_rate=found.rates / np.maximum(found.n_leaves, 1),
            step_size=step_size,
            n_steps=found.n_leaves,
            energy=found.energies[:, 1],
            energy_error=found.energies[:, 1] - found.start_energy,
            diverging=found.diverging,
            n_exact=found.n_exact + unknown,
            proposal=found.chosen[:, POSITION],
            proposal_momentum=found.chosen[:, MOMENTUM],
            left=found.left,
        )

    def _leapfrog(self) -> np.ndarray:
        """Take one step from the last leaf of each doubling; return the potential there."""
        epsilon = np.where(self.forward, self.step_size, -self.step_size)[:, None]
        half = self.leaf[:, MOMENTUM] - 0.5 * epsilon * self.leaf[:, GRADIENT]
        position = self.leaf[:, POSITION] + epsilon * self.metric.velocity(half)
        self.n_exact += 1
        if np.isfinite(position).all():
            potential, gradient = self.guide.force(position)
        else:  # where the numbers end there is nothing to evaluate
            finite = np.isfinite(position).all(axis=1)
            self.n_exact -= ~finite
            potential, gradient = np.full(len(position), np.nan), np.zeros_like(position)
            if finite.any():
                potential[finite], gradient[finite] = self.guide.force(position[finite])
        momentum = half - 0.5 * epsilon * gradient
        self.leaf = np.stack([position, momentum, gradient, self.metric.velocity(momentum)], axis=1)
        return potential

    def _diverge(self, energy: np.ndarray) -> np.ndarray:
        """Return whether energies of all leaves so far differ by too much, or the new one is not a number."""
        self.lowest, self.highest = np.minimum(self.lowest, energy), np.maximum(self.highest, energy)
        return ~(self.highest - self.lowest <= MAX_ENERGY_RANGE)

    def _weigh(self, log_weight: np.ndarray, potential: np.ndarray, energy: np.ndarray) -> None:
        """Choose the new leaf instead of the one chosen so far with its share of the doubling's weight."""
        self.new_log_weight = np.logaddexp(self.new_log_weight, log_weight)
        taken = progressive(log_weight, self.new_log_weight, self.numbers.uniforms(2 * self.n_leaves))
        np.copyto(self.new, self.leaf[:, :VELOCITY], where=taken[:, None, None])
        np.copyto(self.new_energies[:, 0], potential, where=taken)
        np.copyto(self.new_energies[:, 1], energy, where=taken)

    def _sub_trees_turn(self, last: np.ndarray, momentum: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return whether a sub-tree that the new leaf closes makes a U-turn; keep where one begins."""
        before, self.sum = self.sum, self.sum + momentum
        level = np.bitwise_count(self.number >> 1)
        turning = np.zeros(len(level), dtype=bool)
        closes = np.bitwise_count(self.number & ~(self.number + 1))
        even = np.flatnonzero(closes == 0)
        if even.size:
            if level.max() >= self.checkpoints.shape[1]:
                more = np.zeros((len(level), 1, *self.checkpoints.shape[2:]))
                self.checkpoints = np.concatenate([self.checkpoints, more], axis=1)
            of_leaf = np.stack(
                [velocity, last[:, VELOCITY], before - last[:, MOMENTUM], before, self.sum], axis=1
            )
            self.checkpoints[even, level[even]] = of_leaf[even]
        rows, back = np.flatnonzero(closes), 0
        while rows.size:
            at = level[rows].astype(int) - back
            first = self.checkpoints[rows, at]
            through, end = self.sum[rows], velocity[rows]
            found = turns(first[:, HERE], end, through - first[:, SUM_BEFORE])
            if back:  # a sub-tree of two leaves has nothing else to look at
                middle = self.checkpoints[rows, at + 1]
                found |= turns(first[:, HERE], middle[:, HERE], middle[:, SUM] - first[:, SUM_BEFORE])
                found |= turns(middle[:, BEFORE], end, through - middle[:, SUM_BEFORE_THAT])
            turning[rows] |= found
            back += 1
            rows = np.flatnonzero((closes > back) & ~turning)
        return turning

    def _join(self, rows: np.ndarray) -> np.ndarray:
        """Join finished doublings to their trees and begin the next ones; return which trees are finished."""
        uniforms = self.numbers.of(rows).uniforms(2 * self.n_leaves[rows] + 1)
        taken = rows[progressive(self.new_log_weight[rows], self.log_weight[rows], uniforms)]
        self.chosen[taken], self.chosen_energies[taken] = self.new[taken], self.new_energies[taken]
        self.log_weight[rows] = np.logaddexp(self.log_weight[rows], self.new_log_weight[rows])
        way = self.forward[rows]
        far, near, end = self.ends[rows, 1 - way], self.ends[rows, way], self.leaf[rows]
        first, old, new = self.checkpoints[rows, 0], self.total[rows], self.sum[rows]
        turning = turns(far[:, VELOCITY], end[:, VELOCITY], old + new)
        turning |= turns(far[:, VELOCITY], first[:, HERE], old + first[:, SUM])
        turning |= turns(near[:, VELOCITY], end[:, VELOCITY], new + near[:, MOMENTUM])
        self.ends[rows, way] = end
        self.total[rows] = old + new
        self.depth[rows] += 1
        finished = turning | (self.depth[rows] >= self.max_depth)
        self._begin_doubling(rows[~finished])
        return finished

    def _begin_doubling(self, rows: np.ndarray) -> None:
        """Draw which way to go on from these trees."""
        way = self.numbers.of(rows).coins(self.depth[rows])
        self.forward[rows] = way
        self.leaf[rows], self.number[rows] = self.ends[rows, way], -1
        self.sum[rows], self.new_log_weight[rows] = 0.0, -np.inf

    def _finish(self, ended: np.ndarray, diverging: np.ndarray, left: np.ndarray) -> None:
        """Store what has come of finished trees, and go on without them."""
        rows, found = self.rows[ended], self.found
        found.chosen[rows], found.energies[rows] = self.chosen[ended], self.chosen_energies[ended]
        found.start_energy[rows], found.rates[rows] = self.energy[ended], self.rates[ended]
        found.n_leaves[rows], found.n_exact[rows] = self.n_leaves[ended], self.n_exact[ended]
        found.diverging[rows], found.left[rows] = diverging[ended], left[ended]
        on = ~ended
        for name, of_each in list(vars(self).items()):
            if isinstance(of_each, np.ndarray):
                setattr(self, name, of_each[on])
        self.numbers = self.numbers.of(on)


class Found:
    """What has come of the trees of all chains."""

    def __init__(self, n: int, dim: int) -> None:
        self.chosen = np.empty((n, 3, dim))
        self.energies = np.empty((n, 2))  # potential and energy of what is chosen
        self.start_energy, self.rates = np.empty(n), np.empty(n)
        self.n_leaves, self.n_exact = np.empty(n, dtype=int), np.empty(n, dtype=int)
        self.diverging, self.left = np.empty(n, dtype=bool), np.empty(n, dtype=bool)


def turns(first: np.ndarray, last: np.ndarray, momenta: np.ndarray) -> np.ndarray:
    """Whether the velocity at one of two ends does not point along the sum of the momenta between, ends included."""
    return ~((dots(first, momenta) > 0.0) & (dots(last, momenta) > 0.0))


def dots(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the inner product of each pair of rows."""
    return np.einsum("ij,ij->i", first, second)
