r"""Ridge regression in one go, with its strength chosen by leave-one-out.

The weights minimise

.. math:: \sum_j \omega_j (h_j \cdot v - t_j)^2 + \lambda \sum_i p_i v_i^2,

which is the paper's ELM (Algorithm 1) with a regulariser. Leaving a group g of rows out and predicting them from the
rest has a closed form: with the residuals :math:`r = t - H v` and the hat matrix :math:`P`,

.. math:: e_g = (I - P)_{gg}^{-1} r_g,

so nothing is refitted. The strength is the one with the smallest sum of :math:`\omega e^2` over a grid of decades.

How it is solved depends on the size, see `leapwise.surrogates.ridge_solvers`: by singular values while there are
few rows or few features, else by Cholesky factors of the smaller of the two Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.surrogates.ridge_groups import RowGroups
from leapwise.surrogates.ridge_solvers import DualSolver, PrimalSolver, Solved, Solver, SpectralSolver
from leapwise.surrogates.rows import require_rows

#: Singular values are used while the smaller side of the features is at most this.
MAX_SPECTRAL = 500


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """Trained weights and how they were come by.

    Attributes
    ----------
    weights : ndarray of shape (s,) or (s, m)
    ridge : float
        The strength, given or chosen.
    leave_one_out : ndarray
        Targets less their predictions by weights trained without them, for each row.
    """

    weights: np.ndarray
    ridge: float
    leave_one_out: np.ndarray


def solve_ridge(
    features: object,
    targets: object,
    *,
    ridge: float | None = None,
    weights: object = None,
    penalty: object = None,
    groups: object = None,
) -> RidgeSolution:
    """Fit weights of features to targets.

    Parameters
    ----------
    features : array_like of shape (n, s)
    targets : array_like of shape (n,) or (n, m)
    ridge : float, optional
        Strength of the penalty, chosen by leave-one-out if not given. With 0 the weights of least norm are
        found; where Cholesky factors are used, numbers below rounding error count as rounding error.
    weights : array_like of shape (n,), optional
        How much the squared error of each row counts; 1 if not given.
    penalty : array_like of shape (s,), optional
        How much each squared weight counts; 1 if not given, and 0 for an output bias.
    groups : array_like of int, shape (n,), optional
        Rows with the same number are left out together, like the value and the gradient of one evaluation.

    Examples
    --------
    >>> x = np.linspace(-1.0, 1.0, 9)
    >>> solution = solve_ridge(np.stack([np.ones(9), x], axis=1), 2.0 + 3.0 * x)
    >>> solution.weights.round(6)
    array([2., 3.])
    """
    rows, values = require_rows(features, targets)
    if not len(rows):
        raise InputError("features must have at least one row to learn from, got none; evaluate more first")
    n, size = rows.shape
    scale = np.sqrt(require_some("weights", weights, n, positive=True))
    penalties = require_some("penalty", penalty, size, positive=False)
    if weights is not None:
        rows *= scale[:, None]  # they are our own copies
        values *= scale.reshape(-1, *[1] * (values.ndim - 1))
    solver = ridge_solver(rows, values.reshape(n, -1), penalties, _row_groups(groups, n))
    strength, solved = solve_with(solver, ridge)
    left_out = solved.left_out() / scale[:, None]
    found = solved.weights.reshape(size, *values.shape[1:])
    return RidgeSolution(found, strength, left_out.reshape(values.shape))


def require_ridge(ridge: object) -> float:
    """Return `ridge` if it is a number that is not negative."""
    if not isinstance(ridge, (int, float, np.number)) or not np.isfinite(ridge) or ridge < 0:
        raise InputError(
            f"ridge must be a number of at least 0, got {ridge!r}; leave it out to have it chosen"
        )
    return float(ridge)


def solve_with(solver: Solver, ridge: float | None) -> tuple[float, Solved]:
    """Return the strength, chosen if it is None, and the answer for it."""
    if ridge is None:
        return solver.best()
    strength = require_ridge(ridge)
    return strength, solver.at(strength)


def require_some(name: str, value: object, size: int, *, positive: bool) -> np.ndarray:
    """Return `value` ``(size,)``, ones if it is None, or raise unless no entry is negative (or zero)."""
    if value is None:
        return np.ones(size)
    given = require_real(value, name)
    if given.shape != (size,) or (given < 0).any() or (positive and not given.all()):
        least = "above 0" if positive else "of at least 0"
        raise InputError(f"{name} must be {size} numbers {least}, got shape {given.shape}, {given!r}")
    return given


def _row_groups(groups: object, n: int) -> RowGroups:
    if groups is None:
        return RowGroups.single(n)
    labels = np.asarray(groups)
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise InputError(f"groups must be {n} whole numbers, one for each row, got shape {labels.shape}")
    return RowGroups.from_labels(labels)


def ridge_solver(rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray, groups: RowGroups) -> Solver:
    """Return the solver that suits the shape of the problem; rows and targets ``(n, m)`` are weighted already."""
    if min(rows.shape) <= MAX_SPECTRAL:
        return SpectralSolver(rows, targets, penalty, groups)
    if len(rows) < rows.shape[1]:
        return DualSolver(rows, targets, penalty, groups)
    return PrimalSolver.from_rows(rows, targets, penalty, groups)
