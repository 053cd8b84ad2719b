r"""A quadratic plus a random network for the residual: suits posteriors with much data, which are nearly normal.

In whitened coordinates the surrogate is

.. math::
    \tilde U = b + \tfrac12 |z|^2 + \underbrace{l^T z + \tfrac12 z^T A z}_{\text{trend}}
    + \underbrace{\textstyle\sum_i v_i\, s(w_i \cdot z + d_i)}_{\text{hidden units}} + \kappa\, g(|z|),

with softplus s, biases :math:`d_i` (d is the dimension), and optionally radial terms (`leapwise.surrogates.trend`). It
is trained on values and gradients by ridge regression (`QuadraticProblem`), and must grow far out (`FittedQuadratic`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import cholesky, lstsq, solve_triangular
from scipy.linalg.lapack import dpotrs

from leapwise.checks import require_flag, require_positive, require_whole
from leapwise.surrogates.base import Expansion
from leapwise.surrogates.features import SumBasis
from leapwise.surrogates.network import FittedNetwork, LeastSquaresProblem, require_finite
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.ridge import (
    DECADES,
    PrimalSolver,
    factorise,
    feature_scale,
    fibonacci_search,
    require_ridge,
    sum_of_squares,
)
from leapwise.surrogates.training import TrainingSet, WhiteSet, first_rows
from leapwise.surrogates.trend import MIN_CURVATURE, Guard, QuadraticBasis, guard_radius, nearest_convex
from leapwise.surrogates.whitening import Whitening

#: Penalty of linear weights relative to quadratic ones: nearly free, as the whitening's mean is an estimate. A guess.
_LINEAR_PENALTY = 0.01
#: Up to this many multiplications (measured: below 0.1 s) singular values of all rows are used, the most accurate way.
_MAX_SPECTRAL = 5 * 10**7
#: Number of evaluations that are left out to choose a ridge. A guess: enough to tell decades apart.
N_LEFT_OUT = 32


@dataclass(frozen=True)
class QuadraticNetwork:
    r"""A quadratic trend, optionally with hidden softplus units and radial terms.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

    **Hidden units** are drawn after a quadratic has been fitted, in coordinates that its Hessian whitens. The gradient
    of a unit is along its input weights. So the input weights have the covariance of the gradients' residuals from the
    quadratic (nine tenths of it, and one tenth the identity).

    Parameters
    ----------
    n_hidden : int
        Number of hidden units; with 0 the surrogate is a quadratic.
    radial : bool
        Whether the trend has radial terms, for heavy tails.
    ridge : float, optional
        Strength of the ridge; chosen by leaving evaluations out if not given.
    gain : float
        Typical standard deviation of the hidden units' projections: units bend more sharply if it is larger.
    whitening : Whitening, optional
        Coordinates to train in; from the training positions if not given.
    must_grow : bool
        Whether the surrogate must grow far out (the tail rule of `FittedQuadratic`). False suits a likelihood that is
        added to an exact prior: it may be flat where the prior falls off.

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
    must_grow: bool = True

    def __post_init__(self) -> None:
        require_whole("n_hidden", self.n_hidden, 0)
        require_flag("radial", self.radial)
        require_flag("must_grow", self.must_grow)
        require_positive(self.gain, "gain", ())
        if self.ridge is not None:
            require_ridge(self.ridge)

    def fit(
        self, training: TrainingSet, rng: np.random.Generator, plain: FittedQuadratic | None = None
    ) -> FittedQuadratic:
        """Draw hidden units, if any, and train all weights.

        Drawing hidden units needs a quadratic fitted to the same evaluations: `plain`, fitted here if not given.
        """
        whitening, white, lowest = first_rows(training, self.whitening)
        dim = training.dim
        spread = np.eye(dim)
        if self.n_hidden:
            plain = plain or replace(self, n_hidden=0, radial=False).fit(training, rng)
            if self.whitening is None:
                whitening, white, lowest = first_rows(training, plain.rewhitened())
            spread = _spread(plain, white, whitening)
        white = _without_normal(white)
        basis = QuadraticBasis.draw(white.position, self.n_hidden, self.gain, self.radial, spread, rng)
        problem = QuadraticProblem(basis, white, dim / 3.0)
        solution, ridge = problem.solve(self.ridge)
        return FittedQuadratic(
            problem=problem,
            solution=solution,
            whitening=whitening,
            ridge=ridge,
            lowest=lowest,
            radius=guard_radius(white.position),
            must_grow=self.must_grow,
        )


