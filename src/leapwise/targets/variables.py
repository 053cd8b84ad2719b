"""Named variables of any shape, laid out one after another in the vector of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np


@dataclass(frozen=True)
class Variable:
    """A named part of the vector of parameters, or of the vector of outputs.

    Parameters
    ----------
    name : str
    shape : tuple of int
        ``()`` for a number.
    dims : tuple of str, optional
        Names of its axes in results, one for each.

    Examples
    --------
    >>> Variable("theta", (2, 2)).labels
    ('theta[0,0]', 'theta[0,1]', 'theta[1,0]', 'theta[1,1]')
    """

    name: str
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def labels(self) -> tuple[str, ...]:
        """One label for each entry, in the order of the vector (the last index varies fastest)."""
        if not self.shape:
            return (self.name,)
        return tuple(f"{self.name}[{','.join(map(str, index))}]" for index in np.ndindex(*self.shape))


def columns(variables: Sequence[Variable]) -> dict[str, slice]:
    """Return where each variable lies in the vector.

    Examples
    --------
    >>> columns([Variable("a"), Variable("theta", (3,))])
    {'a': slice(0, 1, None), 'theta': slice(1, 4, None)}
    """
    ends = np.cumsum([0, *(each.size for each in variables)]).tolist()
    return {each.name: slice(*ends[i : i + 2]) for i, each in enumerate(variables)}


def split(variables: Sequence[Variable], points: np.ndarray) -> dict[str, np.ndarray]:
    """Return the variables of vectors ``(..., dim)`` by name, each of shape ``(..., *shape)``; views where possible.

    Examples
    --------
    >>> split([Variable("a"), Variable("theta", (3,))], np.arange(8.0).reshape(2, 4))["a"]
    array([0., 4.])
    """
    where = columns(variables)
    return {
        each.name: points[..., where[each.name]].reshape(*points.shape[:-1], *each.shape)
        for each in variables
    }
