r"""Does the gradient belong to the log-density?

A wrong gradient does not bias the draws, but nearly every proposal is rejected, and warm-up would answer with ever
smaller and more steps: a fortune in evaluations. One short leapfrog step tells. Its energy error is exactly

.. math:: \Delta H = U(q') - U(q) - \tfrac12 \left(\nabla U(q) + \nabla U(q')\right) \cdot (q' - q),

the error of the trapezoidal rule: of third order in the step, and so a small part of what the two gradients claim,
unless the gradient is not that of U.
"""

from __future__ import annotations

import warnings

import numpy as np

from understudy.dynamics import EuclideanMetric
from understudy.kernels import State
from understudy.targets import Evaluator

SHORT = 1.0 / 16.0  # of a step that is accepted
LARGEST_SHARE = 0.1
ROUNDING = 1e-9


class GradientWarning(UserWarning):
    """The gradient does not seem to be that of the log-density."""


def check_gradient(evaluator: Evaluator, state: State, metric: EuclideanMetric, step_size: float) -> None:
    """Warn if one short step of the first chain says that the gradient is wrong; costs one gradient.

    The step goes down the gradient and, as far again, along or against every coordinate at random, so that a wrong
    component shows even if the gradient has none there.
    """
    assert state.gradient is not None
    position, gradient, dim = state.position[:1], state.gradient[:1], state.position.shape[1]
    slope = float(np.sqrt(np.einsum("ij,ij->", gradient, metric.velocity(gradient))))
    momentum = metric.momentum(np.random.default_rng(0).choice([-1.0, 1.0], (1, dim)))
    if slope > 0:
        momentum = momentum - gradient * (np.sqrt(dim) / slope)
    move = SHORT * step_size * metric.velocity(momentum)
    after = evaluator.value_and_gradient(position + move)
    assert after.gradient is not None
    if not np.isfinite(after.potential[0]):
        return
    claims = np.array([float(gradient[0] @ move[0]), float(after.gradient[0] @ move[0])])
    error = abs(float(after.potential[0] - state.potential[0]) - claims.mean())
    if error > LARGEST_SHARE * np.abs(claims).sum() + ROUNDING * max(1.0, abs(float(state.potential[0]))):
        warnings.warn(
            f"the gradient does not seem to match the log-density: over a short step from the start of chain 0 the "
            f"log-density changes by {float(state.potential[0] - after.potential[0]):.3g}, the gradient says "
            f"{-claims.mean():.3g}; compare it with finite differences",
            GradientWarning,
            stacklevel=2,
        )