def _without_normal(white: WhiteSet) -> WhiteSet:
    """Subtract the potential of a standard normal."""
    value = white.value - 0.5 * np.square(white.position).sum(axis=1)
    gradient = None if white.gradient is None else white.gradient - white.position[white.has_gradient]
    return replace(white, value=value, gradient=gradient)


def _spread(quadratic: FittedQuadratic, white: WhiteSet, whitening: Whitening) -> np.ndarray:
    """Return the covariance of input weights, of trace dim: mostly that of gradients' residuals from a quadratic."""
    dim = white.position.shape[1]
    identity = np.eye(dim)
    if white.gradient is None:
        return identity
    _, slope = quadratic.potential_and_gradient(whitening.from_white(white.position[white.has_gradient]))
    residual = white.gradient - whitening.gradient_to_white(slope)
    total = np.square(residual).sum()
    return identity if not total > 0 else 0.9 * dim / total * (residual.T @ residual) + 0.1 * identity


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedQuadratic(FittedNetwork):
    r"""A trained `QuadraticNetwork`.

    **The tail rule.** Far out the surrogate must grow, and must not fall below the potential without bound:

    1. The eigenvalues of I + A are at least 0.02. If the fit has smaller ones, A is replaced by the nearest matrix that
       obeys, and all other weights are fitted again.
    2. Beyond :math:`R = 1 + 1.5 \max_j |z_j|` over the training points, the guard :math:`\kappa g` is added (`Guard`).
    3. :math:`\kappa = 1`, or more if the rest decreases outwards at 2R on rays through the training points: then
       :math:`\kappa = 1 + f/R` with the steepest descent f, so that the sum increases there.

    The hidden units have bounded slope and radial terms grow like logarithms, so along every ray the curvature is in
    the end at least 1.02. Any potential whose curvature in whitened coordinates stays below that is under-estimated by
    a bounded amount. Potentials that grow faster are under-estimated far out, where the surrogate itself has no mass.

    With ``must_grow=False`` the eigenvalues are at least 0 and :math:`\kappa = f/R`, so that there is no guard unless
    the rest decreases: the exact prior that is added falls off, and a guard would cut tails that the prior has.

    Attributes
    ----------
    radius : float
        Distance from the origin, in whitened coordinates, at which the guard begins.
    must_grow : bool
        As for `QuadraticNetwork`.
    """

    problem: QuadraticProblem
    radius: float
    must_grow: bool = True

    @cached_property
    def expansion(self) -> Expansion:
        """The trained weights under the tail rule, with the standard normal and the guard added."""
        problem, trend, weights = self.problem, self.problem.basis.trend, self.trained_weights
        identity = trend.weights_of(np.zeros(trend.dim), np.eye(trend.dim))
        least = MIN_CURVATURE if self.must_grow else 0.0
        curvature = nearest_convex(trend.matrix(weights[: trend.size] + identity), least)
        if curvature is not None:
            weights = self._refit(weights, curvature - np.eye(trend.dim))
        full = weights[:-1].copy()
        full[: trend.size] += identity
        guard = Guard(self.radius)
        fall = _steepest_fall(problem, full, guard)
        full = np.append(full, float(self.must_grow) + fall / guard.radius)
        basis = SumBasis((*problem.basis.bases, guard))
        return Expansion(basis, full, problem.white.offset + float(weights[-1]), self.whitening)

    def rewhitened(self) -> Whitening:
        """Return coordinates in which the trend's Hessian is about the identity.

        Directions in which the Hessian implies more than twice the width of the training positions get just twice.
        """
        trend = self.problem.basis.trend
        values, vectors = np.linalg.eigh(trend.matrix(self.weights[: trend.size]))
        root = self.whitening.factor @ (vectors / np.sqrt(np.maximum(values, 0.25)))
        return Whitening(self.whitening.mean, np.linalg.cholesky(root @ root.T))

    def _append(self, white: WhiteSet, lowest: float) -> Self:
        # With few values, one fit to all evaluations costs less than folding rows into a triangle of all weights.
        radius, white = max(self.radius, guard_radius(white.position)), _without_normal(white)
        longer = replace(self.problem, white=self.problem.white.join(white))
        if self.updater is None and longer.has_few_values:
            return replace(self, problem=longer, solution=None, lowest=lowest, radius=radius)
        return replace(super()._append(white, lowest), radius=radius)

    def _refit(self, weights: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Fit all weights but those of A again, with `matrix` for A."""
        trend, weights = self.problem.basis.trend, np.array(weights)
        weights[trend.quadratic_part] = trend.coordinates(matrix)
        if self.updater is None and self.problem.uses_normal_equations:
            return self.problem.solve_with_curvature(self.ridge, weights)
        return _refit(self.updater or self.problem.updater(self.ridge), weights, trend.quadratic_part)


def _refit(updater: RowUpdater, weights: np.ndarray, held: slice) -> np.ndarray:
    """Fit all weights but those of `held` again."""
    rows = np.concatenate([updater.triangle, *(block for block, _ in updater.pending)])
    targets = np.concatenate([updater.projection, *(block for _, block in updater.pending)])
    free = np.ones(len(weights), dtype=bool)
    free[held] = False
    weights[free] = lstsq(rows[:, free], targets - rows[:, held] @ weights[held], lapack_driver="gelsy")[0]
    return weights


def _steepest_fall(problem: QuadraticProblem, weights: np.ndarray, guard: Guard) -> float:
    """Return how steeply the rest falls at twice the radius on rays through training points, both ways; 0 if not."""
    length = np.linalg.norm(problem.white.position, axis=1, keepdims=True)
    away = length[:, 0] > 0
    rays = problem.white.position[away] / length[away]
    rays = np.concatenate([rays, -rays])
    _, gradient = problem.basis.value_and_gradient(2.0 * guard.radius * rays, weights)
    return max(0.0, float(-np.einsum("ij,ij->i", gradient, rays).min()))


@dataclass(frozen=True, eq=False)
class QuadraticProblem(LeastSquaresProblem):
    r"""The least-squares problem for a trend and hidden units, after :math:`\tfrac12 |z|^2` has been subtracted.

    The ridge therefore pulls the Hessian towards the identity, that of a whitened Gaussian, and there may be fewer rows
    than weights. Few rows are solved as in `leapwise.surrogates.network`; many with gradients by `NormalEquations`.

    **Penalties** are multiples of one ridge, which is chosen by leaving evaluations out: 1 for the squared Frobenius
    norm of A and for radial weights, 1/100 for linear weights, and the number of hidden units for each output weight,
    so that the freedom of the network does not depend on their number. The offset has no penalty.

    **The weight of gradient rows** is d/3 in d dimensions. An error e that is a polynomial of degree k in a standard
    normal z has :math:`\mathrm{E}|\nabla e|^2 = k\, \mathrm{Var}(e)`, spread over d rows. With k = 3, the first degree
    that the trend does not have, rows of both kinds then have errors of the same size.
    """

    basis: QuadraticBasis

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of linear, quadratic, radial and output weights, and of the offset, ``(size + 1,)``."""
        trend = self.basis.trend
        n_hidden = self.basis.size - trend.size
        penalty = np.append(np.ones(self.basis.size), 0.0)
        penalty[: trend.dim] = _LINEAR_PENALTY
        penalty[trend.size : -1] = n_hidden
        return penalty

    @property
    def uses_normal_equations(self) -> bool:
        """Whether to solve by normal equations: for large problems with gradients of at least half the evaluations."""
        gradient = self.white.gradient
        if gradient is None or 2 * len(gradient) < len(self.white.value):
            return False
        n_rows = len(self.white.value) + gradient.size
        return n_rows * self.basis.size * min(n_rows, self.basis.size) > _MAX_SPECTRAL

    @property
    def has_few_values(self) -> bool:
        """Whether the normal equations have fewer values than A has entries: solving all again is then cheap."""
        return self.uses_normal_equations and len(self.white.value) < self.basis.trend.n_quadratic

    def solve(self, ridge: float | None) -> tuple[np.ndarray, float]:
        """Return weights with the offset last, ``(size + 1,)``, and the ridge, chosen if it is None."""
        if not self.uses_normal_equations or ridge == 0:  # the weights of least norm need singular values
            return super().solve(ridge)
        strength = self._best_ridge() if ridge is None else require_ridge(ridge)
        return self.equations.to_original(_minimiser(self.equations, strength)), strength

    def solve_with_curvature(self, ridge: float, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)``: those of A as given, all others the best for it."""
        equations = self.equations
        rotated = _minimiser_with_curvature(equations, ridge, equations.to_rotated(weights))
        return np.where(equations.is_quadratic, weights, equations.to_original(rotated))

    @cached_property
    def equations(self) -> NormalEquations:
        """The normal equations, in rotated coordinates."""
        equations = NormalEquations.rotated(self.basis, self.white, self.gradient_weight, self.penalty)
        require_finite(equations.features)
        return equations

    def _best_ridge(self) -> float:
        if self.has_few_values:
            return choose_ridge(self.equations)
        equations = self.equations
        rotated = LeastSquaresProblem(equations.basis, equations.white, self.gradient_weight)
        rows = rotated.rows(slice(None, None, max(1, len(self.white.value) // N_LEFT_OUT)))
        moment = equations.moment[:, None]
        return PrimalSolver(equations.gram, moment, self.penalty, *rows.scaled()).best()[0]


@dataclass(frozen=True, eq=False)
class NormalEquations:
    r"""The normal equations for all weights, in rotated coordinates: a fast way for many rows with gradients.

    Rotate the whitened coordinates so that :math:`\sum_j z_j z_j^T = \mathrm{diag}(e)` over the points with gradients.
    The gradient of a quadratic is :math:`A z`, and

    .. math:: \omega \sum_j |A z_j|^2 + \lambda \|A\|^2
        = \sum_{ab} \big(\tfrac\omega2 (e_a + e_b) + \lambda\big) A_{ab}^2 :

    the gradient rows make the equations for A diagonal (known as a Lyapunov equation). Let a be the coordinates of A, u
    all other weights, y the residuals of value rows, and :math:`F = [F_a, F_u]` their features. The equations are

    .. math::
        \begin{bmatrix} D & C & F_a^T \\ C^T & U + \lambda P & F_u^T \\ F_a & F_u & -I \end{bmatrix}
        \begin{bmatrix} a \\ u \\ y \end{bmatrix} = \begin{bmatrix} b_a \\ b_u \\ 0 \end{bmatrix}.

    Here and in `LeftOut`, D, C and U are these blocks, not discrepancy and potential. They have closed forms
    (`QuadraticBasis`), so the gradient rows, d times as many as value rows, are never formed. P holds the penalties of
    u. D is diagonal, so a is eliminated first; then y, by the Cholesky factor of :math:`I + F_a D^{-1} F_a^T`; then u.
    With p entries of A, m other weights and n values this costs :math:`O(p (m + n)^2)`. With more values than entries
    of A, y is eliminated and the rest factorised as a whole. In both cases two refinement steps remove round-off.

    Attributes
    ----------
    basis : QuadraticBasis
    white : WhiteSet
        With gradients, whose positions have a diagonal second moment.
    gradient_weight : float
        Weight of the squared errors of gradient rows.
    penalty : ndarray of shape (basis.size + 1,)
        Relative penalties of all weights, the offset last.
    rotation : ndarray of shape (dim, dim)
        Positions times this are the rotated ones.
    moments : ndarray of shape (dim,)
        The diagonal of the second moment, e.
    """

    basis: QuadraticBasis
    white: WhiteSet
    gradient_weight: float
    penalty: np.ndarray
    rotation: np.ndarray
    moments: np.ndarray

    @classmethod
    def rotated(
        cls, basis: QuadraticBasis, white: WhiteSet, gradient_weight: float, penalty: np.ndarray
    ) -> Self:
        """Rotate the coordinates of evaluations, some of which have gradients."""
        assert white.gradient is not None
        where = white.position[white.has_gradient]
        moments, rotation = np.linalg.eigh(where.T @ where)
        rotated = replace(white, position=white.position @ rotation, gradient=white.gradient @ rotation)
        return cls(
            basis.rotated(rotation), rotated, gradient_weight, penalty, rotation, np.maximum(moments, 0.0)
        )

    @cached_property
    def points(self) -> np.ndarray:
        """Positions with gradients, ``(k, dim)``."""
        return np.asarray(self.white.position[self.white.has_gradient])

    @cached_property
    def gradients(self) -> np.ndarray:
        """Their gradients, ``(k, dim)``."""
        assert self.white.gradient is not None
        return self.white.gradient

    @cached_property
    def is_quadratic(self) -> np.ndarray:
        """Which weights are those of A, ``(size + 1,)``."""
        chosen = np.zeros(self.basis.size + 1, dtype=bool)
        chosen[self.basis.trend.quadratic_part] = True
        return chosen

    def diagonal(self, ridge: float) -> np.ndarray:
        """Return D as a matrix ``(dim, dim)``, one entry for each entry of A."""
        return np.add.outer(self.moments, self.moments) * (0.5 * self.gradient_weight) + ridge

    @cached_property
    def cross(self) -> np.ndarray:
        """C, ``(n_quadratic, m)``; the column of the offset, which is last, is zero."""
        return np.pad(self.gradient_weight * self.basis.gradient_cross(self.points), ((0, 0), (0, 1)))

    @cached_property
    def others(self) -> np.ndarray:
        """U, ``(m, m)``."""
        return np.pad(self.gradient_weight * self.basis.gradient_others(self.points), (0, 1))

    def other_gradients(self, where: np.ndarray) -> np.ndarray:
        """Return gradients of all features but the quadratic ones and the offset, ``(n, dim, m - 1)``."""
        trend = self.basis.trend
        linear = np.broadcast_to(np.eye(trend.dim), (len(where), trend.dim, trend.dim))
        radial = where[:, :, None] * trend.radial_slopes(where)[:, None, :]
        return np.concatenate([linear, radial, self.basis.hidden.gradient_features(where)], axis=2)

    @cached_property
    def features(self) -> np.ndarray:
        """F, ``(n, size + 1)``, in the order of the weights."""
        features = np.ones((len(self.white.value), self.basis.size + 1))
        features[:, :-1] = self.basis.features(self.white.position)
        return features

    @cached_property
    def moment(self) -> np.ndarray:
        """All rows times their targets, ``(size + 1,)``."""
        return self.features.T @ self.white.value + self.gradient_moment

    @cached_property
    def gradient_moment(self) -> np.ndarray:
        """Gradient rows times gradients, ``(size + 1,)``."""
        moment = self.basis.gradient_moment(self.points, self.gradients)
        return np.append(self.gradient_weight * moment, 0.0)

    @cached_property
    def gram(self) -> np.ndarray:
        """The matrix of the equations without the ridge, y eliminated, ``(size + 1, size + 1)``."""
        gram = self.features.T @ self.features
        gram[:-1, :-1] += self.gradient_weight * self.basis.gradient_gram(self.points)
        return gram

    def downhill(self, weights: np.ndarray, ridge: float) -> np.ndarray:
        """Return minus half the gradient of the penalised sum of squares, from residuals to keep round-off small."""
        value, slope = self.basis.value_and_gradient(self.white.position, weights[:-1])
        residual = self.gradients - slope[self.white.has_gradient]
        moment = self.features.T @ (self.white.value - value - weights[-1])
        moment[:-1] += self.gradient_weight * self.basis.gradient_moment(self.points, residual)
        return moment - ridge * self.penalty * weights

    def to_original(self, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)`` in the coordinates before the rotation."""
        return self._rotate(weights, self.rotation)

    def to_rotated(self, weights: np.ndarray) -> np.ndarray:
        """Return weights ``(size + 1,)`` in rotated coordinates."""
        return self._rotate(weights, self.rotation.T)

    def _rotate(self, weights: np.ndarray, rotation: np.ndarray) -> np.ndarray:
        trend, rotated = self.basis.trend, np.array(weights)
        matrix = rotation @ trend.matrix(weights[: trend.size]) @ rotation.T
        rotated[: trend.dim] = rotation @ weights[: trend.dim]
        rotated[trend.quadratic_part] = trend.coordinates(matrix)
        return rotated


def choose_ridge(equations: NormalEquations) -> float:
    """Return the ridge with which gradients best predict the evaluations left out."""
    sample, a = LeftOut.sample(equations), equations.is_quadratic
    others = np.diag(equations.others) / np.where(equations.penalty[~a] > 0, equations.penalty[~a], 1.0)
    squares = np.append(_entries(equations.diagonal(0.0)), others[:-1])
    return fibonacci_search(lambda ridge: (sample.score(ridge), None), feature_scale(squares) * DECADES)[0]


@dataclass(frozen=True, eq=False)
class LeftOut:
    r"""Evaluations to leave out to choose the ridge, each from a fit to the gradients of all others.

    With fewer values than entries of A, value rows are a small part of all rows and are ignored for this choice. A
    left-out gradient then has the hat matrix

    .. math::
        S_{jj} = \omega \Big( \mathrm{diag}\big(B (z \circ z)\big) + B \circ z z^T
        + E (U + \lambda P - C^T D^{-1} C)^{-1} E^T \Big), \qquad B_{ab} = \frac{1}{2 D_{ab}},

    where a column of E is the gradient of another feature less :math:`\hat A z`, that of its best quadratic fit.

    Attributes
    ----------
    equations : NormalEquations
    chosen : ndarray of int, shape (n,)
        Numbers of their gradients.
    where : ndarray of shape (n, dim)
        Their positions.
    reach : ndarray of shape (n, 1 + dim, m - 1)
        Values of the features that are not quadratic, then their gradients.
    """

    equations: NormalEquations
    chosen: np.ndarray
    where: np.ndarray
    reach: np.ndarray

    @classmethod
    def sample(cls, equations: NormalEquations) -> Self:
        """Choose evenly spaced evaluations."""
        chosen = np.arange(len(equations.points))[:: max(1, len(equations.points) // N_LEFT_OUT)]
        where, rows = equations.points[chosen], equations.white.has_gradient[chosen]
        values = equations.features[rows][:, ~equations.is_quadratic][:, None, :-1]
        reach = np.concatenate([values, equations.other_gradients(where)], axis=1)
        return cls(equations, chosen, where, reach)

    def score(self, ridge: float) -> float:
        """Return the weighted sum of squared errors of values and gradients, predicted from the others' gradients.

        Gradients do not determine the offset, so errors of values are taken about their mean.
        """
        white, weight, where = self.equations.white, self.equations.gradient_weight, self.where
        weights, scaled, factor = self._fit(ridge)
        value, slope = self.equations.basis.value_and_gradient(where, weights)
        value = white.value[white.has_gradient[self.chosen]] - value
        slope = self.equations.gradients[self.chosen] - slope
        to_value, to_slope = self._hat(0.5 / self.equations.diagonal(ridge), scaled, factor)
        kept = np.eye(where.shape[1]) - weight * to_slope
        # The matrix is singular, up to rounding, where an evaluation alone determines its own prediction.
        np.einsum("nii->ni", kept)[...] += np.finfo(float).eps
        slope = np.linalg.solve(kept, slope[:, :, None])[:, :, 0]
        value = value + weight * np.einsum("nd,nd->n", to_value, slope)
        return sum_of_squares(np.append(value - value.mean(), np.sqrt(weight) * slope))

    def _fit(self, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all weights but the offset, fitted to all gradients; C over D; and the Cholesky factor for u."""
        equations, a = self.equations, self.equations.is_quadratic[:-1]
        penalty, cross = equations.penalty[:-1][~a], equations.cross[:, :-1]
        moment, diagonal = equations.gradient_moment[:-1], _entries(equations.diagonal(ridge))
        scaled = cross / diagonal[:, None]
        factor, _ = factorise(equations.others[:-1, :-1] - cross.T @ scaled, penalty, ridge)
        weights = np.empty(len(a))
        weights[~a] = dpotrs(factor, moment[~a] - scaled.T @ moment[a], lower=1)[0]
        weights[a] = moment[a] / diagonal - scaled @ weights[~a]
        return weights, scaled, factor

    def _hat(self, half: np.ndarray, scaled: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the effect of gradients on predictions of their own values ``(n, dim)`` and gradients."""
        where, reach, trend = self.where, np.array(self.reach), self.equations.basis.trend
        matrices = trend.symmetric(scaled.T).reshape(-1, trend.dim)  # the quadratic approximations, stacked
        images = (matrices @ where.T).reshape(-1, trend.dim, len(where)).transpose(2, 1, 0)
        reach[:, 1:] -= images
        reach[:, 0] -= 0.5 * np.einsum("ndm,nd->nm", images, where)
        reach = _solve(factor, reach.reshape(-1, reach.shape[2]).T).T.reshape(reach.shape)
        to_slope = where[:, :, None] * where[:, None, :] * half
        to_value = np.einsum("nij,nj->ni", to_slope, where)
        np.einsum("nii->ni", to_slope)[...] += np.square(where) @ half
        to_all = reach @ np.swapaxes(reach[:, 1:], 1, 2)
        return to_value + to_all[:, 0], to_slope + to_all[:, 1:]


def _minimiser(equations: NormalEquations, ridge: float) -> np.ndarray:
    """Return all weights ``(size + 1,)``."""
    if len(equations.features) < equations.basis.trend.n_quadratic:
        solve = _eliminated(equations, ridge)
    else:
        factor, _ = factorise(equations.gram, equations.penalty, ridge)

        def solve(right: np.ndarray) -> np.ndarray:
            return np.asarray(dpotrs(factor, right, lower=1)[0])

    weights = solve(equations.moment)
    for _ in range(2):
        weights = weights + solve(equations.downhill(weights, ridge))
    return weights


def _minimiser_with_curvature(equations: NormalEquations, ridge: float, weights: np.ndarray) -> np.ndarray:
    """Return weights: those of A as given, all others the best for it."""
    a, features = equations.is_quadratic, equations.features
    matrix = equations.others + features[:, ~a].T @ features[:, ~a]
    factor, _ = factorise(matrix, equations.penalty[~a], ridge)
    weights = np.where(a, weights, 0.0)
    for _ in range(3):
        weights[~a] += dpotrs(factor, equations.downhill(weights, ridge)[~a], lower=1)[0]
    return weights


def _eliminated(equations: NormalEquations, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
    """Eliminate the entries of A, then the residuals of values; return a function that solves the equations."""
    a, cross, diagonal = equations.is_quadratic, equations.cross, _entries(equations.diagonal(ridge))
    features, m = equations.features, equations.cross.shape[1]
    columns = np.hstack([cross, features[:, a].T])
    scaled = columns / np.sqrt(diagonal)[:, None]
    gram = scaled.T @ scaled
    inner = cholesky(np.eye(len(features)) + gram[m:, m:], lower=True, check_finite=False)
    between = _solve(inner, features[:, ~a] - gram[m:, :m])
    outer, _ = factorise(equations.others - gram[:m, :m] + between.T @ between, equations.penalty[~a], ridge)

    def solve(right: np.ndarray) -> np.ndarray:
        first = columns.T @ (right[a] / diagonal)
        residual = _solve(inner, -first[m:])
        others = dpotrs(outer, right[~a] - first[:m] + between.T @ residual, lower=1)[0]
        residual = solve_triangular(inner, between @ others - residual, lower=True, trans="T")
        weights = np.empty(len(right))
        weights[~a] = others
        weights[a] = (right[a] - columns @ np.append(others, residual)) / diagonal
        return weights

    return solve


def _entries(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle, row by row."""
    return np.asarray(matrix[np.triu_indices(len(matrix))])


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False))
