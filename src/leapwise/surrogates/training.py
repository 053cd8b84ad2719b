"""Exact evaluations as training data: selected, whitened and centred before a surrogate is fitted.

A `TrainingSet` holds positions with their exact potentials, and gradients and outputs where they are known. Surrogates
of the potential train on a `WhiteSet`: evaluations near the typical set, in whitened coordinates, with the mean
potential subtracted. `first_rows` makes it for a fit, `further_rows` for an update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.surrogates.whitening import Whitening


def typical_height(dim: int) -> float:
    """Return the height above the lowest potential that counts as near the typical set: ``12 + 1.5 dim``.

    Under a Gaussian posterior the height has the mean ``dim / 2`` and the standard deviation ``sqrt(dim / 2)``. The
    limit is more than five standard deviations above the mean in any dimension.
    """
    return 12.0 + 1.5 * dim


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Exact evaluations at positions.

    Parameters
    ----------
    position : array_like of shape (n, dim)
        Unconstrained positions, as an `Evaluator` takes them.
    potential : array_like of shape (n,)
        Minus log-density, and minus the log-Jacobian of any bounds, as an `Evaluator` gives it. It must be finite, so
        leave out positions outside the support.
    gradient : array_like of shape (n, dim), optional
        Gradient of the potential; rows where it is not known are NaN.
    outputs : array_like of shape (n, m), optional
        Outputs of the forward model.

    Examples
    --------
    >>> training = TrainingSet([[0.0], [1.0], [9.0]], [0.0, 0.5, 40.5])
    >>> len(training), len(training.select())
    (3, 2)
    """

    position: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None

    def __post_init__(self) -> None:
        position = require_real(self.position, "position")
        potential = require_real(self.potential, "potential")
        if position.ndim != 2 or position.shape[1] < 1:
            raise InputError(
                f"position must have shape (n, dim), got {position.shape}; one row for each evaluation"
            )
        n, dim = position.shape
        if potential.shape != (n,):
            raise InputError(
                f"potential must have shape ({n},) to match the positions, got {potential.shape}"
            )
        object.__setattr__(self, "position", position)
        object.__setattr__(self, "potential", potential)
        if self.gradient is not None:
            gradient = np.array(self.gradient, dtype=float)
            if gradient.shape != (n, dim):
                raise InputError(
                    f"gradient must have shape ({n}, {dim}) to match the positions, got {gradient.shape}"
                )
            unknown = np.isnan(gradient).all(axis=1)
            if not np.isfinite(gradient[~unknown]).all():
                raise InputError("gradient must be finite, or NaN in a whole row where it is not known")
            object.__setattr__(self, "gradient", None if unknown.all() else gradient)
        if self.outputs is not None:
            outputs = require_real(self.outputs, "outputs")
            if outputs.ndim != 2 or len(outputs) != n:
                raise InputError(
                    f"outputs must have shape ({n}, m) to match the positions, got {outputs.shape}"
                )
            object.__setattr__(self, "outputs", outputs)

    def __len__(self) -> int:
        return len(self.position)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.position.shape[1])

    def rows(self, chosen: np.ndarray) -> TrainingSet:
        """Return the evaluations with the given indices or mask."""
        return TrainingSet(
            self.position[chosen],
            self.potential[chosen],
            None if self.gradient is None else self.gradient[chosen],
            None if self.outputs is None else self.outputs[chosen],
        )

    def join(self, other: TrainingSet) -> TrainingSet:
        """Return these evaluations followed by those of another training set.

        If only one of them has gradients, they are NaN in the rows of the other. Outputs must be in both training sets,
        in equal number, or in neither: a surrogate of outputs cannot use rows without outputs.

        Examples
        --------
        >>> one, two = TrainingSet([[0.0]], [0.0], [[0.0]]), TrainingSet([[1.0]], [0.5])
        >>> one.join(two).gradient
        array([[ 0.],
               [nan]])
        """
        if self.dim != other.dim:
            raise InputError(
                f"joined positions must have the same number of coordinates, got {self.dim} and {other.dim}; "
                "join evaluations of one target only"
            )
        sizes = [None if part.outputs is None else part.outputs.shape[1] for part in (self, other)]
        if sizes[0] != sizes[1]:
            raise InputError(
                f"both training sets must have the same number of outputs, or neither any, got {sizes[0]} and "
                f"{sizes[1]}; leave them out of both with TrainingSet(position, potential, gradient)"
            )
        gradients = [
            np.full_like(part.position, np.nan) if part.gradient is None else part.gradient
            for part in (self, other)
        ]
        outputs = [part.outputs for part in (self, other) if part.outputs is not None]
        return TrainingSet(
            np.concatenate([self.position, other.position]),
            np.concatenate([self.potential, other.potential]),
            np.concatenate(gradients),
            np.concatenate(outputs) if outputs else None,
        )

    @property
    def typical_height(self) -> float:
        """Height above the lowest potential up to which evaluations are selected."""
        return typical_height(self.dim)

    def select(self, height: float | None = None, *, at_least: int = 0) -> TrainingSet:
        """Return the evaluations near the typical set.

        These are all evaluations at most `height` above the lowest potential (by default `typical_height`), and in any
        case the `at_least` lowest.
        """
        height = self.typical_height if height is None else height
        rank = np.argsort(np.argsort(self.potential))
        return self.rows((self.potential - self.potential.min(initial=np.inf) <= height) | (rank < at_least))

    def require_variety(self) -> None:
        """Raise unless there are at least two different positions."""
        if len(self) < 2 or not (self.position != self.position[0]).any():
            raise InputError(
                f"a surrogate needs at least two different positions to train on, got {len(self)} "
                "evaluation(s) of one position; add evaluations at other positions"
            )

    def whiten(self, whitening: Whitening) -> WhiteSet:
        """Return the evaluations in whitened coordinates, with the mean potential subtracted."""
        known = np.zeros(0, dtype=int)
        gradient = None
        if self.gradient is not None:
            known = np.flatnonzero(~np.isnan(self.gradient[:, 0]))
            gradient = whitening.gradient_to_white(self.gradient[known])
        offset = float(self.potential.mean())
        return WhiteSet(whitening.to_white(self.position), self.potential - offset, gradient, known, offset)


