r"""How far a surrogate is from the potential, and which surrogate to take.

Potentials matter up to a constant, so the distance between a surrogate and the exact potential is that of appendix B,

.. math:: K = \min_d \mathrm{E}\,\big(\tilde U - U - d\big)^2 = \mathrm{Var}(\tilde U - U) = \mathrm{Var}(D),

under the posterior, estimated from evaluations that the surrogate was *not* trained on. Far moves are then accepted
about as often as :math:`\mathrm{erfc}(\mathrm{sd}(D)/2)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.checks import require_whole
from leapwise.errors import InputError
from leapwise.surrogates.base import Surrogate
from leapwise.surrogates.training import TrainingSet


class HasPotential(Protocol):
    """Anything that gives potentials of a batch of positions."""

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        ...


def discrepancy_variance(fitted: HasPotential, training: TrainingSet) -> float:
    """Return the variance of surrogate less exact potential over evaluations, which should not be those trained on.

    Its root is what reports call sd(D). It is infinite where the surrogate is not finite at one of the positions.

    Examples
    --------
    >>> class Shifted:
    ...     def potential(self, position):
    ...         return 7.0 + 0.5 * (position**2).sum(axis=1)
    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> discrepancy_variance(Shifted(), TrainingSet(x, 0.5 * x[:, 0] ** 2))
    0.0
    """
    if len(training) < 2:
        raise InputError(
            f"a variance needs at least two evaluations, got {len(training)}; hold more of them back"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        difference = fitted.potential(training.position) - training.potential
    return float(np.var(difference)) if np.isfinite(difference).all() else np.inf


@dataclass(frozen=True, eq=False)
class Choice:
    """The outcome of `choose`.

    Attributes
    ----------
    index : int
        Which of the surrogates was best.
    surrogate : Surrogate
        The recipe itself.
    variances : ndarray of float, shape (k,)
        Held-out variances of the discrepancy of all of them, means over folds.
    """

    index: int
    surrogate: Surrogate
    variances: np.ndarray


def choose(
    surrogates: Sequence[Surrogate], training: TrainingSet, rng: np.random.Generator, *, folds: int = 3
) -> Choice:
    """Choose the surrogate with the smallest held-out discrepancy.

    The evaluations, without those far above the typical set, are split at random into `folds` parts. Each surrogate is
    trained without each part and tried on it; every part has a shift of its own, as appendix B allows.

    Parameters
    ----------
    surrogates : sequence of Surrogate
        Recipes; those of the potential and of outputs may be mixed.
    training : TrainingSet
    rng : Generator
        Splits, and draws hidden nodes; all surrogates get the same splits.
    folds : int

    Examples
    --------
    >>> from leapwise.surrogates.network import SoftplusNetwork
    >>> from leapwise.surrogates.quadratic import QuadraticNetwork
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((60, 3))
    >>> training = TrainingSet(x, 0.5 * (x**2).sum(axis=1), x)
    >>> choose([SoftplusNetwork(10), QuadraticNetwork()], training, rng).surrogate
    QuadraticNetwork(...)
    """
    if not len(surrogates):
        raise InputError("there must be at least one surrogate to choose from, got none")
    folds = require_whole("folds", folds, 2)
    kept = training.select()
    if len(kept) < 2 * folds:
        raise InputError(
            f"choosing with {folds} folds needs at least {2 * folds} evaluations near the typical set, "
            f"got {len(kept)}; evaluate more first"
        )
    fold = rng.permutation(len(kept)) % folds
    variances = np.array([_held_out(surrogate, kept, fold, rng) for surrogate in surrogates])
    best = int(np.argmin(variances))
    return Choice(best, surrogates[best], variances)


def _held_out(
    surrogate: Surrogate, training: TrainingSet, fold: np.ndarray, rng: np.random.Generator
) -> float:
    """Return the mean over folds of the variance on what was held out."""
    found = [
        discrepancy_variance(surrogate.fit(training.rows(fold != part), rng), training.rows(fold == part))
        for part in range(fold.max() + 1)
    ]
    return float(np.mean(found))
