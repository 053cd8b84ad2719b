r"""A trained surrogate as two bare functions, made once and called very often.

Radial terms and the guard as bare functions of the squared distance from the origin, :math:`|z|^2`.

The gradient of :math:`\varphi(|z|^2/2)` is :math:`\varphi'\, z`, so values and the factors :math:`\varphi'` say all. Up
to the guard's radius, where trajectories spend nearly all their time, it costs one comparison.

A sum of trend, nodes and guard as two bare functions of positions.

In whitened coordinates :math:`z = F^{-1} (q - m)` the gradient of the sum is

.. math:: A z + l + \sum_i \tfrac{v_i}{2} \big(1 + \tanh \tfrac{t_i}{2}\big)\, w_i + c(z)\, z + k(z), \qquad
    t_i = w_i \cdot z + d_i,

because a softplus has the slope :math:`\tfrac12 + \tfrac12 \tanh(t/2)`, which never overflows; its constant half goes
into l. Factors :math:`c` come from what depends on :math:`|z|` alone (`leapwise.surrogates.compiled`) and, with
:math:`k`, from kernel nodes (`leapwise.surrogates.compiled_kernels`). All of it is multiplied by :math:`F^{-1}` once.

A network of additive nodes alone has them in the caller's own coordinates, which saves both changes of coordinates. For
the rest that would save nothing, and :math:`F^{-T} A F^{-1}` would lose twice as many digits where correlations are
strong.

A surrogate of outputs as two bare functions of positions.

Of all components together, as in `leapwise.surrogates.emulator`, the polynomial part has slopes and values

.. math::
    S = l + B z + \tfrac12 T[y, y], \qquad
    l \cdot z + \tfrac12 z^T B z + \tfrac16 T[y, y, y]
    = \big(\tfrac13 S + \tfrac16 B z + \tfrac23 l\big) \cdot z,

so two products and one contraction give both: the cubic tensors have the axes of :math:`z` put into them. Values alone
go through the features if they are fewer than the slopes. Where the likelihood is Gaussian, its gradient is a matrix
times what the components differ from its origin by, which goes into their constants; a Gaussian prior is treated alike.
Likelihoods and priors of another kind are asked as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.base import Basis, Expansion, Fitted, FittedExpansion
from leapwise.surrogates.bases import RadialBasis, SoftplusBasis, SumBasis, softplus, softplus_and_slope
from leapwise.surrogates.compiled_kernels import (
    Centred,
    KernelSum,
    Process,
    guard_term,
    is_rational,
    kernel_sum,
    radial_terms,
    total,
)
from leapwise.surrogates.emulator import CubicForms, Emulator
from leapwise.surrogates.gp import LeaningBasis
from leapwise.surrogates.output_space import Potential, QuadraticPotential
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.trend import Guard, TrendBasis
from leapwise.surrogates.whitening import Whitening

Function = Callable[[np.ndarray], np.ndarray]


def fast_expansion(expansion: Expansion, frame: Whitening | None = None) -> tuple[Function, Function] | None:
    """Return potential and gradient, of coordinates in a frame if one is given; None if a part is not known here."""
    if type(expansion) is not Expansion or type(expansion.whitening) is not Whitening:
        return None
    pieces = _pieces(expansion)
    process = _process(pieces)
    if process is not None:
        enter, back = _entry_with_square(expansion.whitening, frame)
        return process.potential(expansion.offset, enter), process.gradient(enter, back)
    parts = _Parts()
    for basis, weights in pieces:
        if not parts.take(basis, weights):
            return None
    if parts.nodes is not None and parts.trend is None and parts.kernel is None and not parts.centred:
        return _network(expansion, frame, *parts.nodes)
    into, back = entry(expansion.whitening, frame)
    return _potential(expansion.offset, into, parts), _gradient(into, back, parts)


@dataclass
class _Parts:
    """What an expansion is the sum of, in whitened coordinates; at most one of each."""

    trend: tuple[np.ndarray, np.ndarray] | None = None  # l and A
    nodes: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # directions, biases and weights
    kernel: KernelSum | None = None
    centred: list[Centred] = field(default_factory=list)

    def take(self, basis: Basis, weights: np.ndarray) -> bool:
        """Take a part; False if it is of another kind, or the second of its kind."""
        if type(basis) is TrendBasis and self.trend is None:
            self.trend = weights[: basis.dim].copy(), basis.matrix(weights)
            if basis.radial:
                self.centred.append(radial_terms(weights[basis.quadratic_part.stop :], basis.dim))
        elif type(basis) is SoftplusBasis and self.nodes is None:
            self.nodes = basis.input_weights, basis.input_biases, weights
        elif type(basis) is Guard:
            self.centred.append(guard_term(basis, float(weights[0])))
        elif type(basis) in (RadialBasis, LeaningBasis) and self.kernel is None:
            self.kernel = kernel_sum(basis, weights)  # type: ignore[arg-type]
            return self.kernel is not None
        else:
            return False
        return True


def _pieces(expansion: Expansion) -> list[tuple[Basis, np.ndarray]]:
    basis, weights = expansion.basis, expansion.weights
    if type(basis) is not SumBasis:
        return [(basis, weights)]
    ends = np.cumsum([part.size for part in basis.bases])
    return list(zip(basis.bases, np.split(weights, ends[:-1]), strict=True))


def _process(pieces: list[tuple[Basis, np.ndarray]]) -> Process | None:
    """Return a trend, nodes and a guard together, if that is all there is, and nodes are rational."""
    if len(pieces) != 3:
        return None
    (trend, trend_weights), (nodes, weights), (guard, weight) = pieces
    if (
        type(trend) is not TrendBasis
        or type(guard) is not Guard
        or type(nodes) not in (RadialBasis, LeaningBasis)
    ):
        return None
    if not is_rational(nodes):  # type: ignore[arg-type]
        return None
    return Process(
        trend_weights[: trend.dim],
        trend.matrix(trend_weights),
        trend_weights[trend.quadratic_part.stop :],
        nodes,  # type: ignore[arg-type]
        weights,
        guard_term(guard, float(weight[0])),
    )


def _network(
    expansion: Expansion,
    frame: Whitening | None,
    directions: np.ndarray,
    biases: np.ndarray,
    weights: np.ndarray,
) -> tuple[Function, Function]:
    """Return potential and gradient of additive nodes alone, through their directions in the caller's coordinates."""
    offset, mean = expansion.offset, expansion.whitening.mean
    if frame is not None:
        biases = biases + directions @ expansion.whitening.to_white(frame.mean[None])[0]
        directions = directions @ expansion.whitening.inverse @ frame.factor
    else:
        directions = expansion.whitening.gradient_from_white(directions)
    value = _additive_value(directions, biases, weights)
    slope = _additive_gradient(directions, biases, weights)
    if frame is not None:
        return lambda white: offset + value(white), slope
    return lambda position: offset + value(position - mean), lambda position: slope(position - mean)


