r"""Metrics: the distribution of momenta, and the velocity that belongs to a momentum.

A *Euclidean* metric is the same everywhere: :math:`p \sim N(0, M)`, velocity :math:`M^{-1} p`. The best
:math:`M^{-1}` is the covariance of the posterior, so the constructors take a covariance.

A *Riemannian* metric depends on the position: :math:`p \sim N(0, G(q))`. In d dimensions the dynamics never
need the d matrices :math:`\partial_i G`, only two contractions of them (the paper's section 2.2):

.. math::
    \nu_i(q, v) = v^T \, \partial_i G(q) \, v, \qquad
    \tau_i(q) = \mathrm{tr}\left(G(q)^{-1} \partial_i G(q)\right),

with :math:`v = G(q)^{-1} p`. For many models both cost no more than :math:`G` itself. A wrong :math:`\nu` biases the
draws, so `check_metric` compares a user's metric with its own finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from leapwise.checks import require_covariance, require_positive
from leapwise.errors import InputError, StartError


@runtime_checkable
class EuclideanMetric(Protocol):
    """A metric that is the same everywhere."""

    def momentum(self, normals: np.ndarray) -> np.ndarray:
        """Turn standard normals ``(n, dim)`` into momenta."""
        ...

    def velocity(self, momentum: np.ndarray) -> np.ndarray:
        """Return :math:`M^{-1} p` of each row."""
        ...

    def mass_times(self, vector: np.ndarray) -> np.ndarray:
        """Return :math:`M x` of each row, the inverse of `velocity`."""
        ...


class LocalMetric(Protocol):
    """A Riemannian metric at n positions."""

    @property
    def matrix(self) -> np.ndarray:
        """The metric G(q), ``(n, dim, dim)``."""
        ...

    @property
    def cholesky(self) -> np.ndarray:
        """Its lower Cholesky factor, ``(n, dim, dim)``."""
        ...

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`\nu_i = v^T \partial_i G\, v`, ``(n, dim)``."""
        ...

    def trace_contraction(self) -> np.ndarray:
        r"""Return :math:`\tau_i = \mathrm{tr}(G^{-1} \partial_i G)`, ``(n, dim)``."""
        ...


@runtime_checkable
class RiemannianMetric(Protocol):
    """A metric that depends on the position."""

    def at(self, position: np.ndarray) -> LocalMetric:
        """Evaluate the metric at positions ``(n, dim)``.

        In rows where the matrix is not positive definite, or not finite, `cholesky` must be NaN (see
        `batched_cholesky`). The proposal is then rejected and counted.
        """
        ...


