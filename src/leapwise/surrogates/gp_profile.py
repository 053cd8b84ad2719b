r"""The likelihood of a length scale and a noise, with the best amplitude and trend for them.

With amplitude 1, one factor :math:`K_\sigma = L L^T` serves all amplitudes a and all standard deviations t of trend
weights. In :math:`\tilde H = L^{-1} H` and :math:`\tilde y = L^{-1} y` the likelihood asks for p by p matrices only,

.. math:: A = \tilde H^T \tilde H / a^2 + T^{-1}, \qquad \hat\beta = A^{-1} \tilde H^T \tilde y / a^2,

and where its derivatives by a and t are zero,

.. math::
    a^2 = \frac{\|\tilde y - \tilde H \hat\beta\|^2}{N - \sum_i \gamma_i}, \qquad
    t^2 = \frac{\sum_{i \in Q} \hat\beta_i^2}{\sum_{i \in Q} \gamma_i}, \qquad
    \gamma_i = 1 - T_{ii}^{-1} (A^{-1})_{ii},

with Q the quadratic weights. Iterating these two (MacKay's rule) takes a few steps of :math:`O(p^3)`. What is left is a
function of two variables, whose gradient is that of the likelihood at the best a and t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg.lapack import dpotri

from leapwise.surrogates.gp_covariance import Kernel
from leapwise.surrogates.gp_posterior import Observations, Posterior, safe_cholesky, solve_lower
from leapwise.surrogates.profiles import Profile

_MAX_STEPS = 30
_ACCURACY = 1e-3


@dataclass(frozen=True, eq=False)
class Scales:
    """The best amplitude and trend for one factor.

    Attributes
    ----------
    amplitude, trend : float
    """

    amplitude: float
    trend: float

    def posterior(self, unit: Posterior, learnt: np.ndarray) -> Posterior:
        """Return the posterior with these, from the one with amplitude 1; `learnt` marks weights that `trend` is of."""
        return replace(
            unit,
            kernel=replace(unit.kernel, amplitude=self.amplitude),
            precision=np.where(learnt, self.trend**-2.0, unit.precision),
            factor=self.amplitude * unit.factor,
            white_target=unit.white_target / self.amplitude,
            white_design=unit.white_design / self.amplitude,
        )


def unit_posterior(profile: Profile, length: float, noise: float, data: Observations) -> Posterior:
    """Return the posterior for amplitude 1."""
    return Posterior.from_observations(Kernel(profile, length, 1.0, noise), data, 1.0)


def best_scales(
    unit: Posterior,
    learnt: np.ndarray,
    start: Scales,
    amplitudes: tuple[float, float],
    trends: tuple[float, float],
) -> Scales:
    """Return the most likely scales, between the given bounds.

    Parameters
    ----------
    unit : Posterior
        For amplitude 1.
    learnt : ndarray of bool, shape (p,)
        Trend weights whose standard deviation is to be found.
    start : Scales
        Where to begin.
    amplitudes, trends : tuple of float
        Bounds.
    """
    gram, moment = unit.white_design.T @ unit.white_design, unit.white_design.T @ unit.white_target
    square, n_rows, scales = float(unit.white_target @ unit.white_target), unit.rows.size, start
    for _ in range(_MAX_STEPS):
        before, level = scales, scales.amplitude**2
        precision = np.where(learnt, before.trend**-2.0, unit.precision)
        factor = safe_cholesky(gram / level + np.diag(precision))
        weights = solve_lower(factor, solve_lower(factor, moment / level), transposed=True)
        decided = 1.0 - precision * np.diag(dpotri(factor, lower=1)[0]) if len(factor) else np.zeros(0)
        left = max(square - 2.0 * float(weights @ moment) + float(weights @ gram @ weights), 0.0)
        amplitude = np.sqrt(left / max(n_rows - decided.sum(), 1.0))
        trend = before.trend
        if learnt.any():
            trend = np.sqrt(np.square(weights[learnt]).sum() / max(float(decided[learnt].sum()), 1e-12))
        scales = Scales(float(np.clip(amplitude, *amplitudes)), float(np.clip(trend, *trends)))
        moved = abs(np.log(scales.amplitude / before.amplitude)), abs(np.log(scales.trend / before.trend))
        if max(moved) < _ACCURACY:
            break
    return scales
