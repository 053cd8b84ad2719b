"""From evaluations to whitened rows: what is done before a surrogate learns, and before it learns more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leapwise.errors import InputError
from leapwise.surrogates.training import TrainingSet, WhiteSet
from leapwise.surrogates.whitening import Whitening


def first_rows(training: TrainingSet, given: Whitening | None) -> tuple[Whitening, WhiteSet, float]:
    """Leave out what is far above the typical set and whiten the rest, by their own covariance if nothing is given.

    Returns
    -------
    whitening : Whitening
    white : WhiteSet
    lowest : float
        The lowest potential, which `further_rows` asks for.

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
    """Whiten further evaluations in the same way, with the same `offset` taken away from their potentials.

    Left out is what is far above `lowest`, the lowest potential seen before, and the new ones.

    Returns
    -------
    white : WhiteSet or None
        None if nothing is left.
    lowest : float
        The lowest potential seen by now.
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
            f"got {training.dim}; all evaluations must be of one target"
        )
