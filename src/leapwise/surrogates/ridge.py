r"""Ridge regression, with the ridge chosen by leave-one-out.

The weights minimise

.. math:: \sum_j \omega_j (h_j \cdot v - t_j)^2 + \lambda \sum_i p_i v_i^2 .

This is the paper's extreme learning machine (Algorithm 2) with a regulariser. Leaving out a group g of rows and
predicting them from the others has a closed form. Let H be the matrix with the rows :math:`h_j` (in this file H is
neither an energy nor a Hessian). With the residuals :math:`r = t - H v` and the hat matrix :math:`P`,

.. math:: e_g = (I - P)_{gg}^{-1} r_g,

so nothing is refitted. The chosen ridge :math:`\lambda` has the smallest sum of :math:`\omega e^2` on a grid.

There are three solvers. Below, :math:`\tilde H` are the rows in standard form: every feature with a penalty is divided
by :math:`\sqrt{p_i}`, and features without one are projected out, by the projection :math:`\tilde P` on their columns.

- `SpectralSolver`, for few rows or few features, uses singular values :math:`\tilde H = A \Sigma B^T`. Every ridge is
  then a diagonal matrix:

  .. math:: I - P = (I - \tilde P - A A^T) + A\, \mathrm{diag}\frac{\lambda}{\sigma^2 + \lambda}\, A^T .

  No term is a difference of almost equal numbers, however small the ridge.
- `PrimalSolver` uses the Cholesky factor of :math:`H^T H + \lambda \mathrm{diag}(p)`. This squares the condition
  number, so two steps of refinement follow (Björck's corrected seminormal equations).
- `DualSolver`, for fewer rows than features, uses the Cholesky factor of
  :math:`K = \tilde H \tilde H^T + c \tilde P + \lambda I`, where
  :math:`(I - P) / \lambda = K^{-1} - \tilde P / (c + \lambda)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from leapwise.checks import require_real
from leapwise.errors import InputError

_T = TypeVar("_T")
_EPS = float(np.finfo(float).eps)
#: A residual of at most this share of the targets, per row, is rounding: a few units in the last place.
_ROUNDED = 10.0 * _EPS
#: Ridges to choose from, relative to the mean squared length of a feature. `fibonacci_search` needs twelve of them.
DECADES = 10.0 ** np.arange(-10.0, 2.0)
#: The finer grid of `SpectralSolver`, for which a further ridge costs little.
_HALF_DECADES = 10.0 ** np.arange(-14.0, 2.5, 0.5)
#: With at least this many singular values they are first found from eigenvalues of the Gram matrix, a quarter of the
#: cost. With fewer, the gain is too small to risk computing them twice.
_MANY = 64
#: A ridge below this share of the largest squared singular value is sensitive to the errors of these eigenvalues,
#: which are about 1e-16 of the largest. Seven digits are left.
_SENSITIVE = 1e-9
#: `SpectralSolver` is used while the smaller side of the features is at most this: measured, below 0.5 s for 2000 rows.
MAX_SPECTRAL = 500


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """Trained weights, the ridge, and leave-one-out errors.

    Attributes
    ----------
    weights : ndarray of shape (s,) or (s, m)
    ridge : float
        The ridge, given or chosen.
    leave_one_out : ndarray
        For each row, its target less the prediction by weights trained without the row.
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
        Strength of the penalty; chosen by leave-one-out if not given. With 0 the weights of least norm are found.
        Where Cholesky factors are used, a ridge below rounding error is raised to rounding error.
    weights : array_like of shape (n,), optional
        Weight of the squared error of each row; 1 if not given.
    penalty : array_like of shape (s,), optional
        Relative penalty of each squared weight; 1 if not given. An output bias has 0.
    groups : array_like of int, shape (n,), optional
        Rows with the same number are left out together, for example the value and the gradient of one evaluation.

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
    scale = np.sqrt(_require_factors("weights", weights, n, positive=True))
    penalties = _require_factors("penalty", penalty, size, positive=False)
    if weights is not None:
        rows *= scale[:, None]  # `require_rows` made copies
        values *= scale.reshape(-1, *[1] * (values.ndim - 1))
    solver = ridge_solver(rows, values.reshape(n, -1), penalties, _row_groups(groups, n))
    strength, fit = solve_with(solver, ridge)
    left_out = fit.left_out() / scale[:, None]
    found = fit.weights.reshape(size, *values.shape[1:])
    return RidgeSolution(found, strength, left_out.reshape(values.shape))


