"""Kernels that are wrong in ways in which any kernel can be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise import Evaluator, State
from leapwise.targets.calls import Values


class Flattened:
    """A target whose log-density is divided by the square of `scale`: a Gaussian becomes as much wider."""

    def __init__(self, target, scale: float) -> None:
        self.target, self.scale = target, scale

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def evaluate(self, parameters, *, gradient):
        raw = self.target.evaluate(parameters, gradient=gradient)
        slope = None if raw.gradient is None else raw.gradient / self.scale**2
        return Values(raw.log_density / self.scale**2, slope)


@dataclass
class TooWide:
    """A kernel that is correct for the wrong density: its posterior is too wide by a factor."""

    inner: Any
    scale: float = 1.1

    is_exact = True

    def step(self, streams, state, evaluator):
        wrong = Evaluator(Flattened(evaluator.target, self.scale))
        has_gradient = evaluator.target.has_gradient
        start = (wrong.value_and_gradient if has_gradient else wrong.value)(state.position)
        moved, info = self.inner.step(streams, State.from_evaluation(start), wrong)
        return State.from_evaluation(evaluator.value(moved.position)), info


class Turn:
    """A quarter rotation: leaves any round distribution invariant, but is not reversible."""

    is_exact = True

    def step(self, streams, state, evaluator):
        turned = np.column_stack([-state.position[:, 1], state.position[:, 0]])
        return State.from_evaluation(evaluator.value(turned)), None


class Lost:
    """Does nothing, except that three chains become NaN."""

    is_exact = True

    def step(self, streams, state, evaluator):
        position = state.position.copy()
        position[:: len(position) // 3] = np.nan
        return State(position, state.potential, state.gradient), None
