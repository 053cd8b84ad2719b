"""The no-U-turn sampler: the length of each trajectory follows from its shape.

`NUTS` doubles a trajectory until it begins to turn back, and moves to one of its points. Each leapfrog step costs one
exact gradient. It suits posteriors where no single trajectory length fits, such as funnels and hierarchies. All chains
grow their trees together, so that their gradients are evaluated in batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from leapwise.dynamics import EuclideanMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import progressive
from leapwise.kernels.base import Info, State
from leapwise.kernels.streams import AnyStreams, CounterStream
from leapwise.kernels.trajectory import (
    ExactForce,
    TrajectoryForce,
    chain_step_sizes,
    read_step_size,
    require_acceptance,
    require_euclidean,
    unknown_gradients,
)

#: A tree diverges when the energies of its leaves differ by more than this. The limit of Stan and PyMC; a leaf so high
#: has a weight of exp(-1000).
MAX_ENERGY_RANGE = 1000.0
#: Largest `max_depth` allowed. A guess: a tree of 2^20 leaves is a million gradients for one draw.
LARGEST_DEPTH = 20

#: Index of each vector in the array of a leaf.
POSITION, MOMENTUM, GRADIENT, VELOCITY = range(4)
#: Index of each vector in a checkpoint, which is taken at an even leaf: the velocity at this leaf and at the leaf
#: before; the sums of the momenta of the doubling up to two leaves before, up to the leaf before, and up to this leaf.
HERE, BEFORE, SUM_BEFORE_THAT, SUM_BEFORE, SUM = range(5)


@dataclass(frozen=True, eq=False)
class NUTS:
    r"""The no-U-turn sampler, multinomial and with the generalised U-turn (Hoffman and Gelman, 2014; Betancourt, 2017).

    A trajectory is a balanced binary tree of leapfrog steps, the *leaves*. Its first leaf is the chain's point. The
    tree is doubled, forwards or backwards in time with probability 1/2 each, until it makes a U-turn. Then the chain
    moves to one of the leaves. So the length of trajectories adapts to the position, which helps where no single length
    fits: funnels, hierarchies, heavy tails.

    **Invariant because** of the following. Momenta are drawn from :math:`N(0, M)`. Let :math:`x` be a point in phase
    space, of weight :math:`w(x) = e^{-H(x)}`. Leapfrog preserves volume and can be reversed, so the orbit of :math:`x`
    is a sequence of points, and a tree of depth :math:`j` is a run of :math:`2^j` successive ones.

    1. *From each of its leaves, a tree* :math:`T` *is reached with the same probability.* From any leaf exactly one
       sequence of :math:`j` coins gives :math:`T`, which has probability :math:`2^{-j}`. Growth does not stop earlier
       if no sub-tree of :math:`T` (its halves, their halves, ...) makes a U-turn, the energies of :math:`T` differ by
       at most 1000, and all its leaves lie in the support. These are properties of :math:`T` and not of the leaf.
    2. *From each of its leaves, growth ends at* :math:`T` *with the same probability*: either :math:`T` itself makes a
       U-turn or has the largest depth, which are properties of :math:`T`; or the next doubling is rejected as a whole,
       which depends on its coin and on :math:`T` alone.
    3. *Within* :math:`T` *the move is in detailed balance.* Consider the doubling that joins the sub-trees :math:`A \ni
       x` and :math:`B \ni y`. The chain moves from :math:`x` to :math:`y` with probability :math:`\min(1, w(B)/w(A))\,
       w(y)/w(B)`, and later doublings leave it there with a probability that is the same for both. The flow
       :math:`w(x)\, w(y) \min(1/w(B), 1/w(A))` is symmetric.

    A sub-tree makes a U-turn if the velocity at one of its ends does not point along the sum of all its momenta. Where
    two halves meet, the same test is applied to each half together with the nearest leaf of the other half.

    All trees that still grow take their next leapfrog step in one batch. The draws of a chain depend on its own stream
    alone: one number seeds all choices within its tree (`CounterStream`).

    The warm-up of `sample` learns the settings that are left out. If `step_size` is given and `metric` is not, the
    metric is the identity.

    Parameters
    ----------
    step_size : float or array_like of shape (chains,), optional
        Size of a leapfrog step.
    metric : EuclideanMetric or {"unit", "diagonal", "dense"}, optional
        Distribution of momenta. A word asks the warm-up to learn a metric of that shape. By default "dense" up to 200
        dimensions and "diagonal" above.
    max_depth : int
        Largest number of doublings.
    target_acceptance : float
        What the step size is tuned for: the mean over all leaves of their Metropolis acceptance probability.

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
        """Grow a tree from every chain, and move each chain to one of its leaves."""
        if self.step_size is None:
            raise InputError("NUTS has no settings to step with; give step_size, or let sample() tune it")
        if self.metric is None or isinstance(self.metric, str):
            raise InputError(
                "NUTS has no metric to step with; give metric=UnitMetric(), or let sample() tune it"
            )
        step_size = chain_step_sizes(self.step_size, streams)
        force = ExactForce(evaluator)
        unknown = unknown_gradients(state)
        momentum = self.metric.momentum(streams.normals(state.position.shape[1]))
        numbers = CounterStream(streams.uniforms())
        state, potential, gradient = force.begin(state)
        step_size = np.array(np.broadcast_to(step_size, len(momentum)))
        start = np.stack([state.position, momentum, gradient, self.metric.velocity(momentum)], axis=1)
        trees = Trees(self.metric, force, numbers, start, potential, step_size, self.max_depth)
        while trees.grow():
            pass
        return trees.result(state, step_size, unknown)


