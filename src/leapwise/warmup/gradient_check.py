r"""Does the gradient belong to the log-density?

A wrong gradient does not bias the draws. But nearly every proposal would be rejected, and the warm-up would use ever
smaller and more steps, which wastes evaluations. One short leapfrog step shows it. Its energy error is exactly

.. math:: \Delta H = U(q') - U(q) - \tfrac12 \left(\nabla U(q) + \nabla U(q')\right) \cdot (q' - q),

the error of the trapezoidal rule. If the gradient is that of U, this is of third order in the step, and so a small
fraction of the change that the two gradients predict. The error is compared with the root of the sum of squares of the
changes predicted along each coordinate, so that one wrong component of `dim` shows; if it happens to be small at one
chain, another chain shows it. A kink could make the error large too. So two more and shorter steps, each from where the
last one ended, must agree before the run is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.dynamics import EuclideanMetric, UnitMetric
from leapwise.errors import GradientError, OutputError
from leapwise.execution import Evaluator
from leapwise.kernels import State
from leapwise.targets import Density
from leapwise.targets.calls import checked_rows

#: Sizes of the steps that are tried, as fractions of a step size that is accepted. The later ones are tried only if the
#: first fails. Guesses: short enough for the trapezoidal rule, and no simple multiples of one another.
SHORT = (1.0 / 16.0, 1.0 / 23.0, 1.0 / 64.0)
#: Number of chains that are checked. A guess: a wrong component may be small at one of them.
MOST_CHAINS = 4
#: Largest error allowed, relative to the predicted change. A guess: far above the error of the rule.
LARGEST_SHARE = 0.05
#: Rounding errors allowed for: relative to a potential (solvers are not exact), and to a sum of few terms.
ROUNDING, ROUNDING_OF_SUMS = 1e-9, 1e-12
#: Largest relative disagreement of the two values of a target that returns them by two functions, and largest absolute
#: one: a hundredth of a log-density does not matter to acceptance.
VALUES_RELATIVE, VALUES_ABSOLUTE = 1e-9, 0.01
#: Step of the differences of cheap densities, relative to the coordinates; and the change that is large enough to see,
#: to which longer steps are shortened. Guesses.
NEAR, ENOUGH = 1e-5, 1e-2
#: Differences taken at each point, and the largest number shown in a message.
N_DIAGONALS, N_SHOWN = 3, 4
#: Factors by which differences are shortened, and the relative distance of nearby points that must confirm a failure.
SHORTER, NEARBY = (1.0, 1e-3, 1e-6), 1e-2


def check_start(evaluator: Evaluator, state: State) -> None:
    """Raise if, at the start, the gradient is wrong or its value differs from the value without gradient.

    It costs one gradient for each of at most four chains, and one value if another function returns it.
    """
    assert state.gradient is not None
    if evaluator.target.has_separate_value:
        with evaluator.observed_by(None):  # this value is known already, from the gradient's call
            check_values(evaluator, state)
    steepness = np.linalg.norm(state.gradient, axis=1) / np.sqrt(state.position.shape[1])
    check_gradient(evaluator, state, UnitMetric(), 1.0 / (1.0 + steepness))


def check_values(evaluator: Evaluator, state: State) -> None:
    """Raise if the value alone differs from the value with a gradient: chains would never leave their start."""
    alone, together = float(evaluator.value(state.position[:1]).potential[0]), float(state.potential[0])
    if not abs(alone - together) <= VALUES_ABSOLUTE + VALUES_RELATIVE * abs(together):
        raise OutputError(
            f"the target's log-density is {-alone:.9g} when evaluated alone and {-together:.9g} when evaluated "
            "with its gradient, at one position; make both functions return the same value"
        )


def check_gradient(
    evaluator: Evaluator, state: State, metric: EuclideanMetric, step_size: float | np.ndarray
) -> None:
    """Raise if short steps of one of the first chains show that the gradient is wrong.

    A step goes down the gradient and, by the same distance, along or against every coordinate at random. So a wrong
    component shows even where the gradient is zero. It costs one gradient for each chain if all is well.
    """
    assert state.gradient is not None
    rows = np.sort(np.unique(state.position, axis=0, return_index=True)[1])[:MOST_CHAINS]
    rng, sizes = np.random.default_rng(0), np.broadcast_to(step_size, len(state.position))[rows]
    position, potential, gradient = state.position[rows], state.potential[rows], state.gradient[rows]
    changes, predicted = np.empty((0, len(rows))), np.empty((0, len(rows)))
    for share in SHORT:
        move = share * sizes[:, None] * _velocity(metric, gradient, rng)
        after = evaluator.value_and_gradient(position + move)
        assert after.gradient is not None
        with np.errstate(invalid="ignore", over="ignore"):
            rise, claims = after.potential - potential, 0.5 * (gradient + after.gradient) * move
            least = LARGEST_SHARE * np.linalg.norm((np.abs(gradient) + np.abs(after.gradient)) * move, axis=1)
            off = np.abs(rise - claims.sum(axis=1))
            # Outside the support there is nothing to compare.
            wrong = np.isfinite(rise) & (off > least + ROUNDING * np.maximum(1.0, np.abs(potential)))
        if not wrong.any():
            return
        changes, predicted = (
            np.vstack([old, new])[:, wrong]
            for old, new in ((changes, -rise), (predicted, -claims.sum(axis=1)))
        )
        position, potential, gradient = after.position[wrong], after.potential[wrong], after.gradient[wrong]
        sizes = sizes[wrong]
    raise GradientError(
        f"the gradient does not match the log-density: over {len(SHORT)} short steps from a start the log-density "
        f"changes by {_numbers(changes[:, 0])}, and the gradient predicts {_numbers(predicted[:, 0])}; compare it with "
        "finite differences (it must be that of the log-density, not of its negative), or leave it out. A gradient "
        "that is rough on purpose needs method=HMC(step_size=..., n_steps=...)"
    )


def _velocity(metric: EuclideanMetric, gradient: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return velocities ``(n, dim)``: along or against every coordinate, plus the same length down the gradient."""
    momentum = metric.momentum(rng.choice([-1.0, 1.0], gradient.shape))
    slope = np.sqrt(np.einsum("ij,ij->i", gradient, metric.velocity(gradient)))[:, None]
    down = np.where(slope > 0, gradient * (np.sqrt(gradient.shape[1]) / np.where(slope > 0, slope, 1.0)), 0.0)
    return metric.velocity(momentum - down)


