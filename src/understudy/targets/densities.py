"""Cheap densities: likelihoods of a forward model's outputs, and priors of its parameters.

Any object with the two methods of `Density` will do in their place. Both work on batches: one row a point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from understudy.errors import InputError


@runtime_checkable
class Density(Protocol):
    """A log-density whose value and gradient cost next to nothing."""

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of the rows of ``(n, m)``."""
        ...

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient ``(n, m)`` with respect to the rows."""
        ...


class GaussianLikelihood:
    """Observations of the outputs with Gaussian errors.

    Parameters
    ----------
    data : array_like of shape (m,)
        What was observed.
    sd : float or array_like of shape (m,), optional
        Standard deviation of the errors, if they are independent.
    covariance : array_like of shape (m, m), optional
        Their covariance, if they are not. Give either this or `sd`.

    Examples
    --------
    >>> likelihood = GaussianLikelihood([1.0, 2.0], sd=0.1)
    >>> likelihood.gradient(np.array([[1.0, 2.1]]))
    array([[ -0., -10.]])
    """

    def __init__(
        self, data: ArrayLike, sd: ArrayLike | None = None, *, covariance: ArrayLike | None = None
    ) -> None:
        self.data = _real_array(data, "data")
        if self.data.ndim != 1 or not np.isfinite(self.data).all():
            raise InputError(
                f"data must be a one-dimensional array of finite numbers, got shape {self.data.shape}; "
                "flatten the observations and drop missing ones (in the outputs too)"
            )
        if (sd is None) == (covariance is None):
            raise InputError("GaussianLikelihood needs either sd or covariance; give exactly one of them")
        m = self.data.size
        self._cho: tuple[np.ndarray, bool] | None = None
        if covariance is None:
            self.sd = positive(sd, "sd", (m,))
            log_det = 2.0 * np.log(self.sd).sum()
        else:
            matrix = _real_array(covariance, "covariance")
            if matrix.shape != (m, m):
                raise InputError(
                    f"covariance must have shape ({m}, {m}) to match the data, got {matrix.shape}; "
                    "give sd instead if the errors are independent"
                )
            try:
                self._cho = cho_factor(matrix, lower=True)
            except np.linalg.LinAlgError as error:
                raise InputError(
                    "covariance must be symmetric and positive definite, got a matrix that is not; "
                    "add the measurement variance to its diagonal"
                ) from error
            self.sd = np.sqrt(np.diag(matrix))
            log_det = 2.0 * np.log(np.diag(self._cho[0])).sum()
        self._constant = -0.5 * (m * np.log(2 * np.pi) + log_det)

    def _precision_times(self, residual: np.ndarray) -> np.ndarray:
        if self._cho is None:
            return residual / self.sd**2
        return np.asarray(cho_solve(self._cho, residual.T).T)

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-likelihood ``(n,)`` of outputs ``(n, m)``."""
        residual = points - self.data
        return np.asarray(self._constant - 0.5 * np.einsum("ij,ij->i", residual, self._precision_times(residual)))

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient with respect to the outputs, ``(n, m)``."""
        return -self._precision_times(points - self.data)


@dataclass(frozen=True, eq=False)
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

    mean: ArrayLike
    sd: ArrayLike
    dim: int | None = None

    def __post_init__(self) -> None:
        dim = _prior_dim("NormalPrior", self.dim, self.mean, self.sd)
        mean = np.broadcast_to(_real_array(self.mean, "mean"), (dim,))
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "sd", positive(self.sd, "sd", (dim,)))

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of parameters ``(n, dim)``."""
        z = (points - self.mean) / self.sd
        constant = -0.5 * points.shape[1] * np.log(2 * np.pi) - np.log(self.sd).sum()
        return np.asarray(constant - 0.5 * np.einsum("ij,ij->i", z, z))

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient, ``(n, dim)``."""
        return np.asarray((self.mean - points) / np.square(self.sd))

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one point, ``(dim,)``; chains start from such draws."""
        return np.asarray(rng.normal(self.mean, self.sd))


@dataclass(frozen=True, eq=False)
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

    lower: ArrayLike
    upper: ArrayLike
    dim: int | None = None

    def __post_init__(self) -> None:
        dim = _prior_dim("UniformPrior", self.dim, self.lower, self.upper)
        lower = np.broadcast_to(_real_array(self.lower, "lower"), (dim,))
        upper = np.broadcast_to(_real_array(self.upper, "upper"), (dim,))
        if not (np.isfinite(lower) & np.isfinite(upper) & (lower < upper)).all():
            raise InputError(
                f"UniformPrior needs finite lower < upper, got lower={lower.tolist()}, upper={upper.tolist()}; "
                "swap them, or use another prior for an unbounded parameter"
            )
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The limits as (lower, upper) pairs."""
        return [(float(a), float(b)) for a, b in zip(self.lower, self.upper, strict=True)]  # type: ignore[arg-type, call-overload]

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density ``(n,)`` of parameters ``(n, dim)``; -inf outside the limits."""
        inside = ((points >= self.lower) & (points <= self.upper)).all(axis=1)
        return np.where(inside, -np.log(np.subtract(self.upper, self.lower)).sum(), -np.inf)

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return its gradient, zero."""
        return np.zeros_like(points)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one point, ``(dim,)``."""
        return np.asarray(rng.uniform(self.lower, self.upper))


def positive(value: ArrayLike | None, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Broadcast to `shape`, insisting on finite numbers above zero."""
    array = _real_array(value, name)
    if not (np.isfinite(array) & (array > 0)).all():
        raise InputError(f"{name} must be positive and finite, got {array.tolist()}; check its sign and units")
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        raise InputError(
            f"{name} must be one number or an array of shape {shape}, got shape {array.shape}; "
            "give one entry per component"
        ) from error


def _real_array(value: ArrayLike | None, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError
        return array.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be real numbers, got {value!r}; convert it to a float array") from error


def _prior_dim(kind: str, dim: int | None, *values: ArrayLike) -> int:
    sizes = {np.size(value) for value in values if np.ndim(value) == 1}
    if any(np.ndim(value) > 1 for value in values):
        raise InputError(f"{kind} takes numbers or one-dimensional arrays; flatten what you give")
    if dim is not None:
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < 1:
            raise InputError(f"dim must be a positive integer, got {dim!r}; give the number of parameters")
        sizes.add(int(dim))
    if len(sizes) != 1:
        raise InputError(
            f"{kind} cannot tell its number of parameters: sizes given are {sorted(sizes)}; "
            "give dim=, or arrays of one length"
        )
    return sizes.pop()
