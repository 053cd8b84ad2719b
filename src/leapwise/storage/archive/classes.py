"""Which objects an archive may hold, and what of them is kept.

Only dataclasses and named tuples of this library's own packages, and a few plain classes, can be stored and made again.
They are looked up by name among modules that are loaded already; nothing is imported, and no constructor is called.
What an object works out from its fields is dropped and worked out anew when it is asked for, with one exception: solved
weights and inverses are kept, so that a frozen surrogate stays what it was under another BLAS, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any, get_type_hints

import numpy as np

from leapwise.dynamics import DenseMetric
from leapwise.errors import ArchiveError
from leapwise.execution import Evaluator
from leapwise.kernels import SharedStream, Streams
from leapwise.storage.archive.types import fits
from leapwise.targets import GaussianLikelihood, NormalPrior, UniformPrior

_PACKAGES = tuple(
    f"leapwise.{name}."
    for name in ("dynamics", "execution", "kernels", "problems", "results", "surrogates", "targets", "warmup")
)
#: An evaluator is the live way to the target: it is never stored.
_NEVER = (Evaluator,)
#: Classes that are not dataclasses, or work out more than their fields: how to make one, to see its attributes.
_EXAMPLES: dict[type, Callable[[], object]] = {
    Streams: lambda: Streams(0, 1),
    SharedStream: lambda: SharedStream(np.random.default_rng(0), 1),
    GaussianLikelihood: lambda: GaussianLikelihood([0.0], sd=1.0),
    NormalPrior: lambda: NormalPrior([0.0], 1.0),
    UniformPrior: lambda: UniformPrior([0.0], 1.0),
    DenseMetric: lambda: DenseMetric([[1.0]]),
}
#: Cached answers of solves; all other cached properties are dropped.
_KEPT = frozenset({"expansion", "emulator", "inverse"})


def is_storable(kind: type) -> bool:
    """Whether instances of a class can be stored.

    Examples
    --------
    >>> from leapwise import HMC, Target
    >>> is_storable(HMC), is_storable(Target), is_storable(dict)
    (True, False, False)
    """
    if kind in _EXAMPLES:
        return True
    ours = kind.__module__.startswith(_PACKAGES) and kind not in _NEVER
    return ours and (is_dataclass(kind) or is_named_tuple(kind)) and _named(class_name(kind)) is kind


def is_named_tuple(kind: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def class_name(kind: type) -> str:
    """Return by what name a class is stored."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: object) -> type:
    """Return the storable class of that name, or raise."""
    kind = _named(name) if isinstance(name, str) else None
    if kind is None or not is_storable(kind):
        raise ArchiveError(
            f"an archive may hold objects of this library only, got the class {name!r:.80}; "
            "another program or version wrote it: replay the run instead"
        )
    return kind


def _named(name: str) -> type | None:
    """Look a class up in the modules that are loaded; no code is run for it."""
    module, _, attribute = name.partition(":")
    if not module.startswith(_PACKAGES):
        return None
    kind = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    return kind if isinstance(kind, type) and class_name(kind) == name else None


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes of an object of a storable class that are to be stored."""
    kind: Any = type(value)
    kept: Mapping[str, Any] = vars(value)
    if kind.__getstate__ is not object.__getstate__:
        kept = value.__getstate__()  # type: ignore[assignment]  # such a class says itself what of it is derived
    dropped = _cached(kind) - _KEPT
    found = {name: each for name, each in kept.items() if name not in dropped}
    _require_names(kind, found)
    return found


def make(kind: type, attributes: Mapping[str, Any]) -> object:
    """Make an object of a storable class from its attributes, without its constructor.

    Raises
    ------
    ArchiveError
        If an attribute is missing, not known or of the wrong type.
    """
    _require_names(kind, attributes)
    for name, hint in _hints(kind).items():
        if name in attributes and not fits(attributes[name], hint):
            raise ArchiveError(
                f"{name} of {kind.__name__} cannot be of type {type(attributes[name]).__name__}; "
                "the archive is damaged or forged: replay the run instead"
            )
    if is_named_tuple(kind):
        return tuple.__new__(kind, attributes.values())
    value: Any = object.__new__(kind)
    if hasattr(kind, "__setstate__"):
        value.__setstate__(dict(attributes))
    else:
        vars(value).update(attributes)
    return value


def _require_names(kind: type, attributes: Mapping[str, Any]) -> None:
    required, optional = _expected(kind)
    odd = (required - attributes.keys()) | (attributes.keys() - required - optional)
    if odd:
        raise ArchiveError(
            f"{kind.__name__} must have its own attributes in an archive, got some that are missing or not known "
            f"({', '.join(sorted(map(str, odd)))[:200]}); another version wrote it, or it was changed: replay the run"
        )


@cache
def _cached(kind: type) -> frozenset[str]:
    """Return the names of a class's cached properties."""
    parts = (vars(each).items() for each in kind.__mro__)
    return frozenset(name for part in parts for name, each in part if isinstance(each, cached_property))


@cache
def _expected(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes that an object must have, and those that it may have besides."""
    if kind in _EXAMPLES:
        return frozenset(vars(_EXAMPLES[kind]())) - _cached(kind), frozenset()
    return frozenset(_field_names(kind)), _cached(kind) & _KEPT


def _field_names(kind: Any) -> tuple[str, ...]:
    return kind._fields if is_named_tuple(kind) else tuple(each.name for each in fields(kind))


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the annotations of a class's fields, and those of cached answers."""
    if kind in _EXAMPLES and not is_dataclass(kind):
        return {}
    annotations = get_type_hints(kind)
    hints = {name: annotations[name] for name in _field_names(kind)}
    for name in _cached(kind) & _KEPT:
        hints[name] = get_type_hints(getattr(kind, name).func)["return"]
    return hints
