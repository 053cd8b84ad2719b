"""Places that keep their distance from one another: each of several evaluations is to say something new."""

from __future__ import annotations

import numpy as np


def first_apart(white: np.ndarray, order: np.ndarray, n: int, least: float) -> np.ndarray:
    """Return the first `n` rows in an order that are further than `least` from all before them.

    Examples
    --------
    >>> first_apart(np.array([[0.0], [0.1], [2.0], [5.0]]), np.array([1, 0, 2, 3]), 2, 0.5)
    array([1, 2])
    """
    chosen: list[int] = []
    for i in order:
        if len(chosen) == n:
            break
        if all(np.linalg.norm(white[i] - white[j]) > least for j in chosen):
            chosen.append(int(i))
    return np.array(chosen, dtype=int)
