r"""Compressed outputs of a forward model, and the cheap potentials of likelihood and prior.

The second link of the chain `outputs` -> `output_space` -> `emulator`: `OutputSurrogate` of `outputs` is what users
take; it compresses outputs to components here; and it learns the components as functions of the position by `emulator`.

**Compression.** Outputs are centred, divided by scales, and projected on their principal components. The scales are
those on which the likelihood changes, :math:`1/\sqrt{-\partial_k^2 \log L}` at the best training point (the standard
deviations of the errors for a Gaussian likelihood), so the variance of a component measures its effect. Components are
kept until less than :math:`10^{-4}` of variance is left: an error of about 0.01 in the potential.

**Derivatives.** A likelihood has a value and a gradient. If its gradient is affine at the training outputs, as for a
Gaussian, the potential is a quadratic form of the components and all its derivatives are exact. The same holds for the
prior. For any other likelihood or prior, second and third derivatives along given directions are central differences of
the gradient, with steps of 1e-3 (1e-2 for the third) in units in which the function changes on a scale of about 1: they
are accurate to about 1e-6 (1e-4) of their size.

**Condensing.** A Gaussian likelihood is half a sum of squares of components, :math:`\tfrac12 \sum_k u_k(z)^2`, in
coordinates in which its matrix is the identity. The first p components, which vary most, are kept. The rest,

.. math:: R(z) = \tfrac12 \sum_{k > p} u_k(z)^2, \qquad u_k = \alpha_k + l_k \cdot z + q_k(z) + c_k(z),

with linear, quadratic and cubic parts, hardly bend, and are replaced by a single component. Up to the third order about
z = 0,

.. math::
    R = R_0 + s_1 + s_2 + s_3, \qquad s_1 = \sum \alpha_k\, l_k \cdot z, \quad
    s_2 = \sum \tfrac12 (l_k \cdot z)^2 + \alpha_k q_k, \quad s_3 = \sum (l_k \cdot z)\, q_k + \alpha_k c_k .

A cubic alone would be unbounded below, so the single component b is chosen such that its square has the same expansion,
:math:`\tfrac12 b^2 = R + C`, with :math:`b_0^2 = 2 (R_0 + C)`:

.. math::
    b = b_0 + \frac{s_1 + s_2 + s_3}{b_0} - \frac{s_1^2 + 2 s_1 s_2}{2 b_0^3} + \frac{s_1^3}{2 b_0^5} .

The constant C raises :math:`R_0` to at least 10; the surrogate stays bounded below, by C less than before. Lost are
fourth orders of components that hardly bend. The loss is measured at the training positions, and p is the smallest
number at which it is at most about 0.01 of the potential among draws. If that saves less than half of the components,
nothing is condensed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.surrogates.emulator import CubicForms, Emulator
from leapwise.surrogates.whitening import Whitening

#: Variance of the outputs, in units of the likelihood's scales, that compression may leave out. Derived: the potential
#: changes by about its square root, 0.01.
_DISCARDED = 1e-4
#: Random sign vectors for the diagonal of the likelihood's Hessian. A guess: scales need few digits.
_PROBES = 16
#: Steps of central differences for second and third derivatives. Relative truncation errors are about their squares,
#: 1e-6 and 1e-4, and rounding errors are below these.
_STEP, _WIDE_STEP = 1e-3, 1e-2


class CheapDensity(Protocol):
    """A likelihood or prior: its log-density and gradient at points ``(n, m)``."""

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
        """Find the principal components of outputs ``(n, m)``; row `best` has the lowest potential."""
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


def _scales(
    outputs: np.ndarray, point: np.ndarray, likelihood: CheapDensity, rng: np.random.Generator
) -> np.ndarray:
    """Return the scales on which the likelihood changes with each output, ``(m,)``.

    The diagonal of its Hessian is estimated from products with random signs. The estimate is exact if the Hessian is
    diagonal.
    """
    spread = outputs.std(axis=0)
    spread = np.where(spread > 0, spread, spread.mean() or 1.0)
    steps = _STEP * spread * rng.choice([-1.0, 1.0], size=(_PROBES, spread.size))
    change = likelihood.gradient(point + steps) - likelihood.gradient(point - steps)
    # In units of the spread, so that outputs of very different sizes can be compared.
    curvature = -(change / (2.0 * steps)).mean(axis=0) * spread**2
    usable = np.isfinite(curvature) & (curvature > 0)
    if not usable.any():
        return spread
    least = 1e-12 * curvature[usable].max()
    return np.asarray(spread / np.sqrt(np.where(usable, np.maximum(curvature, least), least)))


class Potential(Protocol):
    """A cheap potential of points ``(n, p)``, with derivatives up to the third."""

    def value_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values ``(n,)`` and gradients ``(n, p)``."""
        ...

    def hessian_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions` ``(n, k, p)``."""
        ...

    def third_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to each of `directions`, ``(n, k, p)``."""
        ...


@dataclass(frozen=True, eq=False)
class SmoothPotential:
    """A potential given by its value and gradient; further derivatives are differences of the gradient."""

    value_and_gradient: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    def hessian_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions`."""
        unit, length = _normalised(directions)
        ahead, behind = self._beside(points, _STEP * unit)
        return (ahead - behind) * (length / (2.0 * _STEP))

    def third_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to each of `directions`."""
        unit, length = _normalised(directions)
        ahead, behind = self._beside(points, _WIDE_STEP * unit)
        middle = self.value_and_gradient(points)[1][:, None, :]
        return ((ahead - middle) - (middle - behind)) * (length / _WIDE_STEP) ** 2

    def _beside(self, points: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradients at points plus and minus steps ``(n, k, p)``, each shaped like the steps."""
        size = points.shape[1]
        moved = [(points[:, None, :] + sign * steps).reshape(-1, size) for sign in (1.0, -1.0)]
        ahead, behind = (self.value_and_gradient(where)[1].reshape(steps.shape) for where in moved)
        return ahead, behind


def _normalised(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return unit directions and lengths ``(n, k, 1)``; a zero direction stays zero."""
    length = np.linalg.norm(directions, axis=2, keepdims=True)
    return directions / np.where(length > 0, length, 1.0), length


@dataclass(frozen=True, eq=False)
class QuadraticPotential:
    """A quadratic form, such as the potential of a Gaussian likelihood or prior.

    Attributes
    ----------
    origin : ndarray of shape (p,)
    constant : float
        Value at the origin.
    slope : ndarray of shape (p,)
        Gradient at the origin.
    matrix : ndarray of shape (p, p)
        Hessian.
    """

    origin: np.ndarray
    constant: float
    slope: np.ndarray
    matrix: np.ndarray

    def value_and_gradient(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values and gradients."""
        shift = points - self.origin
        image = shift @ self.matrix
        return self.constant + np.einsum("ij,ij->i", shift, 0.5 * image + self.slope), image + self.slope

    def hessian_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the Hessian times each of `directions`."""
        return directions @ self.matrix

    def third_product(self, points: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return zeros."""
        return np.zeros_like(directions)


def as_quadratic(smooth: SmoothPotential, points: np.ndarray) -> Potential:
    """Return a potential as a quadratic form if it equals one at points ``(n, p)`` and beyond them, else unchanged."""
    values, slopes = smooth.value_and_gradient(points)
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
        return smooth
    p = points.shape[1]
    # Differences of an affine gradient are exact for steps of any length. Long ones avoid cancellation.
    width = max(float(np.ptp(points)), 1.0)
    beyond = np.concatenate([points[:1] + sign * width * np.eye(p) for sign in (1, -1)])
    with np.errstate(all="ignore"):  # other potentials may be undefined there
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
    """Whether two arrays are equal up to rounding, relative to their largest entry."""
    return bool(np.allclose(one, other, rtol=1e-8, atol=1e-8 * max(1.0, float(np.abs(other).max()))))


@dataclass(frozen=True, eq=False)
class ComponentMisfit:
    """Minus the log-likelihood and its gradient, as a function of components of the outputs."""

    likelihood: CheapDensity
    space: OutputSpace

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return values ``(n,)`` and gradients ``(n, p)``."""
        outputs = self.space.decode(points)
        slopes = -self.likelihood.gradient(outputs)
        return -self.likelihood.log_density(outputs), slopes @ self.space.decoder.T


class Bounded(Protocol):
    """A map from unconstrained positions to parameters with bounds."""

    def to_parameters(self, position: np.ndarray) -> np.ndarray:
        """Return parameters ``(n, dim)``."""
        ...

    def log_jacobian(self, position: np.ndarray) -> np.ndarray:
        """Return log |dx/dq|, ``(n,)``."""
        ...

    def pull_back(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Turn a gradient by parameters into that of log-density plus log-Jacobian by positions."""
        ...


@dataclass(frozen=True, eq=False)
class PriorPotential:
    """The potential of a prior at unconstrained positions, log-Jacobian included, and its gradient."""

    prior: CheapDensity
    transform: Bounded

    def __call__(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials ``(n,)`` and gradients ``(n, dim)``."""
        parameters = self.transform.to_parameters(position)
        value = -(self.prior.log_density(parameters) + self.transform.log_jacobian(position))
        return value, -self.transform.pull_back(position, self.prior.gradient(parameters))


@dataclass(frozen=True, eq=False)
class WhitePrior:
    """The potential of a prior as a function of whitened positions."""

    prior: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    whitening: Whitening

    def __call__(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials ``(n,)`` and gradients ``(n, dim)``."""
        value, gradient = self.prior(self.whitening.from_white(white))
        return value, self.whitening.gradient_to_white(gradient)


#: Root mean square of the loss that condensing may cause at training positions, where each loss counts as at most 1.
#: Training positions reach further out than draws, which lose about half of it.
TOLERANCE = 0.02
#: Numbers of kept components that are tried: each about the square root of 2 times the one before.
_KEPT = (0, 1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64)
#: Least value of the condensed part at the origin. A guess: the expansion of b needs a b_0 well above its changes.
_LEAST = 10.0


def condense(
    emulator: Emulator, misfit: QuadraticPotential, white: np.ndarray
) -> tuple[Emulator, QuadraticPotential]:
    """Return an emulator of fewer components and its misfit, with nearly the same potential.

    If that would save less than half of the components, both are returned unchanged.

    Parameters
    ----------
    emulator : Emulator
    misfit : QuadraticPotential
        The potential of the components.
    white : ndarray of shape (n, dim)
        Whitened positions at which both potentials must agree.

    Examples
    --------
    Twenty components that are multiples of one another are condensed to one:

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
    lowest = misfit.constant - 0.5 * slope @ slope
    squares = 0.5 * (components @ axes + shift) ** 2
    rotated = _rotated(emulator, root, shift)
    for kept in _KEPT:
        if 2 * (kept + 1) > len(shift):
            break
        rest, constant = _rest(rotated, kept)
        with np.errstate(all="ignore"):
            lost = squares[:, kept:].sum(axis=1) - 0.5 * rest.components(white)[:, 0] ** 2
            lost = np.clip(lost - np.median(lost), -1.0, 1.0)
        if np.sqrt(np.mean(lost**2)) <= TOLERANCE:
            found = _append(rotated, kept, rest)
            size = kept + 1
            origin = np.zeros(size)
            return found, QuadraticPotential(origin, float(lowest - constant), np.zeros(size), np.eye(size))
    return emulator, misfit


def _rotated(emulator: Emulator, root: np.ndarray, shift: np.ndarray) -> Emulator:
    """Return the components in coordinates in which the misfit is half the sum of squares."""
    cubic, weights = emulator.cubic, emulator.hidden_weights
    return Emulator(
        emulator.constant @ root + shift,
        emulator.trend_weights @ root,
        None if cubic is None else CubicForms(cubic.axes, np.tensordot(root.T, cubic.tensors, axes=1)),
        emulator.hidden,
        None if weights is None else weights @ root,
    )


def _rest(rotated: Emulator, kept: int) -> tuple[Emulator, float]:
    """Return the single component that replaces all but the first `kept`, and the constant C."""
    dim = rotated.trend.dim
    centre = rotated.components(np.zeros((1, dim)))[0, kept:]
    linear, matrices = rotated.linear[kept:], rotated.matrices[kept:]
    height = 0.5 * float(centre @ centre)
    constant = max(_LEAST - height, 0.0)
    b = np.sqrt(2.0 * (height + constant))
    slope = centre @ linear
    bent = linear.T @ linear + np.tensordot(centre, matrices, axes=1)
    trend = rotated.trend.weights_of(slope / b, bent / b - np.outer(slope, slope) / b**3)[:, None]
    weights = (
        None if rotated.hidden_weights is None else rotated.hidden_weights[:, kept:] @ centre[:, None] / b
    )
    start = b
    if rotated.hidden is not None:
        start = b - float((rotated.hidden.features(np.zeros((1, dim))) @ weights)[0, 0])
    cubic = None
    if rotated.cubic is not None:
        axes = rotated.cubic.axes
        slope, bent, linear = slope @ axes, axes.T @ bent @ axes, linear @ axes
        tensor = np.tensordot(centre, rotated.cubic.tensors[kept:], axes=1) / b
        tensor = tensor + _symmetric(np.tensordot(linear, axes.T @ matrices @ axes, axes=([0], [0]))) / b
        tensor = tensor - _symmetric(slope[:, None, None] * bent) / b**3
        tensor = tensor + 3.0 * slope[:, None, None] * slope[:, None] * slope / b**5
        cubic = CubicForms(axes, tensor[None])
    return Emulator(np.array([start]), trend, cubic, rotated.hidden, weights), constant


def _symmetric(tensor: np.ndarray) -> np.ndarray:
    """Return the sum over the three places of the first index of a tensor that is symmetric in the other two."""
    return tensor + np.moveaxis(tensor, 0, 1) + np.moveaxis(tensor, 0, 2)


def _append(rotated: Emulator, kept: int, rest: Emulator) -> Emulator:
    """Return the first `kept` components followed by the one that replaces the others."""
    cubic, weights = rotated.cubic, rotated.hidden_weights
    if cubic is not None:
        assert rest.cubic is not None
        cubic = CubicForms(cubic.axes, np.concatenate([cubic.tensors[:kept], rest.cubic.tensors]))
    if weights is not None:
        assert rest.hidden_weights is not None
        weights = np.concatenate([weights[:, :kept], rest.hidden_weights], axis=1)
    return Emulator(
        np.concatenate([rotated.constant[:kept], rest.constant]),
        np.concatenate([rotated.trend_weights[:, :kept], rest.trend_weights], axis=1),
        cubic,
        rotated.hidden,
        weights,
    )
