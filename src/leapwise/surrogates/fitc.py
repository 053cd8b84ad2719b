r"""The sparse Gaussian process of the paper (FITC, section 3.3).

M inducing points, drawn at random from the N training points, summarise them. With
:math:`\Lambda = \mathrm{diag}(K_N - K_{NM} K_M^{-1} K_{MN})` and :math:`D = \Lambda + \sigma^2 I` (in this file D is
this diagonal matrix, not the discrepancy), potentials have the covariance :math:`K_{NM} K_M^{-1} K_{MN} + D`. With
:math:`\Sigma_M = K_M + K_{MN} D^{-1} K_{NM}` the prediction is

.. math::
    \mathrm{mean} = k_*^T \Sigma_M^{-1} K_{MN} D^{-1} t, \qquad
    \mathrm{variance} = K_{**} - k_*^T (K_M^{-1} - \Sigma_M^{-1})\, k_* .

No inverse is formed. With :math:`K_M = L L^T`, :math:`V = L^{-1} K_{MN}` and :math:`B = I + V D^{-1} V^T`,
:math:`\Sigma_M = L B L^T`, and all eigenvalues of B are at least 1. A fit costs O(M^2 N); further rows are added to B.

The hyperparameters maximise the marginal likelihood. Its negative logarithm has the gradient
:math:`\tfrac12 \mathrm{tr}(W\, \partial K_y)` with :math:`W = K_y^{-1} - \alpha \alpha^T`. The diagonal of :math:`K_y`
does not depend on :math:`Q = K_{NM} K_M^{-1} K_{MN}`. So, with :math:`E = K_M^{-1} K_{MN}` and :math:`\tilde W` for W
without its diagonal,

.. math:: \mathrm{tr}(\tilde W\, \partial Q) = 2\, \mathrm{tr}(\partial K_{NM}\, E \tilde W)
    - \mathrm{tr}(\partial K_M\, E \tilde W E^T).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from leapwise.checks import require_whole
from leapwise.surrogates.base import Expansion, FittedExpansion
from leapwise.surrogates.features import RadialBasis, RadialProfile
from leapwise.surrogates.gp import KernelName, require_hyperparameters, require_profile
from leapwise.surrogates.gp_posterior import (
    NOISE_FLOOR,
    START_LENGTHS,
    Covariance,
    Hyperparameters,
    ObservedRows,
    length_prior,
    minimise,
    safe_cholesky,
    solve_lower,
)
from leapwise.surrogates.training import TrainingSet, first_rows, further_rows
from leapwise.surrogates.whitening import Whitening

#: Added to the diagonal of the inducing points' covariance, relative to it: well above rounding, far below the noise.
_JITTER = 1e-12
#: With at most this many inducing points a second search for hyperparameters is cheap. A guess.
_CHEAP_POINTS = 400


@dataclass(frozen=True)
class FITC:
    """A sparse Gaussian process, trained on values through a few inducing points.

    It has no trend: far from the data it returns to their mean. Gradients are not used. Evaluations far above the
    typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    n_inducing : int
        Number of inducing points; all training points if there are fewer.
    kernel : {"squared_exponential", "rational_quadratic"}
    hyperparameters : Hyperparameters, optional
        Found by maximum marginal likelihood if not given.
    whitening : Whitening, optional
        Coordinates to train in; from the training positions if not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((200, 1))
    >>> sparse = FITC(10).fit(TrainingSet(x, 0.5 * x[:, 0] ** 2), rng)
    >>> bool(abs(sparse.potential(np.array([[1.0]]))[0] - 0.5) < 0.01)
    True
    """

    n_inducing: int
    kernel: KernelName = "squared_exponential"
    hyperparameters: Hyperparameters | None = None
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        require_whole("n_inducing", self.n_inducing, 1)
        require_profile(self.kernel)
        require_hyperparameters(self.hyperparameters)

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedFITC:
        """Draw inducing points, find hyperparameters, then the weights."""
        whitening, white, lowest = first_rows(training, self.whitening)
        profile = require_profile(self.kernel)
        points, values = white.position, white.value
        inducing = points[rng.permutation(len(points))[: self.n_inducing]]
        found = self.hyperparameters or _maximise_likelihood(profile, inducing, points, values)
        sparse = SparsePosterior.start(found.covariance(profile), inducing).append(points, values)
        return FittedFITC(
            posterior=sparse, hyperparameters=found, whitening=whitening, base=white.offset, lowest=lowest
        )


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """The posterior at the inducing points.

    Attributes
    ----------
    covariance : Covariance
    inducing : ndarray of shape (M, dim)
    factor : ndarray of shape (M, M)
        L, the lower Cholesky factor of their covariance matrix.
    gram : ndarray of shape (M, M)
        B.
    moment : ndarray of shape (M,)
        :math:`V D^{-1} t`.
    """

    covariance: Covariance
    inducing: np.ndarray
    factor: np.ndarray
    gram: np.ndarray
    moment: np.ndarray

    @classmethod
    def start(cls, covariance: Covariance, inducing: np.ndarray) -> SparsePosterior:
        """Return the prior."""
        rows = ObservedRows.values(inducing)
        matrix = covariance.between(rows, rows)
        np.einsum("ii->i", matrix)[...] *= 1.0 + _JITTER
        m = len(inducing)
        return cls(covariance, inducing, safe_cholesky(matrix), np.eye(m), np.zeros(m))

    def project(self, points: np.ndarray) -> np.ndarray:
        """Return V, ``(M, n)``, of points ``(n, dim)``."""
        cross = self.covariance.between(ObservedRows.values(self.inducing), ObservedRows.values(points))
        return solve_lower(self.factor, cross)

    def diagonal(self, projected: np.ndarray) -> np.ndarray:
        """Return the diagonal of D, ``(n,)``."""
        explained = np.einsum("mn,mn->n", projected, projected)
        variance = self.covariance.amplitude**2
        return np.maximum(variance - explained, 0.0) + variance * self.covariance.noise**2

    def append(self, points: np.ndarray, values: np.ndarray) -> SparsePosterior:
        """Condition on further values."""
        projected = self.project(points)
        weighted = projected / self.diagonal(projected)
        return replace(self, gram=self.gram + weighted @ projected.T, moment=self.moment + weighted @ values)

    @cached_property
    def gram_factor(self) -> np.ndarray:
        """The lower Cholesky factor of B."""
        return safe_cholesky(self.gram)

    @cached_property
    def white_weights(self) -> np.ndarray:
        r""":math:`B^{-1} V D^{-1} t`, ``(M,)``."""
        half = solve_lower(self.gram_factor, self.moment)
        return solve_lower(self.gram_factor, half, transposed=True)

    def variance(self, points: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)``, without noise."""
        projected = self.project(points)
        left = solve_lower(self.gram_factor, projected)
        explained = np.einsum("mn,mn->n", projected, projected) - np.einsum("mn,mn->n", left, left)
        return np.maximum(self.covariance.amplitude**2 - explained, 0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFITC(FittedExpansion):
    """A trained `FITC`.

    Attributes
    ----------
    posterior : SparsePosterior
        In whitened coordinates.
    hyperparameters : Hyperparameters
        Given or found.
    whitening : Whitening
    base : float
        The mean potential of the first training data, to which predictions return far from them.
    lowest : float
        The lowest potential seen.
    """

    posterior: SparsePosterior
    hyperparameters: Hyperparameters
    whitening: Whitening
    base: float
    lowest: float

    @cached_property
    def expansion(self) -> Expansion:
        """The predictive mean as a radial network with the inducing points as centres."""
        sparse, own = self.posterior, self.posterior.covariance
        basis = RadialBasis(sparse.inducing, np.full(len(sparse.inducing), own.length), own.profile)
        weights = solve_lower(sparse.factor, sparse.white_weights, transposed=True)
        return Expansion(basis, own.amplitude**2 * weights, self.base, self.whitening)

    def variance(self, position: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)`` of the potential at positions ``(n, dim)``, without noise."""
        return self.posterior.variance(self.whitening.to_white(position))

    def update(self, training: TrainingSet) -> FittedFITC:
        """Return a process that is also trained on further values.

        Inducing points, hyperparameters, whitening and `base` are kept: a row costs O(M^2).
        """
        white, lowest = further_rows(training, self.whitening, self.base, self.lowest)
        if white is None:
            return self
        return replace(self, posterior=self.posterior.append(white.position, white.value), lowest=lowest)


def negative_log_likelihood(
    log_parameters: np.ndarray,
    profile: RadialProfile,
    inducing: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Return the negative log marginal likelihood, and its gradient by the logs of length, amplitude and noise."""
    own = Hyperparameters(*map(float, np.exp(log_parameters))).covariance(profile)
    prior = SparsePosterior.start(own, inducing)
    projected = prior.project(points)
    diagonal = prior.diagonal(projected)
    sparse = prior.append(points, values)
    alpha = (values - projected.T @ sparse.white_weights) / diagonal
    value = 0.5 * float(values @ alpha + np.log(diagonal).sum())
    value += float(np.log(np.diag(sparse.gram_factor)).sum())

    weighted = projected / diagonal
    explained = solve_lower(sparse.gram_factor, weighted)
    w_diagonal = 1.0 / diagonal - np.einsum("mn,mn->n", explained, explained) - alpha**2
    e = solve_lower(prior.factor, projected, transposed=True)
    mixed = solve_lower(sparse.gram_factor, projected @ (e / diagonal).T).T
    e_w = (
        e / diagonal - mixed @ explained - np.outer(e @ alpha, alpha) - e * w_diagonal
    )  # E times W without diagonal
    few, many = ObservedRows.values(inducing), ObservedRows.values(points)
    length = np.vdot(own.length_derivative(few, many), e_w)
    length -= 0.5 * np.vdot(own.length_derivative(few, few), e_w @ e.T)
    noise = (own.amplitude * own.noise) ** 2 * w_diagonal.sum()
    return value, np.array([length, len(values) - values @ alpha, noise])


def _maximise_likelihood(
    profile: RadialProfile, inducing: np.ndarray, points: np.ndarray, values: np.ndarray
) -> Hyperparameters:
    """Return the most likely hyperparameters, weak prior of the length scale included.

    The search starts from the best of three length scales and, with few inducing points, also from the second best.
    """
    root, scale = float(np.sqrt(points.shape[1])), max(float(values.std()), 1e-8)
    bounds = np.log([(0.05 * root, 30.0 * root), (1e-4 * scale, 1e4 * scale), (NOISE_FLOOR, 1.0)])
    starts = [np.log([length * root, 3.0 * scale, 1e-3]) for length in START_LENGTHS]

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = negative_log_likelihood(x, profile, inducing, points, values)
        more, steeper = length_prior(x, root)
        return value + more, slope + steeper

    n_starts = 2 if len(inducing) <= _CHEAP_POINTS else 1
    promising = np.argsort([objective(start)[0] for start in starts])[:n_starts]
    runs = [minimise(objective, starts[i], bounds) for i in promising]
    _, best = min(runs, key=lambda run: run[0])
    return Hyperparameters(*map(float, np.exp(best)))
