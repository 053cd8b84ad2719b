r"""Effective sample size as the paper measures it.

For B draws of one chain, :math:`\mathrm{ESS} = B\,[1 + 2 \sum_{k=1}^{K} \gamma(k)]^{-1}` with sample autocorrelations
:math:`\gamma(k)`, summed by Geyer's initial monotone sequence (Geyer 1992, section 3.3): pairs
:math:`\Gamma_j = \gamma(2j) + \gamma(2j + 1)` are positive, decreasing and convex for a reversible chain, so the sum
ends before the first pair that is not positive, and no pair may exceed the one before it. The paper's figures never
exceed B, so ours may not either.

It is kept for comparison with the paper. It looks at each chain alone, so it cannot see chains that disagree;
``run.summary()`` has the better one.
"""

from __future__ import annotations

import numpy as np
from scipy import fft


def monotone_ess(draws: np.ndarray) -> np.ndarray:
    """Return the effective sample size of each parameter, summed over chains.

    Parameters
    ----------
    draws : ndarray of shape (chains, draws, dim)

    Returns
    -------
    ndarray of shape (dim,)
        Between the number of chains and the number of draws. A chain that never moved counts as one draw.

    Examples
    --------
    >>> draws = np.random.default_rng(1).normal(size=(2, 1000, 1))
    >>> bool(monotone_ess(draws)[0] > 1800)
    True
    """
    n = draws.shape[1]
    gamma = autocorrelations(draws)
    pairs = gamma[:, : n - n % 2].reshape(len(draws), n // 2, 2, -1).sum(axis=2)
    usable = np.logical_and.accumulate(pairs > 0, axis=1)
    pairs = np.minimum.accumulate(np.where(usable, pairs, 0.0), axis=1)
    # 1 + 2 sum_{k>0} gamma(k) = 2 sum_j Gamma_j - gamma(0)
    time = np.clip(2.0 * pairs.sum(axis=1) - 1.0, 1.0, n)
    return np.asarray((n / time).sum(axis=0))


def autocorrelations(draws: np.ndarray) -> np.ndarray:
    """Return autocorrelations ``(chains, lags, dim)`` about each chain's own mean; all one if it never moved."""
    n = draws.shape[1]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = fft.rfft(centred, fft.next_fast_len(2 * n, real=True), axis=1)
    covariance = fft.irfft(np.abs(spectrum) ** 2, fft.next_fast_len(2 * n, real=True), axis=1)[:, :n]
    moving = (draws != draws[:, :1]).any(axis=1, keepdims=True)
    return np.where(moving, covariance / np.where(moving, covariance[:, :1], 1.0), 1.0)
