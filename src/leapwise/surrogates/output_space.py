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

The prior of a forward model's parameters, at unconstrained positions.

Many components whose sum of squares is the misfit, as few: most of them hardly bend, and act together as one.

A Gaussian likelihood is a sum of squares of its components, :math:`\tfrac12 \sum_k u_k(z)^2`, once they are turned into
coordinates in which its matrix is the identity, the principal ones among them. The first p, which vary most, stay as
they are. The rest,

.. math:: R(z) = \tfrac12 \sum_{k > p} u_k(z)^2, \qquad u_k = \alpha_k + l_k \cdot z + q_k(z) + c_k(z),

with linear, quadratic and cubic parts, is up to the third order about z = 0

.. math::
    R = R_0 + s_1 + s_2 + s_3, \qquad s_1 = \sum \alpha_k\, l_k \cdot z, \quad
    s_2 = \sum \tfrac12 (l_k \cdot z)^2 + \alpha_k q_k, \quad s_3 = \sum (l_k \cdot z)\, q_k + \alpha_k c_k .

A cubic alone would fall without end far out, so one component b is made of it whose square has the same expansion,
:math:`\tfrac12 b^2 = R + C`, with :math:`b_0^2 = 2 (R_0 + C)`:

.. math::
    b = b_0 + \frac{s_1 + s_2 + s_3}{b_0} - \frac{s_1^2 + 2 s_1 s_2}{2 b_0^3} + \frac{s_1^3}{2 b_0^5} .

The constant C is 0 unless :math:`R_0` is below 10, and then what is missing: the surrogate is bounded below as it was,
but for C. What is lost are fourth orders of components that hardly bend. They are measured at the training positions,
and p is the smallest at which they come to no more than about 0.01 of the potential among draws; if that saves less
than half of the components, nothing is condensed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.surrogates.emulator import CubicForms, Emulator
from leapwise.surrogates.whitening import Whitening

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


#: Root mean square of what may be lost of the potential at training positions, each counting as at most 1. They reach
#: further out than draws, which lose about half of it.
TOLERANCE = 0.02
_KEPT = (0, 1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64)
_LEAST = 10.0


def condense(
    emulator: Emulator, misfit: QuadraticPotential, white: np.ndarray
) -> tuple[Emulator, QuadraticPotential]:
    """Return an emulator of fewer components and its misfit, with nearly the same potential; the same if none would do.

    Parameters
    ----------
    emulator : Emulator
    misfit : QuadraticPotential
        Of its components.
    white : ndarray of shape (n, dim)
        Whitened positions at which both must agree.

    Examples
    --------
    Twenty components, all alike but for what they are multiplied with, are as good as one:

    >>> from leapwise.surrogates.trend import TrendBasis
    >>> linear, size = np.array([0.3, -0.2]), np.arange(1.0, 21.0)[:, None]
    >>> trend = TrendBasis(2).weights_of(0.01 * size * linear, np.zeros((20, 2, 2))).T
    >>> many = Emulator(np.ones(20), trend)
    >>> misfit = QuadraticPotential(np.zeros(20), 0.0, np.zeros(20), np.eye(20))
    >>> few, its_misfit = condense(many, misfit, np.random.default_rng(0).standard_normal((50, 2)))
    >>> z = np.array([[0.5, 0.4]])
    >>> [m.value_and_gradient(e.components(z))[0].round(4) for e, m in ((many, misfit), (few, its_misfit))]
    [array([10.1477]), array([10.1477])]
    >>> len(few.constant)
    1
    """
    values, vectors = np.linalg.eigh(misfit.matrix)
    if not values[0] > 1e-10 * values[-1]:
        return emulator, misfit
    root = vectors * np.sqrt(values)
    components = emulator.components(white) @ root
    axes = np.linalg.svd(components - components.mean(axis=0), full_matrices=len(white) < len(root))[2].T
    slope = (misfit.slope @ vectors) / np.sqrt(values)
    root, shift = root @ axes, (slope - misfit.origin @ root) @ axes
    lowest = misfit.lowest - 0.5 * slope @ slope
    squares = 0.5 * (components @ axes + shift) ** 2
    turned = _turned(emulator, root, shift)
    for kept in _KEPT:
        if 2 * (kept + 1) > len(shift):
            break
        rest, constant = _rest(turned, kept)
        with np.errstate(all="ignore"):
            lost = squares[:, kept:].sum(axis=1) - 0.5 * rest.components(white)[:, 0] ** 2
            lost = np.clip(lost - np.median(lost), -1.0, 1.0)
        if np.sqrt(np.mean(lost**2)) <= TOLERANCE:
            found = _beside(turned, kept, rest)
            size = kept + 1
            origin = np.zeros(size)
            return found, QuadraticPotential(origin, float(lowest - constant), np.zeros(size), np.eye(size))
    return emulator, misfit


