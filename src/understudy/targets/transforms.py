r"""Bounds mapped away, one coordinate at a time.

With position :math:`q` and parameter :math:`x`, each coordinate is one of

===================  =============================  ==============================
bounds               parameter                      :math:`\log |dx/dq|`
===================  =============================  ==============================
none                 :math:`x = q`                  0
lower :math:`a`      :math:`x = a + e^q`            :math:`q`
upper :math:`b`      :math:`x = b - e^q`            :math:`q`
both                 :math:`x = a + (b-a)\,s(q)`    :math:`\log(b-a) + \log s(q) + \log s(-q)`
===================  =============================  ==============================

where :math:`s` is the logistic function. The density of positions is that of parameters times
:math:`|dx/dq|`, so the Jacobian belongs to the potential that is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit, logit

from understudy.errors import InputError

Bounds = Sequence[tuple[float | None, float | None]] | tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class Transform:
    """A map between unconstrained positions and bounded parameters.

    Make one with `Transform.from_bounds`.

    Parameters
    ----------
    lower, upper : ndarray of shape (dim,)
        Bounds; infinite where there is none.

    Examples
    --------
    >>> transform = Transform.from_bounds([(0, None), (-1, 1)], dim=2)
    >>> transform.to_parameters(np.zeros((1, 2)))
    array([[1., 0.]])
    """

    lower: np.ndarray
    upper: np.ndarray

    @classmethod
    def from_bounds(cls, bounds: Bounds | None, dim: int) -> Transform:
        """Read bounds as given by a user.

        Parameters
        ----------
        bounds : None, a pair, or a sequence of `dim` pairs
            ``(lower, upper)`` with None or an infinity for no bound; one pair holds for every parameter.
        dim : int
            Number of parameters.
        """
        if bounds is None:
            return cls(np.full(dim, -np.inf), np.full(dim, np.inf))
        try:
            pairs = np.array(
                [[np.nan if end is None else float(end) for end in pair] for pair in _as_pairs(bounds, dim)]
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"bounds must be (lower, upper) or one such pair per parameter, got {bounds!r}; "
                "use None where there is no bound"
            ) from error
        if pairs.shape != (dim, 2):
            raise InputError(
                f"bounds must hold one (lower, upper) pair for each of the {dim} parameters, got an array of "
                f"shape {pairs.shape}; give one pair per parameter, or a single pair for all"
            )
        lower = np.where(np.isnan(pairs[:, 0]), -np.inf, pairs[:, 0])
        upper = np.where(np.isnan(pairs[:, 1]), np.inf, pairs[:, 1])
        wrong = np.flatnonzero(~(lower < upper))
        if wrong.size:
            first = int(wrong[0])
            raise InputError(
                f"bounds must have lower < upper, got ({lower[first]:g}, {upper[first]:g}) for parameter {first}; "
                "swap or widen them"
            )
        return cls(lower, upper)

    @property
    def is_identity(self) -> bool:
        """Whether no parameter is bounded."""
        return not (self._has_lower.any() or self._has_upper.any())

    @property
    def _has_lower(self) -> np.ndarray:
        return np.isfinite(self.lower)

    @property
    def _has_upper(self) -> np.ndarray:
        return np.isfinite(self.upper)

    @property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Columns bounded below only, above only, on both sides."""
        low, up = self._has_lower, self._has_upper
        return low & ~up, up & ~low, low & up

    def to_parameters(self, position: np.ndarray) -> np.ndarray:
        """Map positions ``(n, dim)`` to parameters ``(n, dim)``."""
        if self.is_identity:
            return position
        low, up, both = self._kinds
        parameters = np.array(position, dtype=float)
        with np.errstate(over="ignore"):
            parameters[:, low] = self.lower[low] + np.exp(position[:, low])
            parameters[:, up] = self.upper[up] - np.exp(position[:, up])
        width = self.upper[both] - self.lower[both]
        parameters[:, both] = self.lower[both] + width * expit(position[:, both])
        return parameters

    def to_position(self, parameters: np.ndarray) -> np.ndarray:
        """Map parameters ``(n, dim)``, strictly inside their bounds, to positions."""
        if self.is_identity:
            return parameters
        low, up, both = self._kinds
        position = np.array(parameters, dtype=float)
        position[:, low] = np.log(parameters[:, low] - self.lower[low])
        position[:, up] = np.log(self.upper[up] - parameters[:, up])
        width = self.upper[both] - self.lower[both]
        position[:, both] = logit((parameters[:, both] - self.lower[both]) / width)
        return position

    def contains(self, parameters: np.ndarray) -> np.ndarray:
        """Say for each row whether it is finite and strictly inside the bounds.

        A position so far out that its parameter rounds to a bound, or overflows, has no representable
        parameter. Such rows carry a mass below 1e-15 and are treated as having none.
        """
        finite = np.isfinite(parameters)
        return np.asarray((finite & (parameters > self.lower) & (parameters < self.upper)).all(axis=1))

    def log_jacobian(self, position: np.ndarray) -> np.ndarray:
        """Return log |dx/dq| of each row, shape ``(n,)``."""
        if self.is_identity:
            return np.zeros(len(position))
        low, up, both = self._kinds
        total = position[:, low | up].sum(axis=1)
        inside = position[:, both]
        width = self.upper[both] - self.lower[both]
        return np.asarray(total + (np.log(width) + log_expit(inside) + log_expit(-inside)).sum(axis=1))

    def pull_back(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Turn a gradient of the log-density in parameters into one of log-density + log-Jacobian in positions."""
        if self.is_identity:
            return gradient
        low, up, both = self._kinds
        slope = np.ones_like(position)
        jacobian_gradient = np.zeros_like(position)
        with np.errstate(over="ignore"):
            slope[:, low] = np.exp(position[:, low])
            slope[:, up] = -np.exp(position[:, up])
        jacobian_gradient[:, low | up] = 1.0
        share = expit(position[:, both])
        slope[:, both] = (self.upper[both] - self.lower[both]) * share * expit(-position[:, both])
        jacobian_gradient[:, both] = 1.0 - 2.0 * share
        return np.asarray(slope * gradient + jacobian_gradient)


def _as_pairs(bounds: Bounds, dim: int) -> Sequence[tuple[float | None, float | None]]:
    is_single_pair = len(bounds) == 2 and all(end is None or np.isscalar(end) for end in bounds)
    return [bounds] * dim if is_single_pair else bounds  # type: ignore[list-item, return-value]
