"""What a `QuadraticNetwork` learns from, and how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.surrogates.elm import Lesson, require_finite
from leapwise.surrogates.quadratic_basis import QuadraticBasis
from leapwise.surrogates.quadratic_normal import NormalEquations
from leapwise.surrogates.quadratic_solver import (
    N_LEFT_OUT,
    choose_ridge,
    minimiser,
    minimiser_with_curvature,
)
from leapwise.surrogates.ridge import require_ridge
from leapwise.surrogates.ridge_solvers import PrimalSolver

_LINEAR_PENALTY = 0.01
#: Singular values of all rows are found in so many multiplications, and are the most accurate.
_MAX_SPECTRAL = 5 * 10**7


@dataclass(frozen=True, eq=False)
class QuadraticLesson(Lesson):
    """Evaluations seen through a trend and hidden nodes."""

    basis: QuadraticBasis

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of linear, quadratic, radial and hidden weights, and of the offset, ``(size + 1,)``."""
        trend = self.basis.trend
        n_hidden = self.basis.size - trend.size
        penalty = np.append(np.ones(self.basis.size), 0.0)
        penalty[: trend.dim] = _LINEAR_PENALTY
        penalty[trend.size : -1] = n_hidden
        return penalty

    @property
    def has_structure(self) -> bool:
        """Whether there is much to learn, and gradients at half of the positions or more, whose structure helps."""
        gradient = self.white.gradient
        if gradient is None or 2 * len(gradient) < len(self.white.value):
            return False
        n_rows = len(self.white.value) + gradient.size
        return n_rows * self.basis.size * min(n_rows, self.basis.size) > _MAX_SPECTRAL

    @property
    def is_brief(self) -> bool:
        """Whether it has structure and fewer values than A has entries: learning all of it again is cheap."""
        return self.has_structure and len(self.white.value) < self.basis.trend.n_quadratic

    def solve(self, ridge: float | None) -> tuple[np.ndarray, float]:
        """Return weights with the offset last, ``(size + 1,)``, and the strength of the ridge."""
        if not self.has_structure or ridge == 0:  # the weights of least norm need singular values
            return super().solve(ridge)
        strength = self._best_ridge() if ridge is None else require_ridge(ridge)
        return self.equations.turned_back(minimiser(self.equations, strength)), strength

    def solve_with_curvature(self, ridge: float, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)`` of which those of A are given, and the others best for it."""
        equations = self.equations
        held = minimiser_with_curvature(equations, ridge, equations.turned_weights(weights))
        return np.where(equations.quadratic, weights, equations.turned_back(held))

    @cached_property
    def equations(self) -> NormalEquations:
        """The normal equations, in turned coordinates."""
        equations = NormalEquations.turned(self.basis, self.white, self.gradient_weight, self.penalty)
        require_finite(equations.features)
        return equations

    def _best_ridge(self) -> float:
        if self.is_brief:
            return choose_ridge(self.equations)
        equations = self.equations
        turned = Lesson(equations.basis, equations.white, self.gradient_weight)
        rows = turned.rows(slice(None, None, max(1, len(self.white.value) // N_LEFT_OUT)))
        moment = equations.moment[:, None]
        return PrimalSolver(equations.gram, moment, self.penalty, *rows.weighted()).best()[0]
