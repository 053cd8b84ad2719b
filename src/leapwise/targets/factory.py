"""Targets that are built where they are used, for models that cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leapwise.checks import require_callable
from leapwise.errors import InputError
from leapwise.targets.forward import ForwardTarget
from leapwise.targets.target import Target


class MadeByFactory:
    """A target whose pickled form is the function that made it."""

    _make: Callable[[], Target | ForwardTarget]

    def __reduce__(self) -> tuple[Any, ...]:
        return from_factory, (self._make,)


def from_factory(make: Callable[[], Target | ForwardTarget]) -> Target | ForwardTarget:
    """Return the target that `make` builds; in other processes it is built anew, once in each, not sent.

    For models that cannot be pickled (a compiled solver, an open file or connection, a licence) or that are too large
    to be sent. `make` is called here too, at once, since the run must know dimension, names and bounds and evaluates
    some points itself.

    Parameters
    ----------
    make : callable
        Takes nothing and returns a `Target` or a `ForwardTarget`, the same one wherever it is called. It is sent to
        the workers by cloudpickle.

    Returns
    -------
    Target or ForwardTarget
        Whichever `make` returns, in every respect but how it is pickled.

    Examples
    --------
    >>> import threading
    >>> def make():
    ...     solver = threading.Lock()  # stands for what cannot be pickled
    ...     return Target(lambda x: -0.5 * x @ x if solver else 0.0, dim=2)
    >>> from_factory(make)
    Target(dim=2, gradient=False, vectorized=False)
    """
    require_callable("make", make)
    built = make()
    if not isinstance(built, (Target, ForwardTarget)):
        raise InputError(
            f"make() must return a Target or a ForwardTarget, got {type(built).__name__}; "
            "build and return one in it"
        )
    # A copy, since `make` may return an object that others use too. Of the same class, since what is done with a
    # target depends on its kind.
    kind = type(built)
    if not isinstance(built, MadeByFactory):
        kind = type(kind.__name__, (MadeByFactory, kind), {"__module__": kind.__module__})
    made = object.__new__(kind)
    vars(made).update(vars(built), _make=make)
    return made
