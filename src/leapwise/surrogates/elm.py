"""Training of output weights on values and gradients: the extreme learning machine of Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from scipy.linalg import solve_triangular

from leapwise.errors import InputError
from leapwise.surrogates.base import Basis, FittedExpansion
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.ridge import (
    PrimalSolver,
    RowGroups,
    Solver,
    factorise,
    ridge_solver,
    solve_with,
)
from leapwise.surrogates.training import TrainingSet, WhiteSet, further_rows
from leapwise.surrogates.whitening import Whitening

#: Rows are stacked while they have at most this many entries (256 MB).
MAX_STACKED = 2**25


class NodeBasis(Basis, Protocol):
    """A basis that knows the Gram matrix of its gradient rows."""

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows."""
        ...

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients, ``(size,)``."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a least-squares problem: how much each counts, and which evaluation it belongs to."""

    features: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def weighted(self) -> tuple[np.ndarray, np.ndarray, RowGroups]:
        """Return features and targets ``(n, 1)`` times the roots of their weights, and the groups."""
        scale, groups = np.sqrt(self.weights)[:, None], RowGroups.from_labels(self.groups)
        if (scale == 1.0).all():
            return self.features, self.targets[:, None], groups
        return self.features * scale, self.targets[:, None] * scale, groups


@dataclass(frozen=True, eq=False)
class Lesson:
    """Evaluations seen through a basis.

    Attributes
    ----------
    basis : NodeBasis
    white : WhiteSet
    gradient_weight : float
    """

    basis: NodeBasis
    white: WhiteSet
    gradient_weight: float

    @property
    def penalty(self) -> np.ndarray:
        """Ones for the nodes and 0 for the bias, ``(size + 1,)``."""
        return np.append(np.ones(self.basis.size), 0.0)

    @property
    def is_small(self) -> bool:
        """Whether all rows may be stacked."""
        gradient = self.white.gradient
        n_rows = len(self.white.value) + (0 if gradient is None else gradient.size)
        return n_rows * (self.basis.size + 1) <= MAX_STACKED

    def solve(self, ridge: float | None) -> tuple[np.ndarray, float]:
        """Return weights with the bias last, ``(size + 1,)``, and the strength of the ridge."""
        solver: Solver
        if self.is_small:
            features, targets, groups = self.rows().weighted()
            solver = ridge_solver(features, targets, self.penalty, groups)
        else:
            solver = self._primal
        strength, solved = solve_with(solver, ridge)
        return solved.weights[:, 0], strength

    def updater(self, ridge: float) -> RowUpdater:
        """Return what learns further rows."""
        if self.is_small:
            rows, penalty = self.rows(), ridge * self.penalty
            return RowUpdater.from_rows(rows.features, rows.targets, penalty, row_weights=rows.weights)
        factor, _ = factorise(self._primal.gram, self.penalty, ridge)
        projection = solve_triangular(factor, self._primal.moment[:, 0], lower=True)
        return RowUpdater(np.asfortranarray(np.tril(factor).T), projection)

    def rows(self, chosen: slice = slice(None)) -> Rows:
        """Stack the rows of some evaluations: all values, then all gradients."""
        white, size = self.white, self.basis.size
        numbers = np.arange(len(white.value))[chosen]
        kept = np.isin(white.has_gradient, numbers)
        owners, n, dim = white.has_gradient[kept], len(numbers), white.position.shape[1]
        features, targets = np.empty((n + len(owners) * dim, size + 1)), np.empty(n + len(owners) * dim)
        features[:n, :size], features[:n, size] = self.basis.features(white.position[numbers]), 1.0
        targets[:n] = white.value[numbers]
        if white.gradient is not None:
            features[n:, :size] = self.basis.gradient_features(white.position[owners]).reshape(-1, size)
            features[n:, size] = 0.0
            targets[n:] = white.gradient[kept].ravel()
        require_finite(features)
        weights = np.ones(len(targets))
        weights[n:] = self.gradient_weight
        return Rows(features, targets, weights, np.concatenate([numbers, np.repeat(owners, dim)]))

    @cached_property
    def _primal(self) -> PrimalSolver:
        """The Gram matrix of all rows, and a sample of evaluations to leave out."""
        white, size = self.white, self.basis.size
        features = np.ones((len(white.value), size + 1))
        features[:, :size] = self.basis.features(white.position)
        gram, moment = features.T @ features, features.T @ white.value
        if white.gradient is not None:
            where = white.position[white.has_gradient]
            gram[:size, :size] += self.gradient_weight * self.basis.gradient_gram(where)
            moment[:size] += self.gradient_weight * self.basis.gradient_moment(where, white.gradient)
        wanted = max(256, size // 4) // (1 if white.gradient is None else 1 + white.position.shape[1])
        rows = self.rows(slice(None, None, max(1, len(white.value) // max(32, wanted))))
        return PrimalSolver(gram, moment[:, None], self.penalty, *rows.weighted())


def require_finite(features: np.ndarray) -> None:
    """Raise unless all features are finite."""
    if not np.isfinite(features.sum()):
        raise InputError(
            "positions must be of moderate size for features to be finite, got some that are not; "
            "drop evaluations far from the others"
        )


def balance(white: WhiteSet) -> float:
    """Return the weight of gradient rows at which both kinds have the same size."""
    if white.gradient is None:
        return 1.0
    values = float(np.mean(np.square(white.value)))
    gradients = float(np.square(white.gradient).sum(axis=1).mean())
    return values / gradients if values > 0 and gradients > 0 else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Learner(FittedExpansion):
    """A trained network.

    Attributes
    ----------
    lesson : Lesson
        What it first learnt from.
    solution : ndarray of shape (lesson.basis.size + 1,) or None
        The weights after that, the bias last; None if they are to be worked out when they are first asked for.
    whitening : Whitening
    ridge : float
        Strength of the ridge, given or chosen.
    lowest : float
        The lowest potential seen.
    updater : RowUpdater or None
        What it has learnt, as a factor that takes further rows; made when it is first needed.
    """

    lesson: Lesson
    solution: np.ndarray | None
    whitening: Whitening
    ridge: float
    lowest: float
    updater: RowUpdater | None = None

    @cached_property
    def trained(self) -> np.ndarray:
        """The weights after all rows, the bias last."""
        if self.updater is not None:
            return self.updater.weights
        return self.lesson.solve(self.ridge)[0] if self.solution is None else self.solution

    def update(self, training: TrainingSet) -> Self:
        """Return a network that has learnt from further evaluations too.

        Nodes, whitening, ridge and the weight of gradients stay as they are: the weights are those of one
        least-squares problem with all rows, old and new, and are solved for when they are first used. A new row
        costs O(s^2), whatever came before. Evaluations far above the lowest one seen are left out.
        """
        white, lowest = further_rows(training, self.whitening, self.lesson.white.offset, self.lowest)
        return self if white is None else self._learn(white, lowest)

    def _learn(self, white: WhiteSet, lowest: float) -> Self:
        rows = replace(self.lesson, white=white).rows()
        updater = self.lesson.updater(self.ridge) if self.updater is None else self.updater
        updater = updater.append(rows.features, rows.targets, row_weights=rows.weights)
        return replace(self, updater=updater, lowest=lowest)
