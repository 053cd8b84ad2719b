r"""Two hierarchies in non-centred form: eight schools, and a Gaussian process with Poisson counts.

The reference draws hold the effects :math:`\theta = \mu + \tau \tilde\theta` and :math:`f = L \tilde f`, the parameters
are the standardised ones. For the second, with :math:`\bar f` the gradient by f and :math:`K = L L^T`, the gradient by
K is (Murray 2016, *Differentiation of the Cholesky decomposition*)

.. math:: \bar K = \tfrac12 L^{-T} (P + P^T) L^{-1}, \qquad P = \Phi(L^T \operatorname{tril}(\bar f \tilde f^T)),

where :math:`\Phi` keeps the lower triangle and half of the diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.regressions import cauchy, normal
from benchmarks.posteriordb.transforms import Positive, Real, Space, vector

JITTER = 1e-10  # the model's own: added to the diagonal of the covariance


@dataclass(frozen=True)
class Schools:
    """Effects `y` with standard errors `error`; parameters: standardised effects, mu, tau."""

    y: np.ndarray
    error: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        effect, mu, tau = parameters[:, :-2], parameters[:, -2], parameters[:, -1]
        residual = (self.y - mu[:, None] - tau[:, None] * effect) / self.error
        by_mu, mu_slope = normal(mu, 5.0)
        by_tau, tau_slope = cauchy(tau, 5.0)
        value = by_mu + by_tau - 0.5 * (residual**2 + effect**2).sum(axis=1)
        if not gradient:
            return value, None
        pull = residual / self.error
        slope = np.empty_like(parameters)
        slope[:, :-2] = tau[:, None] * pull - effect
        slope[:, -2] = pull.sum(axis=1) + mu_slope
        slope[:, -1] = (pull * effect).sum(axis=1) + tau_slope
        return value, slope


def _effects(parameters: np.ndarray) -> np.ndarray:
    mu, tau = parameters[:, -2:-1], parameters[:, -1:]
    return np.concatenate([mu + tau * parameters[:, :-2], mu, tau], axis=1)


def _standardised(draws: np.ndarray) -> np.ndarray:
    mu, tau = draws[:, -2:-1], draws[:, -1:]
    return np.concatenate([(draws[:, :-2] - mu) / tau, mu, tau], axis=1)


def eight_schools(name: str, data: dict[str, Any]) -> Posterior:
    """Effects of coaching in eight schools; standard normal effects, a normal and a half-Cauchy prior."""
    j = data["J"]
    return Posterior(
        name,
        Space(Real((*vector("theta_trans", j), "mu")), Positive(("tau",))),
        Schools(data["y"].astype(float), data["sigma"].astype(float)),
        columns=(*vector("theta", j), "mu", "tau"),
        to_draws=_effects,
        from_draws=_standardised,
    )


@dataclass(frozen=True)
class PoissonProcess:
    """Counts with log-rates f, a Gaussian process; parameters: its length rho, its scale alpha, standardised f.

    Attributes
    ----------
    squared_distance : ndarray
        Between the places of the counts, ``(N, N)``.
    counts : ndarray
        ``(N,)``.
    """

    squared_distance: np.ndarray
    counts: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        rho, alpha, standard = parameters[:, 0], parameters[:, 1], parameters[:, 2:]
        covariance = self._covariance(parameters)
        root = _cholesky(covariance)
        f = np.einsum("nij,nj->ni", root, standard)
        rate = np.exp(f)
        value = f @ self.counts - rate.sum(axis=1) - 0.5 * (standard**2).sum(axis=1)
        value += 24.0 * np.log(rho) - 4.0 * rho - alpha**2 / 8.0  # gamma(25, 4) and half-normal(2)
        if not gradient:
            return value, None
        by_f = self.counts - rate
        by_covariance = _through_cholesky(root, np.tril(by_f[:, :, None] * standard[:, None, :]))
        smooth = by_covariance * (covariance - JITTER * np.eye(len(self.counts)))
        slope = np.empty_like(parameters)
        slope[:, 0] = (smooth * self.squared_distance).sum(axis=(1, 2)) / rho**3 + 24.0 / rho - 4.0
        slope[:, 1] = 2.0 * smooth.sum(axis=(1, 2)) / alpha - alpha / 4.0
        slope[:, 2:] = np.einsum("nij,ni->nj", root, by_f) - standard
        return value, slope

    def to_draws(self, parameters: np.ndarray) -> np.ndarray:
        """Replace the standardised f by f."""
        root = _cholesky(self._covariance(parameters))
        f = np.einsum("nij,nj->ni", root, parameters[:, 2:])
        return np.concatenate([parameters[:, :2], f], axis=1)

    def from_draws(self, draws: np.ndarray) -> np.ndarray:
        """Replace f by the standardised f."""
        root = _cholesky(self._covariance(draws))
        standard = np.linalg.solve(root, draws[:, 2:, None])[:, :, 0]
        return np.concatenate([draws[:, :2], standard], axis=1)

    def _covariance(self, parameters: np.ndarray) -> np.ndarray:
        rho, alpha = parameters[:, 0, None, None], parameters[:, 1, None, None]
        return alpha**2 * np.exp(-0.5 * self.squared_distance / rho**2) + JITTER * np.eye(len(self.counts))


def _cholesky(matrices: np.ndarray) -> np.ndarray:
    """Return lower roots; NaN for a matrix that is not positive definite to rounding."""
    try:
        return np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:  # does not say which: try one by one
        if len(matrices) == 1:
            return np.full_like(matrices, np.nan)
        return np.concatenate([_cholesky(matrices[i : i + 1]) for i in range(len(matrices))])


def _through_cholesky(root: np.ndarray, by_root: np.ndarray) -> np.ndarray:
    """Return the gradient by K, from that by its root."""
    inner = np.tril(root.transpose(0, 2, 1) @ by_root)
    inner += np.tril(inner, -1).transpose(0, 2, 1)  # P + P^T: the halves of the diagonal add up to it
    inverse = np.linalg.inv(root)
    return 0.5 * inverse.transpose(0, 2, 1) @ inner @ inverse


def gp_pois_regr(name: str, data: dict[str, Any]) -> Posterior:
    """A Gaussian process at eleven places, with a squared-exponential covariance, and a count at each."""
    n, x = data["N"], data["x"].astype(float)
    density = PoissonProcess((x[:, None] - x) ** 2, data["k"].astype(float))
    return Posterior(
        name,
        Space(Positive(("rho", "alpha")), Real(vector("f_tilde", n))),
        density,
        columns=("rho", "alpha", *vector("f", n)),
        to_draws=density.to_draws,
        from_draws=density.from_draws,
    )
