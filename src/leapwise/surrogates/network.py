r"""Random networks: hidden units drawn at random, output weights by least squares (sections 3.1 and 3.2 of the paper).

**Hidden units** are drawn in whitened coordinates, so one distribution suits every posterior.

- *Additive units*: input weights :math:`w_i = \gamma\, \xi_i / \sqrt d` with :math:`\xi_i \sim N(0, I)`, so that the
  projections of training points have a standard deviation of about the gain :math:`\gamma` in every dimension d. Biases
  :math:`d_i = -w_i \cdot z_{j(i)}` with a training point drawn at random, so that each unit bends where there are data.
  With a small gain (0.2 by default) units bend slowly: potentials are smooth, and many gentle bends learn them from
  fewer points. A network of a few units needs a gain of about 1.
- *Radial units*: centres are training points drawn at random, and standard normal points if there are more units
  than training points. Widths are :math:`1.5 \sqrt d` times a factor between 1/2 and 2 with uniform logarithm, because
  typical distances grow like :math:`\sqrt d`.

**Output weights** v and the output bias b, with the features :math:`\phi(z)` fixed, minimise

.. math::
    \sum_j \big(v \cdot \phi(z_j) + b - U_j\big)^2
    + \omega \sum_j \big\| v \cdot \nabla \phi(z_j) - \nabla U_j \big\|^2 + \lambda \|v\|^2 .

This is the extreme learning machine (Algorithm 2 of the paper), extended to gradients and with a ridge
:math:`\lambda`. The bias is not penalised: it is the shift of appendix B, with which least squares matches potentials
up to a constant.

**The weight of gradient rows** is :math:`\omega = \mathrm{mean}(U - \bar U)^2 / \mathrm{mean} \|\nabla U\|^2` in
whitened coordinates. Both sums then have the same size before training, so neither dominates, and the weight does not
depend on units. For a Gaussian posterior it is 1/2 in every dimension.

When the ridge is chosen, the value and the gradient of an evaluation are left out together. All rows are stacked while
they fit into moderate memory. Beyond that only their Gram matrix is formed; for gradient rows it has a closed form that
costs no more than that of the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from scipy.linalg import solve_triangular

from leapwise.checks import require_positive, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.base import Basis, Expansion, FittedExpansion
from leapwise.surrogates.features import RadialBasis, SoftplusBasis, SquaredExponential
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.ridge import (
    PrimalSolver,
    RidgeSolver,
    RowGroups,
    factorise,
    require_ridge,
    ridge_solver,
    solve_with,
)
from leapwise.surrogates.training import TrainingSet, WhiteSet, first_rows, further_rows
from leapwise.surrogates.whitening import Whitening

#: Rows are stacked while they have at most this many entries: 256 MB, which any machine has.
MAX_STACKED = 2**25


class GramBasis(Basis, Protocol):
    """A basis with closed forms for products of its gradient rows."""

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows."""
        ...

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients, ``(size,)``."""
        ...


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of a least-squares problem, with their weights and the number of the evaluation that each belongs to."""

    features: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    groups: np.ndarray

    def scaled(self) -> tuple[np.ndarray, np.ndarray, RowGroups]:
        """Return features and targets ``(n, 1)`` times the roots of their weights, and the groups."""
        scale, groups = np.sqrt(self.weights)[:, None], RowGroups.from_labels(self.groups)
        if (scale == 1.0).all():
            return self.features, self.targets[:, None], groups
        return self.features * scale, self.targets[:, None] * scale, groups


