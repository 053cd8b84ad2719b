r"""Gaussian processes on values and gradients (section 3.3 of the paper, and beyond it).

The predictive mean is a sum of kernel nodes at the training points (`RadialBasis`; with gradients `LeaningBasis`), so
it is evaluated by the same code as a network: for a batch, a handful of products with matrices of the size of the
training positions.

With a trend, the process models what is left of the potential, in whitened coordinates, without

.. math:: \tfrac12 |z|^2 + b + l^T z + \tfrac12 z^T A z \;(+ \text{radial terms}),

whose weights are learnt together with it (see `leapwise.surrogates.gp_likelihood`). So that radial terms can take the
place of :math:`\tfrac12 |z|^2`, the mean eigenvalue of A has a wider prior than the rest of A.

The tail rule: the eigenvalues of I + A are at least 0.02, and beyond :math:`R = 1 + 1.5 \max_j |z_j|` a guard is added
that rises like half the square of the way (`leapwise.surrogates.trend.Guard`). A process without a trend returns to
the mean of its data far from them: good for the paper's figure, bad for trajectories.

Cost: :math:`O(N^3)` for a fit with :math:`N = n(d + 1)` rows, so keep N below about 5000.

Kernel nodes and their derivatives by centre: the basis in which the mean of a Gaussian process is a sum.

A process that observes values and gradients at centres :math:`c_j` has the mean

.. math:: f(z) = \sum_j \alpha_j\, \varphi(\rho_j) - g\, \varphi'(\rho_j)\, r_j \cdot \gamma_j, \qquad
    r_j = z - c_j, \quad \rho_j = g \|r_j\|^2 / 2, \quad g = 1/\ell^2:

a radial network whose nodes also lean in directions :math:`\gamma_j`. With :math:`p_k = g^k \varphi^{(k)}` and
:math:`w_k = \alpha p_k - (r \cdot \gamma)\, p_{k+1}` for each node, the derivatives of the sum are

.. math::
    \nabla = \sum w_1 r - p_1 \gamma, \qquad
    H = \sum w_2\, r r^T + w_1 I - p_2 (\gamma r^T + r \gamma^T),

    \mathrm{tr}(A\, \partial H) = \sum w_3 (r^T A r)\, r + w_2 (\mathrm{tr} A\, r + 2 A r)
    - p_3 \big((r^T A r)\, \gamma + 2 (\gamma^T A r)\, r\big) - p_2 (\mathrm{tr} A\, \gamma + 2 A \gamma),

and the other contraction is the same with :math:`A = u u^T`. All of it is products with ``(n, dim)`` matrices.

Covariances of values and gradients under a stationary kernel, in blocks.

With :math:`k(z, c) = a^2 \varphi(\rho)`, :math:`\rho = \|z - c\|^2 / 2\ell^2` and :math:`r = z - c`, write
:math:`k_0 = a^2\varphi`, :math:`k_1 = a^2\varphi'/\ell^2`, :math:`k_2 = a^2\varphi''/\ell^4`. Then

.. math::
    \mathrm{cov}(f(z), f(c)) = k_0, \qquad
    \mathrm{cov}(f(z), \nabla f(c)) = -k_1 r, \qquad
    \mathrm{cov}(\nabla f(z), \nabla f(c)) = -k_1 I - k_2\, r r^T.

Derivatives by :math:`\log \ell` have the same shape with other radial parts, because
:math:`\partial\rho/\partial\log\ell = -2\rho`.

The noise has variance :math:`a^2 s^2` on values and :math:`a^2 s^2/\ell^2` on gradients. These are the shares of
noise of equal size in what the kernel itself expects of the two, so neither kind of row drowns the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from leapwise.checks import require_flag, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.base import Basis, Expansion, FittedExpansion
from leapwise.surrogates.bases import (
    Profile,
    RadialBasis,
    RationalQuadratic,
    SquaredExponential,
    SumBasis,
    blocks,
)
from leapwise.surrogates.gp_likelihood import Hyperparameters, maximise_likelihood
from leapwise.surrogates.gp_posterior import Observations, Posterior, Rows
from leapwise.surrogates.training import TrainingSet, WhiteSet, first_rows, further_rows
from leapwise.surrogates.trend import Guard, TrendBasis, guard_radius, raised
from leapwise.surrogates.whitening import Whitening


@dataclass(frozen=True, eq=False)
class LeaningBasis:
    """Radial nodes, followed by the derivatives of all of them by their centres.

    The ``s + s dim`` features are those of a `RadialBasis` of one length, then for each node the ``dim`` derivatives by
    its centre.

    Parameters
    ----------
    centres : ndarray of shape (s, dim)
    length : float
    profile : Profile

    Examples
    --------
    >>> from leapwise.surrogates.bases import SquaredExponential
    >>> LeaningBasis(np.zeros((1, 2)), 1.0, SquaredExponential()).features(np.zeros((1, 2))).tolist()
    [[1.0, 0.0, 0.0]]
    """

    centres: np.ndarray
    length: float
    profile: Profile

    @property
    def size(self) -> int:
        """Number of features."""
        return int(len(self.centres) + self.centres.size)

    @cached_property
    def nodes(self) -> RadialBasis:
        """The nodes themselves."""
        return RadialBasis(self.centres, np.full(len(self.centres), self.length), self.profile)

    def features(self, white: np.ndarray) -> np.ndarray:
        """Return all features, ``(n, size)``."""
        value, first = self.profile.derivatives(self.nodes.distance(white), 1)
        leaning = (first / -(self.length**2))[:, :, None] * (white[:, None] - self.centres)
        return np.concatenate([value, leaning.reshape(len(white), -1)], axis=1)

    def gradient_features(self, white: np.ndarray) -> np.ndarray:
        """Return the derivatives of all features, ``(n, dim, size)``."""
        n, dim = white.shape
        p = self._powers(white, 2)
        apart = np.swapaxes(white[:, None] - self.centres, 1, 2)  # (n, dim, s)
        leaning = apart[..., None] * (np.swapaxes(apart, 1, 2) * -p[2][..., None])[:, None]
        np.einsum("nisi->nis", leaning)[...] -= p[1][:, None]
        return np.concatenate([apart * p[1][:, None], leaning.reshape(n, dim, -1)], axis=2)

    def value(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum, ``(n,)``."""
        alpha, lean = self._split(weights)
        value, first = self.profile.derivatives(self.nodes.distance(white), 1)
        along = self._along(white, lean / self.length**2)
        return np.asarray(value @ alpha - np.einsum("ns,ns->n", first, along))

    def value_and_gradient(self, white: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum and its gradient ``(n, dim)``."""
        alpha, lean = self._split(weights)
        value, first, second = self.profile.derivatives(self.nodes.distance(white), 2)
        along = self._along(white, lean / self.length**2)  # powers of the length go onto the smaller arrays
        total = value @ alpha - np.einsum("ns,ns->n", first, along)
        slope = first * alpha
        along *= second
        slope -= along
        return total, (self._radii_sum(slope, white) - first @ lean) / self.length**2

    def hessian(self, white: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the Hessian of the weighted sum, ``(n, dim, dim)``."""
        alpha, lean = self._split(weights)
        p, along = self._powers(white, 3), self._along(white, lean)
        w1, w2 = (p[k] * alpha - p[k + 1] * along for k in (1, 2))
        dim = white.shape[1]
        hessian = w1.sum(axis=1)[:, None, None] * np.eye(dim)
        for rows in blocks(len(white), self.centres.size):
            apart = white[rows, None] - self.centres
            # sum of w2 r r^T - p2 (lean r^T + r lean^T), as half of it and its transpose
            half = np.matmul(
                np.swapaxes(0.5 * w2[rows, :, None] * apart - p[2][rows, :, None] * lean, 1, 2), apart
            )
            hessian[rows] += half + np.swapaxes(half, 1, 2)
        return hessian

    def quadratic(self, white: np.ndarray, weights: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`, ``(n, dim)``."""
        _, lean = self._split(weights)
        radius = np.einsum("nd,nd->n", velocity, white)[:, None] - velocity @ self.centres.T  # r . u
        slope = velocity @ lean.T  # lean . u
        square = np.einsum("nd,nd->n", velocity, velocity)[:, None]
        vector, free = self._third(white, weights, radius**2, radius * slope, square)
        return vector + 2.0 * np.einsum("nd,nd->n", free, velocity)[:, None] * velocity

    def trace(self, white: np.ndarray, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with the symmetric `matrix`, ``(n, dim)``."""
        _, lean = self._split(weights)
        image = np.matmul(matrix, white[:, :, None])[:, :, 0]
        form = np.einsum("nd,nd->n", white, image)[:, None] - 2.0 * image @ self.centres.T
        mixed = image @ lean.T
        for rows in blocks(len(white), self.centres.size):
            pulled = np.matmul(self.centres, matrix[rows])
            form[rows] += np.einsum("nsd,sd->ns", pulled, self.centres)  # now r^T A r
            mixed[rows] -= np.einsum("nsd,sd->ns", pulled, lean)  # now r^T A lean
        size = np.trace(matrix, axis1=1, axis2=2)[:, None]
        vector, free = self._third(white, weights, form, mixed, size)
        return vector + 2.0 * np.matmul(matrix, free[:, :, None])[:, :, 0]

    def _third(
        self, white: np.ndarray, weights: np.ndarray, form: np.ndarray, mixed: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the part along r and the leanings, and the vector that is still to be multiplied by 2 A."""
        alpha, lean = self._split(weights)
        p, along = self._powers(white, 4), self._along(white, lean)
        w2, w3 = (p[k] * alpha - p[k + 1] * along for k in (2, 3))
        vector = self._radii_sum(w3 * form + w2 * size - 2.0 * p[3] * mixed, white)
        vector -= (p[3] * form + p[2] * size) @ lean
        return vector, self._radii_sum(w2, white) - p[2] @ lean

    def _split(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.centres)
        return weights[:n], weights[n:].reshape(self.centres.shape)

    def _powers(self, white: np.ndarray, order: int) -> list[np.ndarray]:
        """Return the derivatives of the nodes, each times one more power of the squared inverse length."""
        parts = self.profile.derivatives(self.nodes.distance(white), order)
        return [part * self.length ** (-2 * k) for k, part in enumerate(parts)]

    def _along(self, white: np.ndarray, lean: np.ndarray) -> np.ndarray:
        return white @ lean.T - np.einsum("sd,sd->s", self.centres, lean)

    def _radii_sum(self, factors: np.ndarray, white: np.ndarray) -> np.ndarray:
        return factors.sum(axis=1, keepdims=True) * white - factors @ self.centres


#: More rows would need several gigabytes.
MAX_ROWS = 12_000
#: So many take seconds.
ADVISED_ROWS = 5000
#: Standard deviation, a priori, of linear and radial weights and of the mean eigenvalue of A: they are nearly free.
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
        What the process adds to: nothing, a quadratic, or a quadratic with radial terms for heavy tails.
    use_gradients : bool
        Whether to learn from gradients where they are known.
    hyperparameters : Hyperparameters, optional
        Learnt by maximum marginal likelihood if not given.
    max_rows : int
        Hyperparameters are learnt from a random part of the evaluations with about this many rows.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

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
        """Return how many evaluations to train on at most, so that a fit takes seconds.

        Examples
        --------
        >>> GaussianProcess().advised_evaluations(dim=24, gradients=True)
        200
        """
        return max(2, ADVISED_ROWS // (1 + dim * (gradients and self.use_gradients)))

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedProcess:
        """Learn hyperparameters, then all weights; `rng` chooses evaluations when there are many."""
        whitening, white, lowest = first_rows(training, self.whitening)
        trend = None if self.trend is None else TrendBasis(training.dim, self.trend == "radial")
        profile = require_profile(self.kernel)
        data = _observe(white, trend, self.use_gradients)
        _require_size(data.rows.size)
        learnt = self.hyperparameters or maximise_likelihood(profile, data, rng, self.max_rows)
        posterior = Posterior.from_observations(learnt.kernel(profile), data, learnt.trend)
        return FittedProcess(
            posterior=posterior,
            hyperparameters=learnt,
            whitening=whitening,
            trend=trend,
            use_gradients=self.use_gradients,
            base=white.offset,
            lowest=lowest,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedProcess(FittedExpansion):
    """A Gaussian process that has learnt.

    Attributes
    ----------
    posterior : Posterior
        What it knows, in whitened coordinates.
    hyperparameters : Hyperparameters
        Given or learnt.
    whitening : Whitening
    trend : TrendBasis or None
    use_gradients : bool
    base : float
        The mean potential that it first learnt from.
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
            return Expansion(_nodes(posterior), _node_weights(posterior), self.base, self.whitening)
        kept, constant, trend_weights = _tame(posterior, self.trend)
        guard = Guard(guard_radius(posterior.rows.points))
        weights = np.concatenate([trend_weights, _node_weights(kept), np.ones(1)])
        basis = SumBasis((self.trend, _nodes(kept), guard))
        return Expansion(basis, weights, self.base + constant, self.whitening)

    def variance(self, position: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)`` of the potential at positions ``(n, dim)``.

        The noise is left out; it is ``(hyperparameters.amplitude * hyperparameters.noise) ** 2``.
        """
        white = self.whitening.to_white(position)
        return self.posterior.variance(white, _trend_features(self.trend, white))

    def update(self, training: TrainingSet) -> FittedProcess:
        """Return a process that has learnt from further evaluations too.

        Hyperparameters, whitening, the mean that a process without a trend returns to, and the factor of what came
        before are kept: n new rows cost O(n N^2). The mean is worked out when it is first used. A process that has
        no room for more rows stays as it is.
        """
        white, lowest = further_rows(training, self.whitening, self.base, self.lowest)
        if white is None:
            return self
        data = _observe(white, self.trend, self.use_gradients)
        if self.posterior.rows.size + data.rows.size > MAX_ROWS:
            return self
        return replace(self, posterior=self.posterior.append(data), lowest=lowest)


def require_profile(kernel: object) -> Profile:
    """Return the profile of a kernel by its name."""
    if not isinstance(kernel, str) or kernel not in _PROFILES:
        raise InputError(f"kernel must be 'squared_exponential' or 'rational_quadratic', got {kernel!r}")
    return _PROFILES[kernel]()


def require_hyperparameters(value: object) -> None:
    """Raise unless `value` is None or `Hyperparameters`."""
    if value is not None and not isinstance(value, Hyperparameters):
        raise InputError(
            f"hyperparameters must be Hyperparameters or None, got {type(value).__name__}; "
            "leave them out to have them learnt"
        )


def _require_size(n_rows: int) -> None:
    if n_rows > MAX_ROWS:
        raise InputError(
            f"a Gaussian process takes at most {MAX_ROWS} rows (one for a value, dim for a gradient), got {n_rows}; "
            "give it fewer evaluations or use_gradients=False, or take a QuadraticNetwork"
        )


def _observe(white: WhiteSet, trend: TrendBasis | None, use_gradients: bool) -> Observations:
    """Stack values and gradients without the prior mean, and their trend features."""
    rows = Rows.of(white, use_gradients)
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


def _nodes(posterior: Posterior) -> Basis:
    rows, kernel = posterior.rows, posterior.kernel
    if not len(rows.has_gradient):
        return RadialBasis(rows.points, np.full(rows.n_values, kernel.length), kernel.profile)
    return LeaningBasis(rows.points, kernel.length, kernel.profile)


def _node_weights(posterior: Posterior) -> np.ndarray:
    rows = posterior.rows
    weights = posterior.kernel.amplitude**2 * posterior.row_weights
    if not len(rows.has_gradient):
        return np.asarray(weights)
    lean = np.zeros((rows.n_values, rows.dim))
    # A point may be listed once only, so this assigns each leaning to its own node.
    lean[rows.has_gradient] = weights[rows.n_values :].reshape(-1, rows.dim)
    return np.concatenate([weights[: rows.n_values], lean.ravel()])


def _tame(posterior: Posterior, trend: TrendBasis) -> tuple[Posterior, float, np.ndarray]:
    """Return the posterior, the constant, and the weights of the whole trend, under the tail rule."""
    constant, round_, *_ = weights = posterior.trend_weights
    prior = trend.weights_of(np.zeros(trend.dim), np.eye(trend.dim))
    whole = weights[2:] + (1.0 + round_) * prior
    curvature = raised(trend.matrix(whole))
    if curvature is None:
        return posterior, float(constant), whole
    fixed = trend.weights_of(np.zeros(trend.dim), curvature)
    held = np.zeros(len(weights), dtype=bool)
    held[1] = held[2:][trend.quadratic_part] = True
    others = posterior.hold(held, np.append(0.0, (fixed - prior)[trend.quadratic_part]))
    fixed[~held[2:]] = others.trend_weights[1:]
    return others, float(others.trend_weights[0]), fixed
