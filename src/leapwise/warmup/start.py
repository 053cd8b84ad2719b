r"""Where the chains begin: starts with finite density, and a descent for those that begin far from the mass.

**The descent.** A random start may lie :math:`10^3` to :math:`10^{12}` above the lowest potential, in a valley a
million times longer than it is wide, for example in a regression on unscaled data. Trajectories that begin there need
steps as short as the valley is narrow. A quasi-Newton descent (BFGS) does not: it learns the shape of the valley on the
way.

The descent must not go too far. The lowest point is not where the mass is, and a hierarchy may have none: its potential
falls without end as the spread of its members goes to 0. So a chain descends only while one iteration lowers the
potential by much more than potentials of draws differ, which is about one for each dimension. Most chains do not
descend at all.

The adaptation has another descent, `leapwise.adaptation.minimise`. That one moves one point and looks for the minimum
itself, because the curvature there shows how wide the posterior is. This one moves a batch of chains, which go on from
where it ends, so it must stop before the minimum.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from leapwise.dynamics import DenseMetric, DiagonalMetric, EuclideanMetric, UnitMetric
from leapwise.errors import BudgetError, InputError, StartError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import State, Streams
from leapwise.targets import AnyTarget

#: Random starts that are tried for each chain: 100 as in Stan, and then 50 in boxes that widen. A target that has no
#: mass at any of them needs `init=`.
STAN_ATTEMPTS, WIDER_ATTEMPTS = 100, 50
ATTEMPTS = STAN_ATTEMPTS + WIDER_ATTEMPTS
#: Half-width of the box of random starts in unconstrained space, if the target has no prior to draw from. As in Stan.
BOX = 2.0
#: The first attempts all use the wide box; then every second one uses a box ten times smaller each so many attempts:
#: down to 1e-8 at the last, which is beyond any scale in use.
WIDE_ATTEMPTS, SHRINK_OVER = 10, 10
#: The boxes of the last attempts become ten times wider each so many attempts, up to 200. A guess: mass that is farther
#: from 0 than that has parameters of that size, whose users know where they are.
WIDEN_OVER = 25
#: A start whose potential is larger than this, in size, is drawn again: differences of one, by which draws are accepted
#: or not, are less than ten times its rounding error. At most so many times; then the lowest will do. A guess.
TOO_HIGH, MOST_BETTER = 1e15, 40
GOOD, POOR, LOST = 0, 1, 2  # see `_ranks`

#: A descent goes on while it lowers the potential by this much in one iteration: a constant, and for each dimension. A
#: guess: clearly more than potentials of draws differ by, which is about one for each dimension.
LEAST_FALL, FALL_PER_DIMENSION = 20.0, 2.0
#: The fall is averaged over dim + 1 iterations, because each direction's curvature may have to be learned, but over at
#: least and at most these numbers. Guesses.
FEWEST_FALLS, MOST_FALLS = 3, 10
#: Largest number of evaluations of one chain: for each dimension, and a constant. A guess.
EVALUATIONS_PER_DIMENSION, MORE_EVALUATIONS = 10, 100
#: Share of the predicted fall that a step must reach to be taken: Armijo's condition with the usual constant.
ENOUGH = 1e-4
#: A step that is not taken is shortened by a factor in this range, by the first number where there is no mass (the
#: usual safeguards of a line search).
SHORTEN = (0.1, 0.5)
#: Steps become longer by this factor where the potential is concave along the step. A guess.
LENGTHEN = 4.0
#: A curvature below this, relative to the lengths of step and change of gradient, counts as zero: rounding errors.
FLAT = 1e-12


def read_init(init: ArrayLike, target: AnyTarget, n_chains: int) -> np.ndarray:
    """Check parameters given by the user, ``(dim,)`` or ``(chains, dim)``, and return positions."""
    try:
        given = np.asarray(init)
        if given.dtype.kind not in "fiu":
            raise TypeError(f"its dtype is {given.dtype}")
        given = given.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"init must be an array of real numbers, got {reprlib.repr(init)} ({error}); "
            "give one number for each parameter"
        ) from error
    if given.shape not in ((target.dim,), (n_chains, target.dim)):
        raise InputError(
            f"init must have shape ({target.dim},), or ({n_chains}, {target.dim}) for {n_chains} chains, "
            f"got {given.shape}; give one value for each parameter"
        )
    parameters = np.broadcast_to(given, (n_chains, target.dim))
    bad = np.argwhere(~np.isfinite(parameters))
    if bad.size:
        chain, i = bad[0]
        raise StartError(
            f"init must be finite, got {parameters[chain, i]} for parameter {i} of chain {chain}; "
            "give a number there"
        )
    lower, upper = target.transform.lower, target.transform.upper
    bad = np.argwhere((parameters <= lower) | (parameters >= upper))
    if bad.size:
        chain, i = bad[0]
        raise StartError(
            f"init must lie strictly inside the bounds, got {parameters[chain, i]:g} for parameter {i} of chain "
            f"{chain}, whose bounds are ({lower[i]:g}, {upper[i]:g}); move it inside"
        )
    return np.array(target.transform.to_position(parameters))


def find_start(
    evaluator: Evaluator, streams: Streams, init: ArrayLike | None, gradient: bool = True
) -> State:
    """Return a state of finite potential for each chain, with its gradient if that is wanted.

    Chains begin at `init`, or at draws from the prior, or uniformly between -2 and 2 in unconstrained space. A random
    start is drawn again where the log-density is -inf, at most 150 times, and also from smaller and wider boxes around
    0. It is drawn again a few times, too, where the model has all but overflowed (`_ranks`).
    """
    target = evaluator.target
    evaluate = evaluator.value_and_gradient if gradient else evaluator.value
    if init is not None:
        state = _evaluated_once(evaluate, read_init(init, target, streams.n_chains))
        _refuse_infinite(state, evaluator, "init", "start where the log-density is finite")
        return state
    position = np.stack([_draw(target, generator) for generator in streams.generators])
    state = State.from_evaluation(evaluate(position))
    attempts, n_poor = 1, np.zeros(len(position), dtype=int)
    rank = _ranks(state)
    while attempts < ATTEMPTS:
        rows = np.flatnonzero((rank == LOST) | ((rank == POOR) & (n_poor < MOST_BETTER)))
        if not rows.size:
            break
        again = np.stack([_draw(target, streams.generators[i], _box(attempts)) for i in rows])
        try:
            found = State.from_evaluation(evaluate(again))
        except BudgetError:  # the error below says more: that no start was found
            break
        n_poor[rows[rank[rows] == POOR]] += 1
        old, new = np.split(_ranks(state, found), [len(position)])
        lower = found.potential < state.potential[rows]
        taken = (old[rows] == LOST) | (new < old[rows]) | ((new == old[rows]) & lower)
        state, attempts = _replaced(state, rows[taken], found, taken), attempts + 1
        rank = _ranks(state)
    _refuse_infinite(state, evaluator, f"the last of {attempts} random starts", _remedy(target))
    return state


def _ranks(*states: State) -> np.ndarray:
    """Return for each row of some states how good a start it is: GOOD, POOR or LOST.

    Lost ones are outside the support. At poor ones the model has all but overflowed: the potential is so large that
    differences are lost in rounding, or the gradient is exactly zero while that of others is not. (Models replace a
    gradient that is not finite by zeros.)
    """
    potential = np.concatenate([state.potential for state in states])
    poor = np.abs(potential) > TOO_HIGH
    gradients = [state.gradient for state in states if state.gradient is not None]
    if gradients:
        slopes = np.concatenate(gradients).any(axis=1)
        poor |= ~slopes & slopes.any()
    return np.where(np.isfinite(potential), np.where(poor, POOR, GOOD), LOST)


def _remedy(target: AnyTarget) -> str:
    """Return the remedy for random starts without mass."""
    if target.emulates_outputs:
        return "give init=, or a prior whose draws the model can be run at"
    return "give init=, or bounds= for the parameters that have them"


def _evaluated_once(evaluate: Callable[[np.ndarray], Evaluation], position: np.ndarray) -> State:
    """Evaluate each distinct position once: all chains may have the same start."""
    _, first, which = np.unique(position, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rows = np.argsort(order)[which.reshape(-1)]
    found = evaluate(position[first[order]])
    gradient = None if found.gradient is None else found.gradient[rows]
    return State(position, found.potential[rows], gradient)


def _box(attempts: int) -> float:
    """Return the half-width of the box to draw a start from, after so many attempts without mass.

    Where parameters have small scales the whole box may be too far out: the logarithm of a scale in units of 1e-4
    overflows almost everywhere in (-2, 2). So every second attempt after the first few is made in a box that shrinks
    towards 0. The others keep the wide box, because 0 itself may be outside the support. The mass may also be farther
    from 0 than the box: a recursion with a factor of 5 instead of 0.5 overflows. So the last boxes widen.
    """
    if attempts >= STAN_ATTEMPTS:
        return BOX * 10.0 ** ((attempts - STAN_ATTEMPTS + 1) / WIDEN_OVER)
    if attempts < WIDE_ATTEMPTS or attempts % 2:
        return BOX
    return BOX * 10.0 ** (-(attempts - WIDE_ATTEMPTS) / SHRINK_OVER)


def _draw(target: AnyTarget, rng: np.random.Generator, box: float = BOX) -> np.ndarray:
    parameters = target.sample_start(rng)
    if parameters is None:
        return rng.uniform(-box, box, target.dim)
    return np.asarray(target.transform.to_position(parameters[None])[0])


def _replaced(state: State, rows: np.ndarray, found: State, taken: np.ndarray) -> State:
    """Return the state with some rows replaced by those of what was found that are taken."""
    position, potential = state.position.copy(), state.potential.copy()
    position[rows], potential[rows] = found.position[taken], found.potential[taken]
    if state.gradient is None or found.gradient is None:
        return State(position, potential)
    gradient = state.gradient.copy()
    gradient[rows] = found.gradient[taken]
    return State(position, potential, gradient)


def _refuse_infinite(state: State, evaluator: Evaluator, where: str, remedy: str) -> None:
    lost = np.flatnonzero(~np.isfinite(state.potential))
    if lost.size:
        chain = int(lost[0])
        parameters = evaluator.target.transform.to_parameters(state.position[[chain]])[0]
        point = np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)
        # A failed evaluation counts as -inf here, so the last failure may be the cause.
        failed = f" (the last failure: {evaluator.last_failure})" if evaluator.last_failure else ""
        raise StartError(f"the log-density of chain {chain} is -inf at {where}, {point}; {remedy}{failed}")


def descend(evaluator: Evaluator, state: State, shape: str) -> tuple[State, EuclideanMetric]:
    """Return the state after the descent, and the metric found on the way: of this `shape`, or the identity."""
    descent = ChainDescent(state)
    if not descent.descending.any():
        return state, UnitMetric()
    descent.follow(evaluator)
    state = State(descent.position, descent.potential, descent.gradient)
    return state, descent.metric(shape)


class ChainDescent:
    """A BFGS descent of each chain on its own; the next gradients of all chains are evaluated in one batch.

    Parameters
    ----------
    state : State
        Start of the chains, with gradients.

    Attributes
    ----------
    position, potential, gradient : ndarray
        Current points of the chains.
    inverse : ndarray of shape (chains, dim, dim)
        Their approximations of the inverse Hessian.
    n_taken : ndarray of int
        Steps taken by each chain.
    """

    def __init__(self, state: State) -> None:
        assert state.gradient is not None
        n, dim = state.position.shape
        self.position, self.potential = state.position.copy(), state.potential.copy()
        self.gradient = state.gradient.copy()
        self.n_taken = np.zeros(n, dtype=int)
        self.inverse = np.zeros((n, dim, dim))
        self._fresh = np.ones(n, dtype=bool)  # whether no curvature has been learned since the last restart
        self._share = np.ones(n)  # share of the full step to try next
        self._falls = np.full((n, min(max(FEWEST_FALLS, dim + 1), MOST_FALLS)), np.inf)
        self._restarted_at = np.full(n, np.inf)  # potential at the last restart
        self._least = LEAST_FALL + FALL_PER_DIMENSION * dim
        self.descending = np.ones(n, dtype=bool)
        self._restart(np.arange(n))
        self._falls[:, FEWEST_FALLS:] = 0.0  # a first round with little gain ends sooner

    def follow(self, evaluator: Evaluator) -> None:
        """Descend until no chain falls by much any more."""
        dim = self.position.shape[1]
        for _ in range(MORE_EVALUATIONS + EVALUATIONS_PER_DIMENSION * dim):
            rows = np.flatnonzero(self.descending)
            if not rows.size:
                return
            with np.errstate(all="ignore"):
                self._try(evaluator, rows)

    def _restart(self, rows: np.ndarray) -> None:
        """Start or restart without curvature; stop chains that have little to gain or gained little since the restart.

        A restart helps because curvatures learned far above may slow the descent: those along a standard deviation
        change with its square.
        """
        size = np.linalg.norm(self.gradient[rows], axis=1)
        first = 1.0 / np.maximum(size, 1.0)  # the first step is not longer than 1, nor than the gradient
        # The fall along this step if the potential were linear.
        worth = first * size**2 > self._least
        worth &= self._restarted_at[rows] - self.potential[rows] > self._falls.shape[1] * self._least
        self.descending[rows] = worth
        rows, first = rows[worth], first[worth]
        self.inverse[rows] = first[:, None, None] * np.eye(self.position.shape[1])
        self._restarted_at[rows], self._fresh[rows], self._share[rows] = self.potential[rows], True, 1.0
        self._falls[rows] = np.inf

    def metric(self, shape: str) -> EuclideanMetric:
        """Return the mean of the inverse Hessians of the chains that moved; the identity if that is no covariance."""
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
        """Try one step of each of these chains, and take those that lower the potential enough."""
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
        # Minimum of the parabola through both potentials with the slope at the start, as a share of the step.
        lowest = -slope * share / (2.0 * (-fall - slope * share))
        shorter = np.clip(np.nan_to_num(lowest, nan=SHORTEN[0]), *SHORTEN)
        self._share[rows] = np.where(taken, 1.0, share * shorter)
        self._learn(rows[taken], step[taken], found.gradient[taken] - self.gradient[rows[taken]])
        rows = rows[taken]
        self.position[rows], self.potential[rows] = found.position[taken], found.potential[taken]
        self.gradient[rows] = found.gradient[taken]
        self.n_taken[rows] += 1
        self._falls[rows] = np.column_stack([self._falls[rows, 1:], fall[taken]])
        self._restart(rows[self._falls[rows].mean(axis=1) <= self._least])

    def _learn(self, rows: np.ndarray, step: np.ndarray, change: np.ndarray) -> None:
        """Update the inverse Hessians (BFGS); lengthen the next step where the potential is not convex along it."""
        curved = np.einsum("ij,ij->i", step, change)
        scale = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
        convex = curved > FLAT * scale
        self.inverse[rows[~convex]] *= LENGTHEN
        rows, step, change, curved = rows[convex], step[convex], change[convex], curved[convex]
        first, self._fresh[rows] = self._fresh[rows], False
        if first.any():  # so far a multiple of the identity: scale it to the curvature of the first step
            of_size = curved / np.einsum("ij,ij->i", change, change)
            self.inverse[rows[first]] = of_size[first, None, None] * np.eye(step.shape[1])
        bent = np.matmul(self.inverse[rows], change[:, :, None])[:, :, 0]
        weight = (1.0 + np.einsum("ij,ij->i", change, bent) / curved) / curved
        cross = step[:, :, None] * bent[:, None, :] / curved[:, None, None]
        self.inverse[rows] += weight[:, None, None] * step[:, :, None] * step[:, None, :]
        self.inverse[rows] -= cross + cross.transpose(0, 2, 1)