def entry(whitening: Whitening, frame: Whitening | None) -> tuple[Function, np.ndarray]:
    """Return the way to whitened coordinates, from positions or from a frame, and what takes gradients back."""
    mean, to_white = whitening.mean, np.ascontiguousarray(whitening.inverse.T)
    if frame is None:
        return lambda position: (position - mean).dot(to_white), whitening.inverse
    matrix, shift = np.ascontiguousarray(frame.factor.T @ to_white), (frame.mean - mean) @ to_white

    def into(white: np.ndarray) -> np.ndarray:
        z = white.dot(matrix)
        z += shift
        return z

    return into, np.ascontiguousarray(matrix.T)


def _entry_with_square(whitening: Whitening, frame: Whitening | None) -> tuple[Function, np.ndarray]:
    """Return the way to rows of whitened coordinates, 1 and their square, and what takes gradients back."""
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


def _potential(offset: float, into: Function, parts: _Parts) -> Function:
    linear, half = (None, None) if parts.trend is None else (parts.trend[0], 0.5 * parts.trend[1])
    additive = None if parts.nodes is None else _additive_value(*parts.nodes)
    kernel = None if parts.kernel is None else parts.kernel.value
    centred = [part.value for part in parts.centred]

    def potential(position: np.ndarray) -> np.ndarray:
        z = into(position)
        value = np.full(len(z), offset)
        if half is not None:
            image = z.dot(half)
            image += linear
            value += np.vecdot(image, z)
        if additive is not None:
            value += additive(z)
        if kernel is not None or centred:
            square = np.vecdot(z, z)
            more = total(centred, square)
            if more is not None:
                value += more
            if kernel is not None:
                value += kernel(z, square)
        return value

    return potential


def _additive_value(directions: np.ndarray, biases: np.ndarray, weights: np.ndarray) -> Function:
    columns = np.ascontiguousarray(directions.T)

    def value(white: np.ndarray) -> np.ndarray:
        t = white.dot(columns)
        t += biases
        return softplus(t).dot(weights)

    return value


def _gradient(into: Function, back: np.ndarray, parts: _Parts) -> Function:
    trend = None if parts.trend is None else _trend_gradient(*parts.trend)
    additive = None if parts.nodes is None else _additive_gradient(*parts.nodes)
    round_ = _round_gradient(parts)

    def gradient(position: np.ndarray) -> np.ndarray:
        z = into(position)
        found = np.zeros(z.shape) if trend is None else trend(z)
        if additive is not None:
            found += additive(z)
        more = round_(z)
        if more is not None:
            found += more
        return found.dot(back)

    return gradient


