r"""The strong test of a kernel: one step from exact draws must leave them exact draws.

With :math:`x` drawn exactly from the target and :math:`x'` one step of the kernel later, every statistic has the same
mean before and after. The differences :math:`f(x') - f(x)` of a million independent chains have a mean whose standard
error is known, so each statistic gives a z-score. Nothing is left to convergence, and skewed targets hide no sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from understudy import Evaluator, SharedStream, State, Target
from understudy.problems.gumbel import LINK, gumbel

#: Largest |z| allowed. Eight statistics of a correct kernel exceed it with chance 1.6e-6.
THRESHOLD = 5.2


@dataclass(frozen=True)
class ExactDraws:
    """A skewed target, and positions drawn from it exactly."""

    target: Target
    draw: Callable[[np.random.Generator, int], np.ndarray]


def correlated_gumbel() -> ExactDraws:
    """Return two Gumbel variables, the second leaning on the first."""
    return ExactDraws(gumbel().target, _draw_gumbel)


def _draw_gumbel(rng: np.random.Generator, n: int) -> np.ndarray:
    z = rng.gumbel(size=(n, 2))
    return z + LINK * np.column_stack([np.zeros(n), z[:, 0]])


def walled_gumbel(wall: float = 1.0) -> ExactDraws:
    """Return the same, with no mass where the first is above `wall`: draws from there are drawn again."""
    inner = gumbel().target

    def value_and_gradient(x):
        raw = inner.evaluate(x, gradient=True)
        return np.where(x[:, 0] > wall, -np.inf, raw.log_density), raw.gradient

    def draw(rng, n):
        draws = _draw_gumbel(rng, 2 * n)
        inside = draws[draws[:, 0] <= wall][:n]
        assert len(inside) == n
        return inside

    return ExactDraws(Target(value_and_gradient, dim=2, vectorized=True, returns_gradient=True), draw)


def bounded_exponential() -> ExactDraws:
    """Return two exponential variables, bounded below by 0: chains move in their logarithms."""
    target = Target(
        lambda x: -x.sum(axis=1), lambda x: -np.ones_like(x), dim=2, bounds=(0, None), vectorized=True
    )
    return ExactDraws(target, lambda rng, n: np.log(rng.exponential(size=(n, 2))))


def single_gumbel() -> ExactDraws:
    """Return one Gumbel variable."""

    def value_and_gradient(x):
        with np.errstate(over="ignore"):
            tail = np.exp(-x)
        return -(x + tail)[:, 0], tail - 1.0

    target = Target(value_and_gradient, dim=1, vectorized=True, returns_gradient=True)
    return ExactDraws(target, lambda rng, n: rng.gumbel(size=(n, 1)))


@dataclass(frozen=True)
class ScalarMetric:
    """A metric in one dimension, from G(q) and its derivative; none where q is above `end`."""

    value: Callable[[np.ndarray], np.ndarray]
    slope: Callable[[np.ndarray], np.ndarray]
    end: float = np.inf

    def at(self, position: np.ndarray) -> LocalScalarMetric:
        value = np.where(position > self.end, np.nan, self.value(position))
        return LocalScalarMetric(value[:, :, None], np.sqrt(value)[:, :, None], self.slope(position))


@dataclass
class LocalScalarMetric:
    matrix: np.ndarray
    cholesky: np.ndarray
    slope: np.ndarray

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        return self.slope * velocity**2

    def trace_contraction(self) -> np.ndarray:
        return self.slope / self.matrix[:, :, 0]


#: The curvature of a Gumbel variable's potential plus one; the same with a hole; and one that changes so fast that
#: the implicit equations have several solutions.
CURVATURE = ScalarMetric(lambda q: 1.0 + np.exp(-q), lambda q: -np.exp(-q))
HOLED = replace(CURVATURE, end=1.5)
STEEP = ScalarMetric(lambda q: 0.5 + np.exp(2.0 * q), lambda q: 2.0 * np.exp(2.0 * q))


def statistics(state: State, potential: np.ndarray) -> np.ndarray:
    """Return eight statistics of each chain that no symmetry makes equal; `potential` is the exact one."""
    first, last = state.position[:, 0], state.position[:, -1]
    columns = (first, last, first**2, last**2, first**3, first * last, potential, first < -0.3)
    return np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)


def largest_z(
    kernel,
    exact: ExactDraws,
    n: int,
    *,
    steps: int = 1,
    seed: int = 1,
    acceptance: tuple[float, float] = (0.2, 0.98),
) -> float:
    """Return the largest |z| of all statistics after `steps` steps of `n` chains.

    The `acceptance` must be in the range given: the decision must matter for the test to see anything.
    """
    rng = np.random.default_rng(seed)
    evaluator = Evaluator(exact.target)
    state = start = State.from_evaluation(evaluator.value_and_gradient(exact.draw(rng, n)))
    streams = SharedStream(rng, n)
    accepted = np.zeros(n)
    for _ in range(steps):
        state, info = kernel.step(streams, state, evaluator)
        accepted += info.accepted
    assert acceptance[0] < accepted.mean() / steps < acceptance[1]
    change = statistics(state, Evaluator(exact.target).value(state.position).potential)
    change -= statistics(start, start.potential)
    spread = change.std(axis=0)
    moved = spread > 0  # where nothing moves nothing can go wrong
    return float(np.abs(change.mean(axis=0)[moved] / (spread[moved] / np.sqrt(n))).max(initial=0.0))
