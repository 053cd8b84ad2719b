"""A surrogate that has taken a `Lesson`, and learns further evaluations row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from leapwise.surrogates.base import FittedExpansion
from leapwise.surrogates.elm import Lesson
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.prepare import further_rows
from leapwise.surrogates.training import TrainingSet, WhiteSet
from leapwise.surrogates.whitening import Whitening


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
