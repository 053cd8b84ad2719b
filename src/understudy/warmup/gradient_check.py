r"""Does the gradient belong to the log-density?

A wrong gradient does not bias the draws, but nearly every proposal is rejected, and warm-up would answer with ever
smaller and more steps: a fortune in evaluations. One short leapfrog step tells. Its energy error is exactly

.. math:: \Delta H = U(q') - U(q) - \tfrac12 \left(\nabla U(q) + \nabla U(q')\right) \cdot (q' - q),

the error of the trapezoidal rule: of third order in the step, and so a small part of what the two gradients claim,
unless the gradient is not that of U. A kink on the way could make it large too, so two more steps, elsewhere and
shorter, must say the same before the run is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from understudy.dynamics import EuclideanMetric
from understudy.errors import GradientError
from understudy.kernels import State
from understudy.targets import Density, Evaluator

#: Lengths of the steps that are tried, as shares of one that is accepted; all but the first only where it failed.
SHORT = (1.0 / 16.0, 1.0 / 23.0, 1.0 / 64.0)
LARGEST_SHARE = 0.1
ROUNDING = 1e-9
#: Length of differences of cheap densities, relative to the coordinates.
NEAR = 1e-5


@dataclass(frozen=True)
class Claim:
    """What one short step changed the log-density by, what the gradient says, and whether they agree."""

    change: float
    said: float
    agrees: bool


def check_gradient(evaluator: Evaluator, state: State, metric: EuclideanMetric, step_size: float) -> None:
    """Raise if short steps of the first chain say that the gradient is wrong; costs one gradient if it is right.

    A step goes down the gradient and, as far again, along or against every coordinate at random, so that a wrong
    component shows even if the gradient has none there.
    """
    rng, failed = np.random.default_rng(0), []
    for share in SHORT:
        claim = _try(evaluator, state, metric, share * step_size, rng)
        if claim is None:  # beyond the support there is nothing to compare
            continue
        if claim.agrees:
            return
        failed.append(claim)
    if len(failed) < len(SHORT):
        return
    raise GradientError(
        f"the gradient does not match the log-density: over {len(failed)} short steps from a start the log-density "
        f"changes by {_numbers([each.change for each in failed])}, and the gradient says "
        f"{_numbers([each.said for each in failed])}; compare it with finite differences (it is that of the "
        "log-density, not of its negative), or leave it out. A gradient that is meant to be rough goes with "
        "method=HMC(step_size=..., n_steps=...)"
    )


def check_density(name: str, density: Density, points: np.ndarray) -> None:
    """Raise if the gradient of a likelihood or prior is not that of its log-density; costs no exact evaluation.

    Central differences are taken along a random diagonal at each of `points` ``(n, m)``. A kink may lie between, so
    all of them must say the same.
    """
    points = points[np.isfinite(points).all(axis=1)]
    rng = np.random.default_rng(0)
    move = NEAR * (1.0 + np.abs(points)) * rng.choice([-1.0, 1.0], points.shape)
    with np.errstate(all="ignore"):
        rise = density.log_density(points + move) - density.log_density(points - move)
        claims = 2.0 * density.gradient(points) * move
        size = 1.0 + np.abs(density.log_density(points))
    known = np.isfinite(rise) & np.isfinite(claims).all(axis=1)
    rise, said, size = rise[known], claims[known].sum(axis=1), size[known]
    # Of wrong components of many, what shows along a diagonal is about the root of the sum of their squares.
    tolerance = LARGEST_SHARE * np.sqrt((claims[known] ** 2).sum(axis=1)) + ROUNDING * size
    if not len(rise) or (np.abs(rise - said) <= tolerance).any():
        return
    raise GradientError(
        f"the gradient of the {name} does not match its log-density: over {len(rise)} short steps that changes by "
        f"{_numbers(rise.tolist())}, and the gradient says {_numbers(said.tolist())}; compare it with finite "
        "differences (it is that of the log-density, not of its negative)"
    )


def _try(
    evaluator: Evaluator, state: State, metric: EuclideanMetric, step_size: float, rng: np.random.Generator
) -> Claim | None:
    """Make one short step of the first chain; return what it tells, None if it leaves the support."""
    assert state.gradient is not None
    position, gradient, dim = state.position[:1], state.gradient[:1], state.position.shape[1]
    slope = float(np.sqrt(np.einsum("ij,ij->", gradient, metric.velocity(gradient))))
    momentum = metric.momentum(rng.choice([-1.0, 1.0], (1, dim)))
    if slope > 0:
        momentum = momentum - gradient * (np.sqrt(dim) / slope)
    move = step_size * metric.velocity(momentum)
    after = evaluator.value_and_gradient(position + move)
    assert after.gradient is not None
    if not np.isfinite(after.potential[0]):
        return None
    claims = np.array([float(gradient[0] @ move[0]), float(after.gradient[0] @ move[0])])
    rise = float(after.potential[0] - state.potential[0])
    tolerance = LARGEST_SHARE * np.abs(claims).sum() + ROUNDING * max(1.0, abs(float(state.potential[0])))
    return Claim(-rise, -float(claims.mean()), bool(abs(rise - claims.mean()) <= tolerance))


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
