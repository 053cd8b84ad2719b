r"""Outputs of a forward model in few coordinates, and the cheap parts of its posterior.

**Compression.** Outputs are centred, divided by scales, and projected on their principal components. The scales are
those on which the likelihood changes, :math:`1/\sqrt{-\partial_k^2 \log L}` at the best training point (the standard
deviations of the errors for a Gaussian likelihood), so a component's variance says how much it matters. As many are
kept as leave out less than :math:`10^{-4}` of variance in all: an error of about 0.01 in the potential.

**Derivatives of likelihoods.** A likelihood offers its value and gradient. Whether its gradient is affine, as a
Gaussian's is, is found out once from the training outputs; the potential is then a quadratic form of the components and
all its derivatives are exact; so with the prior. Of any other likelihood or prior, second and third derivatives along
given directions are central differences of the gradient, with steps of 1e-3 (1e-2 for the third) in units in which the
function changes on a scale of about 1: accurate to about 1e-6 (1e-4) of their own size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_DISCARDED = 1e-4
_PROBES = 16
_STEP, _WIDE_STEP = 1e-3, 1e-2


class CheapDensity(Protocol):
    """A log-density on batches, one row a point."""

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return log-densities ``(n,)``."""
        ...

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return their gradients, shaped like `points`."""
        ...


@dataclass(frozen=True, eq=False)
class OutputSpace:
    """An affine map between outputs ``(n, m)`` and components ``(n, p)``.

    Attributes
    ----------
    mean : ndarray of shape (m,)
    encoder : ndarray of shape (m, p)
    decoder : ndarray of shape (p, m)
    """

    mean: np.ndarray
    encoder: np.ndarray
    decoder: np.ndarray

    @classmethod
    def learn(
        cls, outputs: np.ndarray, best: int, likelihood: CheapDensity, rng: np.random.Generator
    ) -> OutputSpace:
        """Find the principal components of outputs; `best` is the row with the lowest potential."""
        mean = outputs.mean(axis=0)
        scale = _scales(outputs, outputs[best], likelihood, rng)
        _, values, axes = np.linalg.svd((outputs - mean) / scale, full_matrices=False)
        left_out = np.cumsum((values**2)[::-1])[::-1] / len(outputs)
        p = max(1, int((left_out > _DISCARDED).sum()))
        return cls(mean, axes[:p].T / scale[:, None], axes[:p] * scale)

    def encode(self, outputs: np.ndarray) -> np.ndarray:
        """Return components."""
        return (outputs - self.mean) @ self.encoder

    def decode(self, components: np.ndarray) -> np.ndarray:
        """Return outputs."""
        return self.mean + components @ self.decoder


class Potential(Protocol):
    """A cheap potential with derivatives up to the third, on batches."""

    def value_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values ``(n,)`` and gradients ``(n, p)``."""
        ...

    def curvature(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions` ``(n, k, p)``."""
        ...

    def bend(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to each of `directions`, ``(n, k, p)``."""
        ...


@dataclass(frozen=True, eq=False)
class SmoothPotential:
    """A potential known by its value and gradient; further derivatives are differences of the gradient."""

    value_and_gradient: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    def curvature(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions`."""
        unit, length = _normalised(directions)
        ahead, behind = self._beside(points, _STEP * unit)
        return (ahead - behind) * (length / (2.0 * _STEP))

    def bend(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to each of `directions`."""
        unit, length = _normalised(directions)
        ahead, behind = self._beside(points, _WIDE_STEP * unit)
        middle = self.value_and_gradient(points)[1][:, None, :]
        return ((ahead - middle) - (middle - behind)) * (length / _WIDE_STEP) ** 2

    def _beside(self, points: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradients ahead and behind, each shaped like `steps` ``(n, k, p)``."""
        size = points.shape[1]
        moved = [(points[:, None, :] + sign * steps).reshape(-1, size) for sign in (1.0, -1.0)]
        ahead, behind = (self.value_and_gradient(where)[1].reshape(steps.shape) for where in moved)
        return ahead, behind


@dataclass(frozen=True, eq=False)
class QuadraticPotential:
    """A quadratic form: what a Gaussian likelihood is."""

    origin: np.ndarray
    lowest: float
    slope: np.ndarray
    matrix: np.ndarray

    def value_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values and gradients."""
        shift = points - self.origin
        image = shift @ self.matrix
        return self.lowest + np.einsum("ij,ij->i", shift, 0.5 * image + self.slope), image + self.slope

    def curvature(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions`."""
        return directions @ self.matrix

    def bend(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros_like(directions)


def component_potential(likelihood: CheapDensity, space: OutputSpace, components: np.ndarray) -> Potential:
    """Return minus the log-likelihood as a function of components; a quadratic form if it is one on those given."""

    def value_and_gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = space.decode(points)
        return -likelihood.log_density(outputs), -likelihood.gradient(outputs) @ space.decoder.T

    return as_quadratic(SmoothPotential(value_and_gradient), components)


def as_quadratic(smooth: SmoothPotential, points: np.ndarray) -> Potential:
    """Return a potential as a quadratic form if it is one, at points ``(n, p)`` and beyond them; else itself."""
    values, slopes = smooth.value_and_gradient(points)
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
        return smooth
    p = points.shape[1]
    # The affine part is exact for steps of any length, so they are as long as the data are wide: no cancellation.
    width = max(float(np.ptp(points)), 1.0)
    beyond = np.concatenate([points[:1] + sign * width * np.eye(p) for sign in (1, -1)])
    with np.errstate(all="ignore"):  # other potentials may not be defined there
        height, slope = smooth.value_and_gradient(beyond)
        matrix = (slope[:p] - slope[p:]) / (2.0 * width)
    if not (np.isfinite(matrix).all() and np.isfinite(height).all()):
        return smooth
    guess = QuadraticPotential(points[0], float(values[0]), slopes[0], 0.5 * (matrix + matrix.T))
    for where, value, gradient in ((points, values, slopes), (beyond, height, slope)):
        again, slopes_again = guess.value_and_gradient(where)
        if not (_agree(slopes_again, gradient) and _agree(again - values[0], value - values[0])):
            return smooth
    return guess


def _agree(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same but for rounding, in units of what they vary by."""
    return bool(np.allclose(one, other, rtol=1e-8, atol=1e-8 * max(1.0, float(np.abs(other).max()))))


def _scales(
    outputs: np.ndarray, point: np.ndarray, likelihood: CheapDensity, rng: np.random.Generator
) -> np.ndarray:
    """Return the scales on which the likelihood changes with each output, ``(m,)``.

    The diagonal of its Hessian is estimated from products with random signs, exactly where it is diagonal.
    """
    spread = outputs.std(axis=0)
    spread = np.where(spread > 0, spread, spread.mean() or 1.0)
    steps = _STEP * spread * rng.choice([-1.0, 1.0], size=(_PROBES, spread.size))
    change = likelihood.gradient(point + steps) - likelihood.gradient(point - steps)
    # In units of the spread, in which very different outputs can be compared.
    curvature = -(change / (2.0 * steps)).mean(axis=0) * spread**2
    usable = np.isfinite(curvature) & (curvature > 0)
    if not usable.any():
        return spread
    least = 1e-12 * curvature[usable].max()
    return np.asarray(spread / np.sqrt(np.where(usable, np.maximum(curvature, least), least)))


def _normalised(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit directions, and lengths ``(n, k, 1)``; of no direction, itself and 0."""
    length = np.linalg.norm(directions, axis=2, keepdims=True)
    return directions / np.where(length > 0, length, 1.0), length
