r"""Random networks: hidden nodes drawn at random, output weights by least squares (sections 3.1 and 3.2 of the paper).

Nodes are drawn in whitened coordinates, so the same distribution suits every posterior.

- *Additive nodes*: :math:`w_i = \gamma\, \xi_i / \sqrt d`, :math:`\xi_i \sim N(0, I)`, so that projections of the
  training points have a standard deviation of about the gain :math:`\gamma` whatever the dimension d; and
  :math:`b_i = -w_i \cdot z_{j(i)}` with a training point drawn at random, so that each kink passes through the data.
- *Radial nodes*: centres are training points drawn at random (and standard normal points once there are more
  nodes than those); widths are 1.5 :math:`\sqrt d` times a number between 1/2 and 2, with uniform logarithm, because
  typical distances grow like :math:`\sqrt d`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from understudy.checks import require_positive, require_whole
from understudy.errors import InputError
from understudy.surrogates.base import Expansion
from understudy.surrogates.bases import RadialBasis, SoftplusBasis, SquaredExponential
from understudy.surrogates.elm import Lesson, NodeBasis, balance
from understudy.surrogates.online import RowUpdater
from understudy.surrogates.ridge import require_ridge
from understudy.surrogates.training import TrainingSet, WhiteSet
from understudy.surrogates.whitening import Whitening


@dataclass(frozen=True, eq=False)
class FittedNetwork(Expansion):
    """A trained network.

    Attributes
    ----------
    ridge : float
        Strength of the ridge, given or chosen.
    lesson : Lesson
        What it first learnt from.
    updater : RowUpdater or None
        What it has learnt, as a factor that takes further rows; made when it is first needed.
    """

    ridge: float
    lesson: Lesson
    updater: RowUpdater | None = None

    def update(self, training: TrainingSet) -> Self:
        """Return a network that has learnt from further evaluations too.

        Nodes, whitening, ridge and the weight of gradients stay as they are: the weights are those of one
        least-squares problem with all rows, old and new. A new row costs O(s^2), whatever came before.
        """
        white = _require_dim(training, self.whitening).whiten(self.whitening)
        base = self.lesson.white.offset
        white = WhiteSet(
            white.position, white.value + (white.offset - base), white.gradient, white.has_gradient, base
        )
        rows = Lesson(self.lesson.basis, white, self.lesson.gradient_weight).rows()
        updater = self.lesson.updater(self.ridge) if self.updater is None else self.updater
        updater = updater.append(rows.features, rows.targets, row_weights=rows.weights)
        weights = updater.weights
        return type(self)(
            self.basis,
            weights[:-1],
            base + float(weights[-1]),
            self.whitening,
            self.ridge,
            self.lesson,
            updater,
        )


@dataclass(frozen=True)
class SoftplusNetwork:
    """A random network with additive softplus nodes.

    Parameters
    ----------
    n_hidden : int
        Number of hidden nodes.
    ridge : float, optional
        Strength of the penalty on output weights; chosen by leave-one-out if not given.
    gain : float
        Standard deviation of projections: larger makes kinks sharper.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

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
    gain: float = 1.0
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        require_positive(self.gain, "gain", ())
        _require_recipe(self.n_hidden, self.ridge)

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedNetwork:
        """Draw nodes and learn their output weights."""
        whitening, white = _whitened(training, self.whitening)
        n, dim = white.position.shape
        weights = rng.standard_normal((self.n_hidden, dim)) * (self.gain / np.sqrt(dim))
        kinks = white.position[rng.integers(n, size=self.n_hidden)]
        basis = SoftplusBasis(weights, -np.einsum("sd,sd->s", weights, kinks))
        return _train(basis, white, whitening, self.ridge)


@dataclass(frozen=True)
class RBFNetwork:
    """A random network with radial nodes.

    Parameters
    ----------
    n_hidden : int
        Number of hidden nodes.
    ridge : float, optional
        Strength of the penalty on output weights; chosen by leave-one-out if not given.
    width : float
        Typical width of nodes, in units of the root of the dimension.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

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
        require_positive(self.width, "width", ())
        _require_recipe(self.n_hidden, self.ridge)

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedNetwork:
        """Draw nodes and learn their output weights."""
        whitening, white = _whitened(training, self.whitening)
        n, dim = white.position.shape
        points = white.position[rng.permutation(n)[: self.n_hidden]]
        others = rng.standard_normal((self.n_hidden - len(points), dim))
        lengths = self.width * np.sqrt(dim) * 2.0 ** rng.uniform(-1.0, 1.0, self.n_hidden)
        basis = RadialBasis(np.concatenate([points, others]), lengths, SquaredExponential())
        return _train(basis, white, whitening, self.ridge)


def _require_recipe(n_hidden: object, ridge: object) -> None:
    require_whole("n_hidden", n_hidden, 1)
    if ridge is not None:
        require_ridge(ridge)


def _require_dim(training: TrainingSet, whitening: Whitening) -> TrainingSet:
    if training.dim != len(whitening.mean):
        raise InputError(
            f"training positions must have {len(whitening.mean)} coordinates like the whitening, got {training.dim}; "
            "all evaluations must be of one target"
        )
    return training


def _whitened(training: TrainingSet, given: Whitening | None) -> tuple[Whitening, WhiteSet]:
    training.require_variety()
    whitening = Whitening.from_positions(training.position) if given is None else given
    return whitening, _require_dim(training, whitening).whiten(whitening)


def _train(basis: NodeBasis, white: WhiteSet, whitening: Whitening, ridge: float | None) -> FittedNetwork:
    lesson = Lesson(basis, white, balance(white))
    weights, strength = lesson.solve(ridge)
    return FittedNetwork(basis, weights[:-1], white.offset + float(weights[-1]), whitening, strength, lesson)
