"""Compiled surrogates: the potential and the gradient of a fitted surrogate as two quick functions.

A trajectory evaluates the gradient many thousand times, with a few rows at a time. Nearly all the time then goes into
the number of NumPy calls and not into arithmetic. `compile_surrogate` computes everything constant beforehand, and
returns a `CompiledSurrogate`: two functions that work in place with few calls. This is the only way in which kernels
evaluate a surrogate along a trajectory. It treats sums of features (`_compile_expansion`) and emulated outputs
(`_compile_outputs`); a surrogate of any other kind is evaluated by its own methods.

The methods of a fitted surrogate define its potential and have all derivatives. The compiled functions equal them up
to rounding (relative 1e-9, tested for every kind of surrogate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.base import Basis, Expansion, Fitted, FittedExpansion
from leapwise.surrogates.compiled_radial import (
    BatchFunction,
    FusedProcess,
    KernelBasis,
    KernelTerm,
    RadialTerm,
    guard_term,
    kernel_term,
    radial_terms,
)
from leapwise.surrogates.emulator import CubicForms, Emulator
from leapwise.surrogates.features import RadialBasis, SoftplusBasis, SumBasis, softplus, softplus_and_slope
from leapwise.surrogates.gp import GradientKernelBasis
from leapwise.surrogates.output_space import Potential, QuadraticPotential
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.trend import Guard, TrendBasis
from leapwise.surrogates.whitening import Whitening


class CompiledSurrogate(NamedTuple):
    """Functions of positions ``(n, dim)``: potentials ``(n,)``, and gradients ``(n, dim)`` without potentials."""

    potential: BatchFunction
    gradient: BatchFunction


def compile_surrogate(surrogate: Fitted, frame: Whitening | None = None) -> CompiledSurrogate:
    """Compile a fitted surrogate for positions, or for coordinates in a frame.

    With a `frame` both functions take coordinates in it and gradients are by these.

    =========================  ================================  ==================================================
    part                       defined by                        compiled by
    =========================  ================================  ==================================================
    quadratic trend            `trend.TrendBasis`                `_potential`, `_trend_gradient`
    hidden softplus units      `features.SoftplusBasis`          `_hidden_value`, `_hidden_gradient`
    radial terms of a trend    `trend.TrendBasis`                `compiled_radial.radial_terms`
    guard                      `trend.Guard`                     `compiled_radial.guard_term`
    kernel nodes               `features.RadialBasis`,           `compiled_radial.kernel_term`
                               `gp.GradientKernelBasis`
    trend, nodes and guard     their sum                         `compiled_radial.FusedProcess`
    emulated outputs           `emulator.Emulator`               `_compile_outputs`
    =========================  ================================  ==================================================

    A surrogate of another kind may have a method ``compiled()`` that returns a `CompiledSurrogate` of positions.
    Without one, and if a subclass has its own potential, its methods ``potential`` and ``potential_and_gradient`` are
    called.

    Examples
    --------
    >>> from leapwise.surrogates import SoftplusNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> network = SoftplusNetwork(20).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> bool(np.allclose(compile_surrogate(network).gradient(x), network.potential_and_gradient(x)[1]))
    True
    """
    if callable(own := getattr(surrogate, "compiled", None)):
        return _in_frame(CompiledSurrogate(*own()), frame)
    compiled = None
    if isinstance(surrogate, FittedExpansion) and _inherits_potential(surrogate, FittedExpansion):
        compiled = _compile_expansion(surrogate.expansion, frame)
    elif isinstance(surrogate, FittedOutputs) and _inherits_potential(surrogate, FittedOutputs):
        compiled = _compile_outputs(surrogate, frame)
    if compiled is not None:
        return compiled
    plain = CompiledSurrogate(
        surrogate.potential, lambda position: surrogate.potential_and_gradient(position)[1]
    )
    return _in_frame(plain, frame)


def _inherits_potential(surrogate: object, kind: type) -> bool:
    """Whether a surrogate evaluates its potential by the methods of a class, and does not override them."""
    names = ("potential", "potential_and_gradient")
    return all(getattr(type(surrogate), name) is getattr(kind, name) for name in names)


def _in_frame(functions: CompiledSurrogate, frame: Whitening | None) -> CompiledSurrogate:
    """Return functions of positions as functions of coordinates in a frame."""
    if frame is None:
        return functions
    potential, gradient = functions
    mean, back, factor = frame.mean, np.ascontiguousarray(frame.factor.T), frame.factor
    return CompiledSurrogate(
        lambda white: potential(mean + white.dot(back)),
        lambda white: np.asarray(gradient(mean + white.dot(back))).dot(factor),
    )


def _change_of_coordinates(whitening: Whitening, frame: Whitening | None) -> tuple[BatchFunction, np.ndarray]:
    """Return the map to whitened coordinates from positions or a frame, and the matrix that maps gradients back."""
    mean, to_white = whitening.mean, np.ascontiguousarray(whitening.inverse.T)
    if frame is None:
        return lambda position: (position - mean).dot(to_white), whitening.inverse
    matrix, shift = np.ascontiguousarray(frame.factor.T @ to_white), (frame.mean - mean) @ to_white

    def enter(white: np.ndarray) -> np.ndarray:
        z = white.dot(matrix)
        z += shift
        return z

    return enter, np.ascontiguousarray(matrix.T)


def _change_with_square(whitening: Whitening, frame: Whitening | None) -> tuple[BatchFunction, np.ndarray]:
    """Return the map to rows ``(z, 1, |z|^2)``, and the matrix that maps gradients back."""
    dim = whitening.mean.size
    origin, matrix, shift = whitening.mean, np.zeros((dim, dim + 2)), np.zeros(dim + 2)
    matrix[:, :dim], shift[dim] = whitening.inverse.T, 1.0
    if frame is not None:
        shift[:dim] = (frame.mean - origin) @ matrix[:, :dim]
        matrix = np.ascontiguousarray(frame.factor.T @ matrix)

    def enter(position: np.ndarray) -> np.ndarray:
        point = (position if frame is not None else position - origin).dot(matrix)
        point += shift
        z = point[:, :dim]
        point[:, -1] = np.vecdot(z, z)
        return point

    return enter, np.ascontiguousarray(matrix[:, :dim].T)


# Sums of features.


@dataclass
class _Terms:
    """The terms of an expansion in whitened coordinates, at most one of each kind."""

    trend: tuple[np.ndarray, np.ndarray] | None = None  # l and A
    radial: np.ndarray | None = None  # weights of the radial terms of the trend
    hidden: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # input weights, biases, output weights
    nodes: tuple[KernelBasis, np.ndarray] | None = None  # kernel nodes with their weights
    guard: RadialTerm | None = None

    def add(self, basis: Basis, weights: np.ndarray) -> bool:
        """Add a term; False if it has no compiled form, or is the second of its kind.

        Types are compared exactly, since a subclass may override the definition of its features.
        """
        if type(basis) is TrendBasis and self.trend is None:
            self.trend = weights[: basis.dim].copy(), basis.matrix(weights)
            if basis.radial:
                self.radial = weights[basis.quadratic_part.stop :]
        elif type(basis) is SoftplusBasis and self.hidden is None:
            self.hidden = basis.input_weights, basis.input_biases, weights
        elif (type(basis) is RadialBasis or type(basis) is GradientKernelBasis) and self.nodes is None:
            self.nodes = basis, weights
        elif type(basis) is Guard and self.guard is None:
            self.guard = guard_term(basis, float(weights[0]))
        else:
            return False
        return True

    def fused(self) -> FusedProcess | None:
        """Return the terms as a fused process, None if they are not those of one."""
        if self.trend is None or self.nodes is None or self.guard is None or self.hidden is not None:
            return None
        if not FusedProcess.applies_to(self.nodes[0]):
            return None
        radial = np.zeros(0) if self.radial is None else self.radial
        return FusedProcess(*self.trend, radial, *self.nodes, self.guard)

    def of_distance(self) -> list[RadialTerm]:
        """Return the terms that depend on the distance from the origin alone."""
        found = [] if self.guard is None else [self.guard]
        if self.radial is not None and self.trend is not None:
            found.insert(0, radial_terms(self.radial, len(self.trend[0])))
        return found


def _compile_expansion(expansion: Expansion, frame: Whitening | None) -> CompiledSurrogate | None:
    r"""Compile a sum of features; None if a term has no compiled form.

    In whitened coordinates :math:`z = F^{-1} (q - m)` the gradient of the sum is

    .. math:: A z + l + \sum_i \tfrac{v_i}{2} \big(1 + \tanh \tfrac{t_i}{2}\big)\, w_i + c(z)\, z + k(z), \qquad
        t_i = w_i \cdot z + d_i,

    because a softplus has the slope :math:`\tfrac12 + \tfrac12 \tanh(t/2)`, which never overflows; its constant half
    goes into l. The factor c comes from radial terms, guard and kernel nodes, the vector k from kernel nodes. All of it
    is multiplied by :math:`F^{-1}` once. Hidden units alone are instead expressed in the caller's coordinates, which
    saves both changes of coordinates. For the other terms that would save nothing, and :math:`F^{-T} A F^{-1}` would
    lose twice as many digits where correlations are strong.
    """
    whole, terms = expansion.basis, _Terms()
    parts = whole.parts(expansion.weights) if type(whole) is SumBasis else [(whole, expansion.weights)]
    if not all(terms.add(basis, weights) for basis, weights in parts):
        return None
    whitening = expansion.whitening
    if (process := terms.fused()) is not None:
        enter, back = _change_with_square(whitening, frame)
        return CompiledSurrogate(process.potential(expansion.offset, enter), process.gradient(enter, back))
    if terms.hidden is not None and terms.trend is None and terms.nodes is None and terms.guard is None:
        return _compile_network(expansion, frame, *terms.hidden)
    kernel = None if terms.nodes is None else kernel_term(*terms.nodes)
    if terms.nodes is not None and kernel is None:
        return None
    enter, back = _change_of_coordinates(whitening, frame)
    return CompiledSurrogate(
        _potential(expansion.offset, enter, terms, kernel), _gradient(enter, back, terms, kernel)
    )


def _compile_network(
    expansion: Expansion,
    frame: Whitening | None,
    directions: np.ndarray,
    biases: np.ndarray,
    weights: np.ndarray,
) -> CompiledSurrogate:
    """Compile hidden units alone, with their input weights in the caller's coordinates."""
    offset, mean = expansion.offset, expansion.whitening.mean
    if frame is not None:
        biases = biases + directions @ expansion.whitening.to_white(frame.mean[None])[0]
        directions = directions @ expansion.whitening.inverse @ frame.factor
    else:
        directions = expansion.whitening.gradient_from_white(directions)
    value = _hidden_value(directions, biases, weights)
    slope = _hidden_gradient(directions, biases, weights)
    if frame is not None:
        return CompiledSurrogate(lambda white: offset + value(white), slope)
    return CompiledSurrogate(
        lambda position: offset + value(position - mean), lambda position: slope(position - mean)
    )


