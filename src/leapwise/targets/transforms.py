r"""Transforms from unconstrained positions to bounded parameters, one coordinate at a time.

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

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit, log_expit

from leapwise.errors import InputError

Bounds = Sequence[tuple[float | None, float | None] | None] | tuple[float | None, float | None] | np.ndarray


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
            pairs = np.array([_as_limits(pair) for pair in _as_pairs(bounds, dim)])
        except (TypeError, ValueError) as error:
            raise InputError(
                f"bounds must be (lower, upper) or one such pair per parameter, got {reprlib.repr(bounds)}; "
                "use None where there is no bound"
            ) from error
        if pairs.shape != (dim, 2):
            raise InputError(
                f"bounds must hold one (lower, upper) pair for each of the {dim} parameters, got "
                f"{len(pairs)}; give one pair per parameter, or a single pair for all"
            )
        lower, upper = pairs[:, 0].copy(), pairs[:, 1].copy()
        _require_room(lower, upper)
        return cls(lower, upper)

    def within(self, other: Transform) -> Transform:
        """Return the transform for the region that both allow.

        Examples
        --------
        >>> wide, low = (Transform.from_bounds(bounds, dim=1) for bounds in ((0.5, 6), (None, 1)))
        >>> both = wide.within(low)
        >>> float(both.lower[0]), float(both.upper[0])
        (0.5, 1.0)
        """
        lower, upper = np.maximum(self.lower, other.lower), np.minimum(self.upper, other.upper)
        if (empty := np.flatnonzero(~(lower < upper))).size:
            i = empty[0]
            raise InputError(
                f"bounds must leave some of the prior's support, got ({self.lower[i]:g}, {self.upper[i]:g}) for "
                f"parameter {i}, where the prior has ({other.lower[i]:g}, {other.upper[i]:g}); change one of them"
            )
        _require_room(lower, upper)
        return Transform(lower, upper)

    @cached_property
    def is_identity(self) -> bool:
        """Whether no parameter is bounded."""
        return not (np.isfinite(self.lower) | np.isfinite(self.upper)).any()

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Columns bounded below only, above only, on both sides."""
        low, up = np.isfinite(self.lower), np.isfinite(self.upper)
        return np.flatnonzero(low & ~up), np.flatnonzero(up & ~low), np.flatnonzero(low & up)

    @cached_property
    def _limits(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Limits of those columns: lower only; upper only; lower and upper where there are both."""
        low, up, both = self._columns
        return self.lower[low], self.upper[up], self.lower[both], self.upper[both]

    @cached_property
    def _width(self) -> np.ndarray:
        """Upper minus lower, where there are both."""
        _, _, lower, upper = self._limits
        return np.asarray(upper - lower)

    @cached_property
    def _log_volume(self) -> float:
        return float(np.log(self._width).sum())

    def to_parameters(self, position: np.ndarray) -> np.ndarray:
        """Map positions ``(n, dim)`` to parameters ``(n, dim)``, always a new array."""
        parameters = np.array(position, dtype=float)
        if self.is_identity:
            return parameters
        low, up, both = self._columns
        above, below, lower, upper = self._limits
        with np.errstate(all="ignore"):  # far out, over- and underflow give the right limits
            if low.size:
                parameters[:, low] = above + np.exp(position[:, low])
            if up.size:
                parameters[:, up] = below - np.exp(position[:, up])
            if both.size:
                inside = position[:, both]
                # Each half is measured from its own bound, so that neither end is rounded before the other.
                parameters[:, both] = np.where(
                    inside > 0, upper - self._width * expit(-inside), lower + self._width * expit(inside)
                )
        return parameters

    def to_position(self, parameters: np.ndarray) -> np.ndarray:
        """Map parameters ``(n, dim)``, strictly inside their bounds, to positions; always a new array."""
        position = np.array(parameters, dtype=float)
        if self.is_identity:
            return position
        low, up, both = self._columns
        above, below, lower, upper = self._limits
        position[:, low] = np.log(parameters[:, low] - above)
        position[:, up] = np.log(below - parameters[:, up])
        inside = parameters[:, both]
        position[:, both] = np.log(inside - lower) - np.log(upper - inside)
        return position

    def contains(self, parameters: np.ndarray) -> np.ndarray:
        """Return for each row whether it is finite and strictly inside the bounds.

        A position so far out that its parameter rounds to a bound, or overflows, has no representable parameter and is
        treated as having no mass. That matters only for a density that concentrates at a bound other than zero, closer
        than rounding can resolve; shift or rescale the parameter so that the bound is zero.
        """
        # Absent bounds are infinite, and comparison is strict: this refuses infinities and NaN as well.
        return np.asarray(((parameters > self.lower) & (parameters < self.upper)).all(axis=1))

    def log_jacobian(self, position: np.ndarray) -> np.ndarray:
        """Return log |dx/dq| of each row, shape ``(n,)``."""
        total = np.zeros(len(position))
        if self.is_identity:
            return total
        low, up, both = self._columns
        with np.errstate(all="ignore"):
            if low.size:
                total += position[:, low].sum(axis=1)
            if up.size:
                total += position[:, up].sum(axis=1)
            if both.size:
                inside = position[:, both]
                total += self._log_volume + (log_expit(inside) + log_expit(-inside)).sum(axis=1)
        return total

    def pull_back(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Turn a gradient in parameters into the gradient of log-density + log-Jacobian in positions.

        Where that overflows the result is not finite.
        """
        pulled = np.array(gradient, dtype=float)
        if self.is_identity:
            return pulled
        low, up, both = self._columns
        with np.errstate(all="ignore"):
            if low.size:
                pulled[:, low] = 1.0 + np.exp(position[:, low]) * pulled[:, low]
            if up.size:
                pulled[:, up] = 1.0 - np.exp(position[:, up]) * pulled[:, up]
            if both.size:
                share, rest = expit(position[:, both]), expit(-position[:, both])
                pulled[:, both] = self._width * share * rest * pulled[:, both] + (rest - share)
        return pulled


def _as_pairs(bounds: Any, dim: int) -> Any:
    is_single_pair = len(bounds) == 2 and all(np.ndim(end) == 0 for end in bounds)
    return [bounds] * dim if is_single_pair else bounds


def _as_limits(pair: Any) -> tuple[float, float]:
    """Return a pair as numbers; None at either end, or for the whole pair, is no bound."""
    lower, upper = (None, None) if pair is None else pair
    if any(isinstance(given, str) for given in (pair, lower, upper)):
        raise TypeError("a bound is a number, not a string")
    return (-np.inf if lower is None else float(lower)), (np.inf if upper is None else float(upper))


def _require_room(lower: np.ndarray, upper: np.ndarray) -> None:
    """Raise unless each lower bound is below its upper one, with numbers between them."""
    first_bad = np.flatnonzero(~(lower < upper))
    if first_bad.size:
        i = first_bad[0]
        unknown = np.isnan(lower[i]) or np.isnan(upper[i])
        raise InputError(
            f"bounds must have lower < upper, got ({lower[i]:g}, {upper[i]:g}) for parameter {i}; "
            + ("use None where there is no bound" if unknown else "swap or widen them")
        )
    with np.errstate(over="ignore", invalid="ignore"):
        middle = lower + 0.5 * (upper - lower)
    crowded = np.isfinite(lower) & np.isfinite(upper) & ~((lower < middle) & (middle < upper))
    if crowded.any():
        i = np.flatnonzero(crowded)[0]
        raise InputError(
            f"bounds ({float(lower[i])!r}, {float(upper[i])!r}) of parameter {i} are too close together or "
            "too far apart for floating point; rescale the parameter, or use None where there is no bound"
        )