def check_density(name: str, density: Density, points: np.ndarray) -> None:
    """Raise if the gradient of a likelihood or prior is not that of its log-density; costs no exact evaluation.

    Central differences are taken along random diagonals at `points` ``(n, m)``, short enough that the density should
    change little. Shorter differences replace them where rounding errors allow. Because there may be a kink, nearby
    points must fail too, and more than half of all points. A density that raises at nearby points is not checked.
    """
    rng = np.random.default_rng(0)
    points = points[np.isfinite(points).all(axis=1)]
    value = density.log_density(points)
    points, value = points[np.isfinite(value)], value[np.isfinite(value)]
    if not len(points):
        return
    try:
        found = density.gradient(points)
    except Exception as error:
        raise OutputError(
            f"{name}.gradient raised {type(error).__name__}: {error}; it must return one row for each of {len(points)} "
            "rows"
        ) from error
    gradient = checked_rows(found, len(points), points.shape[1], True, f"{name}.gradient")
    unknown = np.isnan(gradient).any(axis=1)
    if unknown.any():
        raise GradientError(
            f"the gradient of the {name} is NaN where its log-density is {value[unknown][0]:.3g}; compare it with "
            "finite differences"
        )
    # Along one diagonal the density may hardly change.
    points = np.repeat(points, N_DIAGONALS, axis=0)
    near = points + NEARBY * (1.0 + np.abs(points)) * rng.normal(size=points.shape)
    try:
        here, there = (_Differences.of(density, each, rng) for each in (points, near))
    except Exception:  # nearby points may be ones that the model never returns
        return
    wrong = here.wrong & there.wrong
    if not wrong.reshape(-1, N_DIAGONALS).any(axis=1).mean() > 0.5:
        return
    rise, predicted = here.rise[wrong][:N_SHOWN], here.predicted[wrong][:N_SHOWN]
    raise GradientError(
        f"the gradient of the {name} does not match its log-density: over short steps the log-density "
        f"changes by {_numbers(rise)}, and the gradient predicts {_numbers(predicted)}; compare it with finite "
        "differences (it must be that of the log-density, not of its negative)"
    )


@dataclass(frozen=True, eq=False)
class _Differences:
    """Changes of a density over short steps, ``(n,)``, the changes its gradient predicts, and which are wrong."""

    rise: np.ndarray
    predicted: np.ndarray
    wrong: np.ndarray

    @classmethod
    def of(cls, density: Density, points: np.ndarray, rng: np.random.Generator) -> _Differences:
        """Return the differences at points ``(n, m)``: the shortest that rounding allows."""
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
                predicted, scale = claims.sum(axis=1), np.linalg.norm(claims, axis=1)
                is_clear = np.isfinite(rise) & (
                    np.maximum(np.abs(rise), scale) > 100.0 * ROUNDING_OF_SUMS * size
                )
                wrong = np.abs(rise - predicted) > 2.0 * LARGEST_SHARE * scale + ROUNDING_OF_SUMS * size
                pairs = ((rise, found.rise), (predicted, found.predicted), (wrong, found.wrong))
                found = cls(*(np.where(is_clear, new, old) for new, old in pairs))
        return found


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
