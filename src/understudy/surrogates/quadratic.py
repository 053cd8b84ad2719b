r"""Quadratic trend plus random-feature residual: what most posteriors with much data need.

In whitened coordinates the stand-in is

.. math::
    \tilde U = b + \tfrac12 |z|^2 + \underbrace{l^T z + \tfrac12 z^T A z}_{\text{trend}}
    + \underbrace{\textstyle\sum_i v_i\, a(w_i \cdot z + d_i)}_{\text{residual}} + g(|z|),

with radial terms in the trend if asked for (see `understudy.surrogates.trend`). It is trained on values and gradients
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

**The tail rule.** Outside the trained region the stand-in must grow, and must not fall below the potential without
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
amount only. Potentials that grow faster still are under-estimated far out, where the stand-in itself puts no mass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lstsq

from understudy.checks import require_flag, require_positive, require_whole
from understudy.errors import InputError
from understudy.surrogates.base import Expansion
from understudy.surrogates.bases import SumBasis
from understudy.surrogates.online import RowUpdater
from understudy.surrogates.quadratic_basis import QuadraticBasis, QuadraticLesson
from understudy.surrogates.ridge import require_ridge
from understudy.surrogates.training import TrainingSet, WhiteSet
from understudy.surrogates.trend import Guard
from understudy.surrogates.whitening import Whitening

#: The smallest eigenvalue of the trend's Hessian.
MIN_CURVATURE = 0.02


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
        Strength of the ridge; chosen by leave-one-out if not given.
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

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedQuadratic:
        """Draw hidden nodes, if any, and learn all weights."""
        kept = training.select()
        kept.require_variety()
        whitening = Whitening.from_positions(kept.position) if self.whitening is None else self.whitening
        if len(whitening.mean) != kept.dim:
            raise InputError(
                f"training positions must have {len(whitening.mean)} coordinates like the whitening, "
                f"got {kept.dim}; all evaluations must be of one target"
            )
        spread = np.eye(kept.dim)
        if self.n_hidden:
            quadratic = replace(self, n_hidden=0, radial=False).fit(kept, rng)
            whitening = quadratic.rewhitened() if self.whitening is None else whitening
            spread = _spread(quadratic, kept, whitening)
        white = _without_prior(kept.whiten(whitening))
        basis = QuadraticBasis.draw(white.position, self.n_hidden, self.gain, self.radial, spread, rng)
        lesson = QuadraticLesson(basis, white, kept.dim / 3.0)
        weights, ridge = lesson.solve(self.ridge)
        lowest = float(kept.potential.min())
        return FittedQuadratic.settle(
            lesson, weights, None, whitening, ridge, _radius(white.position), lowest
        )


@dataclass(frozen=True, eq=False)
class FittedQuadratic(Expansion):
    """A trained `QuadraticNetwork`.

    Attributes
    ----------
    ridge : float
        Strength of the ridge, given or chosen.
    radius : float
        Distance from the origin, in whitened coordinates, at which the guard begins.
    lowest : float
        The lowest potential it was first trained on.
    lesson : QuadraticLesson
        What it first learnt from.
    updater : RowUpdater or None
        What it has learnt, as a factor that takes further rows; made when it is first needed.
    """

    ridge: float
    radius: float
    lowest: float
    lesson: QuadraticLesson
    updater: RowUpdater | None = None

    @classmethod
    def settle(
        cls,
        lesson: QuadraticLesson,
        weights: np.ndarray,
        updater: RowUpdater | None,
        whitening: Whitening,
        ridge: float,
        radius: float,
        lowest: float,
    ) -> FittedQuadratic:
        """Hold trained weights ``(size + 1,)``, the offset last, to the tail rule and add what was not trained."""
        trend = lesson.basis.trend
        identity = trend.weights_of(np.zeros(trend.dim), np.eye(trend.dim))
        values, vectors = np.linalg.eigh(trend.matrix(weights[: trend.size] + identity))
        if values[0] < MIN_CURVATURE:
            held = (vectors * np.maximum(values, MIN_CURVATURE)) @ vectors.T - np.eye(trend.dim)
            updater = lesson.updater(ridge) if updater is None else updater
            weights = _refit(
                updater, weights, trend.quadratic_part, trend.weights_of(np.zeros(trend.dim), held)
            )
        full = weights[:-1].copy()
        full[: trend.size] += identity
        guard = Guard(radius)
        full = np.append(full, _guard_weight(lesson, full, guard))
        basis = SumBasis((*lesson.basis.bases, guard))
        offset = lesson.white.offset + float(weights[-1])
        return cls(basis, full, offset, whitening, ridge, radius, lowest, lesson, updater)

    def update(self, training: TrainingSet) -> FittedQuadratic:
        """Return a surrogate that has learnt from further evaluations too.

        Nodes, whitening and ridge stay as they are; the tail rule is applied again. A new row costs O(s^2), whatever
        came before. Evaluations far above the lowest one first trained on are left out.
        """
        if training.dim != len(self.whitening.mean):
            raise InputError(
                f"further evaluations must have {len(self.whitening.mean)} coordinates, got {training.dim}; "
                "all evaluations must be of one target"
            )
        kept = training.rows(training.potential - self.lowest <= 12.0 + 1.5 * training.dim)
        if not len(kept):
            return self
        base = self.lesson.white.offset
        white = _without_prior(kept.whiten(self.whitening))
        white = replace(white, value=white.value + (white.offset - base), offset=base)
        rows = replace(self.lesson, white=white).rows()
        updater = self.lesson.updater(self.ridge) if self.updater is None else self.updater
        updater = updater.append(rows.features, rows.targets, row_weights=rows.weights)
        radius = max(self.radius, _radius(white.position))
        return self.settle(
            self.lesson, updater.weights, updater, self.whitening, self.ridge, radius, self.lowest
        )

    def rewhitened(self) -> Whitening:
        """Return coordinates in which the trend's Hessian is about the identity.

        Where it says that the posterior is more than twice as wide as the positions are, the positions are believed.
        """
        trend = self.lesson.basis.trend
        values, vectors = np.linalg.eigh(trend.matrix(self.weights[: trend.size]))
        root = self.whitening.factor @ (vectors / np.sqrt(np.maximum(values, 0.25)))
        return Whitening(self.whitening.mean, np.linalg.cholesky(root @ root.T))


def _spread(quadratic: FittedQuadratic, training: TrainingSet, whitening: Whitening) -> np.ndarray:
    """Return the covariance ``(dim, dim)`` of hidden nodes' directions, of trace dim.

    It is that of what a quadratic leaves of the gradients, mixed with a tenth of the identity.
    """
    identity = np.eye(training.dim)
    if training.gradient is None:
        return identity
    known = ~np.isnan(training.gradient[:, 0])
    _, slope = quadratic.potential_and_gradient(training.position[known])
    left = whitening.gradient_to_white(training.gradient[known] - slope)
    total = np.square(left).sum()
    return identity if not total > 0 else 0.9 * training.dim / total * (left.T @ left) + 0.1 * identity


def _refit(updater: RowUpdater, weights: np.ndarray, held: slice, values: np.ndarray) -> np.ndarray:
    """Fit the other weights again, with those of `held` fixed at the same entries of `values`."""
    rows = np.concatenate([updater.triangle, *(block for block, _ in updater.waiting)])
    targets = np.concatenate([updater.projection, *(block for _, block in updater.waiting)])
    free = np.ones(len(weights), dtype=bool)
    free[held] = False
    weights = np.array(weights)
    weights[held] = values[held]
    weights[free] = lstsq(rows[:, free], targets - rows[:, held] @ weights[held], lapack_driver="gelsy")[0]
    return weights


def _guard_weight(lesson: QuadraticLesson, weights: np.ndarray, guard: Guard) -> float:
    """Return the guard's weight: enough to rise at twice its radius on rays through training points, both ways."""
    length = np.linalg.norm(lesson.white.position, axis=1, keepdims=True)
    rays = (lesson.white.position / length)[length[:, 0] > 0]
    rays = np.concatenate([rays, -rays])
    _, gradient = lesson.basis.value_and_gradient(2.0 * guard.radius * rays, weights)
    fall = -np.einsum("ij,ij->i", gradient, rays).min()
    return 1.0 + max(0.0, float(fall)) / guard.radius


def _without_prior(white: WhiteSet) -> WhiteSet:
    """Take the potential of a standard normal away."""
    value = white.value - 0.5 * np.square(white.position).sum(axis=1)
    gradient = None if white.gradient is None else white.gradient - white.position[white.has_gradient]
    return replace(white, value=value, gradient=gradient)


def _radius(white: np.ndarray) -> float:
    """Return where the guard begins."""
    return 1.0 + 1.5 * float(np.sqrt(np.square(white).sum(axis=1).max()))
