r"""A proposal distribution that covers a surrogate's posterior: a mixture of normals, with a Student t for the tails.

Expectations under the surrogate are importance sampling with this proposal q: points y from q have the weights
:math:`e^{-\tilde U(y)} / q(y)`. Points are not random numbers but a scrambled Sobol sequence, which fills space more
evenly: the error of a smooth expectation then falls nearly as 1/n instead of :math:`1/\sqrt n`.

The normals are fitted by expectation maximisation to draws of the surrogate. The t has a small share of the points, the
mean and covariance of all draws, and heavier tails than most posteriors, so that no weight is very large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaincinv, gammaln, logsumexp, ndtri

from leapwise.adaptation.tune import nearest_of_few

#: Share of the Student t and its degrees of freedom. Guesses: a tenth costs a tenth of the points, and tails that fall
#: as the fifth power are heavier than those of nearly all posteriors.
T_SHARE, T_FREEDOM = 0.1, 5.0
#: Steps of expectation maximisation, and draws that it uses at most. Guesses: it need not converge.
_EM_STEPS, _MAX_DRAWS = 15, 4096
#: A component is left out if it has fewer draws than so many for each parameter. A guess: enough for a covariance.
_DRAWS_PER_PARAMETER = 4
#: Added to covariances, as a share of that of all draws, so that none is singular.
_LEAST_VARIANCE = 1e-8


@dataclass(frozen=True, eq=False)
class Proposal:
    """A mixture of normals, the last component being a Student t.

    Parameters
    ----------
    shares : ndarray of shape (k,)
        Probability of each component.
    means : ndarray of shape (k, dim)
    factors : ndarray of shape (k, dim, dim)
        Lower Cholesky factors of the covariances (of the scale matrix, for the t).

    Examples
    --------
    >>> proposal = Proposal(np.array([0.9, 0.1]), np.zeros((2, 1)), np.ones((2, 1, 1)))
    >>> points = proposal.points(1024, seed=1)
    >>> points.shape, bool(abs(points.mean()) < 0.02), bool((proposal.log_density(points) < 0).all())
    ((1024, 1), True, True)
    """

    shares: np.ndarray
    means: np.ndarray
    factors: np.ndarray

    @property
    def n_normals(self) -> int:
        """Number of normal components."""
        return len(self.shares) - 1

    @cached_property
    def _inverses(self) -> np.ndarray:
        return np.linalg.inv(self.factors)

    def points(self, n: int, seed: int, first: int = 0) -> np.ndarray:
        """Return points `first` to `first + n` of a scrambled Sobol sequence of this distribution, ``(n, dim)``."""
        from scipy.stats import qmc  # takes a second to import, and only results need it

        dim = self.means.shape[1]
        sequence = qmc.Sobol(dim + 2, seed=seed)
        if first:
            sequence.fast_forward(first)
        uniform = np.clip(sequence.random(n), 2.0**-53, 1.0 - 2.0**-53)
        component = np.minimum(np.searchsorted(np.cumsum(self.shares), uniform[:, 0]), self.n_normals)
        found = ndtri(uniform[:, 2:])
        is_t = component == self.n_normals
        chi_squared = 2.0 * gammaincinv(0.5 * T_FREEDOM, uniform[is_t, 1])
        found[is_t] *= np.sqrt(T_FREEDOM / chi_squared)[:, None]
        for i, (mean, factor) in enumerate(zip(self.means, self.factors, strict=True)):
            rows = component == i
            found[rows] = mean + found[rows] @ factor.T
        return found

    def log_density(self, position: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density at positions ``(n, dim)``."""
        return np.asarray(logsumexp(self._log_parts(position), axis=1))

    def _log_parts(self, position: np.ndarray) -> np.ndarray:
        """Return the logarithm of each component's share of the density, ``(n, k)``."""
        dim, found = position.shape[1], np.empty((len(position), len(self.shares)))
        for i, (mean, inverse) in enumerate(zip(self.means, self._inverses, strict=True)):
            white = (position - mean) @ inverse.T
            square = np.vecdot(white, white)
            if i < self.n_normals:
                shape = -0.5 * square - 0.5 * dim * np.log(2.0 * np.pi)
            else:
                both = 0.5 * (T_FREEDOM + dim)
                constant = gammaln(both) - gammaln(0.5 * T_FREEDOM) - 0.5 * dim * np.log(T_FREEDOM * np.pi)
                shape = constant - both * np.log1p(square / T_FREEDOM)
            found[:, i] = np.log(self.shares[i]) + np.log(np.diag(inverse)).sum() + shape
        return found


def fit_proposal(draws: np.ndarray, n_normals: int, rng: np.random.Generator) -> Proposal | None:
    """Fit a proposal to draws ``(n, dim)``; None if there are too few draws for so many normals.

    Parameters
    ----------
    draws : ndarray of shape (n, dim)
    n_normals : int
    rng : Generator

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> draws = np.concatenate([rng.normal(-3.0, 1.0, (500, 1)), rng.normal(3.0, 0.5, (500, 1))])
    >>> fit_proposal(draws, 2, rng).means[:2].ravel().round().tolist()
    [-3.0, 3.0]
    """
    dim, fewest = draws.shape[1], _DRAWS_PER_PARAMETER * (draws.shape[1] + 1)
    if len(draws) < fewest * n_normals:
        return None
    mean = draws.mean(axis=0)
    covariance = (draws - mean).T @ (draws - mean) / len(draws)
    covariance.flat[:: dim + 1] += _LEAST_VARIANCE * np.maximum(np.diag(covariance), np.finfo(float).tiny)
    factor = np.linalg.cholesky(covariance)
    one = Proposal(_with_t(np.ones(1)), np.stack([mean, mean]), np.stack([factor, factor]))
    if n_normals == 1:
        return one
    if len(draws) > _MAX_DRAWS:
        draws = draws[rng.choice(len(draws), _MAX_DRAWS, replace=False)]
    white = np.linalg.solve(factor, (draws - mean).T).T
    found, shares = one, np.eye(n_normals)[nearest_of_few(white, n_normals, rng)]
    for _ in range(_EM_STEPS):
        mass = shares / len(draws)
        each = mass.sum(axis=0)
        if each.min() * len(draws) < fewest:
            return None
        means = (mass.T @ draws) / each[:, None]
        factors = []
        for i in range(n_normals):
            away = draws - means[i]
            own = away.T @ (away * mass[:, [i]]) / each[i]
            factors.append(np.linalg.cholesky(own + _LEAST_VARIANCE * covariance))
        found = Proposal(_with_t(each / each.sum()), np.stack([*means, mean]), np.stack([*factors, factor]))
        logs = found._log_parts(draws)[:, :-1]
        shares = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    return found


def _with_t(shares: np.ndarray) -> np.ndarray:
    return np.append((1.0 - T_SHARE) * shares, T_SHARE)
