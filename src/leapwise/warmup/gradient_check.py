r"""Does the gradient belong to the log-density?

A wrong gradient does not bias the draws, but nearly every proposal is rejected, and warm-up would answer with ever
smaller and more steps: a fortune in evaluations. One short leapfrog step tells. Its energy error is exactly

.. math:: \Delta H = U(q') - U(q) - \tfrac12 \left(\nabla U(q) + \nabla U(q')\right) \cdot (q' - q),

the error of the trapezoidal rule: of third order in the step, and so a small part of what the two gradients claim,
unless the gradient is not that of U. A component that is wrong shows in the root of the sum of squares of what each
coordinate claims, in which it is one of `dim`; where it happens to be small, another chain tells. A kink on the way
could make the error large too, so two more steps, from where the last ended and shorter, must say the same before the
run is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.dynamics import EuclideanMetric, UnitMetric
from leapwise.errors import GradientError, OutputError
from leapwise.execution import Evaluator
from leapwise.kernels import State
from leapwise.targets import Density
from leapwise.targets.returns import checked_rows

#: Lengths of the steps that are tried, as shares of one that is accepted; all but the first only where it failed.
SHORT = (1.0 / 16.0, 1.0 / 23.0, 1.0 / 64.0)
#: Chains that are looked at.
MOST_CHAINS = 4
LARGEST_SHARE = 0.05
ROUNDING, ROUNDING_OF_SUMS = 1e-9, 1e-12
#: Length of differences of cheap densities: relative to the coordinates, and the change that is said to be enough.
NEAR, ENOUGH = 1e-5, 1e-2
#: How many are taken at a point, and how many are shown at most.
N_DIAGONALS, N_SHOWN = 3, 4
#: What they are shortened by where they disagree, and how far away others are taken, relative to the coordinates.
SHORTER, ELSEWHERE = (1.0, 1e-3, 1e-6), 1e-2


def check_start(evaluator: Evaluator, state: State) -> None:
    """Raise if, where chains start, the gradient is wrong or comes with another value than is had without it.

    It costs one gradient a chain, of four at most, and one value where another function returns it.
    """
    assert state.gradient is not None
    if evaluator.target.has_two_values:
        with evaluator.observed_by(None):  # it is known already, with its gradient
            check_values(evaluator, state)
    steepness = np.linalg.norm(state.gradient, axis=1) / np.sqrt(state.position.shape[1])
    check_gradient(evaluator, state, UnitMetric(), 1.0 / (1.0 + steepness))


def check_values(evaluator: Evaluator, state: State) -> None:
    """Raise if a value alone is not the value that came with a gradient: the first draws would never be left."""
    alone, together = float(evaluator.value(state.position[:1]).potential[0]), float(state.potential[0])
    if not abs(alone - together) <= 0.01 + 1e-9 * abs(together):
        raise OutputError(
            f"the target's log-density is {-alone:.9g} when asked alone and {-together:.9g} when asked with its "
            "gradient, at one position; make both functions return the same value"
        )


def check_gradient(
    evaluator: Evaluator, state: State, metric: EuclideanMetric, step_size: float | np.ndarray
) -> None:
    """Raise if short steps of one of the first chains say that the gradient is wrong.

    A step goes down the gradient and, as far again, along or against every coordinate at random, so that a wrong
    component shows even if the gradient has none there. It costs one gradient a chain if all is well.
    """
    assert state.gradient is not None
    rows = np.sort(np.unique(state.position, axis=0, return_index=True)[1])[:MOST_CHAINS]
    rng, sizes = np.random.default_rng(0), np.broadcast_to(step_size, len(state.position))[rows]
    position, potential, gradient = state.position[rows], state.potential[rows], state.gradient[rows]
    changes, said = np.empty((0, len(rows))), np.empty((0, len(rows)))
    for share in SHORT:
        move = share * sizes[:, None] * _velocity(metric, gradient, rng)
        after = evaluator.value_and_gradient(position + move)
        assert after.gradient is not None
        with np.errstate(invalid="ignore", over="ignore"):
            rise, claims = after.potential - potential, 0.5 * (gradient + after.gradient) * move
            least = LARGEST_SHARE * np.linalg.norm((np.abs(gradient) + np.abs(after.gradient)) * move, axis=1)
            off = np.abs(rise - claims.sum(axis=1))
            # Beyond the support there is nothing to compare.
            wrong = np.isfinite(rise) & (off > least + ROUNDING * np.maximum(1.0, np.abs(potential)))
        if not wrong.any():
            return
        changes, said = (
            np.vstack([old, new])[:, wrong] for old, new in ((changes, -rise), (said, -claims.sum(axis=1)))
        )
        position, potential, gradient = after.position[wrong], after.potential[wrong], after.gradient[wrong]
        sizes = sizes[wrong]
    raise GradientError(
        f"the gradient does not match the log-density: over {len(SHORT)} short steps from a start the log-density "
        f"changes by {_numbers(changes[:, 0])}, and the gradient says {_numbers(said[:, 0])}; compare it with finite "
        "differences (it is that of the log-density, not of its negative), or leave it out. A gradient that is meant "
        "to be rough goes with method=HMC(step_size=..., n_steps=...)"
    )


def _velocity(metric: EuclideanMetric, gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return velocities ``(n, dim)``: along or against every coordinate, and as much down the gradient."""
    momentum = metric.momentum(rng.choice([-1.0, 1.0], gradient.shape))
    slope = np.sqrt(np.einsum("ij,ij->i", gradient, metric.velocity(gradient)))[:, None]
    down = np.where(slope > 0, gradient * (np.sqrt(gradient.shape[1]) / np.where(slope > 0, slope, 1.0)), 0.0)
    return metric.velocity(momentum - down)