def _potential(
    offset: float, enter: BatchFunction, terms: _Terms, kernel: KernelTerm | None
) -> BatchFunction:
    linear, half = (None, None) if terms.trend is None else (terms.trend[0], 0.5 * terms.trend[1])
    hidden = None if terms.hidden is None else _hidden_value(*terms.hidden)
    of_distance = [term.value for term in terms.of_distance()]

    def potential(position: np.ndarray) -> np.ndarray:
        z = enter(position)
        value = np.full(len(z), offset)
        if half is not None:
            image = z.dot(half)
            image += linear
            value += np.vecdot(image, z)
        if hidden is not None:
            value += hidden(z)
        if kernel is not None or of_distance:
            square = np.vecdot(z, z)
            more = _sum(of_distance, square)
            if more is not None:
                value += more
            if kernel is not None:
                value += kernel.value(z, square)
        return value

    return potential


def _gradient(
    enter: BatchFunction, back: np.ndarray, terms: _Terms, kernel: KernelTerm | None
) -> BatchFunction:
    trend = None if terms.trend is None else _trend_gradient(*terms.trend)
    hidden = None if terms.hidden is None else _hidden_gradient(*terms.hidden)
    distant = _distance_gradient(terms.of_distance(), kernel)

    def gradient(position: np.ndarray) -> np.ndarray:
        z = enter(position)
        found = np.zeros(z.shape) if trend is None else trend(z)
        if hidden is not None:
            found += hidden(z)
        more = distant(z)
        if more is not None:
            found += more
        return found.dot(back)

    return gradient


