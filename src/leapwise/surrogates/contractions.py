"""Contractions of many vectors at once, in blocks of rows so that temporary arrays stay small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

#: Temporary arrays larger than a single row needs are kept below this many entries.
MAX_ENTRIES = 2**20


def blocks(n: int, entries: int) -> Iterator[slice]:
    """Cut `n` rows into blocks, so that temporary arrays with `entries` numbers for each row stay small."""
    step = max(1, MAX_ENTRIES // max(1, entries))
    return (slice(start, start + step) for start in range(0, n, step))


def outer_sums(factors: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``sum_i factors[n, i] w_i w_i^T`` for all n."""
    dim = vectors.shape[1]
    sums = np.empty((len(factors), dim, dim))
    for rows in blocks(len(factors), vectors.size):
        np.matmul(factors[rows, None, :] * vectors.T, vectors, out=sums[rows])
    return sums


def quadratic_forms(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ``w_i^T A_n w_i``, ``(n, s)``, for matrices ``(n, dim, dim)`` and vectors ``(s, dim)``."""
    forms = np.empty((len(matrix), len(vectors)))
    for rows in blocks(len(matrix), vectors.size):
        forms[rows] = np.einsum("nsd,sd->ns", np.matmul(vectors, matrix[rows]), vectors)
    return forms
