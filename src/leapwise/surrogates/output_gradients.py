r"""What gradients of the potential say about outputs.

Where the outputs are known, so is the likelihood's gradient c in components, and the gradient of the potential less
that of the prior is one product of c with the Jacobian: :math:`J^T c = g`. In the weights W of the features that is
linear, but it couples all components:

.. math:: \min_W \|\Phi W - X\|^2 + \omega \sum_j \big| \nabla\Phi_j\, W \hat c_j - \hat g_j \big|^2
    + \lambda \sum_i p_i |W_i|^2,

with :math:`\hat c = c/|c|`, :math:`\hat g = g/|c|`. Weights are as if drawn from a normal with covariance
:math:`C = (\lambda\, \mathrm{diag}\, p)^{-1}`, the same for all components, so nothing larger than the number of rows
is ever factorised. With :math:`A = \Phi C \Phi^T + I` the rows of values alone have the solution :math:`W_0` and leave
the covariance P of the weights,

.. math:: W_0 = C \Phi^T A^{-1} X, \qquad P = C - C \Phi^T A^{-1} \Phi\, C,

and the gradient rows G add to it

.. math::
    W = W_0 + P G^T (\alpha \hat C), \qquad (K + \omega^{-1} I)\, \alpha = \hat g - (G W_0) \cdot \hat C,
    \qquad K = (G P G^T) \circ (\hat C \hat C^T).

More rows of values than features are first made as many by a QR factorisation, which changes nothing.
:math:`\omega = d/3` as in `leapwise.surrogates.quadratic`. The strength is the one under which the values predict
the gradients best: the marginal likelihood of the gradients given the values, over a grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from leapwise.surrogates.output_features import OutputFeatures

#: So many gradient rows are used at most; of more evaluations, an evenly spaced part.
MAX_ROWS = 3000
# What a weight without a penalty gets, so that all have a variance; it is far below any penalty.
_NO_PENALTY = 1e-6
_LEAST_STRENGTH = 1e-8
_STRENGTHS = 10.0 ** np.arange(-6.0, 1.1)


@dataclass(frozen=True, eq=False)
class Pulls:
    """Products of the Jacobian of components with known vectors.

    Attributes
    ----------
    white : ndarray of shape (k, dim)
    cotangent : ndarray of shape (k, p)
        Of unit length.
    pulled : ndarray of shape (k, dim)
        The transposed Jacobian times it.
    """

    white: np.ndarray
    cotangent: np.ndarray
    pulled: np.ndarray

    @classmethod
    def of(cls, white: np.ndarray, cotangent: np.ndarray, pulled: np.ndarray) -> Pulls:
        """Scale to unit length; leave out what says nothing, and some of what is too much."""
        length = np.linalg.norm(cotangent, axis=1)
        kept = np.flatnonzero(length > 0)
        kept = kept[:: 1 + (max(kept.size * white.shape[1], 1) - 1) // MAX_ROWS]
        length = length[kept, None]
        return cls(white[kept], cotangent[kept] / length, pulled[kept] / length)

    def solve(
        self, features: OutputFeatures, rows: np.ndarray, components: np.ndarray, ridge: float | None
    ) -> tuple[np.ndarray, float]:
        """Return weights ``(n_features, p)`` and the strength of the ridge, given or chosen."""
        if len(rows) > rows.shape[1]:
            turn, rows = np.linalg.qr(rows)
            components = turn.T @ components
        strengths = _STRENGTHS if ridge is None else np.array([ridge])
        prior = 1.0 / np.maximum(features.penalty, _NO_PENALTY)
        slopes = features.gradient_rows(self.white)
        problem = _Problem(
            of_values=(rows * prior) @ rows.T,
            across=(slopes * prior) @ rows.T,
            of_slopes=(slopes * prior) @ slopes.T,
            components=components,
            cotangent=np.repeat(self.cotangent, self.white.shape[1], axis=0),
            pulled=self.pulled.ravel(),
            noise=3.0 / self.white.shape[1],
        )
        # A strength of 0 would need rows that decide every weight.
        tried = [problem.solve(max(float(strength), _LEAST_STRENGTH)) for strength in strengths]
        best = int(np.argmin([score for _, _, score in tried]))
        by_values, by_slopes, _ = tried[best]
        weights = prior[:, None] * (rows.T @ by_values + slopes.T @ by_slopes)
        return weights, float(strengths[best])


@dataclass(frozen=True, eq=False)
class _Problem:
    """Covariances of rows under a strength of 1, and what the rows are to be.

    Attributes
    ----------
    of_values, across, of_slopes : ndarray of shape (n, n), (r, n) and (r, r)
    components : ndarray of shape (n, p)
    cotangent, pulled : ndarray of shape (r, p) and (r,)
    noise : float
        The inverse weight of gradient rows.
    """

    of_values: np.ndarray
    across: np.ndarray
    of_slopes: np.ndarray
    components: np.ndarray
    cotangent: np.ndarray
    pulled: np.ndarray
    noise: float

    def solve(self, ridge: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the weights of rows of values ``(n, p)`` and gradients ``(r, p)`` in those of features, and a score.

        The score is minus twice the log marginal likelihood of the gradients given the values, but for a constant.
        """
        factor = cho_factor(self.of_values / ridge + np.eye(len(self.of_values)))
        across = self.across / ridge
        alone, reach = cho_solve(factor, self.components), cho_solve(factor, across.T)
        residual = self.pulled - np.einsum("rp,rp->r", across @ alone, self.cotangent)
        kernel = (self.of_slopes / ridge - across @ reach) * (self.cotangent @ self.cotangent.T)
        kernel.flat[:: len(kernel) + 1] += self.noise
        inner = cho_factor(kernel)
        dual = cho_solve(inner, residual)
        score = len(dual) * np.log(max(residual @ dual, np.finfo(float).tiny))
        score += 2.0 * np.log(np.diag(inner[0])).sum()
        by_slopes = dual[:, None] * self.cotangent
        return (alone - reach @ by_slopes) / ridge, by_slopes / ridge, float(score)
