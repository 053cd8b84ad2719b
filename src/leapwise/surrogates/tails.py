"""What keeps a surrogate with a quadratic trend growing outside the trained region."""

from __future__ import annotations

import numpy as np

#: The smallest eigenvalue of the trend's Hessian.
MIN_CURVATURE = 0.02


def raised(matrix: np.ndarray) -> np.ndarray | None:
    """Return the nearest symmetric matrix with eigenvalues of at least `MIN_CURVATURE`; None if it is one already.

    Examples
    --------
    >>> raised(np.diag([1.0, -1.0])).round(6).tolist()
    [[1.0, 0.0], [0.0, 0.02]]
    >>> raised(np.eye(2)) is None
    True
    """
    values, vectors = np.linalg.eigh(matrix)
    if values[0] >= MIN_CURVATURE:
        return None
    return np.asarray((vectors * np.maximum(values, MIN_CURVATURE)) @ vectors.T)


def guard_radius(white: np.ndarray) -> float:
    """Return where the guard begins: one and a half times as far out as any of the positions ``(n, dim)``, and one."""
    return 1.0 + 1.5 * float(np.sqrt(np.square(white).sum(axis=1).max()))
