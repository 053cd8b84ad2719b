r"""Profiles of radial functions: what happens along the distance.

A profile is a function :math:`\varphi(\rho)` of :math:`\rho = \|z - c\|^2 / 2 \ell^2` with its derivatives by
:math:`\rho`. All derivatives of a radial feature by position or by centre follow from these: a network needs the
first three, a kernel that also observes gradients the fourth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.errors import InputError


class Profile(Protocol):
    """A function of half the squared scaled distance, with derivatives."""

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives at `rho`, arrays of the same shape."""
        ...


@dataclass(frozen=True)
class SquaredExponential:
    r"""The profile :math:`e^{-\rho}`.

    Examples
    --------
    >>> [float(value) for value in SquaredExponential().derivatives(np.array(0.0), 2)]
    [1.0, -1.0, 1.0]
    """

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives."""
        value = np.exp(-rho)
        minus = -value if order > 0 else value
        return tuple(minus if k % 2 else value for k in range(order + 1))


@dataclass(frozen=True)
class RationalQuadratic:
    r"""The profile :math:`(1 + \rho / \alpha)^{-\alpha}`: squared exponentials of many lengths, mixed.

    Examples
    --------
    >>> [float(value) for value in RationalQuadratic(2.0).derivatives(np.array(2.0), 1)]
    [0.25, -0.125]
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(f"alpha must be a positive number, got {self.alpha!r}; try 1.0")

    def derivatives(self, rho: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Return the profile and its first `order` derivatives."""
        inverse = 1.0 / (1.0 + rho / self.alpha)
        terms = [inverse**self.alpha]
        for k in range(order):  # each derivative lowers the exponent by one
            terms.append(terms[-1] * inverse * (-(self.alpha + k) / self.alpha))
        return tuple(terms)
