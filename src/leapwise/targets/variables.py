"""Named variables of any shape, laid out one after another in the vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leapwise.checks import require_dim, require_names
from leapwise.errors import InputError
from leapwise.targets.transforms import Bounds, Transform


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
    return {name: where for name, where, _ in _places(tuple(variables))}


@cache
def _places(variables: tuple[Variable, ...]) -> tuple[tuple[str, slice, tuple[int, ...]], ...]:
    """Return name, place and shape of each variable; remembered, since trajectories need them at every step."""
    ends = np.cumsum([0, *(each.size for each in variables)]).tolist()
    return tuple((each.name, slice(*ends[i : i + 2]), each.shape) for i, each in enumerate(variables))


def split(variables: Sequence[Variable], points: np.ndarray) -> dict[str, np.ndarray]:
    """Return the variables of vectors ``(..., dim)`` by name, each of shape ``(..., *shape)``; views where possible.

    Examples
    --------
    >>> split([Variable("a"), Variable("theta", (3,))], np.arange(8.0).reshape(2, 4))["a"]
    array([0., 4.])
    """
    first = points.shape[:-1]
    return {
        name: points[..., where].reshape((*first, *shape)) for name, where, shape in _places(tuple(variables))
    }


def named(names: str | Sequence[str], dim: int) -> tuple[Variable, ...]:
    """Return the variables that plain names stand for: one vector, or one number for each name.

    Examples
    --------
    >>> named("x", 2), named(["a", "b"], 2)[1]
    ((Variable(name='x', shape=(2,), dims=None),), Variable(name='b', shape=(), dims=None))
    """
    if isinstance(names, str):
        return (Variable(names, (dim,)),)
    return tuple(Variable(name) for name in names)


class Layout(NamedTuple):
    """The parameters of a target: how many, their names, variables, coordinate labels and bounds."""

    dim: int
    names: str | tuple[str, ...]
    variables: tuple[Variable, ...]
    coords: dict[str, list[Any]]
    transform: Transform


def layout_of(
    about: object,
    what: str,
    dim: int | None,
    names: str | Sequence[str] | None,
    bounds: Bounds | None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Layout:
    """Return the layout of parameters, from what a prior knows and what the user gave.

    Parameters
    ----------
    about : object
        A prior, which may have `dim`, `variables` and `bounds`.
    what : str
        What to call it in errors.
    dim, names, bounds, coords
        As for `ForwardTarget`.
    """
    known = getattr(about, "dim", None)
    if dim is None and known is None:
        raise InputError(f"the {what} has no attribute dim, the number of parameters; give dim=")
    dim = require_dim(dim if dim is not None else known)
    if known is not None and known != dim:
        raise InputError(f"dim={dim} does not match the prior's {known} parameters; drop dim=")
    own = getattr(about, "variables", None)
    if own is None:
        names = require_names(names, dim, default="x")
        variables = named(names, dim)
    elif names is not None:
        raise InputError("names= were given, but the prior names its variables itself; drop names=")
    else:
        variables = tuple(own)
        names = tuple(label for each in variables for label in each.labels)
    transform = Transform.from_bounds(bounds, dim)
    if (support := getattr(about, "bounds", None)) is not None:
        transform = transform.within(Transform.from_bounds(support, dim))
    return Layout(dim, names, variables, _checked_coords(coords, variables), transform)


def _checked_coords(
    coords: Mapping[str, Sequence[Any]] | None, variables: Sequence[Variable]
) -> dict[str, list[Any]]:
    """Return coordinate labels as lists, as many as each dim is long."""
    found = {str(dim): list(labels) for dim, labels in (coords or {}).items()}
    sizes = {dim: size for each in variables for dim, size in zip(each.dims or (), each.shape, strict=False)}
    for dim, labels in found.items():
        if dim in sizes and len(labels) != sizes[dim]:
            raise InputError(
                f"coords of {dim!r} must have {sizes[dim]} labels, one for each entry, got {len(labels)}; correct them"
            )
    return found