def _turned(emulator: Emulator, root: np.ndarray, shift: np.ndarray) -> Emulator:
    """Return the components in coordinates in which the misfit is half the sum of their squares."""
    cubic, weights = emulator.cubic, emulator.node_weights
    return Emulator(
        emulator.constant @ root + shift,
        emulator.trend_weights @ root,
        None if cubic is None else CubicForms(cubic.axes, np.tensordot(root.T, cubic.tensors, axes=1)),
        emulator.nodes,
        None if weights is None else weights @ root,
    )


def _rest(turned: Emulator, kept: int) -> tuple[Emulator, float]:
    """Return the one component that stands for all but the first, and the constant C."""
    dim = turned.trend.dim
    centre = turned.components(np.zeros((1, dim)))[0, kept:]
    linear, matrices = turned.linear[kept:], turned.matrices[kept:]
    height = 0.5 * float(centre @ centre)
    constant = max(_LEAST - height, 0.0)
    b = np.sqrt(2.0 * (height + constant))
    slope = centre @ linear
    bent = linear.T @ linear + np.tensordot(centre, matrices, axes=1)
    trend = turned.trend.weights_of(slope / b, bent / b - np.outer(slope, slope) / b**3)[:, None]
    weights = None if turned.node_weights is None else turned.node_weights[:, kept:] @ centre[:, None] / b
    start = b
    if turned.nodes is not None:
        start = b - float((turned.nodes.features(np.zeros((1, dim))) @ weights)[0, 0])
    cubic = None
    if turned.cubic is not None:
        axes = turned.cubic.axes
        slope, bent, linear = slope @ axes, axes.T @ bent @ axes, linear @ axes
        tensor = np.tensordot(centre, turned.cubic.tensors[kept:], axes=1) / b
        tensor = tensor + _symmetric(np.tensordot(linear, axes.T @ matrices @ axes, axes=([0], [0]))) / b
        tensor = tensor - _symmetric(slope[:, None, None] * bent) / b**3
        tensor = tensor + 3.0 * slope[:, None, None] * slope[:, None] * slope / b**5
        cubic = CubicForms(axes, tensor[None])
    return Emulator(np.array([start]), trend, cubic, turned.nodes, weights), constant


def _symmetric(tensor: np.ndarray) -> np.ndarray:
    """Return the sum over which index is the first, of a tensor that is symmetric in the other two."""
    return tensor + np.moveaxis(tensor, 0, 1) + np.moveaxis(tensor, 0, 2)


def _beside(turned: Emulator, kept: int, rest: Emulator) -> Emulator:
    """Return the first components, and the one for the others after them."""
    cubic, weights = turned.cubic, turned.node_weights
    if cubic is not None:
        assert rest.cubic is not None
        cubic = CubicForms(cubic.axes, np.concatenate([cubic.tensors[:kept], rest.cubic.tensors]))
    if weights is not None:
        assert rest.node_weights is not None
        weights = np.concatenate([weights[:, :kept], rest.node_weights], axis=1)
    return Emulator(
        np.concatenate([turned.constant[:kept], rest.constant]),
        np.concatenate([turned.trend_weights[:, :kept], rest.trend_weights], axis=1),
        cubic,
        turned.nodes,
        weights,
    )