def require_rows(features: object, targets: object) -> tuple[np.ndarray, np.ndarray]:
    """Return features ``(n, s)`` and targets ``(n,)`` or ``(n, m)`` as new float arrays, or raise `InputError`."""
    rows, values = require_real(features, "features"), require_real(targets, "targets")
    if rows.ndim != 2 or rows.shape[1] < 1:
        raise InputError(
            f"features must have shape (n, s) with s at least 1, got {rows.shape}; give one row for each target"
        )
    if values.ndim not in (1, 2) or len(values) != len(rows) or 0 in values.shape[1:]:
        raise InputError(
            f"targets must have shape ({len(rows)},) or ({len(rows)}, m) to match the features, got {values.shape}"
        )
    return rows, values


def require_ridge(ridge: object) -> float:
    """Return `ridge` if it is a number that is not negative, or raise `InputError`."""
    if not isinstance(ridge, (int, float, np.number)) or not np.isfinite(ridge) or ridge < 0:
        raise InputError(
            f"ridge must be a number of at least 0, got {ridge!r}; leave it out to have it chosen"
        )
    return float(ridge)


def _require_factors(name: str, value: object, size: int, *, positive: bool) -> np.ndarray:
    """Return `value` ``(size,)``, ones if it is None; raise if an entry is negative (or zero, if `positive`)."""
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


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Rows sorted into groups that are left out together.

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
            # The matrix is singular, up to rounding, where a group alone determines its own prediction.
            floor = _EPS * np.trace(matrix, axis1=1, axis2=2) / k
            matrix = matrix + np.maximum(floor, np.finfo(float).tiny)[:, None, None] * np.eye(k)
            left_out[rows] = residual[rows] / matrix if k == 1 else np.linalg.solve(matrix, residual[rows])
        return left_out


def _row_products(matrix: np.ndarray, rows: np.ndarray, factors: np.ndarray | None = None) -> np.ndarray:
    """Return products of the rows of each group with each other, ``(groups, k, k)``, columns times `factors`."""
    if rows.shape[1] == 1:
        if factors is None:
            return np.asarray(np.einsum("nr,nr->n", matrix, matrix))[rows][:, :, None]
        return (np.square(matrix) @ factors)[rows][:, :, None]
    chosen = matrix[rows]
    scaled = chosen if factors is None else chosen * factors
    return np.asarray(np.matmul(scaled, np.swapaxes(chosen, 1, 2)))


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The fit with one ridge: weights ``(s, m)``, and a function that returns leave-one-out errors ``(n, m)``."""

    weights: np.ndarray
    left_out: Callable[[], np.ndarray]


class RidgeSolver(Protocol):
    """Solves one ridge problem for any ridge."""

    def best(self) -> tuple[float, RidgeFit]:
        """Return the ridge with the smallest leave-one-out error, and the fit with it."""
        ...

    def at(self, ridge: float) -> RidgeFit:
        """Solve with one ridge."""
        ...


def ridge_solver(
    rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray, groups: RowGroups
) -> RidgeSolver:
    """Return the solver that suits the shape of the problem; rows and targets ``(n, m)`` include row weights."""
    if min(rows.shape) <= MAX_SPECTRAL:
        return SpectralSolver(rows, targets, penalty, groups)
    if len(rows) < rows.shape[1]:
        return DualSolver(rows, targets, penalty, groups)
    return PrimalSolver.from_rows(rows, targets, penalty, groups)


def solve_with(solver: RidgeSolver, ridge: float | None) -> tuple[float, RidgeFit]:
    """Return the ridge, chosen if it is None, and the fit with it."""
    if ridge is None:
        return solver.best()
    strength = require_ridge(ridge)
    return strength, solver.at(strength)


class _StandardForm:
    """A ridge problem rewritten so that every weight has the same penalty.

    Features without a penalty are projected out of rows and targets; the others are divided by the roots of theirs.
    """

    def __init__(self, rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray) -> None:
        self.penalised = penalty > 0
        self._root = np.sqrt(penalty[self.penalised])
        left, values, right = np.linalg.svd(rows[:, ~self.penalised], full_matrices=False)
        known = values > values.max(initial=0.0) * max(rows.shape) * _EPS
        self.projection = left[:, known]  # its columns span the features without a penalty
        self._inverse = right[known].T / values[known]
        self._given = rows[:, self.penalised] / self._root
        self._targets = targets
        self.rows = self._given - self.projection @ (self.projection.T @ self._given)
        self.targets = _residual(targets, self.projection)
        self.scale = feature_scale(np.einsum("ij,ij->j", self.rows, self.rows))

    def weights(self, standard: np.ndarray) -> np.ndarray:
        """Return all weights for those of the standard form."""
        weights = np.empty((len(self.penalised), standard.shape[1]))
        weights[self.penalised] = standard / self._root[:, None]
        residual = self._targets - self._given @ standard
        weights[~self.penalised] = self._inverse @ (self.projection.T @ residual)
        return weights


def _residual(targets: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Return targets ``(n, m)`` less their projection; zero where only rounding errors would remain."""
    residual = targets - projection @ (projection.T @ targets)
    sizes = np.linalg.norm(targets, axis=0)
    return np.asarray(residual * (np.linalg.norm(residual, axis=0) > len(targets) * _ROUNDED * sizes))


