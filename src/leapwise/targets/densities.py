"""Cheap densities: the form of likelihoods and priors, and two plain priors.

Any object with the two methods of `Density`, ``log_density(points)`` and ``gradient(points)``, can be used in their
place. Both methods take batches, with one point per row.

A prior may also have ``sample(rng)``, which draws one point: chains then start from draws of the prior. If it has no
such method, or its draws do not fall inside the target's bounds, chains start uniformly between -2 and 2 in
unconstrained space (`leapwise.warmup.start`). The posterior does not depend on it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_dim, require_positive, require_real
from leapwise.errors import InputError


@runtime_checkable
class Density(Protocol):
    """A log-density whose value and gradient are cheap."""

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of the rows of ``(n, m)``."""
        ...

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient ``(n, m)`` with respect to the rows."""
        ...


class NormalPrior:
    """Independent normal parameters.

    Parameters
    ----------
    mean, sd : float or array_like of shape (dim,)
        Mean and standard deviation of each parameter.
    dim : int, optional
        Number of parameters, needed if neither `mean` nor `sd` is an array.

    Examples
    --------
    >>> NormalPrior(0.0, 0.5, dim=2).log_density(np.zeros((1, 2)))
    array([-0.45158...])
    """

    def __init__(self, mean: ArrayLike, sd: ArrayLike, dim: int | None = None) -> None:
        centre, spread = require_real(mean, "mean"), require_real(sd, "sd")
        self.dim = _prior_dim("NormalPrior", dim, centre, spread)
        self.mean = np.broadcast_to(centre, (self.dim,))
        self.sd = require_positive(spread, "sd", (self.dim,))
        self._constant = -0.5 * self.dim * np.log(2 * np.pi) - np.log(self.sd).sum()

    def __repr__(self) -> str:
        return f"NormalPrior(dim={self.dim})"

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of parameters ``(n, dim)``."""
        with np.errstate(over="ignore"):
            z = (points - self.mean) / self.sd
        return np.asarray(self._constant - 0.5 * np.einsum("ij,ij->i", z, z))

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient, ``(n, dim)``."""
        with np.errstate(over="ignore"):
            return np.asarray((self.mean - points) / self.sd / self.sd)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one point, ``(dim,)``; chains may start from it."""
        return np.asarray(rng.normal(self.mean, self.sd))


class UniformPrior:
    """Independent uniform parameters; their limits become the target's bounds.

    Parameters
    ----------
    lower, upper : float or array_like of shape (dim,)
        Limits of each parameter.
    dim : int, optional
        Number of parameters, needed if neither limit is an array.

    Examples
    --------
    >>> UniformPrior([0, -1], [2, 1]).bounds
    [(0.0, 2.0), (-1.0, 1.0)]
    """

    def __init__(self, lower: ArrayLike, upper: ArrayLike, dim: int | None = None) -> None:
        low, high = require_real(lower, "lower"), require_real(upper, "upper")
        self.dim = _prior_dim("UniformPrior", dim, low, high)
        self.lower, self.upper = np.broadcast_to(low, (self.dim,)), np.broadcast_to(high, (self.dim,))
        bad = np.flatnonzero(self.lower >= self.upper)
        if bad.size:
            i = bad[0]
            raise InputError(
                f"UniformPrior needs lower < upper, got {self.lower[i]:g} and {self.upper[i]:g} for "
                f"parameter {i}; swap them"
            )
        self._log_density = -np.log(self.upper - self.lower).sum()

    def __repr__(self) -> str:
        return f"UniformPrior(dim={self.dim})"

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The limits as (lower, upper) pairs."""
        return list(zip(self.lower.tolist(), self.upper.tolist(), strict=True))

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of parameters ``(n, dim)``; -inf outside the limits."""
        inside = ((points >= self.lower) & (points <= self.upper)).all(axis=1)
        return np.where(inside, self._log_density, -np.inf)

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient, zero."""
        return np.zeros_like(points)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one point, ``(dim,)``."""
        return np.asarray(rng.uniform(self.lower, self.upper))


def _prior_dim(kind: str, dim: int | None, *values: np.ndarray) -> int:
    if any(value.ndim > 1 for value in values):
        raise InputError(f"{kind} takes numbers or one-dimensional arrays; flatten them")
    sizes = {value.size for value in values if value.ndim}
    if dim is not None:
        sizes.add(require_dim(dim))
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(
            f"{kind} does not know its number of parameters: the sizes given are {sorted(sizes)}; "
            "give dim=, or arrays of one length"
        )
    return sizes.pop()