@dataclass(frozen=True, eq=False)
class LeastSquaresProblem:
    """The least-squares problem for the weights of a basis, the output bias last.

    Attributes
    ----------
    basis : GramBasis
    white : WhiteSet
        The training data.
    gradient_weight : float
        Weight of the squared errors of gradient rows.
    """

    basis: GramBasis
    white: WhiteSet
    gradient_weight: float

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties: 1 for each feature and 0 for the bias, ``(size + 1,)``."""
        return np.append(np.ones(self.basis.size), 0.0)

    @property
    def can_stack(self) -> bool:
        """Whether the memory for all rows is moderate."""
        gradient = self.white.gradient
        n_rows = len(self.white.value) + (0 if gradient is None else gradient.size)
        return n_rows * (self.basis.size + 1) <= MAX_STACKED

    def solve(self, ridge: float | None) -> tuple[np.ndarray, float]:
        """Return weights ``(size + 1,)`` and the ridge, chosen if it is None."""
        solver: RidgeSolver
        if self.can_stack:
            features, targets, groups = self.rows().scaled()
            solver = ridge_solver(features, targets, self.penalty, groups)
        else:
            solver = self._primal
        strength, fit = solve_with(solver, ridge)
        return fit.weights[:, 0], strength

    def updater(self, ridge: float) -> RowUpdater:
        """Return the problem in a form to which further rows can be appended."""
        if self.can_stack:
            rows, penalty = self.rows(), ridge * self.penalty
            return RowUpdater.from_rows(rows.features, rows.targets, penalty, row_weights=rows.weights)
        factor, _ = factorise(self._primal.gram, self.penalty, ridge)
        projection = solve_triangular(factor, self._primal.moment[:, 0], lower=True)
        return RowUpdater(np.asfortranarray(np.tril(factor).T), projection)

    def rows(self, chosen: slice = slice(None)) -> WeightedRows:
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
        return WeightedRows(features, targets, weights, np.concatenate([numbers, np.repeat(owners, dim)]))

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
        return PrimalSolver(gram, moment[:, None], self.penalty, *rows.scaled())


def require_finite(features: np.ndarray) -> None:
    """Raise `InputError` unless all features are finite."""
    if not np.isfinite(features.sum()):
        raise InputError(
            "features must be finite, got some that are not because positions are too large; "
            "drop evaluations far from the others"
        )


def balanced_gradient_weight(white: WhiteSet) -> float:
    """Return the weight of gradient rows with which values and gradients have the same size, 1 without gradients."""
    if white.gradient is None:
        return 1.0
    values = float(np.mean(np.square(white.value)))
    gradients = float(np.square(white.gradient).sum(axis=1).mean())
    return values / gradients if values > 0 and gradients > 0 else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedNetwork(FittedExpansion):
    """A trained `SoftplusNetwork` or `RBFNetwork`.

    Attributes
    ----------
    problem : LeastSquaresProblem
        The problem of the first training.
    solution : ndarray of shape (problem.basis.size + 1,) or None
        Its weights, the bias last; None if they are to be computed when they are first used.
    whitening : Whitening
    ridge : float
        The ridge, given or chosen.
    lowest : float
        The lowest potential seen.
    updater : RowUpdater or None
        The problem with all further rows; None before the first update.
    """

    problem: LeastSquaresProblem
    solution: np.ndarray | None
    whitening: Whitening
    ridge: float
    lowest: float
    updater: RowUpdater | None = None

    @cached_property
    def trained_weights(self) -> np.ndarray:
        """The weights after all rows, the bias last."""
        if self.updater is not None:
            return self.updater.weights
        return self.problem.solve(self.ridge)[0] if self.solution is None else self.solution

    @cached_property
    def expansion(self) -> Expansion:
        """The network as a weighted sum of features."""
        weights, problem = self.trained_weights, self.problem
        return Expansion(
            problem.basis, weights[:-1], problem.white.offset + float(weights[-1]), self.whitening
        )

    def update(self, training: TrainingSet) -> Self:
        """Return a network that is also trained on further evaluations.

        Hidden units, whitening, ridge and the weight of gradients stay as they are. The weights are those of one
        least-squares problem with all rows, old and new, and are solved for when they are first used. A new row costs
        O(s^2) for s hidden units, however many came before. Evaluations far above the lowest one seen are left out.
        """
        white, lowest = further_rows(training, self.whitening, self.problem.white.offset, self.lowest)
        return self if white is None else self._append(white, lowest)

    def _append(self, white: WhiteSet, lowest: float) -> Self:
        rows = replace(self.problem, white=white).rows()
        updater = self.problem.updater(self.ridge) if self.updater is None else self.updater
        updater = updater.append(rows.features, rows.targets, row_weights=rows.weights)
        return replace(self, updater=updater, lowest=lowest)


class _RandomNetwork(ABC):
    """The common part of random networks, which differ in their hidden units."""

    n_hidden: int
    ridge: float | None
    whitening: Whitening | None

    def __post_init__(self) -> None:
        require_whole("n_hidden", self.n_hidden, 1)
        if self.ridge is not None:
            require_ridge(self.ridge)

    @abstractmethod
    def _draw(self, white: np.ndarray, rng: np.random.Generator) -> GramBasis:
        """Draw hidden units for whitened training positions ``(n, dim)``."""

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedNetwork:
        """Draw hidden units and train their output weights."""
        whitening, white, lowest = first_rows(training, self.whitening)
        basis = self._draw(white.position, rng)
        problem = LeastSquaresProblem(basis, white, balanced_gradient_weight(white))
        solution, ridge = problem.solve(self.ridge)
        return FittedNetwork(
            problem=problem, solution=solution, whitening=whitening, ridge=ridge, lowest=lowest
        )


@dataclass(frozen=True)
class SoftplusNetwork(_RandomNetwork):
    """A random network with additive softplus units.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    n_hidden : int
        Number of hidden units.
    ridge : float, optional
        Strength of the penalty on output weights; chosen by leave-one-out if not given.
    gain : float
        Standard deviation of projections: units bend more sharply if it is larger.
    whitening : Whitening, optional
        Coordinates to train in; from the training positions if not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((100, 2))
    >>> network = SoftplusNetwork(30).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1), x), rng)
    >>> potential, gradient = network.potential_and_gradient(np.array([[1.0, 0.0]]))
    >>> bool(abs(potential[0] - 0.5) < 0.05), gradient.shape
    (True, (1, 2))
    """

    n_hidden: int
    ridge: float | None = None
    gain: float = 0.2
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.gain, "gain", ())

    def _draw(self, white: np.ndarray, rng: np.random.Generator) -> SoftplusBasis:
        dim = white.shape[1]
        directions = rng.standard_normal((self.n_hidden, dim)) * (self.gain / np.sqrt(dim))
        return SoftplusBasis.through(white, directions, rng)


@dataclass(frozen=True)
class RBFNetwork(_RandomNetwork):
    """A random network with radial units.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

    Parameters
    ----------
    n_hidden : int
        Number of hidden units.
    ridge : float, optional
        Strength of the penalty on output weights; chosen by leave-one-out if not given.
    width : float
        Typical width of units, in multiples of the square root of the dimension.
    whitening : Whitening, optional
        Coordinates to train in; from the training positions if not given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((100, 2))
    >>> network = RBFNetwork(30).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1), x), rng)
    >>> bool(abs(network.potential(np.array([[1.0, 0.0]]))[0] - 0.5) < 0.05)
    True
    """

    n_hidden: int
    ridge: float | None = None
    width: float = 1.5
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.width, "width", ())

    def _draw(self, white: np.ndarray, rng: np.random.Generator) -> RadialBasis:
        n, dim = white.shape
        points = white[rng.permutation(n)[: self.n_hidden]]
        others = rng.standard_normal((self.n_hidden - len(points), dim))
        lengths = self.width * np.sqrt(dim) * 2.0 ** rng.uniform(-1.0, 1.0, self.n_hidden)
        return RadialBasis(np.concatenate([points, others]), lengths, SquaredExponential())