@dataclass(frozen=True, eq=False)
class WhiteSet:
    """A training set in whitened coordinates.

    Attributes
    ----------
    position : ndarray of shape (n, dim)
    value : ndarray of shape (n,)
        Potentials minus `offset`.
    gradient : ndarray of shape (k, dim) or None
        Gradients with respect to the whitened coordinates.
    has_gradient : ndarray of int, shape (k,)
        Rows of `position` that the gradients belong to.
    offset : float
        The mean potential that was subtracted.
    """

    position: np.ndarray
    value: np.ndarray
    gradient: np.ndarray | None
    has_gradient: np.ndarray
    offset: float

    def join(self, other: WhiteSet) -> WhiteSet:
        """Return these evaluations followed by others with the same offset."""
        gradients = [part.gradient for part in (self, other) if part.gradient is not None]
        return WhiteSet(
            np.concatenate([self.position, other.position]),
            np.concatenate([self.value, other.value]),
            np.concatenate(gradients) if gradients else None,
            np.concatenate([self.has_gradient, other.has_gradient + len(self.value)]),
            self.offset,
        )


def first_rows(training: TrainingSet, given: Whitening | None) -> tuple[Whitening, WhiteSet, float]:
    """Select evaluations near the typical set and whiten them, by their own covariance if no whitening is given.

    Returns
    -------
    whitening : Whitening
    white : WhiteSet
    lowest : float
        The lowest potential, an argument of `further_rows`.

    Examples
    --------
    >>> whitening, white, lowest = first_rows(TrainingSet([[1.0], [3.0], [99.0]], [0.0, 1.0, 5e3]), None)
    >>> white.position.round(6).tolist(), white.offset, lowest
    ([[-1.0], [1.0]], 0.5, 0.0)
    """
    if not isinstance(training, TrainingSet):
        raise InputError(
            f"fit needs a TrainingSet, got {type(training).__name__}; make one as TrainingSet(position, potential)"
        )
    kept = training.select()
    kept.require_variety()
    whitening = Whitening.from_positions(kept.position) if given is None else given
    require_same_dim(kept, whitening)
    return whitening, kept.whiten(whitening), float(kept.potential.min())


def further_rows(
    training: TrainingSet, whitening: Whitening, offset: float, lowest: float
) -> tuple[WhiteSet | None, float]:
    """Select and whiten further evaluations in the same way, subtracting the same `offset`.

    Heights are above the lowest of all potentials: `lowest`, of the evaluations before, and the new ones.

    Returns
    -------
    white : WhiteSet or None
        None if no evaluation is near the typical set.
    lowest : float
        The lowest potential so far.
    """
    require_same_dim(training, whitening)
    lowest = min(lowest, float(np.min(training.potential, initial=np.inf)))
    kept = training.rows(training.potential - lowest <= training.typical_height)
    if not len(kept):
        return None, lowest
    white = kept.whiten(whitening)
    return replace(white, value=white.value + (white.offset - offset), offset=offset), lowest


def require_same_dim(training: TrainingSet, whitening: Whitening) -> None:
    """Raise unless positions and whitening have the same number of coordinates."""
    if training.dim != len(whitening.mean):
        raise InputError(
            f"training positions must have {len(whitening.mean)} coordinates like the whitening, "
            f"got {training.dim}; train on evaluations of one target only"
        )
