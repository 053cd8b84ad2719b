"""Exact evaluations kept for training.

Whatever is evaluated passes the evaluator, so that is where it is picked up: nothing is evaluated for training alone.
"""

from __future__ import annotations

import numpy as np

from leapwise.errors import InputError
from leapwise.execution import Evaluation
from leapwise.surrogates import TrainingSet


class Collector:
    """Keeps exact evaluations as they come, evenly thinned once there are too many.

    Positions without mass are left out. When more than `most` are held, every second one is dropped, and from then on
    only every second new one is kept, and so on: what is held always covers the whole time evenly.

    Parameters
    ----------
    most : int
        How many evaluations to hold at most.

    Examples
    --------
    >>> collector = Collector(most=3)
    >>> for i in range(8):
    ...     collector.add(Evaluation(np.array([[float(i)]]), np.array([0.5 * i])))
    >>> collector.training().position.ravel().tolist()
    [0.0, 4.0]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._n_seen = 0
        self._numbers = np.empty(0, dtype=int)
        self._batches: list[Evaluation] = []

    def add(self, evaluation: Evaluation) -> None:
        """Keep what is worth learning from."""
        usable = np.isfinite(evaluation.potential)
        if evaluation.outputs is not None:
            usable &= np.isfinite(evaluation.outputs).all(axis=1)
        numbers = self._n_seen + np.arange(int(usable.sum()))
        self._n_seen += numbers.size
        kept = numbers % self._stride == 0
        if kept.any():
            self._batches.append(_rows(evaluation, np.flatnonzero(usable)[kept]))
            self._numbers = np.concatenate([self._numbers, numbers[kept]])
        while self._numbers.size > self._most:
            self._stride *= 2
            left = np.flatnonzero(self._numbers % self._stride == 0)
            self._batches, self._numbers = [_rows(_joined(self._batches), left)], self._numbers[left]

    def training(self) -> TrainingSet:
        """Return what was kept."""
        if not self._batches:
            raise InputError(
                "there is nothing to train the surrogate on; explore longer (tune=) or collect earlier (skip=)"
            )
        found = _joined(self._batches)
        return TrainingSet(found.position, found.potential, found.gradient, found.outputs)


def take_accepted(evaluations: list[Evaluation], position: np.ndarray) -> Evaluation | None:
    """Return the values at these positions, found among the evaluations of a step; gradients are left away."""
    if not evaluations or not len(position):
        return None
    found = _joined(evaluations)
    same = (found.position[:, None, :] == position[None, :, :]).all(axis=2)
    chosen = _rows(found, np.flatnonzero(same.any(axis=1)))
    return Evaluation(chosen.position, chosen.potential, None, chosen.outputs)


def _rows(evaluation: Evaluation, rows: np.ndarray) -> Evaluation:
    return Evaluation(
        evaluation.position[rows],
        evaluation.potential[rows],
        None if evaluation.gradient is None else evaluation.gradient[rows],
        None if evaluation.outputs is None else evaluation.outputs[rows],
    )


def _joined(batches: list[Evaluation]) -> Evaluation:
    """Put batches together; rows whose gradient was not asked for have NaN."""
    has_gradient = any(each.gradient is not None for each in batches)
    outputs = [each.outputs for each in batches if each.outputs is not None]
    return Evaluation(
        np.concatenate([each.position for each in batches]),
        np.concatenate([each.potential for each in batches]),
        np.concatenate([_gradient(each) for each in batches]) if has_gradient else None,
        np.concatenate(outputs) if len(outputs) == len(batches) else None,
    )


def _gradient(evaluation: Evaluation) -> np.ndarray:
    if evaluation.gradient is None:
        return np.full_like(evaluation.position, np.nan)
    return evaluation.gradient
