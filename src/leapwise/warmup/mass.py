r"""The metric, from draws and their gradients.

For a Gaussian posterior of covariance :math:`\Sigma` the gradients are :math:`\Sigma^{-1}(q - \mu)`, so any set of
draws with covariance :math:`C`, typical or not, has gradients with covariance :math:`S = \Sigma^{-1} C
\Sigma^{-1}`, and

.. math:: \Sigma\, S\, \Sigma = C

gives :math:`\Sigma` back exactly as soon as there are more draws than dimensions: no need to wait until the draws
themselves have spread like the posterior. In general its solution, the geometric mean of :math:`C` and
:math:`S^{-1}`, minimises the Fisher divergence between the posterior and a normal; nutpie tunes its
metric in this way. With a diagonal metric it is :math:`\mathrm{sd}(q_i) / \mathrm{sd}(g_i)`.

With few draws both covariances are shrunk towards the identity, in coordinates in which the current metric is the
identity (at first, the diagonal solution). Directions that no draw has seen keep the metric they had, and a
posterior too ill-conditioned to be resolved in one go is resolved in a few.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, solve_triangular

from leapwise.dynamics import DenseMetric, DiagonalMetric, EuclideanMetric
from leapwise.errors import InputError

SHRINKAGE = 1e-2


def fisher_metric(
    position: np.ndarray, gradient: np.ndarray, shape: str, current: EuclideanMetric | None = None
) -> EuclideanMetric | None:
    """Return the metric that fits draws ``(n, dim)`` and their gradients, or None if they tell nothing.

    Parameters
    ----------
    position, gradient : ndarray of shape (n, dim)
        Of all chains together.
    shape : {"diagonal", "dense"}
    current : EuclideanMetric, optional
        What a dense metric is shrunk towards, if it is dense too; by default its diagonal solution.

    Examples
    --------
    Draws from far too narrow a region still give the covariance of a Gaussian:

    >>> rng = np.random.default_rng(0)
    >>> covariance = np.array([[4.0, 1.0], [1.0, 1.0]])
    >>> draws = 0.01 * rng.standard_normal((200, 2))
    >>> metric = fisher_metric(draws, draws @ np.linalg.inv(covariance), "dense")
    >>> bool(np.allclose(metric.covariance, covariance, rtol=1e-3))
    True
    """
    if not (np.ptp(position, axis=0) > 0).all() or not (np.ptp(gradient, axis=0) > 0).all():
        return None  # the standard deviation of a constant may be a rounding error instead of 0
    with np.errstate(all="ignore"):
        variance = position.std(axis=0) / gradient.std(axis=0)
    if not (np.isfinite(variance) & (variance > 0)).all():
        return None
    if shape == "diagonal":
        return DiagonalMetric(variance)
    if isinstance(current, DenseMetric):
        scale = np.linalg.cholesky(np.asarray(current.covariance))
    else:
        scale = np.diag(np.sqrt(variance))
    draws = _shrunk_covariance(solve_triangular(scale, position.T, lower=True).T)
    slopes = _shrunk_covariance(gradient @ scale)
    covariance = scale @ _geometric_mean_with_inverse(draws, slopes) @ scale.T
    try:
        return DenseMetric(0.5 * (covariance + covariance.T))
    except InputError:  # too ill-conditioned for floating point
        return None


def _shrunk_covariance(rows: np.ndarray) -> np.ndarray:
    """Covariance of the rows plus a small multiple of the identity, smaller the more rows there are."""
    n, dim = rows.shape
    centred = rows - rows.mean(axis=0)
    covariance = centred.T @ centred / n
    weight = SHRINKAGE * (dim / (n + dim)) ** 3  # draws that outnumber the dimensions need next to none
    return np.asarray(covariance + weight * np.trace(covariance) / dim * np.eye(dim))


def _geometric_mean_with_inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    r"""Return the positive definite solution X of X b X = a.

    With :math:`b = L L^T` it is :math:`L^{-T} (L^T a L)^{1/2} L^{-1}`.
    """
    factor = np.linalg.cholesky(b)
    values, vectors = eigh(factor.T @ a @ factor)
    half = solve_triangular(factor, vectors, lower=True, trans="T")
    return np.asarray((half * np.sqrt(np.maximum(values, 0.0))) @ half.T)
