r"""Gaussian processes trained on values and gradients (section 3.3 of the paper, extended by gradients and a trend).

The predictive mean is a sum of kernel functions at the training points (`RadialBasis`; with gradients
`GradientKernelBasis`). So it is evaluated like a network: a batch costs a few products with matrices of the size of the
training positions. Covariances, posterior and likelihood are in `leapwise.surrogates.gp_posterior`.

With a trend, the process models the residual of the potential, in whitened coordinates, from

.. math:: \tfrac12 |z|^2 + b + l^T z + \tfrac12 z^T A z \;(+ \text{radial terms}),

whose weights are trained together with it. The mean eigenvalue of A has a wider prior than the rest of A, so that
radial terms can replace :math:`\tfrac12 |z|^2`.

The tail rule: the eigenvalues of I + A are at least 0.02, and beyond :math:`R = 1 + 1.5 \max_j |z_j|` a guard is added
that rises quadratically (`leapwise.surrogates.trend.Guard`). A process without a trend returns to the mean of its data
far from them. That is right for the paper's figure 1 and wrong for trajectories.

A fit costs :math:`O(N^3)` with :math:`N = n(d + 1)` rows, so keep N below about 5000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from leapwise.checks import require_flag, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.base import Basis, Expansion, FittedExpansion
from leapwise.surrogates.features import (
    RadialBasis,
    RadialProfile,
    RationalQuadratic,
    SquaredExponential,
    SumBasis,
    row_blocks,
)
from leapwise.surrogates.gp_posterior import (
    Hyperparameters,
    Observations,
    ObservedRows,
    Posterior,
    maximise_likelihood,
)
from leapwise.surrogates.training import TrainingSet, WhiteSet, first_rows, further_rows
from leapwise.surrogates.trend import Guard, TrendBasis, guard_radius, nearest_convex
from leapwise.surrogates.whitening import Whitening

#: A matrix of this many rows and columns needs 1.2 GB, and a fit several of them.
MAX_ROWS = 12_000
#: Measured: a Cholesky factor of this size takes one to a few seconds on one core.
ADVISED_ROWS = 5000
#: Prior standard deviation of linear and radial weights and of the mean eigenvalue of A. Such weights are about 1 in
#: whitened coordinates, so they are nearly free. A guess.
FREE_SD = 10.0

KernelName = Literal["squared_exponential", "rational_quadratic"]
TrendName = Literal["quadratic", "radial"]
_PROFILES: dict[str, type[SquaredExponential] | type[RationalQuadratic]] = {
    "squared_exponential": SquaredExponential,
    "rational_quadratic": RationalQuadratic,
}


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process in whitened coordinates.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    kernel : {"squared_exponential", "rational_quadratic"}
    trend : {None, "quadratic", "radial"}
        The function that the process is added to: none, a quadratic, or a quadratic with radial terms for heavy tails.
    use_gradients : bool
        Whether to train on gradients where they are known.
    hyperparameters : Hyperparameters, optional
        Found by maximum marginal likelihood if not given.
    max_rows : int
        Hyperparameters are found from a random subset of the evaluations with about this many rows.
    whitening : Whitening, optional
        Coordinates to train in; from the training positions if not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((20, 2))
    >>> training = TrainingSet(x, np.log(np.cosh(x)).sum(axis=1), np.tanh(x))
    >>> process = GaussianProcess("rational_quadratic", trend="radial").fit(training, rng)
    >>> here = np.array([[0.5, -0.5]])
    >>> bool(abs(process.potential(here) - 2 * np.log(np.cosh(0.5))) < 0.01)
    True
    >>> bool(process.variance(here)[0] < 1e-3)
    True
    """

    kernel: KernelName = "squared_exponential"
    trend: TrendName | None = None
    use_gradients: bool = True
    hyperparameters: Hyperparameters | None = None
    max_rows: int = 1000
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        if self.trend not in (None, "quadratic", "radial"):
            raise InputError(f"trend must be None, 'quadratic' or 'radial', got {self.trend!r}")
        require_profile(self.kernel)
        require_flag("use_gradients", self.use_gradients)
        require_whole("max_rows", self.max_rows, 2)
        require_hyperparameters(self.hyperparameters)

    def advised_evaluations(self, dim: int, gradients: bool) -> int:
        """Return the largest number of evaluations with which a fit takes seconds.

        Examples
        --------
        >>> GaussianProcess().advised_evaluations(dim=24, gradients=True)
        200
        """
        return max(2, ADVISED_ROWS // (1 + dim * (gradients and self.use_gradients)))

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedProcess:
        """Find hyperparameters, then all weights; `rng` chooses evaluations when there are many."""
        whitening, white, lowest = first_rows(training, self.whitening)
        trend = None if self.trend is None else TrendBasis(training.dim, self.trend == "radial")
        profile = require_profile(self.kernel)
        data = _observe(white, trend, self.use_gradients)
        if data.rows.size > MAX_ROWS:
            raise InputError(
                f"a Gaussian process takes at most {MAX_ROWS} rows (one for a value, dim for a gradient), got "
                f"{data.rows.size}; give it fewer evaluations or use_gradients=False, or take a QuadraticNetwork"
            )
        found = self.hyperparameters or maximise_likelihood(profile, data, rng, self.max_rows)
        posterior = Posterior.from_observations(found.covariance(profile), data, found.trend)
        return FittedProcess(
            posterior=posterior,
            hyperparameters=found,
            whitening=whitening,
            trend=trend,
            use_gradients=self.use_gradients,
            base=white.offset,
            lowest=lowest,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedProcess(FittedExpansion):
    """A trained `GaussianProcess`.

    Attributes
    ----------
    posterior : Posterior
        In whitened coordinates.
    hyperparameters : Hyperparameters
        Given or found.
    whitening : Whitening
    trend : TrendBasis or None
    use_gradients : bool
    base : float
        The mean potential of the first training data.
    lowest : float
        The lowest potential seen.
    """

    posterior: Posterior
    hyperparameters: Hyperparameters
    whitening: Whitening
    trend: TrendBasis | None
    use_gradients: bool
    base: float
    lowest: float

    @cached_property
    def expansion(self) -> Expansion:
        """The predictive mean as a sum of features."""
        posterior = self.posterior
        if self.trend is None:
            return Expansion(_kernel_basis(posterior), _kernel_weights(posterior), self.base, self.whitening)
        kept, constant, trend_weights = _under_tail_rule(posterior, self.trend)
        guard = Guard(guard_radius(posterior.rows.points))
        weights = np.concatenate([trend_weights, _kernel_weights(kept), np.ones(1)])
        basis = SumBasis((self.trend, _kernel_basis(kept), guard))
        return Expansion(basis, weights, self.base + constant, self.whitening)

    def variance(self, position: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)`` of the potential at positions ``(n, dim)``, without noise.

        The noise has variance ``(hyperparameters.amplitude * hyperparameters.noise) ** 2``.
        """
        white = self.whitening.to_white(position)
        return self.posterior.variance(white, _trend_features(self.trend, white))

    def update(self, training: TrainingSet) -> FittedProcess:
        """Return a process that is also trained on further evaluations.

        Hyperparameters, whitening, the mean of a process without a trend, and the factor of earlier rows are kept: n
        new rows cost O(n N^2). The mean is computed when it is first used. If there would be more than `MAX_ROWS`
        rows, the process is returned unchanged.
        """
        white, lowest = further_rows(training, self.whitening, self.base, self.lowest)
        if white is None:
            return self
        data = _observe(white, self.trend, self.use_gradients)
        if self.posterior.rows.size + data.rows.size > MAX_ROWS:
            return self
        return replace(self, posterior=self.posterior.append(data), lowest=lowest)


def require_profile(kernel: object) -> RadialProfile:
    """Return the profile of a kernel by its name, or raise `InputError`."""
    if not isinstance(kernel, str) or kernel not in _PROFILES:
        raise InputError(f"kernel must be 'squared_exponential' or 'rational_quadratic', got {kernel!r}")
    return _PROFILES[kernel]()


def require_hyperparameters(value: object) -> None:
    """Raise `InputError` unless `value` is None or `Hyperparameters`."""
    if value is not None and not isinstance(value, Hyperparameters):
        raise InputError(
            f"hyperparameters must be Hyperparameters or None, got {type(value).__name__}; "
            "leave them out to have them found"
        )


def _observe(white: WhiteSet, trend: TrendBasis | None, use_gradients: bool) -> Observations:
    """Stack values and gradients, less the standard normal if there is a trend, and their trend features."""
    rows = ObservedRows.of(white, use_gradients)
    where = rows.gradient_points
    slopes = np.zeros((0, rows.dim)) if white.gradient is None or not len(where) else white.gradient
    values = white.value
    if trend is None:
        return Observations(rows, np.append(values, slopes), np.zeros((rows.size, 0)), np.zeros(0))
    values = values - 0.5 * np.square(white.position).sum(axis=1)
    design = np.zeros((rows.size, 2 + trend.size))
    design[: rows.n_values] = _trend_features(trend, white.position)
    design[rows.n_values :, 1] = where.ravel()
    design[rows.n_values :, 2:] = trend.gradient_features(where).reshape(-1, trend.size)
    precision = np.full(2 + trend.size, FREE_SD**-2.0)
    precision[2:][trend.quadratic_part] = np.nan
    precision[0] = 1e-6 / (1.0 + np.abs(values).max()) ** 2
    return Observations(rows, np.append(values, slopes - where), design, precision)


def _trend_features(trend: TrendBasis | None, white: np.ndarray) -> np.ndarray:
    """Return a constant, half the squared distance from the origin, and the features of the trend."""
    if trend is None:
        return np.zeros((len(white), 0))
    half = 0.5 * np.square(white).sum(axis=1)
    return np.concatenate([np.ones((len(white), 1)), half[:, None], trend.features(white)], axis=1)


def _kernel_basis(posterior: Posterior) -> Basis:
    rows, covariance = posterior.rows, posterior.covariance
    if not len(rows.has_gradient):
        return RadialBasis(rows.points, np.full(rows.n_values, covariance.length), covariance.profile)
    return GradientKernelBasis(rows.points, covariance.length, covariance.profile)


def _kernel_weights(posterior: Posterior) -> np.ndarray:
    rows = posterior.rows
    weights = posterior.covariance.amplitude**2 * posterior.row_weights
    if not len(rows.has_gradient):
        return np.asarray(weights)
    gamma = np.zeros((rows.n_values, rows.dim))
    gamma[rows.has_gradient] = weights[rows.n_values :].reshape(
        -1, rows.dim
    )  # each point is listed at most once
    return np.concatenate([weights[: rows.n_values], gamma.ravel()])


def _under_tail_rule(posterior: Posterior, trend: TrendBasis) -> tuple[Posterior, float, np.ndarray]:
    """Return the posterior, the constant, and the weights of the whole trend, under the tail rule."""
    constant, mean_curvature, *_ = weights = posterior.trend_weights
    normal = trend.weights_of(np.zeros(trend.dim), np.eye(trend.dim))
    whole = weights[2:] + (1.0 + mean_curvature) * normal
    curvature = nearest_convex(trend.matrix(whole))
    if curvature is None:
        return posterior, float(constant), whole
    fixed = trend.weights_of(np.zeros(trend.dim), curvature)
    held = np.zeros(len(weights), dtype=bool)
    held[1] = held[2:][trend.quadratic_part] = True
    others = posterior.hold(held, np.append(0.0, (fixed - normal)[trend.quadratic_part]))
    fixed[~held[2:]] = others.trend_weights[1:]
    return others, float(others.trend_weights[0]), fixed


@dataclass(frozen=True, eq=False)
class GradientKernelBasis:
    r"""Kernel functions at centres, followed by their derivatives by the centres.

    A process that observes values and gradients at centres :math:`c_j` has the mean

    .. math:: f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - g\, \varphi'(\rho_j)\, r_j \cdot \gamma_j, \qquad
        r_j = z - c_j, \quad \rho_j = g \|r_j\|^2 / 2, \quad g = 1/\ell^2 .

    With :math:`p_k = g^k \varphi^{(k)}` and :math:`w_k = \alpha p_k - (r \cdot \gamma)\, p_{k+1}` for each centre, the
    derivatives of the sum, with the Hessian H, are

    .. math::
        \nabla = \sum w_1 r - p_1 \gamma, \qquad
        H = \sum w_2\, r r^T + w_1 I - p_2 (\gamma r^T + r \gamma^T),

        \mathrm{tr}(A\, \partial H) = \sum w_3 (r^T A r)\, r + w_2 (\mathrm{tr} A\, r + 2 A r)
        - p_3 \big((r^T A r)\, \gamma + 2 (\gamma^T A r)\, r\big) - p_2 (\mathrm{tr} A\, \gamma + 2 A \gamma),

    and :math:`u^T (\partial H) u` is the same with :math:`A = u u^T`. All are products with ``(n, dim)`` matrices.

    The ``s + s dim`` weights are those of the s kernel functions, alpha, then ``dim`` for each centre, gamma.

    Parameters
    ----------
    centres : ndarray of shape (s, dim)
    length : float
    profile : RadialProfile

    Examples
    --------
    >>> GradientKernelBasis(np.zeros((1, 2)), 1.0, SquaredExponential()).features(np.zeros((1, 2))).tolist()
    [[1.0, 0.0, 0.0]]
    """

    centres: np.ndarray
    length: float
    profile: RadialProfile

    @property
    def size(self) -> int:
        """Number of features."""
        return int(len(self.centres) + self.centres.size)

    @cached_property
    def values(self) -> RadialBasis:
        """The kernel functions without their derivatives."""
        return RadialBasis(self.centres, np.full(len(self.centres), self.length), self.profile)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        value, first = self.profile.derivatives(self.values.distance(white), 1)
        by_centre = (first / -(self.length**2))[:, :, None] * (white[:, None] - self.centres)
        return np.concatenate([value, by_centre.reshape(len(white), -1)], axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        n, dim = white.shape
        p = self._scaled_derivatives(white, 2)
        apart = np.swapaxes(white[:, None] - self.centres, 1, 2)  # (n, dim, s)
        by_centre = apart[..., None] * (np.swapaxes(apart, 1, 2) * -p[2][..., None])[:, None]
        np.einsum("nisi->nis", by_centre)[...] -= p[1][:, None]
        return np.concatenate([apart * p[1][:, None], by_centre.reshape(n, dim, -1)], axis=2)

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        alpha, gamma = self._split(weights)
        value, first = self.profile.derivatives(self.values.distance(white), 1)
        along = self._along(white, gamma / self.length**2)
        return np.asarray(value @ alpha - np.einsum("ns,ns->n", first, along))

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        alpha, gamma = self._split(weights)
        value, first, second = self.profile.derivatives(self.values.distance(white), 2)
        along = self._along(white, gamma / self.length**2)  # powers of the length go to the smaller arrays
        total = value @ alpha - np.einsum("ns,ns->n", first, along)
        slope = first * alpha
        along *= second
        slope -= along
        return total, (self._radii_sum(slope, white) - first @ gamma) / self.length**2

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        alpha, gamma = self._split(weights)
        p, along = self._scaled_derivatives(white, 3), self._along(white, gamma)
        w1, w2 = (p[k] * alpha - p[k + 1] * along for k in (1, 2))
        dim = white.shape[1]
        hessian = w1.sum(axis=1)[:, None, None] * np.eye(dim)
        for rows in row_blocks(len(white), self.centres.size):
            apart = white[rows, None] - self.centres
            # sum of w2 r r^T - p2 (gamma r^T + r gamma^T), as half of it and its transpose
            half = np.matmul(
                np.swapaxes(0.5 * w2[rows, :, None] * apart - p[2][rows, :, None] * gamma, 1, 2), apart
            )
            hessian[rows] += half + np.swapaxes(half, 1, 2)
        return hessian

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        _, gamma = self._split(weights)
        radius = np.einsum("nd,nd->n", velocity, white)[:, None] - velocity @ self.centres.T  # r . u
        slope = velocity @ gamma.T  # gamma . u
        square = np.einsum("nd,nd->n", velocity, velocity)[:, None]
        vector, free = self._third(white, weights, radius**2, radius * slope, square)
        return vector + 2.0 * np.einsum("nd,nd->n", free, velocity)[:, None] * velocity

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        _, gamma = self._split(weights)
        image = np.matmul(matrix, white[:, :, None])[:, :, 0]
        form = np.einsum("nd,nd->n", white, image)[:, None] - 2.0 * image @ self.centres.T
        mixed = image @ gamma.T
        for rows in row_blocks(len(white), self.centres.size):
            images = np.matmul(self.centres, matrix[rows])
            form[rows] += np.einsum("nsd,sd->ns", images, self.centres)  # now r^T A r
            mixed[rows] -= np.einsum("nsd,sd->ns", images, gamma)  # now r^T A gamma
        size = np.trace(matrix, axis1=1, axis2=2)[:, None]
        vector, free = self._third(white, weights, form, mixed, size)
        return vector + 2.0 * np.matmul(matrix, free[:, :, None])[:, :, 0]

    def _third(
        self, white: np.ndarray, weights: np.ndarray, form: np.ndarray, mixed: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the part along r and gamma, and the vector that is still to be multiplied by 2 A."""
        alpha, gamma = self._split(weights)
        p, along = self._scaled_derivatives(white, 4), self._along(white, gamma)
        w2, w3 = (p[k] * alpha - p[k + 1] * along for k in (2, 3))
        vector = self._radii_sum(w3 * form + w2 * size - 2.0 * p[3] * mixed, white)
        vector -= (p[3] * form + p[2] * size) @ gamma
        return vector, self._radii_sum(w2, white) - p[2] @ gamma

    def _split(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.centres)
        return weights[:n], weights[n:].reshape(self.centres.shape)

    def _scaled_derivatives(self, white: np.ndarray, order: int) -> list[np.ndarray]:
        """Return p_0, ..., p_order, each ``(n, s)``."""
        parts = self.profile.derivatives(self.values.distance(white), order)
        return [part * self.length ** (-2 * k) for k, part in enumerate(parts)]

    def _along(self, white: np.ndarray, gamma: np.ndarray) -> np.ndarray:
        return white @ gamma.T - np.einsum("sd,sd->s", self.centres, gamma)

    def _radii_sum(self, factors: np.ndarray, white: np.ndarray) -> np.ndarray:
        return factors.sum(axis=1, keepdims=True) * white - factors @ self.centres
