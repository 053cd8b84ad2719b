"""Wrong surrogates: none may bias a draw.

Each entry of `LIES` and `BROKEN` turns a trained surrogate into a wrong one. Those in `LIES` return wrong numbers, but
are fixed functions of the position: an exact kernel leaves the posterior invariant with them. Those in `BROKEN` return
no numbers of the right shape, which must raise a typed error and never give a draw.

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

#: Takes positions and the true values there (potentials, gradients, Hessians or contractions), and changes them.
Change = Callable[[np.ndarray, np.ndarray], Any]


def unchanged(position: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the values."""
    return values


@dataclass(frozen=True, eq=False)
class Liar:
    """A trained surrogate that returns changed values.

    Parameters
    ----------
    honest : Fitted
        The trained surrogate.
    potentials, gradients, curvatures : callable
        How values are changed; each takes positions and values. The last is for both Hessians and third derivatives,
        which must still belong together: a Riemannian metric is trusted for that alone.

    Examples
    --------
    >>> from leapwise import QuadraticNetwork
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((20, 2))
    >>> honest = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> Liar(honest, potentials=lambda position, values: values + 1.0).potential(np.zeros((1, 2))).round(6)
    array([1.])
    """

    honest: Fitted
    potentials: Change = unchanged
    gradients: Change = unchanged
    curvatures: Change = unchanged

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
        """Return a liar whose surrogate is updated."""
        return replace(self, honest=self.honest.update(training))


def _all(change: Change) -> Callable[[Fitted], Liar]:
    """Change everything in the same way."""
    return lambda honest: Liar(honest, change, change, change)


def _force(potentials: Change, gradients: Change) -> Callable[[Fitted], Liar]:
    """Change potentials and gradients only."""
    return lambda honest: Liar(honest, potentials, gradients)


def _beyond(position: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return where the first coordinate is above a half, for values of any number of axes."""
    return (position[:, 0] > 0.5).reshape(-1, *[1] * (values.ndim - 1))


def _beyond_half(value: float) -> Callable[[Fitted], Liar]:
    """Return one value on one side."""
    return _all(lambda position, values: np.where(_beyond(position, values), value, values))


def _raise(position: np.ndarray, values: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("no values")


#: Functions that turn a trained surrogate into one that returns wrong numbers, by name.
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
    "NaN in the gradient": _force(unchanged, lambda q, g: np.where(_beyond(q, g), np.nan, g)),
    "NaN in the potential": _force(lambda q, u: np.nan * u, unchanged),
    "float32": _all(lambda q, a: a.astype(np.float32)),
    "whole numbers": _force(
        lambda q, u: np.clip(u, -1e9, 1e9).astype(int), lambda q, g: np.clip(g, -1e9, 1e9).astype(int)
    ),
}

#: Functions that turn a trained surrogate into one that returns no usable values, by name.
BROKEN: Mapping[str, Callable[[Fitted], Liar]] = {
    "an exception": _all(_raise),
    "potentials of a wrong shape": _force(lambda q, u: u[:, None], unchanged),
    "gradients of a wrong shape": _force(unchanged, lambda q, g: g[:, :1]),
    "too few rows": _all(lambda q, a: a[:-1]),
    "words": _all(lambda q, a: np.full(a.shape, "steep")),
    "nothing": _all(lambda q, a: None),
}
