r"""Random networks: hidden nodes drawn at random, output weights by least squares (sections 3.1 and 3.2 of the paper).

Nodes are drawn in whitened coordinates, so the same distribution suits every posterior.

- *Additive nodes*: :math:`w_i = \gamma\, \xi_i / \sqrt d`, :math:`\xi_i \sim N(0, I)`, so that projections of the
  training points have a standard deviation of about the gain :math:`\gamma` whatever the dimension d; and
  :math:`b_i = -w_i \cdot z_{j(i)}` with a training point drawn at random, so that each kink passes through the data.
  With a small gain (0.2 by default) nodes bend slowly: potentials are smooth, and many gentle bends learn them from
  fewer points. A handful of nodes needs a gain of about 1.
- *Radial nodes*: centres are training points drawn at random (and standard normal points once there are more
  nodes than those); widths are 1.5 :math:`\sqrt d` times a number between 1/2 and 2, with uniform logarithm, because
  typical distances grow like :math:`\sqrt d`.

Training of output weights on values and gradients: the extreme learning machine of Algorithm 1.

With features :math:`\phi(z)` fixed, the output weights v and the bias b minimise

.. math::
    \sum_j \big(v \cdot \phi(z_j) + b - U_j\big)^2
    + \omega \sum_j \big\| v \cdot \nabla \phi(z_j) - \nabla U_j \big\|^2 + \lambda \|v\|^2 .

The bias is not penalised: it is the shift of appendix B that makes least squares match potentials up to a constant.

**The weight of gradients** is :math:`\omega = \mathrm{mean}(U - \bar U)^2 / \mathrm{mean} \|\nabla U\|^2`, in whitened
coordinates. The two sums then have the same size before training, so neither kind of row drowns the other, and the
weight does not depend on units. For a Gaussian posterior it is 1/2, whatever its dimension.

An evaluation's value and gradient are left out together when the ridge is chosen. While all rows fit into moderate
memory they are stacked; beyond that, only their Gram matrix is formed, which for gradient rows of additive and radial
nodes has a closed form that costs no more than that of the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.checks import require_positive, require_whole
from leapwise.surrogates.base import Expansion
from leapwise.surrogates.bases import RadialBasis, SoftplusBasis, SquaredExponential
from leapwise.surrogates.elm import Learner, Lesson, NodeBasis, balance
from leapwise.surrogates.ridge import (
    require_ridge,
)
from leapwise.surrogates.training import TrainingSet, first_rows
from leapwise.surrogates.whitening import Whitening


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedNetwork(Learner):
    """A trained `SoftplusNetwork` or `RBFNetwork`."""

    @cached_property
    def expansion(self) -> Expansion:
        """The network as a weighted sum of features."""
        weights, lesson = self.trained, self.lesson
        return Expansion(lesson.basis, weights[:-1], lesson.white.offset + float(weights[-1]), self.whitening)


class _RandomNetwork(ABC):
    """What random networks have in common: they differ in their nodes."""

    n_hidden: int
    ridge: float | None
    whitening: Whitening | None

    def __post_init__(self) -> None:
        require_whole("n_hidden", self.n_hidden, 1)
        if self.ridge is not None:
            require_ridge(self.ridge)

    @abstractmethod
    def _draw(self, white: np.ndarray, rng: np.random.Generator) -> NodeBasis:
        """Draw nodes for whitened training positions ``(n, dim)``."""

    def fit(self, training: TrainingSet, rng: np.random.Generator) -> FittedNetwork:
        """Draw nodes and learn their output weights."""
        whitening, white, lowest = first_rows(training, self.whitening)
        lesson = Lesson(self._draw(white.position, rng), white, balance(white))
        solution, ridge = lesson.solve(self.ridge)
        return FittedNetwork(
            lesson=lesson, solution=solution, whitening=whitening, ridge=ridge, lowest=lowest
        )


@dataclass(frozen=True)
class SoftplusNetwork(_RandomNetwork):
    """A random network with additive softplus nodes.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

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
    """A random network with radial nodes.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`.

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
        super().__post_init__()
        require_positive(self.width, "width", ())

    def _draw(self, white: np.ndarray, rng: np.random.Generator) -> RadialBasis:
        n, dim = white.shape
        points = white[rng.permutation(n)[: self.n_hidden]]
        others = rng.standard_normal((self.n_hidden - len(points), dim))
        lengths = self.width * np.sqrt(dim) * 2.0 ** rng.uniform(-1.0, 1.0, self.n_hidden)
        return RadialBasis(np.concatenate([points, others]), lengths, SquaredExponential())