def _trend_gradient(linear: np.ndarray, matrix: np.ndarray) -> Function:
    def gradient(z: np.ndarray) -> np.ndarray:
        found = z.dot(matrix)
        found += linear
        return found

    return gradient


def _additive_gradient(directions: np.ndarray, biases: np.ndarray, weights: np.ndarray) -> Function:
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


def _round_gradient(parts: _Parts) -> Callable[[np.ndarray], np.ndarray | None]:
    """Return the gradient of what goes through distances; it may overwrite positions, and is None where it is zero."""
    kernel = None if parts.kernel is None else parts.kernel.gradient
    centred = [part.slope for part in parts.centred]

    def gradient(z: np.ndarray) -> np.ndarray | None:
        square = np.vecdot(z, z)
        factor = total(centred, square)
        if kernel is None:
            return None if factor is None else np.multiply(z, factor[:, None], out=z)
        more, rest = kernel(z, square)
        z *= (more if factor is None else factor + more)[:, None]
        rest += z
        return rest

    return gradient


#: Components ``(n, p)`` of whitened positions, and their Jacobian ``(n, p, dim)``.
Map = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def fast_outputs(
    surrogate: FittedOutputs, frame: Whitening | None = None
) -> tuple[Function, Function] | None:
    """Return potential and gradient, of coordinates in a frame if one is given; None if a part is not known here."""
    emulator, misfit = surrogate.acting
    known = (
        type(surrogate.whitening) is Whitening
        and type(emulator) is Emulator
        and type(emulator.cubic) in (CubicForms, NoneType)
        and type(emulator.nodes) in (SoftplusBasis, NoneType)
    )
    if not known:
        return None
    into, back = entry(surrogate.whitening, frame)
    height, prior_height = misfit.value_and_gradient, surrogate.prior.value_and_gradient
    (origin, cotangent), (middle, prior_slope) = _slope(misfit), _slope(surrogate.prior)
    constant, polynomials = emulator.constant, _polynomials(emulator)
    shifted = constant - origin
    additive = None if emulator.nodes is None else _additive(emulator)

    few = emulator.cubic is not None and not emulator.cubic.is_wide
    values = (lambda z: polynomials(z)[0]) if few else _values(emulator)

    def potential(position: np.ndarray) -> np.ndarray:
        z = into(position)
        components = values(z)
        components += constant
        if additive is not None:
            components += additive[0](z)[0]
        return height(components)[0] + prior_height(z)[0]

    def gradient(position: np.ndarray) -> np.ndarray:
        z = into(position)
        components, slopes = polynomials(z)
        components += shifted
        if additive is not None:
            more, steep = additive[0](z)
            components += more
        pull = cotangent(components)
        found = np.matmul(pull[:, None, :], slopes)[:, 0, :]
        found += prior_slope(z - middle)
        if additive is not None:
            found += additive[1](steep, pull)
        return found.dot(back)

    return potential, gradient


def _values(emulator: Emulator) -> Function:
    """Return the polynomial part of components, without the constant: through their features, which are fewer."""
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


