"""A tall matrix in blocks of rows that fit the cache, and products of a batch of vectors with a block."""

from __future__ import annotations

import numpy as np

# A block of 4 to 8 MB stays in the last-level cache from one product to the next, and is large enough for BLAS to
# use its threads. Smaller blocks were slower, and so was a single one where the matrix does not fit the cache.
_BLOCK_SIZE = 2**19
# BLAS multiplies a few vectors one after the other faster than as one thin matrix. It also rounds them alike then,
# so that the draws of a few chains do not depend on how many there are.
_FEW = 8


def row_blocks(matrix: np.ndarray, multiple: int = 1) -> np.ndarray:
    """Cut a matrix into blocks of rows, each transposed so that BLAS runs along the rows' index.

    Parameters
    ----------
    matrix : ndarray of shape (n_rows, dim)
    multiple : int
        The number of rows in a block is a multiple of this.

    Returns
    -------
    ndarray of shape (n_blocks, dim, block_rows)
        The last block is filled up with rows of zeros.

    Examples
    --------
    >>> row_blocks(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), multiple=4)
    array([[[1., 3., 5., 0.],
            [2., 4., 6., 0.]]])
    """
    n_rows, dim = matrix.shape
    n_blocks = max(matrix.size // _BLOCK_SIZE, 1)
    width = -(-n_rows // (n_blocks * multiple)) * multiple
    padded = np.zeros((n_blocks * width, dim))
    padded[:n_rows] = matrix
    return np.ascontiguousarray(padded.reshape(n_blocks, width, dim).transpose(0, 2, 1))


def times(vectors: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the products ``(n, block_rows)`` of vectors ``(n, dim)`` with the rows of a block."""
    if len(vectors) >= _FEW:
        return np.asarray(vectors @ block)
    products = np.empty((len(vectors), block.shape[1]))
    for vector, product in zip(vectors, products, strict=True):
        np.matmul(vector, block, out=product)
    return products


def weighted_sums(weights: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the sums ``(n, dim)`` of the rows of a block with weights ``(n, block_rows)``."""
    if len(weights) >= _FEW:
        return np.asarray(weights @ block.T)
    sums = np.empty((len(weights), len(block)))
    for weight, total in zip(weights, sums, strict=True):
        np.matmul(block, weight, out=total)
    return sums