@runtime_checkable
class ProductMetric(RiemannianMetric, Protocol):
    """A Riemannian metric whose product with a vector is much cheaper than the metric itself."""

    def product(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`G(q)\, v` of each row, ``(n, dim)``."""
        ...


@dataclass(frozen=True, eq=False)
class UnitMetric:
    """The identity.

    Examples
    --------
    >>> UnitMetric().velocity(np.array([[1.0, 2.0]]))
    array([[1., 2.]])
    """

    def momentum(self, normals: np.ndarray) -> np.ndarray:
        """Turn standard normals into momenta."""
        return normals

    def velocity(self, momentum: np.ndarray) -> np.ndarray:
        """Return the momentum itself."""
        return momentum

    def mass_times(self, vector: np.ndarray) -> np.ndarray:
        """Return the vector itself."""
        return vector


@dataclass(frozen=True, eq=False)
class DiagonalMetric:
    """Independent coordinates, each with its own scale.

    Parameters
    ----------
    variance : array_like of shape (dim,)
        Variance of each position under the posterior, the inverse of its mass.

    Examples
    --------
    >>> DiagonalMetric([1.0, 4.0]).velocity(np.array([[1.0, 1.0]]))
    array([[1., 4.]])
    """

    variance: ArrayLike

    def __post_init__(self) -> None:
        if np.ndim(self.variance) != 1:
            raise InputError(
                f"variance must be a one-dimensional array, got {np.ndim(self.variance)} dimensions; "
                "give one entry for each parameter"
            )
        variance = require_positive(self.variance, "variance", np.shape(self.variance))
        object.__setattr__(self, "variance", variance)

    def momentum(self, normals: np.ndarray) -> np.ndarray:
        """Turn standard normals into momenta of variance 1 / `variance`."""
        return np.asarray(normals / np.sqrt(self.variance))

    def velocity(self, momentum: np.ndarray) -> np.ndarray:
        """Return `variance` times momentum."""
        return np.asarray(momentum * self.variance)

    def mass_times(self, vector: np.ndarray) -> np.ndarray:
        """Return the vector divided by `variance`."""
        return np.asarray(vector / self.variance)


@dataclass(frozen=True, eq=False)
class DenseMetric:
    """Correlated coordinates.

    Parameters
    ----------
    covariance : array_like of shape (dim, dim)
        Covariance of the positions under the posterior, the inverse of the mass matrix.

    Examples
    --------
    >>> DenseMetric([[1.0, 0.5], [0.5, 1.0]]).velocity(np.array([[1.0, 0.0]]))
    array([[1. , 0.5]])
    """

    covariance: ArrayLike

    def __post_init__(self) -> None:
        covariance, factor = require_covariance(self.covariance)
        object.__setattr__(self, "covariance", covariance)
        # With covariance = C C', momenta C'^-1 z have covariance (C C')^-1, the mass matrix.
        inverse = solve_triangular(factor, np.eye(len(factor)), lower=True)
        object.__setattr__(self, "_momentum_factor", inverse.T)
        object.__setattr__(self, "_mass_matrix", inverse.T @ inverse)

    def momentum(self, normals: np.ndarray) -> np.ndarray:
        """Turn standard normals into momenta whose covariance is the inverse of `covariance`."""
        return times_rows(self._momentum_factor, normals)  # type: ignore[attr-defined]

    def velocity(self, momentum: np.ndarray) -> np.ndarray:
        """Return `covariance` times momentum."""
        return times_rows(np.asarray(self.covariance), momentum)

    def mass_times(self, vector: np.ndarray) -> np.ndarray:
        """Return the inverse of `covariance` times the vector."""
        return times_rows(self._mass_matrix, vector)  # type: ignore[attr-defined]


def kinetic_energy(metric: EuclideanMetric, momentum: np.ndarray) -> np.ndarray:
    r"""Return :math:`\frac12 p^T M^{-1} p` of each row; the constant log-determinant is left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        return 0.5 * np.einsum("ij,ij->i", momentum, metric.velocity(momentum))


def times_rows(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return `matrix` times each row, with rounding that does not depend on the number of rows.

    One product for the whole batch would be faster for very many rows. But BLAS rounds it differently for different
    batch sizes, and then a chain's draws would depend on the number of chains beside it.
    """
    return np.asarray(np.matmul(matrix, rows[:, :, None])[:, :, 0])


def batched_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return lower Cholesky factors ``(n, d, d)``, NaN for matrices that are not positive definite.

    Examples
    --------
    >>> batched_cholesky(np.array([[[4.0]], [[-1.0]]]))[:, 0, 0]
    array([ 2., nan])
    """
    finite = np.isfinite(matrix).all(axis=(1, 2))
    if not finite.all():
        factors = np.full_like(matrix, np.nan)
        factors[finite] = batched_cholesky(matrix[finite])
        return factors
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        factors = np.full_like(matrix, np.nan)
        for i, one in enumerate(matrix):
            try:
                factors[i] = np.linalg.cholesky(one)
            except np.linalg.LinAlgError:
                continue
        return factors


#: Step of the finite differences, in standard deviations: their error is of the order of its square, 1e-8, and rounding
#: errors are about 1e-12.
STEP = 1e-4
#: Largest relative disagreement allowed. A guess: far above the errors of the differences, far below those of a
#: mistake.
TOLERANCE = 1e-3
#: Evaluations of the metric in one check: one at the position, and one on either side.
N_EVALUATIONS = 3


def check_metric(metric: RiemannianMetric, position: np.ndarray, normals: np.ndarray) -> int:
    r"""Raise `InputError` if a metric is not consistent at a position.

    The check compares :math:`L L^T` with :math:`G` and, along one random direction, both contractions with differences
    of :math:`v^T G v` and :math:`\log\det G`. It takes three evaluations of the metric and none of the target. A wrong
    contraction :math:`\nu` would bias the draws, and no diagnostic would show it.

    Parameters
    ----------
    metric : RiemannianMetric
    position : ndarray of shape (1, dim)
        Where to check. A `StartError` is raised if the metric is not positive definite there.
    normals : ndarray of shape (2, dim)
        Standard normals, for the direction and the velocity.

    Returns
    -------
    int
        Number of evaluations of the metric.
    """
    local, dim = metric.at(position), position.shape[1]
    for name in ("matrix", "cholesky"):
        shape = np.asarray(getattr(local, name, None)).shape
        if shape != (1, dim, dim):
            raise InputError(
                f"metric.at(position).{name} must have shape (n, {dim}, {dim}), got {shape} for n = 1"
            )
    if not np.isfinite(local.cholesky).all():
        raise StartError(
            f"the metric is not positive definite at the start {position[0].tolist()}; start somewhere else "
            "(init=), or use a metric that is positive definite everywhere (of a surrogate: form='softabs')"
        )
    matrix, factor = local.matrix[0], local.cholesky[0]
    _compare("cholesky @ cholesky.T", factor @ factor.T, matrix, np.abs(matrix).max())
    direction, velocity = (np.linalg.solve(factor.T, z) for z in normals)
    ahead, behind = (metric.at(position + sign * STEP * direction) for sign in (1.0, -1.0))
    if isinstance(metric, ProductMetric):
        product = metric.product(position, velocity[None])[0]
        _compare("product(position, velocity)", product, matrix @ velocity, np.abs(matrix @ velocity).max())
    if not (np.isfinite(ahead.cholesky).all() and np.isfinite(behind.cholesky).all()):
        return N_EVALUATIONS
    change = velocity @ (ahead.matrix[0] - behind.matrix[0]) @ velocity / (2.0 * STEP)
    found = local.quadratic_contraction(velocity[None])[0] @ direction
    _compare("quadratic_contraction(velocity)", found, change, 1e-3 * float(velocity @ matrix @ velocity))
    log_dets = [2.0 * np.log(np.diag(there.cholesky[0])).sum() for there in (ahead, behind)]
    change = (log_dets[0] - log_dets[1]) / (2.0 * STEP)
    _compare("trace_contraction()", local.trace_contraction()[0] @ direction, change, 1e-3 * dim)
    return N_EVALUATIONS


def _compare(what: str, found: np.ndarray, expected: np.ndarray, scale: float) -> None:
    """Raise if two quantities that should be equal differ by more than the error of finite differences."""
    if not np.max(np.abs(found - expected)) <= TOLERANCE * (
        np.max(np.abs(found)) + np.max(np.abs(expected)) + scale
    ):
        raise InputError(
            f"the metric's {what} does not agree with its matrix: got {np.ravel(found)[0]:.6g}, expected "
            f"{np.ravel(expected)[0]:.6g} from the matrix; fix it, because the draws would be biased"
        )
