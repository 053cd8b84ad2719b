"""Surrogates that lie: none may bias a draw.

Each entry of `LIES` and `BROKEN` makes a liar of any trained surrogate. A `LIES` is a fixed function of the position,
however wrong: a kernel that is exact leaves the posterior invariant with it. A `BROKEN` gives no answer at all, which
must be a typed error and never a draw.

>>> import numpy as np
>>> from leapwise import QuadraticNetwork, TrainingSet
>>> from leapwise.testing import LIES
>>> rng = np.random.default_rng(0)
>>> x = rng.standard_normal((20, 2))
>>> honest = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
>>> bool(np.allclose(LIES["wrong sign"](honest).potential(x), -honest.potential(x)))
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapwise.surrogates import Fitted, TrainingSet

#: Takes a position and an honest answer there (potentials, gradients, Hessians or contractions), and changes it.
Change = Callable[[np.ndarray, np.ndarray], Any]


def honestly(position: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Return the answer."""
    return answer


@dataclass(frozen=True, eq=False)
class Liar:
    """A trained surrogate whose answers are changed on their way out.

    Parameters
    ----------
    honest : Fitted
        Who knows the truth, or what it takes for it.
    potentials, gradients, curvatures : callable
        What becomes of the answers: takes positions and answers. The last is for Hessians and third derivatives alike,
        which must still belong together: that is the one thing a Riemannian metric is trusted for.

    Examples
    --------
    >>> from leapwise import QuadraticNetwork
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((20, 2))
    >>> honest = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> Liar(honest, potentials=lambda position, answer: answer + 1.0).potential(np.zeros((1, 2))).round(6)
    array([1.])
    """

    honest: Fitted
    potentials: Change = honestly
    gradients: Change = honestly
    curvatures: Change = honestly

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials."""
        return self.potentials(position, self.honest.potential(position))

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and gradients."""
        potential, gradient = self.honest.potential_and_gradient(position)
        return self.potentials(position, potential), self.gradients(position, gradient)

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians."""
        return self.curvatures(position, self.honest.hessian(position))

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        return self.curvatures(position, self.honest.quadratic_contraction(position, velocity))

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with `matrix`."""
        return self.curvatures(position, self.honest.trace_contraction(position, matrix))

    def update(self, training: TrainingSet) -> Liar:
        """Return a liar that has learnt more."""
        return replace(self, honest=self.honest.update(training))


def _all(change: Change) -> Callable[[Fitted], Liar]:
    """Lie about everything in the same way."""
    return lambda honest: Liar(honest, change, change, change)


def _force(potentials: Change, gradients: Change) -> Callable[[Fitted], Liar]:
    """Lie about the force only."""
    return lambda honest: Liar(honest, potentials, gradients)


def _beyond(position: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Return where the first coordinate is above a half, for an answer of any number of axes."""
    return (position[:, 0] > 0.5).reshape(-1, *[1] * (answer.ndim - 1))


def _beyond_half(value: float) -> Callable[[Fitted], Liar]:
    """Give one value for an answer on one side."""
    return _all(lambda position, answer: np.where(_beyond(position, answer), value, answer))


def _raise(position: np.ndarray, answer: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("no answer")


#: Names, and functions that make a liar of a trained surrogate: wrong answers.
LIES: Mapping[str, Callable[[Fitted], Liar]] = {
    "zero": _all(lambda q, a: 0.0 * a),
    "wrong sign": _all(lambda q, a: -a),
    "times a million": _all(lambda q, a: 1e6 * a),
    "constant": _force(lambda q, u: 0.0 * u + 3.0, lambda q, g: 0.0 * g + 0.7),
    "discontinuous": _all(lambda q, a: np.where(_beyond(q, a), 2.0 * a, a)),
    "in steps": _force(lambda q, u: np.floor(u), lambda q, g: np.floor(2.0 * g)),
    "rough": _force(lambda q, u: u + np.sin(50.0 * q).sum(axis=1), lambda q, g: g + 5.0 * np.sin(50.0 * q)),
    "NaN": _all(lambda q, a: np.nan * a),
    "NaN on one side": _beyond_half(np.nan),
    "inf on one side": _beyond_half(np.inf),
    "-inf on one side": _beyond_half(-np.inf),
    "NaN in the gradient": _force(honestly, lambda q, g: np.where(_beyond(q, g), np.nan, g)),
    "NaN in the potential": _force(lambda q, u: np.nan * u, honestly),
    "float32": _all(lambda q, a: a.astype(np.float32)),
    "whole numbers": _force(
        lambda q, u: np.clip(u, -1e9, 1e9).astype(int), lambda q, g: np.clip(g, -1e9, 1e9).astype(int)
    ),
}

#: The same, for what is no answer.
BROKEN: Mapping[str, Callable[[Fitted], Liar]] = {
    "an exception": _all(_raise),
    "potentials of a wrong shape": _force(lambda q, u: u[:, None], honestly),
    "gradients of a wrong shape": _force(honestly, lambda q, g: g[:, :1]),
    "too few rows": _all(lambda q, a: a[:-1]),
    "words": _all(lambda q, a: np.full(a.shape, "steep")),
    "nothing": _all(lambda q, a: None),
}
