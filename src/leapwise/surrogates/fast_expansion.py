r"""A sum of trend, nodes and guard as two bare functions of positions.

In whitened coordinates :math:`z = F^{-1} (q - m)` the gradient of the sum is

.. math:: A z + l + \sum_i \tfrac{v_i}{2} \big(1 + \tanh \tfrac{t_i}{2}\big)\, w_i + c(z)\, z + k(z), \qquad
    t_i = w_i \cdot z + d_i,

because a softplus has the slope :math:`\tfrac12 + \tfrac12 \tanh(t/2)`, which never overflows; its constant half goes
into l. Factors :math:`c` come from what depends on :math:`|z|` alone (`leapwise.surrogates.fast_centred`) and, with
:math:`k`, from kernel nodes (`leapwise.surrogates.fast_kernel`). All of it is multiplied by :math:`F^{-1}` once.

A network of additive nodes alone has them in the caller's own coordinates, which saves both changes of coordinates. For
the rest that would save nothing, and :math:`F^{-T} A F^{-1}` would lose twice as many digits where correlations are
strong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from leapwise.surrogates.base import Basis, Expansion
from leapwise.surrogates.bases import SoftplusBasis, SumBasis
from leapwise.surrogates.fast_centred import Centred, guard_term, radial_terms, total
from leapwise.surrogates.fast_kernel import KernelSum, kernel_sum
from leapwise.surrogates.fast_process import Process, is_rational
from leapwise.surrogates.gp_basis import LeaningBasis
from leapwise.surrogates.radial import RadialBasis
from leapwise.surrogates.softplus import softplus
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