class SpectralSolver:
    """Solves by singular values: all ridges for little more than the cost of one.

    The singular values are first the roots of the Gram matrix's eigenvalues, which takes a quarter of the time. If the
    ridge chosen with them is so small that their rounding errors matter, or if a ridge is given, they are computed
    from the rows themselves.
    """

    def __init__(self, rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray, groups: RowGroups) -> None:
        self._form, self._groups = _StandardForm(rows, targets, penalty), groups

    def best(self) -> tuple[float, RidgeFit]:
        """Find the best ridge of a fine grid."""
        if min(self._form.rows.shape) >= _MANY:
            quick = _Spectrum(self._form, self._groups, *_by_eigenvalues(self._form.rows))
            ridge = quick.best()
            if ridge > _SENSITIVE * quick.values.max(initial=0.0) ** 2:
                return ridge, quick.at(ridge)
        ridge = self._accurate.best()
        return ridge, self.at(ridge)

    def at(self, ridge: float) -> RidgeFit:
        """Solve with one ridge."""
        return self._accurate.at(ridge)

    @cached_property
    def _accurate(self) -> _Spectrum:
        left, values, right = np.linalg.svd(self._form.rows, full_matrices=False)
        known = values > values.max(initial=0.0) * max(self._form.rows.shape) * _EPS
        return _Spectrum(self._form, self._groups, left[:, known], values[known], right[known])


