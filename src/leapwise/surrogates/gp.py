r"""Gaussian processes on values and gradients (section 3.3 of the paper, and beyond it).

The predictive mean is a sum of kernel nodes at the training points (`RadialBasis`; with gradients `LeaningBasis`), so
it is evaluated by the same code as a network: for a batch, a handful of products with matrices of the size of the
training positions.

With a trend, the process models what is left of the potential, in whitened coordinates, without

.. math:: \tfrac12 |z|^2 + b + l^T z + \tfrac12 z^T A z \;(+ \text{radial terms}),

whose weights are learnt together with it (see `leapwise.surrogates.gp_posterior`). So that radial terms can take the
place of :math:`\tfrac12 |z|^2`, the mean eigenvalue of A has a wider prior than the rest of A.

The tail rule: the eigenvalues of I + A are at least 0.02, and beyond :math:`R = 1 + 1.5 \max_j |z_j|` a guard is added
that rises like half the square of the way (`leapwise.surrogates.trend.Guard`). A process without a trend returns to
the mean of its data far from them: good for the paper's figure, bad for trajectories.

Cost: :math:`O(N^3)` for a fit with :math:`N = n(d + 1)` rows, so keep N below about 5000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from leapwise.checks import require_flag, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.base import Basis, Expansion, FittedExpansion
from leapwise.surrogates.bases import SumBasis
from leapwise.surrogates.gp_basis import LeaningBasis
from leapwise.surrogates.gp_covariance import Rows
from leapwise.surrogates.gp_likelihood import Hyperparameters, maximise_likelihood
from leapwise.surrogates.gp_posterior import Observations, Posterior
from leapwise.surrogates.prepare import first_rows, further_rows
from leapwise.surrogates.profiles import Profile, RationalQuadratic, SquaredExponential
from leapwise.surrogates.radial import RadialBasis
from leapwise.surrogates.tails import guard_radius, raised
from leapwise.surrogates.training import TrainingSet, WhiteSet
from leapwise.surrogates.trend import Guard, TrendBasis
from leapwise.surrogates.whitening import Whitening

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
