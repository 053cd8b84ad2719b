"""A trained surrogate as two bare functions, made once and called very often."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leapwise.surrogates.base import Fitted, FittedExpansion
from leapwise.surrogates.fast_expansion import fast_expansion
from leapwise.surrogates.fast_outputs import fast_outputs
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.whitening import Whitening


class Fast(NamedTuple):
    """Functions of positions ``(n, dim)``: potentials ``(n,)`` and, without them, gradients ``(n, dim)``."""

    potential: Callable[[np.ndarray], np.ndarray]
    gradient: Callable[[np.ndarray], np.ndarray]


def fast(surrogate: Fitted, frame: Whitening | None = None) -> Fast:
    r"""Return the potential and the gradient of a surrogate, each as fast as can be.

    With a `frame` they are functions of coordinates in it, and gradients are by these: its change of coordinates is put
    into that of the surrogate.

    Trajectories ask for few rows at a time, and then nearly all the time goes into the number of calls and not into the
    arithmetic. So the sums that networks, quadratics and Gaussian processes are have here all that is constant worked
    out beforehand, with the change of coordinates put into the weights where that saves a product (see
    `leapwise.surrogates.fast_expansion`); outputs are likewise (`leapwise.surrogates.fast_outputs`). A
    surrogate may bring its own as a method ``fast``. For others, and any that have methods of their own, they are the
    answers of ``potential`` and ``potential_and_gradient``.

    Examples
    --------
    >>> from leapwise.surrogates import SoftplusNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 2))
    >>> network = SoftplusNetwork(20).fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> bool(np.allclose(fast(network).gradient(x), network.potential_and_gradient(x)[1]))
    True
    """
    functions = None
    if callable(own := getattr(surrogate, "fast", None)):
        return _in_frame(Fast(*own()), frame)
    if isinstance(surrogate, FittedExpansion) and _asks_its_expansion(type(surrogate)):
        functions = fast_expansion(surrogate.expansion, frame)
    elif type(surrogate) is FittedOutputs:
        functions = fast_outputs(surrogate, frame)
    if functions is not None:
        return Fast(*functions)
    whole = Fast(surrogate.potential, lambda position: surrogate.potential_and_gradient(position)[1])
    return _in_frame(whole, frame)


def _in_frame(functions: Fast, frame: Whitening | None) -> Fast:
    """Return functions of positions as functions of coordinates in a frame."""
    if frame is None:
        return functions
    potential, gradient = functions
    mean, back, factor = frame.mean, np.ascontiguousarray(frame.factor.T), frame.factor
    return Fast(
        lambda white: potential(mean + white.dot(back)),
        lambda white: np.asarray(gradient(mean + white.dot(back))).dot(factor),
    )


def _asks_its_expansion(kind: type[FittedExpansion]) -> bool:
    """Whether potentials and gradients are those of the expansion, and not of a subclass that knows better."""
    return all(
        getattr(kind, name) is getattr(FittedExpansion, name)
        for name in ("potential", "potential_and_gradient")
    )