def _trend_gradient(linear: np.ndarray, matrix: np.ndarray) -> BatchFunction:
    def gradient(z: np.ndarray) -> np.ndarray:
        found = z.dot(matrix)
        found += linear
        return found

    return gradient


def _hidden_value(directions: np.ndarray, biases: np.ndarray, weights: np.ndarray) -> BatchFunction:
    columns = np.ascontiguousarray(directions.T)

    def value(white: np.ndarray) -> np.ndarray:
        t = white.dot(columns)
        t += biases
        return softplus(t).dot(weights)

    return value


def _hidden_gradient(directions: np.ndarray, biases: np.ndarray, weights: np.ndarray) -> BatchFunction:
    columns, halves = np.ascontiguousarray(0.5 * directions.T), 0.5 * biases
    rows = 0.5 * weights[:, None] * directions
    constant = rows.sum(axis=0)

    def gradient(z: np.ndarray) -> np.ndarray:
        t = z.dot(columns)
        t += halves
        np.tanh(t, out=t)
        found = t.dot(rows)
        found += constant
        return found

    return gradient


def _distance_gradient(
    of_distance: list[RadialTerm], kernel: KernelTerm | None
) -> Callable[[np.ndarray], np.ndarray | None]:
    """Return the gradient of the terms that depend on distances, None where it is zero; it overwrites positions."""
    factors = [term.factor for term in of_distance]

    def gradient(z: np.ndarray) -> np.ndarray | None:
        square = np.vecdot(z, z)
        factor = _sum(factors, square)
        if kernel is None:
            return None if factor is None else np.multiply(z, factor[:, None], out=z)
        more, vector = kernel.gradient(z, square)
        z *= (more if factor is None else factor + more)[:, None]
        vector += z
        return vector

    return gradient


