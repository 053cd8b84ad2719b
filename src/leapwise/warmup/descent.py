r"""Down from far above the posterior, before the first trajectory.

A random start may lie :math:`10^3` to :math:`10^{12}` above the lowest potential, in a valley a million times longer
than it is wide: a regression on raw numbers does. Trajectories that begin there need steps as short as the valley is
narrow, and take forever. A quasi-Newton descent (BFGS) does not: it learns the shape of the valley on its way down.

It must not go too far. The lowest point is not where the mass is, and a hierarchy may have none: its potential falls
without end where the spread of its members goes to 0. So a chain descends only while it falls by much more in one
iteration than potentials of draws differ, which is about one for each dimension; most chains do not descend at all.
"""

from __future__ import annotations

import numpy as np

from leapwise.dynamics import DenseMetric, DiagonalMetric, EuclideanMetric, UnitMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import State

#: A descent goes on while it falls by so much an iteration: for all, and for each dimension.
LEAST_FALL, FALL_A_DIMENSION = 20.0, 2.0
#: Iterations looked at for that: one more than there are dimensions, each of which may have to be learnt, but so many.
FEWEST, MOST = 3, 10
#: Evaluations of one chain, at most, for each dimension and besides.
MOST_A_DIMENSION, MOST_BESIDES = 10, 100
#: Share of the predicted fall that a step must have to be taken.
ENOUGH = 1e-4
#: A step is made shorter by a factor in this range; by the first where there is no mass.
SHORTEN = (0.1, 0.5)
#: How much longer steps become where the slope grows along the way down.
LENGTHEN = 4.0
#: Relative to which a curvature along a step is taken for positive.
FLAT = 1e-12


def descend(evaluator: Evaluator, state: State, shape: str) -> tuple[State, EuclideanMetric]:
    """Return where the chains come to, and the metric that they have found on their way: of `shape`, if it can be."""
    descent = ChainDescent(state)
    if not descent.descending.any():
        return state, UnitMetric()
    descent.follow(evaluator)
    state = State(descent.position, descent.potential, descent.gradient)
    return state, descent.metric(shape)


