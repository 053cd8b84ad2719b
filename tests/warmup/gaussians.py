"""Targets for warm-up: Gaussians of any covariance that count their gradients."""

from __future__ import annotations

import numpy as np

from leapwise import Evaluator, State, Target

Start = tuple[Evaluator, State]


def start_gaussian(covariance: np.ndarray, position: np.ndarray) -> Start:
    """Evaluate a Gaussian with this covariance at `position`, and leave the counts at zero."""
    precision = np.linalg.inv(covariance)
    target = Target(
        lambda x: -0.5 * np.einsum("ni,ij,nj->n", x, precision, x),
        lambda x: -x @ precision,
        dim=len(covariance),
        vectorized=True,
    )
    state = State.from_evaluation(Evaluator(target).value_and_gradient(position))
    return Evaluator(target), state
