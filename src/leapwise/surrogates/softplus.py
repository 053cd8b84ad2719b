r"""The softplus function and its slope, for arguments of either sign and any size.

.. math:: a(t) = \log(1 + e^t), \qquad a'(t) = \frac{e^t}{1 + e^t}.

Written out with :math:`u = e^{\min(t, 700)}` nothing overflows: where :math:`t` is large, :math:`\log(1 + u)` is
:math:`t` to the last digit, and beyond 700 the rest is added. One exponential and one logarithm, both vectorised by
NumPy, serve value and slope; work is done in place.
"""

from __future__ import annotations

import numpy as np

#: The exponential of it is finite.
LARGEST = 700.0
_BLOCK = 2**14


def softplus(t: np.ndarray) -> np.ndarray:
    """Return ``log(1 + exp(t))``; overwrites `t`.

    Examples
    --------
    >>> softplus(np.array([-1e4, 0.0, 1e4])).round(4)
    array([0.000e+00, 6.931e-01, 1.000e+04])
    """
    rest = _rest(t)
    np.exp(t, out=t)
    t += 1.0
    np.log(t, out=t)
    return t if rest is None else np.add(t, rest, out=t)


def sigmoid(t: np.ndarray) -> np.ndarray:
    """Return ``exp(t) / (1 + exp(t))``; overwrites `t`."""
    np.minimum(t, LARGEST, out=t)
    np.exp(t, out=t)
    return t / (1.0 + t)


def softplus_and_slope(t: np.ndarray) -> np.ndarray:
    """Return ``log(1 + exp(t))``; overwrites `t` with ``exp(t) / (1 + exp(t))``.

    Examples
    --------
    >>> t = np.array([-1e4, 0.0, 1e4])
    >>> softplus_and_slope(t).round(4), t
    (array([0.000e+00, 6.931e-01, 1.000e+04]), array([0. , 0.5, 1. ]))
    """
    rest = _rest(t)
    np.exp(t, out=t)
    value = t + 1.0
    t /= value
    np.log(value, out=value)
    return value if rest is None else np.add(value, rest, out=value)


def softplus_sums(t: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return ``softplus(t) @ weights``; overwrites `t` ``(n, s)`` with ``sigmoid(t) * weights``.

    Goes through `t` in blocks of rows that stay in the cache, with one small scratch array: large temporary arrays
    would cost more than the arithmetic.
    """
    n, size = t.shape
    sums, step = np.empty(n), max(1, _BLOCK // max(1, size))
    scratch = np.empty((min(n, step), size))
    for start in range(0, n, step):
        part = t[start : start + step]
        value = scratch[: len(part)]
        rest = _rest(part)
        np.exp(part, out=part)
        np.add(part, 1.0, out=value)
        part /= value
        part *= weights
        np.log(value, out=value)
        if rest is not None:
            value += rest
        sums[start : start + step] = value @ weights
    return sums


def _rest(t: np.ndarray) -> np.ndarray | None:
    """Cut `t` at the largest argument of exp; return what was cut off, None if nothing was."""
    if not t.size or t.max() <= LARGEST:
        return None
    rest = np.maximum(t - LARGEST, 0.0)
    np.minimum(t, LARGEST, out=t)
    return rest