class ChainDescent:
    """A descent of each chain by itself; all of them ask for their next gradient together.

    Parameters
    ----------
    state : State
        Where the chains start, with gradients.

    Attributes
    ----------
    position, potential, gradient : ndarray
        Where the chains have come to.
    inverse : ndarray of shape (chains, dim, dim)
        Their approximations of the inverse Hessian.
    n_taken : ndarray of int
        Steps that were taken.
    """

    def __init__(self, state: State) -> None:
        assert state.gradient is not None
        n, dim = state.position.shape
        self.position, self.potential = state.position.copy(), state.potential.copy()
        self.gradient = state.gradient.copy()
        self.n_taken = np.zeros(n, dtype=int)
        self.inverse = np.zeros((n, dim, dim))
        self._fresh = np.ones(n, dtype=bool)  # whether no curvature has been learnt since the beginning
        self._share = np.ones(n)  # of the full step that is tried next
        self._falls = np.full((n, min(max(FEWEST, dim + 1), MOST)), np.inf)
        self._begun = np.full(n, np.inf)  # the potential at the beginning
        self._least = LEAST_FALL + FALL_A_DIMENSION * dim
        self.descending = np.ones(n, dtype=bool)
        self._begin(np.arange(n))
        self._falls[:, FEWEST:] = 0.0  # a first round in which little is gained ends sooner

    def follow(self, evaluator: Evaluator) -> None:
        """Descend until no chain falls by much."""
        dim = self.position.shape[1]
        for _ in range(MOST_BESIDES + MOST_A_DIMENSION * dim):
            rows = np.flatnonzero(self.descending)
            if not rows.size:
                return
            with np.errstate(all="ignore"):
                self._try(evaluator, rows)

    def _begin(self, rows: np.ndarray) -> None:
        """Begin, or begin again, knowing no curvature; stop where there is little to gain, or was since the last time.

        Curvatures that were learnt far up may hold a descent up: those of a standard deviation change by its square.
        """
        size = np.linalg.norm(self.gradient[rows], axis=1)
        first = 1.0 / np.maximum(size, 1.0)  # a step that is no longer than one, nor longer than the slope
        # Were the potential a plane, that step would fall by so much.
        worth = first * size**2 > self._least
        worth &= self._begun[rows] - self.potential[rows] > self._falls.shape[1] * self._least
        self.descending[rows] = worth
        rows, first = rows[worth], first[worth]
        self.inverse[rows] = first[:, None, None] * np.eye(self.position.shape[1])
        self._begun[rows], self._fresh[rows], self._share[rows] = self.potential[rows], True, 1.0
        self._falls[rows] = np.inf

    def metric(self, shape: str) -> EuclideanMetric:
        """Return the mean of what the chains that moved say of the posterior's covariance; the identity if none can."""
        moved = self.n_taken > 0
        if not moved.any():
            return UnitMetric()
        covariance = self.inverse[moved].mean(axis=0)
        try:
            if shape == "dense":
                return DenseMetric(0.5 * (covariance + covariance.T))
            return DiagonalMetric(np.diag(covariance))
        except InputError:  # too ill-conditioned for floating point
            return UnitMetric()

    def _try(self, evaluator: Evaluator, rows: np.ndarray) -> None:
        """Try one step of each of these chains, and take those that fall."""
        gradient = self.gradient[rows]
        full = -np.matmul(self.inverse[rows], gradient[:, :, None])[:, :, 0]
        slope = np.einsum("ij,ij->i", full, gradient)
        step = self._share[rows, None] * full
        position = self.position[rows] + step
        moving = (
            np.isfinite(position).all(axis=1) & (position != self.position[rows]).any(axis=1) & (slope < 0)
        )
        self.descending[rows[~moving]] = False
        rows, step, position, slope = rows[moving], step[moving], position[moving], slope[moving]
        if not rows.size:
            return
        found = evaluator.value_and_gradient(position)
        assert found.gradient is not None
        fall, share = self.potential[rows] - found.potential, self._share[rows]
        taken = fall >= -ENOUGH * share * slope
        # The parabola through both potentials and the slope has its lowest point at this share of the step.
        lowest = -slope * share / (2.0 * (-fall - slope * share))
        shorter = np.clip(np.nan_to_num(lowest, nan=SHORTEN[0]), *SHORTEN)
        self._share[rows] = np.where(taken, 1.0, share * shorter)
        self._learn(rows[taken], step[taken], found.gradient[taken] - self.gradient[rows[taken]])
        rows = rows[taken]
        self.position[rows], self.potential[rows] = found.position[taken], found.potential[taken]
        self.gradient[rows] = found.gradient[taken]
        self.n_taken[rows] += 1
        self._falls[rows] = np.column_stack([self._falls[rows, 1:], fall[taken]])
        self._begin(rows[self._falls[rows].mean(axis=1) <= self._least])

    def _learn(self, rows: np.ndarray, step: np.ndarray, change: np.ndarray) -> None:
        """Learn the curvature along steps (BFGS); where there is none, go farther."""
        curved = np.einsum("ij,ij->i", step, change)
        scale = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
        convex = curved > FLAT * scale
        self.inverse[rows[~convex]] *= LENGTHEN
        rows, step, change, curved = rows[convex], step[convex], change[convex], curved[convex]
        first, self._fresh[rows] = self._fresh[rows], False
        if first.any():  # a plain multiple of the identity so far: of the size that the first step has seen
            of_size = curved / np.einsum("ij,ij->i", change, change)
            self.inverse[rows[first]] = of_size[first, None, None] * np.eye(step.shape[1])
        bent = np.matmul(self.inverse[rows], change[:, :, None])[:, :, 0]
        weight = (1.0 + np.einsum("ij,ij->i", change, bent) / curved) / curved
        cross = step[:, :, None] * bent[:, None, :] / curved[:, None, None]
        self.inverse[rows] += weight[:, None, None] * step[:, :, None] * step[:, None, :]
        self.inverse[rows] -= cross + cross.transpose(0, 2, 1)