class Trees:
    """The trees of all chains, grown leaf by leaf. Every array has one row for each chain whose tree still grows.

    A doubling is built without recursion. Number its leaves from 0. Leaf i completes as many sub-trees as its binary
    number has trailing ones. These sub-trees began at i with 1, 2, ... of the trailing ones cleared, which are even
    numbers. So even leaves are stored as checkpoints, at a level equal to the number of ones in their binary number. A
    checkpoint is overwritten only when no open sub-tree begins with it. The leaf where the second half of a sub-tree
    begins is stored at the next level.
    """

    def __init__(
        self,
        metric: EuclideanMetric,
        force: TrajectoryForce,
        numbers: CounterStream,
        start: np.ndarray,
        potential: np.ndarray,
        step_size: np.ndarray,
        max_depth: int,
    ) -> None:
        n, _, dim = start.shape
        self.metric, self.force, self.max_depth = metric, force, max_depth
        energy = potential + 0.5 * dots(start[:, MOMENTUM], start[:, VELOCITY])
        self.found = TreeResults(n, dim)
        self.rows, self.numbers, self.step_size, self.energy = np.arange(n), numbers, step_size, energy
        self.lowest = self.highest = energy
        self.rates, self.n_leaves, self.n_exact = (
            np.zeros(n),
            np.zeros(n, dtype=np.int64),
            np.zeros(n, dtype=int),
        )
        self.depth = np.zeros(n, dtype=np.int64)
        # The whole tree: its first and last leaf, the sum of its momenta, its weight, and the leaf chosen so far.
        self.ends = np.stack([start, start], axis=1)
        self.total = start[:, MOMENTUM].copy()
        self.log_weight = np.zeros(n)
        self.chosen, self.chosen_energies = start[:, :VELOCITY].copy(), np.stack([potential, energy], axis=1)
        # The current doubling: its direction, its last leaf and the number of that leaf, then the same as for the tree.
        self.forward = np.zeros(n, dtype=np.int64)
        self.leaf, self.number = np.empty_like(start), np.empty(n, dtype=np.int64)
        self.sum, self.new_log_weight = np.empty((n, dim)), np.empty(n)
        self.new, self.new_energies = np.empty_like(self.chosen), np.empty((n, 2))
        self.checkpoints = np.zeros((n, 1, 5, dim))
        usable = np.isfinite(energy) & np.isfinite(start).all(axis=(1, 2))
        self._begin_doubling(np.arange(n))
        if not usable.all():  # a momentum too large for floating point, or a start outside the support
            self._finish(~usable, diverging=~usable, left=np.zeros(n, dtype=bool))

    def grow(self) -> bool:
        """Add one leaf to every tree that still grows; return whether there was any."""
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
            # A leaf at which the tree diverges counts as rejected, also if its energy is lower: smaller steps would
            # help.
            self.rates += np.where(diverging, 0.0, np.exp(-np.maximum(error, 0.0)))
            self._weigh(-error, potential, energy)
            turning = self._subtrees_turn(last, momentum, velocity)
            ended = diverging | turning
            whole = ~ended & (self.number + 1 == 1 << self.depth)
            if whole.any():
                ended[whole] = self._join(np.flatnonzero(whole))
        if ended.any():
            self._finish(ended, diverging, np.isposinf(potential))
        return True

    def result(self, state: State, step_size: np.ndarray, unknown: np.ndarray) -> tuple[State, Info]:
        """Return the new state; `unknown` marks chains whose gradient had to be evaluated at the start."""
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
        """Take one step from the last leaf of each doubling; return the potential at the new leaf."""
        epsilon = np.where(self.forward, self.step_size, -self.step_size)[:, None]
        half = self.leaf[:, MOMENTUM] - 0.5 * epsilon * self.leaf[:, GRADIENT]
        position = self.leaf[:, POSITION] + epsilon * self.metric.velocity(half)
        self.n_exact += 1
        if np.isfinite(position).all():
            potential, gradient = self.force.evaluate(position)
        else:  # a position that is not finite cannot be evaluated
            finite = np.isfinite(position).all(axis=1)
            self.n_exact -= ~finite
            potential, gradient = np.full(len(position), np.nan), np.zeros_like(position)
            if finite.any():
                potential[finite], gradient[finite] = self.force.evaluate(position[finite])
        momentum = half - 0.5 * epsilon * gradient
        self.leaf = np.stack([position, momentum, gradient, self.metric.velocity(momentum)], axis=1)
        return potential

    def _diverge(self, energy: np.ndarray) -> np.ndarray:
        """Return whether the energies of all leaves so far differ by too much, or the new one is NaN."""
        self.lowest, self.highest = np.minimum(self.lowest, energy), np.maximum(self.highest, energy)
        return ~(self.highest - self.lowest <= MAX_ENERGY_RANGE)

    def _weigh(self, log_weight: np.ndarray, potential: np.ndarray, energy: np.ndarray) -> None:
        """Choose the new leaf with probability (its weight) / (weight of the doubling so far)."""
        self.new_log_weight = np.logaddexp(self.new_log_weight, log_weight)
        taken = progressive(log_weight, self.new_log_weight, self.numbers.uniforms(2 * self.n_leaves))
        np.copyto(self.new, self.leaf[:, :VELOCITY], where=taken[:, None, None])
        np.copyto(self.new_energies[:, 0], potential, where=taken)
        np.copyto(self.new_energies[:, 1], energy, where=taken)

    def _subtrees_turn(self, last: np.ndarray, momentum: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return whether a sub-tree that the new leaf completes makes a U-turn; store a checkpoint at even leaves."""
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
            if back:  # a sub-tree of two leaves needs no further test
                middle = self.checkpoints[rows, at + 1]
                found |= turns(first[:, HERE], middle[:, HERE], middle[:, SUM] - first[:, SUM_BEFORE])
                found |= turns(middle[:, BEFORE], end, through - middle[:, SUM_BEFORE_THAT])
            turning[rows] |= found
            back += 1
            rows = np.flatnonzero((closes > back) & ~turning)
        return turning

    def _join(self, rows: np.ndarray) -> np.ndarray:
        """Join complete doublings to their trees and begin the next ones; return which trees are finished."""
        uniforms = self.numbers.take(rows).uniforms(2 * self.n_leaves[rows] + 1)
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
        """Draw the direction of the next doubling of these trees."""
        way = self.numbers.take(rows).coins(self.depth[rows])
        self.forward[rows] = way
        self.leaf[rows], self.number[rows] = self.ends[rows, way], -1
        self.sum[rows], self.new_log_weight[rows] = 0.0, -np.inf

    def _finish(self, ended: np.ndarray, diverging: np.ndarray, left: np.ndarray) -> None:
        """Store the results of finished trees, and drop their rows."""
        rows, found = self.rows[ended], self.found
        found.chosen[rows], found.energies[rows] = self.chosen[ended], self.chosen_energies[ended]
        found.start_energy[rows], found.rates[rows] = self.energy[ended], self.rates[ended]
        found.n_leaves[rows], found.n_exact[rows] = self.n_leaves[ended], self.n_exact[ended]
        found.diverging[rows], found.left[rows] = diverging[ended], left[ended]
        on = ~ended
        for name, of_each in list(vars(self).items()):
            if isinstance(of_each, np.ndarray):
                setattr(self, name, of_each[on])
        self.numbers = self.numbers.take(on)


class TreeResults:
    """The results of the finished trees of all chains."""

    def __init__(self, n: int, dim: int) -> None:
        self.chosen = np.empty((n, 3, dim))
        self.energies = np.empty((n, 2))  # potential and energy of the chosen leaf
        self.start_energy, self.rates = np.empty(n), np.empty(n)
        self.n_leaves, self.n_exact = np.empty(n, dtype=int), np.empty(n, dtype=int)
        self.diverging, self.left = np.empty(n, dtype=bool), np.empty(n, dtype=bool)


def turns(first: np.ndarray, last: np.ndarray, momenta: np.ndarray) -> np.ndarray:
    """Return whether the velocity at one of two ends does not point along the sum of the momenta, ends included."""
    return ~((dots(first, momenta) > 0.0) & (dots(last, momenta) > 0.0))


def dots(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the inner product of each pair of rows."""
    return np.einsum("ij,ij->i", first, second)
