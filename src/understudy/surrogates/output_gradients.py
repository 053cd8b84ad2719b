r"""What gradients of the potential say about outputs.

Where the outputs are known, so is the likelihood's gradient c in components, and the gradient of the potential less
that of the prior is one product of c with the Jacobian: :math:`J^T c = g`. In the weights W of the features that is
linear, but it couples all components:

.. math:: \min_W \|\Phi W - A\|^2 + \omega \sum_j \big| \nabla\Phi_j\, W \hat c_j - \hat g_j \big|^2
    + \lambda \sum_i p_i |W_i|^2,

with :math:`\hat c = c/|c|`, :math:`\hat g = g/|c|`. The rows of values alone have the solution :math:`W_0` and the
inverse :math:`P = (\Phi^T \Phi + \lambda\, \mathrm{diag}\, p)^{-1}`, the same for all components, so the whole problem
is one of the size of the gradient rows G (Woodbury's identity):

.. math::
    W = W_0 + P G^T (\alpha \hat C), \qquad (K + \omega^{-1} I)\, \alpha = \hat g - (G W_0) \cdot \hat C,
    \qquad K = (G P G^T) \circ (\hat C \hat C^T).

:math:`\omega = d/3` as in `understudy.surrogates.quadratic`. The strength is the one under which the values predict
the gradients best: the marginal likelihood of the gradients given the values, over a grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from understudy.surrogates.output_features import OutputFeatures
from understudy.surrogates.training import TrainingSet

#: So many gradient rows are used at most; of more evaluations, an evenly spaced part.
MAX_ROWS = 3000
_STRENGTHS = 10.0 ** np.arange(-3.0, 1.1, 0.5)


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
        slopes = features.gradient_rows(self.white)
        tried = [
            self._solve(features.penalty, rows, slopes, components, float(strength))
            for strength in (_STRENGTHS if ridge is None else [ridge])
        ]
        best = int(np.argmin([score for _, score in tried]))
        return tried[best][0], float(_STRENGTHS[best] if ridge is None else ridge)

    def _solve(
        self,
        penalty: np.ndarray,
        rows: np.ndarray,
        slopes: np.ndarray,
        components: np.ndarray,
        ridge: float,
    ) -> tuple[np.ndarray, float]:
        """Return weights, and minus twice the log marginal likelihood of the gradients, but for a constant."""
        dim = self.white.shape[1]
        gram = rows.T @ rows + np.diag(ridge * penalty)
        gram.flat[:: len(gram) + 1] += 1e-12 * np.trace(gram)
        factor = cho_factor(gram)
        weights = cho_solve(factor, rows.T @ components)
        reach = cho_solve(factor, slopes.T)
        weigh = np.repeat(self.cotangent, dim, axis=0)
        residual = self.pulled.ravel() - np.einsum("rp,rp->r", slopes @ weights, weigh)
        kernel = (slopes @ reach) * (weigh @ weigh.T)
        kernel.flat[:: len(kernel) + 1] += 3.0 / dim
        inner = cho_factor(kernel)
        dual = cho_solve(inner, residual)
        score = len(dual) * np.log(max(residual @ dual, np.finfo(float).tiny))
        score += 2.0 * np.log(np.diag(inner[0])).sum()
        return weights + reach @ (dual[:, None] * weigh), float(score)


def joined(one: TrainingSet, two: TrainingSet) -> TrainingSet:
    """Return all evaluations; both have outputs, and gradients where they are known."""
    gradient = None
    if one.gradient is not None or two.gradient is not None:
        unknown = [np.full_like(part.position, np.nan) for part in (one, two)]
        known = [
            nan if part.gradient is None else part.gradient
            for part, nan in zip((one, two), unknown, strict=True)
        ]
        gradient = np.concatenate(known)
    assert one.outputs is not None and two.outputs is not None
    return TrainingSet(
        np.concatenate([one.position, two.position]),
        np.concatenate([one.potential, two.potential]),
        gradient,
        np.concatenate([one.outputs, two.outputs]),
    )
