"""Groups of rows that are left out together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows sorted into groups.

    Attributes
    ----------
    members : tuple of int arrays of shape (groups, rows in each)
        One array for each size of group.

    Examples
    --------
    >>> [block.tolist() for block in RowGroups.from_labels(np.array([0, 1, 1, 2])).members]
    [[[0], [3]], [[1, 2]]]
    """

    members: tuple[np.ndarray, ...]

    @classmethod
    def single(cls, n: int) -> RowGroups:
        """Let each of `n` rows be a group of its own."""
        return cls((np.arange(n)[:, None],))

    @classmethod
    def from_labels(cls, labels: np.ndarray) -> RowGroups:
        """Group rows by equal labels."""
        order = np.argsort(labels, kind="stable")
        _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
        sizes = np.unique(counts)
        return cls(tuple(order[starts[counts == size][:, None] + np.arange(size)] for size in sizes))

    def thin(self, n_rows: int) -> tuple[RowGroups, np.ndarray]:
        """Return evenly spaced groups with about `n_rows` rows, renumbered, and the rows chosen."""
        share = max(1, sum(block.size for block in self.members) // n_rows)
        kept = [block[::share] for block in self.members]
        rows = np.concatenate([block.ravel() for block in kept])
        ends = np.cumsum([0, *(block.size for block in kept)])
        members = (
            np.arange(end, end + block.size).reshape(block.shape)
            for end, block in zip(ends, kept, strict=False)
        )
        return RowGroups(tuple(members)), rows

    def left_out(self, residual: np.ndarray, block: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        r"""Solve :math:`(I - P)_{gg}\, e_g = r_g` for all groups.

        Parameters
        ----------
        residual : ndarray of shape (n, m)
        block : callable
            Returns the matrices ``(groups, k, k)`` for row numbers ``(groups, k)``.
        """
        left_out = np.empty_like(residual)
        for rows in self.members:
            matrix = block(rows)
            k = rows.shape[1]
            # Where a group decides its own prediction the matrix is singular up to rounding.
            floor = np.finfo(float).eps * np.trace(matrix, axis1=1, axis2=2) / k
            matrix = matrix + np.maximum(floor, np.finfo(float).tiny)[:, None, None] * np.eye(k)
            left_out[rows] = residual[rows] / matrix if k == 1 else np.linalg.solve(matrix, residual[rows])
        return left_out


def row_products(matrix: np.ndarray, rows: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
    """Return products of the rows of each group with each other, ``(groups, k, k)``, columns times `factors`."""
    if rows.shape[1] == 1:
        if factors is None:
            return np.asarray(np.einsum("nr,nr->n", matrix, matrix))[rows][:, :, None]
        return (np.square(matrix) @ factors)[rows][:, :, None]
    chosen = matrix[rows]
    scaled = chosen if factors is None else chosen * factors
    return np.asarray(np.matmul(scaled, np.swapaxes(chosen, 1, 2)))
