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

`HessianMetric` makes a Riemannian metric from the Hessian :math:`H(q)` of a smooth potential (in this file H is not the
Hamiltonian), in three forms:

- ``"full"``: :math:`G = H`, where that is positive definite;
- ``"diagonal"``: :math:`G = \mathrm{diag}(g(H_{ii}))` with :math:`g(h) = \frac12 (h + \sqrt{h^2 + 4 f^2})`, a smooth
  floor: close to h where h is far above f, and positive everywhere;
- ``"softabs"`` (Betancourt): :math:`G = Q\, g(\Lambda)\, Q^T` with :math:`H = Q \Lambda Q^T` and
  :math:`g(\lambda) = \lambda \coth(\lambda / f)`, which is close to :math:`|\lambda|`, and at least f.

Each of the two contractions of :math:`\partial_i G` then equals a contraction of :math:`\partial_i H`,
:math:`\mathrm{tr}(A\, \partial_i H)`, with a matrix A that is cheap to compute, so the array of third derivatives is
never computed:

=========  =======================================================  =========================================
form       A for :math:`\nu`                                          A for :math:`\tau`
=========  =======================================================  =========================================
full       :math:`v v^T`                                             :math:`H^{-1}`
diagonal   :math:`\mathrm{diag}(v_i^2\, g'(H_{ii}))`                 :math:`\mathrm{diag}(g'(H_{ii}) / g(H_{ii}))`
softabs    :math:`Q\, (J \circ w w^T)\, Q^T`, :math:`w = Q^T v`      :math:`Q\, \mathrm{diag}(g'/g)\, Q^T`
=========  =======================================================  =========================================

with :math:`J_{ij} = (g(\lambda_i) - g(\lambda_j)) / (\lambda_i - \lambda_j)`, or :math:`g'(\lambda_i)` where the two
eigenvalues are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from leapwise.checks import ask_surrogate, require_covariance, require_positive
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


Form = Literal["full", "diagonal", "softabs"]


