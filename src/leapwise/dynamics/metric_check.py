"""A user's Riemannian metric, held against its own finite differences before it is trusted."""

from __future__ import annotations

import numpy as np

from leapwise.dynamics.metrics import ProductMetric, RiemannianMetric
from leapwise.errors import InputError, StartError

STEP = 1e-4  # in standard deviations
TOLERANCE = 1e-3


N_EVALUATIONS = 3


def check_metric(metric: RiemannianMetric, position: np.ndarray, normals: np.ndarray) -> int:
    r"""Raise `InputError` if a metric contradicts itself at a position.

    Compared are :math:`L L^T` with :math:`G`, and, along one random direction, both contractions with differences of
    :math:`v^T G v` and :math:`\log\det G`: three evaluations of the metric, none of the target. A wrong contraction
    :math:`\nu` would bias the draws without any other sign.

    Parameters
    ----------
    metric : RiemannianMetric
    position : ndarray of shape (1, dim)
        Where to check; a `StartError` says if the metric is not positive definite there.
    normals : ndarray of shape (2, dim)
        Standard normals, for the direction and the velocity.

    Returns
    -------
    int
        How often the metric was evaluated.
    """
    local, dim = metric.at(position), position.shape[1]
    for name in ("matrix", "cholesky"):
        shape = np.asarray(getattr(local, name, None)).shape
        if shape != (1, dim, dim):
            raise InputError(
                f"metric.at(position).{name} must have shape (n, {dim}, {dim}), got {shape} for n = 1"
            )
    if not np.isfinite(local.cholesky).all():
        raise StartError(
            f"the metric is not positive definite at the start {position[0].tolist()}; start elsewhere (init=), "
            "or take a metric that is so everywhere (of a surrogate: form='softabs')"
        )
    matrix, factor = local.matrix[0], local.cholesky[0]
    _compare("cholesky @ cholesky.T", factor @ factor.T, matrix, np.abs(matrix).max())
    direction, velocity = (np.linalg.solve(factor.T, z) for z in normals)
    ahead, behind = (metric.at(position + sign * STEP * direction) for sign in (1.0, -1.0))
    if isinstance(metric, ProductMetric):
        product = metric.product(position, velocity[None])[0]
        _compare("product(position, velocity)", product, matrix @ velocity, np.abs(matrix @ velocity).max())
    if not (np.isfinite(ahead.cholesky).all() and np.isfinite(behind.cholesky).all()):
        return N_EVALUATIONS
    change = velocity @ (ahead.matrix[0] - behind.matrix[0]) @ velocity / (2.0 * STEP)
    found = local.quadratic_contraction(velocity[None])[0] @ direction
    _compare("quadratic_contraction(velocity)", found, change, 1e-3 * float(velocity @ matrix @ velocity))
    log_dets = [2.0 * np.log(np.diag(there.cholesky[0])).sum() for there in (ahead, behind)]
    change = (log_dets[0] - log_dets[1]) / (2.0 * STEP)
    _compare("trace_contraction()", local.trace_contraction()[0] @ direction, change, 1e-3 * dim)
    return N_EVALUATIONS


def _compare(what: str, found: np.ndarray, expected: np.ndarray, scale: float) -> None:
    """Raise if two things that should be equal differ by more than finite differences can."""
    if not np.max(np.abs(found - expected)) <= TOLERANCE * (
        np.max(np.abs(found)) + np.max(np.abs(expected)) + scale
    ):
        raise InputError(
            f"the metric's {what} does not agree with its matrix: got {np.ravel(found)[0]:.6g}, expected "
            f"{np.ravel(expected)[0]:.6g} from the matrix; mend it, since the draws would be biased"
        )
