"""Named variables of any shape, laid out one after another in the vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leapwise.checks import require_dim, require_names, require_whole
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
    """The parameters of a target: how many, their names, variables and bounds."""

    dim: int
    names: str | tuple[str, ...]
    variables: tuple[Variable, ...]
    transform: Transform


def layout_of(
    about: object,
    what: str,
    dim: int | None,
    names: str | Sequence[str] | None,
    bounds: Bounds | None,
) -> Layout:
    """Return the layout of parameters, from what a prior knows and what the user gave.

    Parameters
    ----------
    about : object
        A prior, which may have `dim`, `variables` and `bounds`.
    what : str
        What to call it in errors.
    dim, names, bounds
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
    return Layout(dim, names, variables, transform)


def with_dims(
    variables: tuple[Variable, ...] | None, dims: Mapping[str, Sequence[str]] | None
) -> tuple[Variable, ...] | None:
    """Return variables with names of their axes, or raise unless they fit.

    Examples
    --------
    >>> with_dims((Variable("y", (3,)), Variable("peak")), {"y": "year"})
    (Variable(name='y', shape=(3,), dims=('year',)), Variable(name='peak', shape=(), dims=None))
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise InputError(
            f"dims must be a dict of outputs with names of their axes, got {dims!r:.80}; give {{'y': ['time']}}"
        )
    shapes = {each.name: each.shape for each in variables or ()}
    for name in dims or {}:
        if name not in shapes:
            raise InputError(
                f"dims has {name!r}, which is not among the outputs {', '.join(shapes) or '(of unknown names)'}; "
                "correct the name, or give the dims of a variable to its prior"
            )
    axes = {
        name: require_dims(f"dims of {name!r}", each, shapes[name]) for name, each in (dims or {}).items()
    }
    return variables and tuple(replace(each, dims=axes.get(each.name)) for each in variables)


def require_dims(label: str, dims: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return names of axes, one for each, or raise."""
    names = (dims,) if isinstance(dims, str) else tuple(dims) if isinstance(dims, (tuple, list)) else ()
    usable = all(isinstance(name, str) and name and name not in ("chain", "draw") for name in names)
    if not names or not usable or len(names) != len(set(names)) or len(names) != len(shape):
        raise InputError(
            f"{label} must be one name for each axis of shape {shape}, got {dims!r:.80}; give different strings, and "
            "not 'chain' or 'draw', or leave dims out"
        )
    return tuple(str(name) for name in names)


def require_shape(label: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple of positive whole numbers, or raise."""
    axes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(require_whole(label, each, 1) for each in axes)


def checked_coords(
    coords: Mapping[str, Sequence[Any]] | None, variables: Sequence[Variable]
) -> dict[str, list[Any]]:
    """Return coordinate labels as lists, as many as each dim is long."""
    sizes = lengths_of_dims(variables)
    if coords is not None and not isinstance(coords, Mapping):
        raise InputError(
            f"coords must be a dict of dims with labels, got {coords!r:.80}; give {{'time': [...]}}"
        )
    if unknown := [dim for dim in coords or {} if dim not in sizes]:
        listed = f"use some of {', '.join(sizes)}, or " if sizes else ""
        raise InputError(
            f"coords has {unknown[0]!r}, which is not a dim of any variable; {listed}give dims= to the prior or target"
        )
    found = {dim: _checked_labels(dim, labels) for dim, labels in (coords or {}).items()}
    for dim, labels in found.items():
        if len(labels) != sizes[dim]:
            raise InputError(
                f"coords of {dim!r} must have {sizes[dim]} labels, one for each entry, got {len(labels)}; correct them"
            )
    return found


def lengths_of_dims(variables: Sequence[Variable]) -> dict[str, int]:
    """Return the length of each dim; raise unless equal dims have one length, and none is the name of a variable."""
    lengths: dict[str, int] = {}
    for each in variables:
        for name, length in zip(each.dims or (), each.shape, strict=False):
            if name in (other.name for other in variables):
                raise InputError(
                    f"dims of {each.name} must not have the name of a variable, got {name!r}; rename it"
                )
            if lengths.setdefault(name, length) != length:
                raise InputError(
                    f"dims of {each.name} must have one length each, got {name!r} with {length} entries and with "
                    f"{lengths[name]} elsewhere; rename one"
                )
    return lengths


def _checked_labels(dim: str, labels: Any) -> list[Any]:
    """Return labels as a list, or raise unless they are numbers, strings or dates that a file can hold."""
    try:
        found = np.asarray(labels if np.ndim(labels) else [])
    except ValueError:  # sequences of different lengths
        found = np.array(None)
    if found.ndim != 1 or found.dtype.kind not in "biufUMm" or not np.ndim(labels):
        raise InputError(
            f"coords of {dim!r} must be a list of numbers, of strings or of numpy dates, got {labels!r:.80}; "
            "for dates give numpy.array(..., dtype='datetime64[D]')"
        )
    return list(found) if found.dtype.kind in "Mm" else list(found.tolist())