class HessianPotential(Protocol):
    """A potential with second derivatives and contractions of its third derivatives."""

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians ``(n, dim, dim)``."""
        ...

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`v^T \partial_i H\, v`, ``(n, dim)``."""
        ...

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(A\, \partial_i H)`, ``(n, dim)``."""
        ...


@dataclass(frozen=True, eq=False)
class HessianMetric:
    """A metric made from the Hessian of a potential, such as a trained surrogate.

    Parameters
    ----------
    potential : object
        It has the methods ``hessian``, ``quadratic_contraction`` and ``trace_contraction``, like every trained
        surrogate.
    form : {"full", "diagonal", "softabs"}
        How the Hessian is made positive definite. "full" does not change it; where it is not positive definite,
        proposals are rejected.
    floor : float
        Smallest curvature f of the other two forms, approximately.

    Examples
    --------
    >>> import numpy as np
    >>> from leapwise import HessianMetric, QuadraticNetwork, TrainingSet
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((20, 2))
    >>> quadratic = QuadraticNetwork().fit(TrainingSet(x, (x**2) @ [0.5, 2.0], x * [1.0, 4.0]), rng)
    >>> HessianMetric(quadratic).at(np.zeros((1, 2))).matrix.round(6) + 0.0
    array([[[1., 0.],
            [0., 4.]]])
    """

    potential: HessianPotential
    form: Form = "full"
    floor: float = 1e-3

    def __post_init__(self) -> None:
        missing = [
            name
            for name in ("hessian", "quadratic_contraction", "trace_contraction")
            if not callable(getattr(self.potential, name, None))
        ]
        if missing or isinstance(self.potential, type):
            raise InputError(
                f"HessianMetric needs a potential with methods hessian, quadratic_contraction and trace_contraction, "
                f"got {getattr(self.potential, '__name__', type(self.potential).__name__)}; give a trained surrogate"
            )
        if self.form not in get_args(Form):
            raise InputError(
                f"form must be one of {', '.join(map(repr, get_args(Form)))}, got {self.form!r}; "
                "'softabs' suits any potential"
            )
        require_positive(self.floor, "floor", ())

    def product(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the metric times each row of `velocity`, by the potential's `hessian_product` if it has one."""
        with np.errstate(all="ignore"):
            if self.form == "full" and hasattr(self.potential, "hessian_product"):
                product = self.potential.hessian_product
                return ask_surrogate(
                    self.potential, product, position.shape, "products with Hessians", position, velocity
                )
            return np.asarray(np.einsum("nij,nj->ni", self.at(position).matrix, velocity))

    def at(self, position: np.ndarray) -> LocalMetric:
        """Evaluate the metric at positions ``(n, dim)``."""
        with np.errstate(all="ignore"):
            shape = (*position.shape, position.shape[1])
            hessian = ask_surrogate(self.potential, self.potential.hessian, shape, "Hessians", position)
            if self.form == "full":
                return _Full(self.potential, position, hessian, batched_cholesky(hessian))
            if self.form == "diagonal":
                return _diagonal(self.potential, position, hessian, self.floor)
            return _softabs(self.potential, position, hessian, self.floor)


@dataclass(frozen=True, eq=False)
class _Full:
    potential: HessianPotential
    position: np.ndarray
    matrix: np.ndarray
    cholesky: np.ndarray

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        contract, shape = self.potential.quadratic_contraction, self.position.shape
        return ask_surrogate(self.potential, contract, shape, "contractions", self.position, velocity)

    def trace_contraction(self) -> np.ndarray:
        inverse = np.full_like(self.matrix, np.nan)
        usable = np.isfinite(self.cholesky).all(axis=(1, 2))
        factor = np.linalg.inv(self.cholesky[usable])
        inverse[usable] = np.matmul(np.swapaxes(factor, 1, 2), factor)
        return _trace(self.potential, self.position, inverse)


@dataclass(frozen=True, eq=False)
class _Spectral:
    """A metric :math:`Q\\, g\\, Q^T` from the eigenvalues of the Hessian, or from its diagonal (then Q is None)."""

    potential: HessianPotential
    position: np.ndarray
    matrix: np.ndarray
    cholesky: np.ndarray
    vectors: np.ndarray | None  # (n, dim, dim): Q
    values: np.ndarray  # (n, dim): g
    slopes: np.ndarray  # (n, dim): g', or (n, dim, dim): J

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        if self.vectors is None:
            return _trace(self.potential, self.position, _diagonals(velocity**2 * self.slopes))
        along = np.einsum("nji,nj->ni", self.vectors, velocity)
        return self._contract(self.slopes * along[:, :, None] * along[:, None, :])

    def trace_contraction(self) -> np.ndarray:
        if self.vectors is None:
            return _trace(self.potential, self.position, _diagonals(self.slopes / self.values))
        slopes = np.diagonal(self.slopes, axis1=1, axis2=2)
        return self._contract(_diagonals(slopes / self.values))

    def _contract(self, inner: np.ndarray) -> np.ndarray:
        assert self.vectors is not None
        matrix = self.vectors @ inner @ np.swapaxes(self.vectors, 1, 2)
        return _trace(self.potential, self.position, matrix)


def _trace(potential: HessianPotential, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return ask_surrogate(
        potential, potential.trace_contraction, position.shape, "contractions", position, matrix
    )


def _diagonal(
    potential: HessianPotential, position: np.ndarray, hessian: np.ndarray, floor: float
) -> _Spectral:
    found = np.diagonal(hessian, axis1=1, axis2=2)
    root = np.hypot(found, 2.0 * floor)
    # For negative h the other form avoids the cancellation in h + sqrt(h^2 + 4 f^2).
    values = np.where(found >= 0, 0.5 * (found + root), 2.0 * floor**2 / (root - found))
    cholesky = _diagonals(np.sqrt(values))
    return _Spectral(potential, position, _diagonals(values), cholesky, None, values, values / root)


def _softabs(
    potential: HessianPotential, position: np.ndarray, hessian: np.ndarray, floor: float
) -> _Spectral:
    finite = np.isfinite(hessian).all(axis=(1, 2))
    eigenvalues, vectors = np.full(position.shape, np.nan), np.full(hessian.shape, np.nan)
    eigenvalues[finite], vectors[finite] = np.linalg.eigh(hessian[finite])
    values, slopes = _soft_absolute(eigenvalues, floor)
    matrix = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    gap = eigenvalues[:, :, None] - eigenvalues[:, None, :]
    mean = 0.5 * (slopes[:, :, None] + slopes[:, None, :])
    apart = np.abs(gap) > 1e-4 * (floor + np.abs(eigenvalues[:, :, None]))
    quotient = (values[:, :, None] - values[:, None, :]) / np.where(apart, gap, 1.0)
    slopes = np.where(apart, quotient, mean)
    return _Spectral(potential, position, matrix, batched_cholesky(matrix), vectors, values, slopes)


def _soft_absolute(value: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`g = \lambda \coth(\lambda/f)` and its derivative."""
    x = value / floor
    small, large = np.abs(x) < 1e-3, np.abs(x) > 300.0
    safe = np.where(small | large, 1.0, x)
    tanh, sinh = np.tanh(safe), np.sinh(safe)
    coth = np.where(large, np.sign(x), 1.0 / tanh)
    soft = np.where(small, 1.0 + x**2 / 3.0, x * coth)
    slope = np.where(small, 2.0 * x / 3.0, coth - np.where(large, 0.0, safe / sinh**2))
    return floor * soft, slope


def _diagonals(rows: np.ndarray) -> np.ndarray:
    """Return diagonal matrices ``(n, dim, dim)``."""
    return np.asarray(rows[:, :, None] * np.eye(rows.shape[1]))