def _sum(functions: list[Callable[[np.ndarray], np.ndarray | None]], square: np.ndarray) -> np.ndarray | None:
    """Return the sum of functions of squared distances, None if all are zero."""
    found = None
    for function in functions:
        more = function(square)
        if more is not None:
            found = more if found is None else found + more
    return found


# Emulated outputs.

#: Components ``(n, p)`` by whitened positions, and their Jacobian ``(n, p, dim)``.
_ComponentMap = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _compile_outputs(surrogate: FittedOutputs, frame: Whitening | None) -> CompiledSurrogate:
    r"""Compile a surrogate of outputs.

    For all components together, as in `leapwise.surrogates.emulator`, the polynomial part has slopes and values

    .. math::
        S = l + B z + \tfrac12 T[y, y], \qquad
        l \cdot z + \tfrac12 z^T B z + \tfrac16 T[y, y, y]
        = \big(\tfrac13 S + \tfrac16 B z + \tfrac23 l\big) \cdot z,

    so two products and one contraction give both; the cubic tensors are multiplied by the axes of y beforehand. Values
    alone are computed from the features if these are fewer than the slopes. The gradient of a Gaussian likelihood is a
    matrix times the difference of the components from its origin, which goes into their constants; a Gaussian prior is
    treated in the same way. Other likelihoods and priors are called as they are.
    """
    enter, back = _change_of_coordinates(surrogate.whitening, frame)
    emulator, misfit = surrogate.condensed
    polynomials = _polynomials(emulator)
    hidden = None if emulator.hidden is None else _hidden_components(emulator)
    return CompiledSurrogate(
        _outputs_potential(enter, emulator, polynomials, hidden, misfit, surrogate.prior),
        _outputs_gradient(enter, back, emulator.constant, polynomials, hidden, misfit, surrogate.prior),
    )


class _HiddenComponents(NamedTuple):
    """Hidden units of an emulator.

    `components` takes whitened positions and returns components ``(n, p)`` and slopes of units ``(n, s)``. `pull_back`
    takes these slopes, which it overwrites, and vectors ``(n, p)``, and returns the transposed Jacobian times them.
    """

    components: _ComponentMap
    pull_back: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _outputs_potential(
    enter: BatchFunction,
    emulator: Emulator,
    polynomials: _ComponentMap,
    hidden: _HiddenComponents | None,
    misfit: Potential,
    prior: Potential,
) -> BatchFunction:
    constant, height, prior_height = emulator.constant, misfit.value_and_gradient, prior.value_and_gradient
    few_slopes = emulator.cubic is not None and not emulator.cubic.is_wide
    values = (lambda z: polynomials(z)[0]) if few_slopes else _polynomial_values(emulator)

    def potential(position: np.ndarray) -> np.ndarray:
        z = enter(position)
        components = values(z)
        components += constant
        if hidden is not None:
            components += hidden.components(z)[0]
        return height(components)[0] + prior_height(z)[0]

    return potential


def _outputs_gradient(
    enter: BatchFunction,
    back: np.ndarray,
    constant: np.ndarray,
    polynomials: _ComponentMap,
    hidden: _HiddenComponents | None,
    misfit: Potential,
    prior: Potential,
) -> BatchFunction:
    (origin, cotangent), (centre, prior_slope) = _gradient_about(misfit), _gradient_about(prior)
    shifted = constant - origin

    def gradient(position: np.ndarray) -> np.ndarray:
        z = enter(position)
        components, slopes = polynomials(z)
        components += shifted
        if hidden is not None:
            more, unit_slopes = hidden.components(z)
            components += more
        pull = cotangent(components)
        found = np.matmul(pull[:, None, :], slopes)[:, 0, :]
        found += prior_slope(z - centre)
        if hidden is not None:
            found += hidden.pull_back(unit_slopes, pull)
        return found.dot(back)

    return gradient


