r"""The sparse Gaussian process of the paper (FITC, section 3.3).

M inducing points, drawn at random from the training points, stand for all N. With
:math:`\Lambda = \mathrm{diag}(K_N - K_{NM} K_M^{-1} K_{MN})` and :math:`D = \Lambda + \sigma^2 I` potentials have the
covariance :math:`K_{NM} K_M^{-1} K_{MN} + D`, and with :math:`\Sigma_M = K_M + K_{MN} D^{-1} K_{NM}` the prediction is

.. math::
    \mathrm{mean} = k_*^T \Sigma_M^{-1} K_{MN} D^{-1} t, \qquad
    \mathrm{variance} = K_{**} - k_*^T (K_M^{-1} - \Sigma_M^{-1})\, k_* .

Neither inverse is formed. With :math:`K_M = L L^T`, :math:`V = L^{-1} K_{MN}` and :math:`B = I + V D^{-1} V^T` one has
:math:`\Sigma_M = L B L^T`, and B has no eigenvalue below one. A fit costs O(M^2 N), and further rows only add to B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from leapwise.checks import require_whole
from leapwise.surrogates.base import Expansion, FittedExpansion
from leapwise.surrogates.bases import Profile, RadialBasis
from leapwise.surrogates.gp import KernelName, require_hyperparameters, require_profile
from leapwise.surrogates.gp_likelihood import Hyperparameters, climb
from leapwise.surrogates.gp_posterior import Kernel, Rows, safe_cholesky, solve_lower
from leapwise.surrogates.training import TrainingSet, first_rows, further_rows
from leapwise.surrogates.whitening import Whitening

#: Added to the diagonal of the inducing points' covariance, relative to it.
_JITTER = 1e-12


@dataclass(frozen=True)
class FITC:
    """A Gaussian process that learns from values through a few inducing points.

    It has no trend: far from the data it returns to their mean. Gradients are not used. Evaluations far above the
    typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    n_inducing : int
        Number of inducing points; all training points if there are fewer.
    kernel : {"squared_exponential", "rational_quadratic"}
    hyperparameters : Hyperparameters, optional
        Learnt by maximum marginal likelihood if not given.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

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
        """Draw inducing points, learn hyperparameters, then the weights."""
        whitening, white, lowest = first_rows(training, self.whitening)
        profile = require_profile(self.kernel)
        points, values = white.position, white.value
        inducing = points[rng.permutation(len(points))[: self.n_inducing]]
        learnt = self.hyperparameters or _maximise(profile, inducing, points, values)
        sparse = SparsePosterior.start(learnt.kernel(profile), inducing).append(points, values)
        return FittedFITC(
            posterior=sparse, hyperparameters=learnt, whitening=whitening, base=white.offset, lowest=lowest
        )


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """What the inducing points know.

    Attributes
    ----------
    kernel : Kernel
    inducing : ndarray of shape (M, dim)
    factor : ndarray of shape (M, M)
        L, the lower Cholesky factor of their covariance.
    gram : ndarray of shape (M, M)
        B.
    moment : ndarray of shape (M,)
        :math:`V D^{-1} t`.
    """

    kernel: Kernel
    inducing: np.ndarray
    factor: np.ndarray
    gram: np.ndarray
    moment: np.ndarray

    @classmethod
    def start(cls, kernel: Kernel, inducing: np.ndarray) -> SparsePosterior:
        """Return the prior."""
        rows = Rows.values(inducing)
        covariance = kernel.covariance(rows, rows)
        np.einsum("ii->i", covariance)[...] *= 1.0 + _JITTER
        m = len(inducing)
        return cls(kernel, inducing, safe_cholesky(covariance), np.eye(m), np.zeros(m))

    def project(self, points: np.ndarray) -> np.ndarray:
        """Return V, ``(M, n)``, of points ``(n, dim)``."""
        cross = self.kernel.covariance(Rows.values(self.inducing), Rows.values(points))
        return solve_lower(self.factor, cross)

    def diagonal(self, projected: np.ndarray) -> np.ndarray:
        """Return the diagonal of D, ``(n,)``."""
        explained = np.einsum("mn,mn->n", projected, projected)
        variance = self.kernel.amplitude**2
        return np.maximum(variance - explained, 0.0) + variance * self.kernel.noise**2

    def append(self, points: np.ndarray, values: np.ndarray) -> SparsePosterior:
        """Return what they know once they have seen further values."""
        projected = self.project(points)
        weighted = projected / self.diagonal(projected)
        gram, moment = self.gram + weighted @ projected.T, self.moment + weighted @ values
        return SparsePosterior(self.kernel, self.inducing, self.factor, gram, moment)

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
        """Return the predictive variance ``(n,)``, noise left out."""
        projected = self.project(points)
        left = solve_lower(self.gram_factor, projected)
        explained = np.einsum("mn,mn->n", projected, projected) - np.einsum("mn,mn->n", left, left)
        return np.maximum(self.kernel.amplitude**2 - explained, 0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedFITC(FittedExpansion):
    """A sparse Gaussian process that has learnt.

    Attributes
    ----------
    posterior : SparsePosterior
        What it knows, in whitened coordinates.
    hyperparameters : Hyperparameters
        Given or learnt.
    whitening : Whitening
    base : float
        The mean potential that it returns to.
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
        sparse, kernel = self.posterior, self.posterior.kernel
        basis = RadialBasis(sparse.inducing, np.full(len(sparse.inducing), kernel.length), kernel.profile)
        weights = solve_lower(sparse.factor, sparse.white_weights, transposed=True)
        return Expansion(basis, kernel.amplitude**2 * weights, self.base, self.whitening)

    def variance(self, position: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)`` of the potential at positions ``(n, dim)``, noise left out."""
        return self.posterior.variance(self.whitening.to_white(position))

    def update(self, training: TrainingSet) -> FittedFITC:
        """Return one that has learnt from further values too.

        Inducing points, hyperparameters, whitening and the mean that it returns to are kept: a row costs O(M^2).
        """
        white, lowest = further_rows(training, self.whitening, self.base, self.lowest)
        if white is None:
            return self
        return replace(self, posterior=self.posterior.append(white.position, white.value), lowest=lowest)


def negative_log_likelihood(
    log_parameters: np.ndarray,
    profile: Profile,
    inducing: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
) -> tuple[float, np.ndarray]:
    r"""Return the negative log marginal likelihood, and its gradient by the logarithms of the hyperparameters.

    The gradient is :math:`\tfrac12 \mathrm{tr}(W\, \partial K_y)`, :math:`W = K_y^{-1} - \alpha \alpha^T`. Changes of
    :math:`Q = K_{NM} K_M^{-1} K_{MN}` reach the off-diagonal of :math:`K_y` only, so that with
    :math:`E = K_M^{-1} K_{MN}` and :math:`\tilde W`, which is W without its diagonal,

    .. math:: \mathrm{tr}(\tilde W\, \partial Q) = 2\, \mathrm{tr}(\partial K_{NM}\, E \tilde W)
        - \mathrm{tr}(\partial K_M\, E \tilde W E^T).
    """
    kernel = Hyperparameters(*map(float, np.exp(log_parameters))).kernel(profile)
    prior = SparsePosterior.start(kernel, inducing)
    projected = prior.project(points)
    diagonal = prior.diagonal(projected)
    sparse = prior.append(points, values)
    alpha = (values - projected.T @ sparse.white_weights) / diagonal
    value = 0.5 * float(values @ alpha + np.log(diagonal).sum())
    value += float(np.log(np.diag(sparse.gram_factor)).sum())

    weighted = projected / diagonal
    explained = solve_lower(sparse.gram_factor, weighted)
    own = 1.0 / diagonal - np.einsum("mn,mn->n", explained, explained) - alpha**2  # the diagonal of W
    nodes = solve_lower(prior.factor, projected, transposed=True)  # E
    mixed = solve_lower(sparse.gram_factor, projected @ (nodes / diagonal).T).T
    across = nodes / diagonal - mixed @ explained - np.outer(nodes @ alpha, alpha) - nodes * own
    few, many = Rows.values(inducing), Rows.values(points)
    length = np.vdot(kernel.length_derivative(few, many), across)
    length -= 0.5 * np.vdot(kernel.length_derivative(few, few), across @ nodes.T)
    noise = (kernel.amplitude * kernel.noise) ** 2 * own.sum()
    return value, np.array([length, len(values) - values @ alpha, noise])


def _maximise(
    profile: Profile, inducing: np.ndarray, points: np.ndarray, values: np.ndarray
) -> Hyperparameters:
    return climb(
        lambda x: negative_log_likelihood(x, profile, inducing, points, values),
        points.shape[1],
        float(values.std()),
        n_rows=len(inducing),
    )
