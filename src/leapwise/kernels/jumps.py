r"""Jumps between the components of a mixture of normals that covers the posterior.

A component is a separate mode, or a piece of a curved one. Component k is a normal distribution with mean :math:`m_k`
and covariance :math:`F_k F_k^T`. A position x belongs to the component i(x) whose density is largest there. A jump maps
x to

.. math:: T_{ij}(x) = m_j + F_j F_i^{-1} (x - m_i), \qquad i = i(x),

where the component j is drawn uniformly from all others. The jump is valid only if :math:`T_{ij}(x)` belongs to j. It
is accepted with probability :math:`\min(1, e^{U(x) - U(T_{ij}(x))} \det F_j / \det F_i)`.

**Reversible** for :math:`e^{-U}`, because the map :math:`(x, j) \mapsto (T_{ij}(x), i)` is its own inverse where it is
valid (:math:`T_{ji}` is the inverse of :math:`T_{ij}`); it stretches volume by :math:`\det F_j / \det F_i`; and i is
drawn at the end with the same probability as j at the start. This is Metropolis with a deterministic proposal (Green,
1995). Nothing is assumed of the normals: poor ones cost acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError


@dataclass(frozen=True, eq=False)
class Jumps:
    """The components that chains jump between.

    Parameters
    ----------
    centres : ndarray of shape (k, dim)
        Mean of each component, two or more, as unconstrained positions (like those a surrogate is trained on).
    factors : ndarray of shape (k, dim, dim)
        Lower Cholesky factor of each component's covariance.
    component_modes : ndarray of int, shape (k,), optional
        The mode that each component belongs to, counted from 0. By default each component is a mode of its own.

    Attributes
    ----------
    n_modes : int

    Examples
    --------
    Two modes, of which the right one is twice as wide:

    >>> jumps = Jumps(np.array([[-3.0], [4.0]]), np.array([[[1.0]], [[2.0]]]))
    >>> position, log_stretch, valid = jumps.propose(np.array([[-2.5], [4.0]]), np.array([0.9, 0.1]))
    >>> position.ravel(), log_stretch.round(3), valid
    (array([ 5., -3.]), array([ 0.693, -0.693]), array([ True,  True]))
    """

    centres: np.ndarray
    factors: np.ndarray
    component_modes: np.ndarray | None = None

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
                "factors of jumps must be lower triangular with positive diagonals, got otherwise for component "
                f"{wrong.argmax()}; use numpy.linalg.cholesky(covariances)"
            )
        modes = _read_modes(self.component_modes, len(centres))
        for name, array in (("centres", centres), ("factors", factors), ("component_modes", modes)):
            array = np.array(array)
            array.flags.writeable = False  # because the inverses below are computed once
            object.__setattr__(self, name, array)

    @cached_property
    def _inverses(self) -> np.ndarray:
        return np.linalg.inv(self.factors)

    @cached_property
    def _log_volumes(self) -> np.ndarray:
        """Log-determinants of the factors."""
        return np.asarray(np.log(np.diagonal(self.factors, axis1=1, axis2=2)).sum(axis=1))

    @property
    def n_modes(self) -> int:
        """Number of modes."""
        assert self.component_modes is not None
        return 1 + int(self.component_modes.max())

    def modes(self, position: np.ndarray) -> np.ndarray:
        """Return the mode of each unconstrained position ``(n, dim)``, counted from 0, ``(n,)``."""
        assert self.component_modes is not None
        return np.asarray(self.component_modes[self.components(position)])

    def components(self, position: np.ndarray) -> np.ndarray:
        """Return the component that each position belongs to, ``(n,)``."""
        return self._nearest(self._all_white(position))

    def propose(
        self, position: np.ndarray, uniforms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ends of jumps, the logarithm of their stretch of volume, and which jumps are valid.

        Parameters
        ----------
        position : ndarray of shape (n, dim)
        uniforms : ndarray of shape (n,)
            Uniform numbers on [0, 1), which choose one of the other components.
        """
        white = self._all_white(position)
        here = self._nearest(white)
        others = len(self.centres) - 1
        there = np.minimum((uniforms * others).astype(int), others - 1)
        there += there >= here
        own = white[np.arange(len(here)), here]
        end = self.centres[there] + (self.factors[there] @ own[:, :, None])[:, :, 0]
        return end, self._log_volumes[there] - self._log_volumes[here], self.components(end) == there

    def _all_white(self, position: np.ndarray) -> np.ndarray:
        """Return positions in the whitened coordinates of each component, ``(n, k, dim)``."""
        if np.ndim(position) != 2 or np.shape(position)[1] != self.centres.shape[1]:
            raise InputError(
                f"jumps are between positions of shape (n, {self.centres.shape[1]}), got {np.shape(position)}; reshape "
                "them, or give centres of the target's own dimension"
            )
        away = position[:, None, :] - self.centres
        return np.asarray((self._inverses @ away[:, :, :, None])[:, :, :, 0])

    def _nearest(self, white: np.ndarray) -> np.ndarray:
        """Return the component of largest density."""
        return np.asarray((0.5 * (white**2).sum(axis=2) + self._log_volumes).argmin(axis=1))


def _read_modes(component_modes: object, n_components: int) -> np.ndarray:
    """Return the mode of each component, checked."""
    if component_modes is None:
        return np.arange(n_components)
    try:
        found = np.asarray(component_modes)
    except ValueError:  # ragged
        found = np.empty(0)
    whole = found.shape == (n_components,) and found.dtype.kind in "iu"
    if not whole or not np.array_equal(np.unique(found), np.arange(len(np.unique(found)))):
        raise InputError(
            f"component_modes must have the mode of each of {n_components} components, numbered from 0 without gaps, "
            f"got {component_modes!r}; leave it out where each component is a mode of its own"
        )
    return found
