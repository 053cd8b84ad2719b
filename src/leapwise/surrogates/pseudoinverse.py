r"""The paper's one-row update of the output weights (Proposition 1, proved in appendix C).

Least-squares weights of least norm are :math:`v = H^\dagger T`. A further row :math:`(h, t)` changes them to

.. math:: v_{k+1} = v_k + (t - h^T v_k)\, b, \qquad c = \Phi_k h,

with two cases. Where the row brings a new direction, :math:`c \ne 0`,

.. math::
    b = c / \|c\|^2, \qquad \Phi_{k+1} = \Phi_k - \Phi_k h\, b^T, \qquad
    \Theta_{k+1} = (I - b h^T)\, \Theta_k\, (I - h b^T) + b b^T,

and where it does not, :math:`c = 0`,

.. math:: b = \Theta_k h / (1 + h^T \Theta_k h), \qquad \Phi_{k+1} = \Phi_k, \qquad
          \Theta_{k+1} = \Theta_k - \Theta_k h\, b^T.

:math:`\Phi = I - H^T (H^T)^\dagger` projects onto the null space of the features and :math:`\Theta = H^\dagger
(H^\dagger)^T` is the pseudo-inverse of their Gram matrix.

In floating point :math:`c` is never zero, and taken literally the proposition divides by the square of round-off. Here
:math:`c` counts as zero when :math:`\|c\| \le \text{tolerance} \cdot \|h\|`. A smaller tolerance is not a better one:
round-off :math:`\epsilon` turns a new direction by :math:`\epsilon / \text{tolerance}`, and once that is
seen as new again the projector is lost. Measured from a batch start with the default, predictions stay within 1e-8 of
the batch's up to a condition of 1e5; worse directions are left out as if nobody had seen them. `RowUpdater` has no
such limit: it is the update to use, and this one is here because the paper has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.surrogates.rows import require_rows


@dataclass(frozen=True, eq=False)
class PseudoinverseUpdater:
    """Least-squares weights of least norm, updated one row at a time by the paper's proposition.

    Make one by `from_rows`; `append` returns a new one. A row costs O(s^2) for s features, whatever came before.

    Attributes
    ----------
    weights : ndarray of shape (s,) or (s, m)
        Those of least norm among the least-squares solutions.
    null_projector : ndarray of shape (s, s)
        Onto what no row has shown yet (Phi).
    gram_pinv : ndarray of shape (s, s)
        Pseudo-inverse of the features' Gram matrix (Theta).
    tolerance : float
        A row whose part outside the span of earlier rows is at most this share of it brings nothing new. 0 is the
        proposition taken literally, which diverges.

    Examples
    --------
    >>> updater = PseudoinverseUpdater.from_rows([[1.0, 0.0], [1.0, 1.0]], [1.0, 3.0])
    >>> updater.append([1.0, 2.0], 5.0).weights.round(9)
    array([1., 2.])
    """

    weights: np.ndarray
    null_projector: np.ndarray
    gram_pinv: np.ndarray
    tolerance: float

    def __post_init__(self) -> None:
        for array in (self.weights, self.null_projector, self.gram_pinv):
            array.flags.writeable = False

    @classmethod
    def from_rows(cls, features: object, targets: object, *, tolerance: float = 1e-5) -> PseudoinverseUpdater:
        """Start from rows ``(n, s)`` and their targets ``(n,)`` or ``(n, m)``; n may be 0.

        Singular values up to a tenth of `tolerance` times the largest count as zero: what is left out here must not
        come back with the next row. For a ridge, let the first rows be
        ``sqrt(ridge) * eye(s)``, with targets 0.
        """
        if not 0.0 <= tolerance < 1.0:
            raise InputError(
                f"tolerance must be from 0 up to 1, got {tolerance!r}; it is relative, and 1e-5 suits most features"
            )
        rows, values = require_rows(features, targets)
        left, scale, right = np.linalg.svd(rows, full_matrices=False)
        cut = max(0.1 * tolerance, max(rows.shape) * np.finfo(float).eps) * scale.max(initial=0.0)
        rank = int(np.count_nonzero(scale > cut))
        left, scale, right = left[:, :rank], scale[:rank], right[:rank]
        inverse = right.T / scale
        null_projector = np.eye(rows.shape[1]) - right.T @ right
        return cls(inverse @ (left.T @ values), null_projector, inverse @ inverse.T, tolerance)

    def append(self, row: object, target: object) -> PseudoinverseUpdater:
        """Learn one row of features ``(s,)`` and its target, a number or ``(m,)``."""
        h, t = require_real(row, "row"), require_real(target, "target")
        if h.shape != self.weights.shape[:1] or t.shape != self.weights.shape[1:]:
            raise InputError(
                f"row and target must have shapes {self.weights.shape[:1]} and {self.weights.shape[1:]}, got "
                f"{h.shape} and {t.shape}; append one row at a time, with the features it started with"
            )
        c, image = self.null_projector @ h, self.gram_pinv @ h
        growth = 1.0 + h @ image
        null_projector = self.null_projector
        if np.linalg.norm(c) <= self.tolerance * np.linalg.norm(h):  # Prop. 1 (i)
            b = image / growth
            gram_pinv = np.outer(image, -b)
            gram_pinv += self.gram_pinv
        else:  # Prop. 1 (ii)
            b = c / (c @ c)
            null_projector = null_projector - np.outer(c, b)
            crossed = np.outer(image, b)
            gram_pinv = self.gram_pinv - crossed - crossed.T + growth * np.outer(b, b)
        weights = self.weights + np.multiply.outer(b, t - h @ self.weights)
        return PseudoinverseUpdater(weights, null_projector, gram_pinv, self.tolerance)