def _gradient_about(potential: Potential) -> tuple[np.ndarray | float, BatchFunction]:
    """Return an origin, and the gradient as a function of points less the origin; the origin is 0 if not quadratic."""
    if not isinstance(potential, QuadraticPotential):
        value_and_gradient = potential.value_and_gradient
        return 0.0, lambda points: value_and_gradient(points)[1]
    matrix, slope = potential.matrix, potential.slope

    def affine(shift: np.ndarray) -> np.ndarray:
        found = shift.dot(matrix)
        found += slope
        return found

    return potential.origin, affine


def _polynomials(emulator: Emulator) -> _ComponentMap:
    """Return the polynomial part of components, without the constant, and its slopes."""
    p, dim, _ = emulator.matrices.shape
    flat = np.ascontiguousarray(np.moveaxis(emulator.matrices, 0, 1).reshape(dim, p * dim))
    linear = emulator.linear.ravel()
    two_thirds = np.ascontiguousarray(emulator.linear.T) * (2.0 / 3.0)
    cubic = None if emulator.cubic is None else _cubic_slopes(emulator.cubic)

    def polynomials(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        image = z.dot(flat)
        slopes = image + linear
        if cubic is not None:
            slopes += cubic(z)
        image *= 1.0 / 6.0
        image += slopes * (1.0 / 3.0)
        shape = (len(z), p, dim)
        values = z.dot(two_thirds)
        values += np.matmul(image.reshape(shape), z[:, :, None])[:, :, 0]
        return values, slopes.reshape(shape)

    return polynomials


def _cubic_slopes(cubic: CubicForms) -> BatchFunction:
    """Return T[y, y] / 2 of all components in the coordinates z, ``(n, p dim)``."""
    axes = np.ascontiguousarray(cubic.axes)
    dim, r = axes.shape
    p = len(cubic.tensors)
    i, j = np.triu_indices(r)
    pairs = cubic.tensors[:, :, i, j] * np.where(i == j, 0.5, 1.0)  # (p, r, pairs)
    flat = np.ascontiguousarray(np.moveaxis(axes @ pairs, 2, 0).reshape(len(i), p * dim))

    def slopes(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        return products.dot(flat)

    return slopes


def _polynomial_values(emulator: Emulator) -> BatchFunction:
    """Return the polynomial part of components alone, without the constant, from its features."""
    _, dim, _ = emulator.matrices.shape
    i, j = np.triu_indices(dim)
    linear = np.ascontiguousarray(emulator.linear.T)
    quadratic = np.ascontiguousarray((emulator.matrices[:, i, j] * np.where(i == j, 0.5, 1.0)).T)
    cubic = None if emulator.cubic is None else _cubic_values(emulator.cubic)

    def values(z: np.ndarray) -> np.ndarray:
        products = z.take(i, axis=1)
        products *= z.take(j, axis=1)
        found = products.dot(quadratic)
        found += z.dot(linear)
        if cubic is not None:
            found += cubic(z)
        return found

    return values


def _cubic_values(cubic: CubicForms) -> BatchFunction:
    """Return T[y, y, y] / 6 of all components, ``(n, p)``."""
    axes, ((i, j, k), weights) = np.ascontiguousarray(cubic.axes), cubic.weights

    def values(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        products *= y.take(k, axis=1)
        return products.dot(weights)

    return values


def _hidden_components(emulator: Emulator) -> _HiddenComponents:
    assert emulator.hidden is not None and emulator.hidden_weights is not None
    rows, biases, weights = (
        emulator.hidden.input_weights,
        emulator.hidden.input_biases,
        emulator.hidden_weights,
    )
    columns, back = np.ascontiguousarray(rows.T), np.ascontiguousarray(weights.T)

    def components(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = z.dot(columns)
        t += biases
        heights = softplus_and_slope(t)
        return heights.dot(weights), t

    def pull_back(slopes: np.ndarray, vector: np.ndarray) -> np.ndarray:
        slopes *= vector.dot(back)
        return slopes.dot(rows)

    return _HiddenComponents(components, pull_back)
