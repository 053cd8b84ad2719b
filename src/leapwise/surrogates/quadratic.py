r"""Quadratic trend plus random-feature residual: what most posteriors with much data need.

In whitened coordinates the surrogate is

.. math::
    \tilde U = b + \tfrac12 |z|^2 + \underbrace{l^T z + \tfrac12 z^T A z}_{\text{trend}}
    + \underbrace{\textstyle\sum_i v_i\, a(w_i \cdot z + d_i)}_{\text{residual}} + g(|z|),

with radial terms in the trend if asked for (see `leapwise.surrogates.trend`). It is trained on values and gradients
by ridge regression of what is left of them without :math:`\tfrac12 |z|^2`, so the ridge pulls the Hessian towards the
identity, which is what a whitened Gaussian has, and fewer rows than unknowns do no harm.

**Penalties**, as multiples of one strength that is chosen by leaving evaluations out: 1 for the squared Frobenius norm
of A and for radial weights, 1/100 for linear weights, and the number of hidden nodes for each of theirs, so that
what the residual may do does not depend on how many share it. The offset has none.

**Hidden nodes** are drawn after a quadratic has been fitted: in coordinates that its Hessian whitens, with directions
in which gradients differ most from its own. A node's gradient is along its direction, so the covariance of what the
quadratic leaves of the gradients (nine tenths of it, and one tenth the identity) says where nodes are needed.

**The weight of gradient rows** is d/3. An error that is a polynomial of degree k in a standard normal z has
:math:`E|\nabla e|^2 = k\, \mathrm{Var}(e)`, spread over d rows. With k = 3, the first degree that the trend does not
have, rows of both kinds then err by the same amount.

**The tail rule.** Outside the trained region the surrogate must grow, and must not fall below the potential without
bound:

1. The eigenvalues of I + A are at least 0.02. Where the fit has smaller ones, A is replaced by the nearest matrix
   that obeys, and everything else is fitted again with it.
2. Beyond :math:`R = 1 + 1.5 \max_j |z_j|` over the training points, the guard
   :math:`g = \tfrac\kappa2 (t^2 - 1 + 1/(1 + t^2))`, :math:`t = |z| - R`, is added. It has three continuous
   derivatives.
3. :math:`\kappa = 1`, or more if the rest falls outwards at 2R on rays through the training points: then
   :math:`\kappa = 1 + s/R` for the steepest fall s, so that the sum rises there.

The residual has bounded slope and radial terms grow like logarithms, so along every ray the curvature is in the end at
least 1.02, and any potential whose curvature in whitened coordinates stays below that is under-estimated by a bounded
amount only. Potentials that grow faster still are under-estimated far out, where the surrogate itself puts no mass.

Features of a `QuadraticNetwork`.

What a `QuadraticNetwork` learns from, and how.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import lstsq

from leapwise.checks import require_flag, require_positive, require_whole
from leapwise.surrogates.base import Expansion
from leapwise.surrogates.bases import SumBasis
from leapwise.surrogates.elm import Learner, Lesson, require_finite
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.quadratic_solver import (
    N_LEFT_OUT,
    NormalEquations,
    QuadraticBasis,
    choose_ridge,
    minimiser,
    minimiser_with_curvature,
)
from leapwise.surrogates.ridge import PrimalSolver, require_ridge
from leapwise.surrogates.training import TrainingSet, WhiteSet, first_rows
from leapwise.surrogates.trend import Guard, guard_radius, raised
from leapwise.surrogates.whitening import Whitening

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


@dataclass(frozen=True)
class QuadraticNetwork:
    r"""A quadratic trend plus, if asked for, hidden softplus nodes and radial terms.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    n_hidden : int
        Number of hidden nodes; with none it is a quadratic.
    radial : bool
        Whether the trend has radial terms, for heavy tails.
    ridge : float, optional
        Strength of the ridge; chosen by leaving evaluations out if not given.
    gain : float
        Typical standard deviation of the hidden nodes' projections: larger makes kinks sharper.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal([1.0, 2.0], [1.0, 5.0], size=(20, 2))
    >>> slope = (x - [1.0, 2.0]) / [1.0, 25.0]
    >>> training = TrainingSet(x, 0.5 * ((x - [1.0, 2.0]) * slope).sum(axis=1), slope)
    >>> fitted = QuadraticNetwork().fit(training, rng)
    >>> fitted.hessian(np.zeros((1, 2))).round(6)
    array([[[ 1.  , -0.  ],
            [-0.  ,  0.04]]])
    """

    n_hidden: int = 0
    radial: bool = False
    ridge: float | None = None
    gain: float = 1.0
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        require_whole("n_hidden", self.n_hidden, 0)
        require_flag("radial", self.radial)
        require_positive(self.gain, "gain", ())
        if self.ridge is not None:
            require_ridge(self.ridge)

    def fit(
        self, training: TrainingSet, rng: np.random.Generator, plain: FittedQuadratic | None = None
    ) -> FittedQuadratic:
        """Draw hidden nodes, if any, and learn all weights.

        `plain` is a quadratic fitted to the same evaluations, which hidden nodes need; made if it is not given.
        """
        whitening, white, lowest = first_rows(training, self.whitening)
        dim = training.dim
        spread = np.eye(dim)
        if self.n_hidden:
            plain = plain or replace(self, n_hidden=0, radial=False).fit(training, rng)
            if self.whitening is None:
                whitening, white, lowest = first_rows(training, plain.rewhitened())
            spread = _spread(plain, white, whitening)
        white = _without_prior(white)
        basis = QuadraticBasis.draw(white.position, self.n_hidden, self.gain, self.radial, spread, rng)
        lesson = QuadraticLesson(basis, white, dim / 3.0)
        solution, ridge = lesson.solve(self.ridge)
        return FittedQuadratic(
            lesson=lesson,
            solution=solution,
            whitening=whitening,
            ridge=ridge,
            lowest=lowest,
            radius=guard_radius(white.position),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedQuadratic(Learner):
    """A trained `QuadraticNetwork`.

    Attributes
    ----------
    radius : float
        Distance from the origin, in whitened coordinates, at which the guard begins.
    """

    lesson: QuadraticLesson
    radius: float

    @cached_property
    def expansion(self) -> Expansion:
        """Trained weights, held to the tail rule, with what was not trained."""
        lesson, trend, weights = self.lesson, self.lesson.basis.trend, self.trained
        identity = trend.weights_of(np.zeros(trend.dim), np.eye(trend.dim))
        curvature = raised(trend.matrix(weights[: trend.size] + identity))
        if curvature is not None:
            held = trend.weights_of(np.zeros(trend.dim), curvature - np.eye(trend.dim))
            weights = self._refit(weights, trend.quadratic_part, held)
        full = weights[:-1].copy()
        full[: trend.size] += identity
        guard = Guard(self.radius)
        full = np.append(full, _guard_weight(lesson, full, guard))
        basis = SumBasis((*lesson.basis.bases, guard))
        return Expansion(basis, full, lesson.white.offset + float(weights[-1]), self.whitening)

    def _learn(self, white: WhiteSet, lowest: float) -> Self:
        # While there are few values, one fit to all costs less than folding rows into a triangle of all weights.
        radius, white = max(self.radius, guard_radius(white.position)), _without_prior(white)
        longer = replace(self.lesson, white=self.lesson.white.join(white))
        if self.updater is None and longer.is_brief:
            return replace(self, lesson=longer, solution=None, lowest=lowest, radius=radius)
        return replace(super()._learn(white, lowest), radius=radius)

    def _refit(self, weights: np.ndarray, held: slice, values: np.ndarray) -> np.ndarray:
        """Fit the other weights again, with those of `held`, which are of A, fixed at the same entries of `values`."""
        weights = np.array(weights)
        weights[held] = values[held]
        if self.updater is None and self.lesson.has_structure:
            return self.lesson.solve_with_curvature(self.ridge, weights)
        return _refit(self.updater or self.lesson.updater(self.ridge), weights, held)

    def rewhitened(self) -> Whitening:
        """Return coordinates in which the trend's Hessian is about the identity.

        Where it says that the posterior is more than twice as wide as the positions are, the positions are believed.
        """
        trend = self.lesson.basis.trend
        values, vectors = np.linalg.eigh(trend.matrix(self.weights[: trend.size]))
        root = self.whitening.factor @ (vectors / np.sqrt(np.maximum(values, 0.25)))
        return Whitening(self.whitening.mean, np.linalg.cholesky(root @ root.T))


def _spread(quadratic: FittedQuadratic, white: WhiteSet, whitening: Whitening) -> np.ndarray:
    """Return the covariance ``(dim, dim)`` of hidden nodes' directions, of trace dim.

    It is that of what a quadratic leaves of the gradients, mixed with a tenth of the identity.
    """
    dim = white.position.shape[1]
    identity = np.eye(dim)
    if white.gradient is None:
        return identity
    _, slope = quadratic.potential_and_gradient(whitening.from_white(white.position[white.has_gradient]))
    left = white.gradient - whitening.gradient_to_white(slope)
    total = np.square(left).sum()
    return identity if not total > 0 else 0.9 * dim / total * (left.T @ left) + 0.1 * identity


def _refit(updater: RowUpdater, weights: np.ndarray, held: slice) -> np.ndarray:
    """Fit the other weights again, with those of `held` as they are."""
    rows = np.concatenate([updater.triangle, *(block for block, _ in updater.waiting)])
    targets = np.concatenate([updater.projection, *(block for _, block in updater.waiting)])
    free = np.ones(len(weights), dtype=bool)
    free[held] = False
    weights[free] = lstsq(rows[:, free], targets - rows[:, held] @ weights[held], lapack_driver="gelsy")[0]
    return weights


def _guard_weight(lesson: QuadraticLesson, weights: np.ndarray, guard: Guard) -> float:
    """Return the guard's weight: enough to rise at twice its radius on rays through training points, both ways."""
    length = np.linalg.norm(lesson.white.position, axis=1, keepdims=True)
    away = length[:, 0] > 0
    rays = lesson.white.position[away] / length[away]
    rays = np.concatenate([rays, -rays])
    _, gradient = lesson.basis.value_and_gradient(2.0 * guard.radius * rays, weights)
    fall = -np.einsum("ij,ij->i", gradient, rays).min()
    return 1.0 + max(0.0, float(fall)) / guard.radius


def _without_prior(white: WhiteSet) -> WhiteSet:
    """Take the potential of a standard normal away."""
    value = white.value - 0.5 * np.square(white.position).sum(axis=1)
    gradient = None if white.gradient is None else white.gradient - white.position[white.has_gradient]
    return replace(white, value=value, gradient=gradient)
