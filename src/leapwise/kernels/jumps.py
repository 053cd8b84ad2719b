r"""Jumps between places: to where another place has what this one has here.

Places are separate modes, or parts of one that is bent. Each place k has a normal distribution that tells where it is
and how wide, with mean :math:`m_k` and covariance :math:`F_k F_k^T`. A position x belongs to the place i(x) of which
its density is largest. A jump goes to

.. math:: T_{ij}(x) = m_j + F_j F_i^{-1} (x - m_i), \qquad i = i(x),

for a place j that is drawn uniformly from all others, and counts only if it arrives in a position that belongs to j. It
is accepted with probability :math:`\min(1, e^{U(x) - U(T_{ij}(x))} \det F_j / \det F_i)`.

Reversible for :math:`e^{-U}` because: :math:`(x, j) \mapsto (T_{ij}(x), i)` is its own inverse where it counts, for
:math:`T_{ji}` undoes :math:`T_{ij}`; it stretches volume by :math:`\det F_j / \det F_i`; and i is drawn there with the
same probability as j is drawn here. This is Metropolis with a deterministic proposal (Green 1995). Nothing is asked of
the normal distributions: poor ones cost acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError


@dataclass(frozen=True, eq=False)
class Jumps:
    """Between which places chains jump.

    Parameters
    ----------
    centres : ndarray of shape (k, dim)
        The middle of each place, two or more, as positions without bounds (like those a surrogate is trained on).
    factors : ndarray of shape (k, dim, dim)
        Lower triangular, with the covariance of each place about ``factor @ factor.T``.
    belongs : ndarray of int, shape (k,), optional
        Which mode each place is a part of, from 0. Left out, each is a mode of its own.

    Attributes
    ----------
    n_modes : int

    Examples
    --------
    Two modes, of which the right one is twice as wide:

    >>> jumps = Jumps(np.array([[-3.0], [4.0]]), np.array([[[1.0]], [[2.0]]]))
    >>> position, stretch, counts = jumps.propose(np.array([[-2.5], [4.0]]), np.array([0.9, 0.1]))
    >>> position.ravel(), stretch.round(3), counts
    (array([ 5., -3.]), array([ 0.693, -0.693]), array([ True,  True]))
    """

    centres: np.ndarray
    factors: np.ndarray
    belongs: np.ndarray | None = None

    def __post_init__(self) -> None:
        centres, factors = require_real(self.centres, "centres"), require_real(self.factors, "factors")
        if (
            centres.ndim != 2
            or len(centres) < 2
            or not centres.size
            or factors.shape != (*centres.shape, centres.shape[1])
        ):
            raise InputError(
                "jumps need centres of shape (k, dim) and factors of shape (k, dim, dim) with k of at least 2, "
                f"got {centres.shape} and {factors.shape}; leave jumps out where there is one mode"
            )
        wrong = np.triu(factors, 1).any(axis=(1, 2)) | ~(np.diagonal(factors, axis1=1, axis2=2) > 0).all(
            axis=1
        )
        if wrong.any():
            raise InputError(
                "factors of jumps must be lower triangular with positive diagonals, got otherwise for place "
                f"{wrong.argmax()}; use numpy.linalg.cholesky(covariances)"
            )
        for name, array in (
            ("centres", centres),
            ("factors", factors),
            ("belongs", _checked_modes(self.belongs, len(centres))),
        ):
            array = np.array(array)
            array.flags.writeable = False  # what is computed from them is kept
            object.__setattr__(self, name, array)

    @cached_property
    def _inverses(self) -> np.ndarray:
        return np.linalg.inv(self.factors)

    @cached_property
    def _log_volumes(self) -> np.ndarray:
        """Logarithms of the factors' determinants."""
        return np.asarray(np.log(np.diagonal(self.factors, axis1=1, axis2=2)).sum(axis=1))

    @property
    def n_modes(self) -> int:
        """How many modes the places make up."""
        assert self.belongs is not None
        return 1 + int(self.belongs.max())

    def modes(self, position: np.ndarray) -> np.ndarray:
        """Return to which mode each position ``(n, dim)`` belongs, ``(n,)``; without bounds, as places are."""
        assert self.belongs is not None
        return np.asarray(self.belongs[self.places(position)])

    def places(self, position: np.ndarray) -> np.ndarray:
        """Return to which place each position belongs, ``(n,)``."""
        return self._nearest(self._all_white(position))

    def propose(
        self, position: np.ndarray, uniforms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where jumps lead, the logarithm of how volume is stretched on the way, and which jumps count.

        Parameters
        ----------
        position : ndarray of shape (n, dim)
        uniforms : ndarray of shape (n,)
            Uniform numbers on [0, 1), which choose one of the other places.
        """
        white = self._all_white(position)
        here = self._nearest(white)
        others = len(self.centres) - 1
        there = np.minimum((uniforms * others).astype(int), others - 1)
        there += there >= here
        own = white[np.arange(len(here)), here]
        end = self.centres[there] + (self.factors[there] @ own[:, :, None])[:, :, 0]
        return end, self._log_volumes[there] - self._log_volumes[here], self.places(end) == there

    def _all_white(self, position: np.ndarray) -> np.ndarray:
        """Return positions in the coordinates of each place, ``(n, k, dim)``."""
        if np.ndim(position) != 2 or np.shape(position)[1] != self.centres.shape[1]:
            raise InputError(
                f"jumps are between positions of shape (n, {self.centres.shape[1]}), got {np.shape(position)}; reshape "
                "them, or give centres of the target's own dimension"
            )
        away = position[:, None, :] - self.centres
        return np.asarray((self._inverses @ away[:, :, :, None])[:, :, :, 0])

    def _nearest(self, white: np.ndarray) -> np.ndarray:
        return np.asarray((0.5 * (white**2).sum(axis=2) + self._log_volumes).argmin(axis=1))


def _checked_modes(belongs: object, n_places: int) -> np.ndarray:
    """Return which mode each place is a part of."""
    if belongs is None:
        return np.arange(n_places)
    try:
        found = np.asarray(belongs)
    except ValueError:  # ragged
        found = np.empty(0)
    whole = found.shape == (n_places,) and found.dtype.kind in "iu"
    if not whole or not np.array_equal(np.unique(found), np.arange(len(np.unique(found)))):
        raise InputError(
            f"belongs must have a mode's number for each of {n_places} places, whole and counted from 0 without "
            f"gaps, got {belongs!r}; leave it out where each place is a mode of its own"
        )
    return found