def check_density(name: str, density: Density, points: np.ndarray) -> None:
    """Raise if the gradient of a likelihood or prior is not that of its log-density; costs no exact evaluation.

    Central differences are taken along a random diagonal at `points` ``(n, m)``, short enough that the density should
    change little; of shorter ones those that rounding leaves anything of are believed. Since there may be a kink, the
    same must be seen near by, and at most points. A density that does not want to be asked near by is left in peace.
    """
    rng = np.random.default_rng(0)
    points = points[np.isfinite(points).all(axis=1)]
    value = density.log_density(points)
    points, value = points[np.isfinite(value)], value[np.isfinite(value)]
    if not len(points):
        return
    try:
        answer = density.gradient(points)
    except Exception as error:
        raise OutputError(
            f"{name}.gradient raised {type(error).__name__}: {error}; it must return one row for each of {len(points)}"
        ) from error
    gradient = checked_rows(answer, len(points), points.shape[1], True, f"{name}.gradient")
    unknown = np.isnan(gradient).any(axis=1)
    if unknown.any():
        raise GradientError(
            f"the gradient of the {name} is NaN where its log-density is {value[unknown][0]:.3g}; compare it with "
            "finite differences"
        )
    # One diagonal may be one along which next to nothing changes.
    points = np.repeat(points, N_DIAGONALS, axis=0)
    near = points + ELSEWHERE * (1.0 + np.abs(points)) * rng.normal(size=points.shape)
    try:
        here, there = (_Differences.of(density, each, rng) for each in (points, near))
    except Exception:  # such as the model never returns
        return
    wrong = here.wrong & there.wrong
    if not wrong.reshape(-1, N_DIAGONALS).any(axis=1).mean() > 0.5:
        return
    rise, said = here.rise[wrong][:N_SHOWN], here.said[wrong][:N_SHOWN]
    raise GradientError(
        f"the gradient of the {name} does not match its log-density: over short steps that changes by "
        f"{_numbers(rise)}, and the gradient says {_numbers(said)}; compare it with finite "
        "differences (it is that of the log-density, not of its negative)"
    )


@dataclass(frozen=True, eq=False)
class _Differences:
    """What a density changes by over short steps, ``(n,)``, what its gradient says, and whether that is wrong."""

    rise: np.ndarray
    said: np.ndarray
    wrong: np.ndarray

    @classmethod
    def of(cls, density: Density, points: np.ndarray, rng: np.random.Generator) -> _Differences:
        """Take them at points ``(n, m)``, the shortest that tell."""
        n = len(points)
        found = cls(np.zeros(n), np.zeros(n), np.zeros(n, bool))
        with np.errstate(all="ignore"):
            gradient, size = density.gradient(points), 1.0 + np.abs(density.log_density(points))
            longest = NEAR * (1.0 + np.abs(points)) * rng.choice([-1.0, 1.0], points.shape)
            change = np.linalg.norm(gradient * longest, axis=1)
            longest *= np.minimum(1.0, ENOUGH / np.where(change > 0, change, ENOUGH))[:, None]
            for share in SHORTER:
                after, before = points + share * longest, points - share * longest
                rise = density.log_density(after) - density.log_density(before)
                claims = gradient * (after - before)
                said, scale = claims.sum(axis=1), np.linalg.norm(claims, axis=1)
                tells = np.isfinite(rise) & (
                    np.maximum(np.abs(rise), scale) > 100.0 * ROUNDING_OF_SUMS * size
                )
                wrong = np.abs(rise - said) > 2.0 * LARGEST_SHARE * scale + ROUNDING_OF_SUMS * size
                pairs = ((rise, found.rise), (said, found.said), (wrong, found.wrong))
                found = cls(*(np.where(tells, new, old) for new, old in pairs))
        return found


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
