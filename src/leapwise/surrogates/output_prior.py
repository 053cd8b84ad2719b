"""The prior of a forward model's parameters, at unconstrained positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from leapwise.surrogates.output_space import CheapDensity, SmoothPotential
from leapwise.surrogates.whitening import Whitening

PriorPotential = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Bounded(Protocol):
    """A map from positions to parameters."""

    def to_parameters(self, position: np.ndarray) -> np.ndarray:
        """Return parameters ``(n, dim)``."""
        ...

    def log_jacobian(self, position: np.ndarray) -> np.ndarray:
        """Return log |dx/dq|, ``(n,)``."""
        ...

    def pull_back(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Turn a gradient in parameters into that of log-density + log-Jacobian in positions."""
        ...


def prior_potential(prior: CheapDensity, transform: Bounded) -> PriorPotential:
    """Return the potential of a prior at unconstrained positions, log-Jacobian included, and its gradient."""

    def potential(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parameters = transform.to_parameters(position)
        value = -(prior.log_density(parameters) + transform.log_jacobian(position))
        return value, -transform.pull_back(position, prior.gradient(parameters))

    return potential


def in_white(prior: PriorPotential, whitening: Whitening) -> SmoothPotential:
    """Return the potential of a prior as a function of whitened positions, asked as it is."""

    def potential(white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = prior(whitening.from_white(white))
        return value, whitening.gradient_to_white(gradient)

    return SmoothPotential(potential)