def _cubic_values(cubic: CubicForms) -> Function:
    """Return T[y, y, y] / 6 for all components, ``(n, p)``."""
    axes, ((i, j, k), weights) = np.ascontiguousarray(cubic.axes), cubic.weights

    def values(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        products *= y.take(k, axis=1)
        return products.dot(weights)

    return values


def _polynomials(emulator: Emulator) -> Map:
    """Return the polynomial part of components, without the constant, and its slopes."""
    p, dim, _ = emulator.matrices.shape
    flat = np.ascontiguousarray(np.moveaxis(emulator.matrices, 0, 1).reshape(dim, p * dim))
    linear = emulator.linear.ravel()
    gentle = np.ascontiguousarray(emulator.linear.T) * (2.0 / 3.0)
    bend = None if emulator.cubic is None else _bend(emulator.cubic)

    def polynomials(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        image = z.dot(flat)
        slopes = image + linear
        if bend is not None:
            slopes += bend(z)
        image *= 1.0 / 6.0
        image += slopes * (1.0 / 3.0)
        shape = (len(z), p, dim)
        values = z.dot(gentle)
        values += np.matmul(image.reshape(shape), z[:, :, None])[:, :, 0]
        return values, slopes.reshape(shape)

    return polynomials


def _bend(cubic: CubicForms) -> Function:
    """Return half of T[y, y] for all components, in the coordinates of z, ``(n, p dim)``."""
    axes = np.ascontiguousarray(cubic.axes)
    dim, r = axes.shape
    p = len(cubic.tensors)
    i, j = np.triu_indices(r)
    pairs = cubic.tensors[:, :, i, j] * np.where(i == j, 0.5, 1.0)  # (p, r, pairs)
    flat = np.ascontiguousarray(np.moveaxis(axes @ pairs, 2, 0).reshape(len(i), p * dim))

    def bend(z: np.ndarray) -> np.ndarray:
        y = z.dot(axes)
        products = y.take(i, axis=1)
        products *= y.take(j, axis=1)
        return products.dot(flat)

    return bend


def _slope(potential: Potential) -> tuple[np.ndarray | float, Function]:
    """Return the origin of a quadratic form, 0 of another potential, and its gradient by points less it."""
    if type(potential) is not QuadraticPotential:
        value_and_gradient = potential.value_and_gradient
        return 0.0, lambda points: value_and_gradient(points)[1]
    matrix, slope = potential.matrix, potential.slope

    def affine(shift: np.ndarray) -> np.ndarray:
        found = shift.dot(matrix)
        found += slope
        return found

    return potential.origin, affine


def _additive(emulator: Emulator) -> tuple[Map, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Return softplus nodes as two functions.

    Of points they are values ``(n, p)`` and slopes of nodes ``(n, s)``; of these slopes, which are overwritten, and
    vectors ``(n, p)`` the transposed Jacobian times the vectors.
    """
    assert emulator.nodes is not None and emulator.node_weights is not None
    rows, biases, weights = emulator.nodes.input_weights, emulator.nodes.input_biases, emulator.node_weights
    columns, back = np.ascontiguousarray(rows.T), np.ascontiguousarray(weights.T)

    def value(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = z.dot(columns)
        t += biases
        heights = softplus_and_slope(t)
        return heights.dot(weights), t

    def pull(slopes: np.ndarray, vector: np.ndarray) -> np.ndarray:
        slopes *= vector.dot(back)
        return slopes.dot(rows)

    return value, pull


class Fast(NamedTuple):
    """Functions of positions ``(n, dim)``: potentials ``(n,)`` and, without them, gradients ``(n, dim)``."""

    potential: Callable[[np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray], np.ndarray]


def fast(surrogate: Fitted, frame: Whitening | None = None) -> Fast:
    r"""Return the potential and the gradient of a surrogate, each as fast as can be.

    With a `frame` they are functions of coordinates in it, and gradients are by these: its change of coordinates is put
    into that of the surrogate.

    Trajectories ask for few rows at a time, and then nearly all the time goes into the number of calls and not into the
    arithmetic. So the sums that networks, quadratics and Gaussian processes are have here all that is constant worked
    out beforehand, with the change of coordinates put into the weights where that saves a product (see
    `leapwise.surrogates.compiled`); outputs are likewise (`leapwise.surrogates.compiled`). A
    surrogate may bring its own as a method ``fast``. For others, and any that have methods of their own, they are the
    answers of ``potential`` and ``potential_and_gradient``.

    Examples
    --------
    >>> from leapwise.surrogates import SoftplusNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> network = SoftplusNetwork(20).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> bool(np.allclose(fast(network).gradient(x), network.potential_and_gradient(x)[1]))
    True
    """
    functions = None
    if callable(own := getattr(surrogate, "fast", None)):
        return _in_frame(Fast(*own()), frame)
    if isinstance(surrogate, FittedExpansion) and _asks_its_expansion(type(surrogate)):
        functions = fast_expansion(surrogate.expansion, frame)
    elif type(surrogate) is FittedOutputs:
        functions = fast_outputs(surrogate, frame)
    if functions is not None:
        return Fast(*functions)
    whole = Fast(surrogate.potential, lambda position: surrogate.potential_and_gradient(position)[1])
    return _in_frame(whole, frame)


def _in_frame(functions: Fast, frame: Whitening | None) -> Fast:
    """Return functions of positions as functions of coordinates in a frame."""
    if frame is None:
        return functions
    potential, gradient = functions
    mean, back, factor = frame.mean, np.ascontiguousarray(frame.factor.T), frame.factor
    return Fast(
        lambda white: potential(mean + white.dot(back)),
        lambda white: np.asarray(gradient(mean + white.dot(back))).dot(factor),
    )


def _asks_its_expansion(kind: type[FittedExpansion]) -> bool:
    """Whether potentials and gradients are those of the expansion, and not of a subclass that knows better."""
    return all(
        getattr(kind, name) is getattr(FittedExpansion, name)
        for name in ("potential", "potential_and_gradient")
    )