def _by_eigenvalues(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return singular vectors and values from the smaller Gram matrix, without those that are rounding errors."""
    wide = len(rows) <= rows.shape[1]
    squares, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    known = squares > squares.max(initial=0.0) * max(rows.shape) * _EPS
    values, vectors = np.sqrt(squares[known]), vectors[:, known]
    if wide:
        return vectors, values, (vectors.T @ rows) / values[:, None]
    return rows @ vectors / values, values, vectors.T


class _Spectrum:
    """A ridge problem in standard form with its singular values and vectors."""

    def __init__(
        self, form: _StandardForm, groups: RowGroups, left: np.ndarray, values: np.ndarray, right: np.ndarray
    ) -> None:
        self._form, self._groups = form, groups
        self._left, self.values, self._right = left, values, right
        self._along = left.T @ form.targets
        # If the features span all targets, the residual is only rounding errors and must not be used.
        self._spans_all = left.shape[1] + form.projection.shape[1] >= len(form.rows)
        self._residual = form.targets - left @ self._along

    def best(self) -> float:
        """Return the best ridge of a fine grid: try every second one first, then its neighbours."""
        grid = self._form.scale * _HALF_DECADES
        scores = np.full(len(grid), np.inf)
        scores[::2] = [sum_of_squares(self._left_out(ridge)) for ridge in grid[::2]]
        best = int(scores.argmin())
        for beside in {max(best - 1, 0), min(best + 1, len(grid) - 1)} - {best}:
            scores[beside] = sum_of_squares(self._left_out(grid[beside]))
        return float(grid[int(scores.argmin())])

    def at(self, ridge: float) -> RidgeFit:
        """Solve with one ridge."""
        damped = self.values / (self.values**2 + ridge)
        weights = self._form.weights(self._right.T @ (damped[:, None] * self._along))
        return RidgeFit(weights, lambda: self._left_out(ridge))

    def _left_out(self, ridge: float) -> np.ndarray:
        if self._spans_all:  # both sides of the equation are divided by the ridge, which may then be 0
            share = 1.0 / (self.values**2 + ridge)
            residual = self._left @ (share[:, None] * self._along)
            return self._groups.left_out(residual, lambda rows: _row_products(self._left, rows, share))
        share = ridge / (self.values**2 + ridge)
        residual = self._residual + self._left @ (share[:, None] * self._along)
        return self._groups.left_out(residual, lambda rows: self._block(rows, share))

    def _block(self, rows: np.ndarray, share: np.ndarray) -> np.ndarray:
        used = _row_products(self._form.projection, rows) + _row_products(self._left, rows)
        return np.eye(rows.shape[1]) - used + _row_products(self._left, rows, share)


class DualSolver:
    """Solves by the Gram matrix of rows, for fewer rows than features."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray, groups: RowGroups) -> None:
        self._form, self._groups = _StandardForm(rows, targets, penalty), groups
        self._gram = self._form.rows @ self._form.rows.T
        # The projected-out directions get a level like the others; what they add to the inverse is subtracted later.
        self._level = float(np.trace(self._gram)) / len(rows) or 1.0
        self._gram += self._level * (self._form.projection @ self._form.projection.T)

    def best(self) -> tuple[float, RidgeFit]:
        """Find the best ridge of a grid of decades, by search."""

        def scored(ridge: float) -> tuple[float, RidgeFit]:
            fit = self.at(ridge)
            return sum_of_squares(fit.left_out()), fit

        return fibonacci_search(scored, self._form.scale * DECADES)

    def at(self, ridge: float) -> RidgeFit:
        """Solve with one ridge."""
        factor, ridge = factorise(self._gram, np.ones(len(self._gram)), ridge)
        inverse = dpotri(factor, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        dual = inverse @ self._form.targets

        def block(rows: np.ndarray) -> np.ndarray:
            chosen = inverse[rows[:, :, None], rows[:, None, :]]
            return chosen - _row_products(self._form.projection, rows) / (self._level + ridge)

        weights = self._form.weights(self._form.rows.T @ dual)
        # both sides of the equation are divided by the ridge
        return RidgeFit(weights, lambda: self._groups.left_out(dual, block))


@dataclass(frozen=True, eq=False)
class PrimalSolver:
    """Solves by the Gram matrix of features.

    Ridges are compared on a sample of evenly spaced rows, each left out of a fit to all others: a quarter as many rows
    as there are features, at least 256.
    """

    gram: np.ndarray
    moment: np.ndarray
    penalty: np.ndarray
    rows: np.ndarray
    targets: np.ndarray
    groups: RowGroups
    holds_all: bool = False  # whether `rows` are all rows of which `gram` is the Gram matrix

    @classmethod
    def from_rows(
        cls, rows: np.ndarray, targets: np.ndarray, penalty: np.ndarray, groups: RowGroups
    ) -> PrimalSolver:
        """Form the Gram matrix of rows."""
        return cls(rows.T @ rows, rows.T @ targets, penalty, rows, targets, groups, True)

    def best(self) -> tuple[float, RidgeFit]:
        """Find the best ridge of a grid of decades, by search on the sample."""
        sample = self._sample() if self.holds_all else self

        def scored(ridge: float) -> tuple[float, tuple[np.ndarray, float]]:
            factor, used = factorise(self.gram, self.penalty, ridge)
            return sum_of_squares(sample._fit(factor, used).left_out()), (factor, used)

        ridge, (factor, used) = fibonacci_search(scored, self.scale * DECADES)
        return ridge, self._fit(factor, used)

    @cached_property
    def scale(self) -> float:
        """Mean squared length of a feature with a penalty."""
        penalised = self.penalty > 0
        return feature_scale(np.diag(self.gram)[penalised] / self.penalty[penalised])

    def at(self, ridge: float) -> RidgeFit:
        """Solve with one ridge; leave-one-out errors are of `rows`."""
        return self._fit(*factorise(self.gram, self.penalty, ridge))

    def _fit(self, factor: np.ndarray, ridge: float) -> RidgeFit:
        weights = dpotrs(factor, self.moment, lower=1)[0]
        if self.holds_all:
            for _ in range(2):
                downhill = self.rows.T @ (self.targets - self.rows @ weights)
                downhill -= ridge * self.penalty[:, None] * weights
                weights = weights + dpotrs(factor, downhill, lower=1)[0]
        return RidgeFit(weights, lambda: self._left_out(factor, weights))

    def _sample(self) -> PrimalSolver:
        groups, rows = self.groups.thin(max(256, len(self.gram) // 4))
        return replace(self, rows=self.rows[rows], targets=self.targets[rows], groups=groups, holds_all=False)

    def _left_out(self, factor: np.ndarray, weights: np.ndarray) -> np.ndarray:
        reach = solve_triangular(factor, self.rows.T, lower=True, check_finite=False).T
        residual = self.targets - self.rows @ weights
        return self.groups.left_out(residual, lambda rows: np.eye(rows.shape[1]) - _row_products(reach, rows))


def factorise(gram: np.ndarray, penalty: np.ndarray, ridge: float) -> tuple[np.ndarray, float]:
    """Return the lower Cholesky factor of ``gram + ridge diag(penalty)``, and the ridge that was used.

    If rounding has made the matrix indefinite, the ridge is raised until it is definite. If that does not help, because
    the rows do not determine weights without a penalty, all weights get one.
    """
    floor = _EPS * float(np.trace(gram)) or _EPS
    attempts = [(ridge, penalty)]
    attempts += [(max(ridge, floor * 10.0**k), np.maximum(penalty, k > 3)) for k in range(12)]
    for strength, diagonal in attempts:
        matrix = gram.T.copy(order="F")
        matrix.flat[:: len(matrix) + 1] += strength * diagonal
        factor, failed = dpotrf(matrix, lower=1, overwrite_a=1)
        if not failed:
            break
    return factor, strength


def feature_scale(squares: np.ndarray) -> float:
    """Return the mean of squared lengths of features, 1 if there are none or all are zero."""
    return (float(squares.mean()) if squares.size else 0.0) or 1.0


def sum_of_squares(errors: np.ndarray) -> float:
    """Return the sum of squares, infinity if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.square(errors).sum())
    return total if np.isfinite(total) else np.inf


def fibonacci_search(scored: Callable[[float], tuple[float, _T]], grid: np.ndarray) -> tuple[float, _T]:
    """Return the point of a grid of twelve with the smallest score, and the result that came with the score.

    Fibonacci search needs five scores; twelve is a Fibonacci number less one. Results may be large, so only the best
    one is kept.
    """
    known: dict[int, float] = {-1: np.inf, len(grid): np.inf}
    best: list[tuple[float, _T]] = []

    def at(index: int) -> float:
        if index not in known:
            height, result = scored(float(grid[index]))
            if height <= min(known.values()):
                best[:] = [(float(grid[index]), result)]
            known[index] = height
        return known[index]

    start, short, long = -1, 5, 8
    while short > 1:
        if at(start + short) > at(start + long):
            start += short
        short, long = long - short, short
    at(start + 1), at(start + 2)
    return best[0]
