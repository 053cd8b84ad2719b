"""Writing an archive: objects as a table of entries, see `leapwise.storage.archive`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from leapwise.errors import ArchiveError
from leapwise.storage.archive.arrays import flatten, generator_state
from leapwise.storage.archive.classes import attributes_of, class_name, is_named_tuple, is_storable
from leapwise.storage.archive.outputs import parts_of
from leapwise.storage.archive.references import live
from leapwise.surrogates.outputs import FittedOutputs

_DEEPEST = 100
_LARGEST = 2**53  # whole numbers up to here are safe in any JSON

#: A value that JSON holds exactly, or the number of an entry, in a list.
Slot = None | bool | int | float | str | list[int]


class Writer:
    """Writes entries, each once, after all that it refers to."""

    def __init__(self, references: dict[str, Any]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.entries: list[dict[str, Any]] = []
        self._references = references
        # Of several paths to an object the first counts.
        self._names = {id(value): name for name, value in reversed(live(references).items())}
        # Objects are kept alive with their numbers, lest another one takes over an address.
        self._known: dict[int, tuple[object, int]] = {}
        self._open: set[int] = set()

    def slot(self, value: Any, depth: int) -> Slot:
        """Return a value itself if JSON holds it exactly, else where its entry is."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if (kind is int and abs(value) <= _LARGEST) or (kind is float and math.isfinite(value)):
            return value
        if id(value) in self._known:
            return [self._known[id(value)][1]]
        if id(value) in self._open or depth > _DEEPEST:
            raise ArchiveError(
                f"{kind.__name__} holds itself, or is nested more than {_DEEPEST} deep, and cannot be stored; "
                "replay the run instead"
            )
        self._open.add(id(value))
        entry = self._entry(value, depth + 1)
        self._open.discard(id(value))
        self.entries.append(entry)
        self._known[id(value)] = value, len(self.entries) - 1
        return [len(self.entries) - 1]

    def _entry(self, value: Any, depth: int) -> dict[str, Any]:
        kind = type(value)
        if id(value) in self._names:
            return {"kind": "reference", "name": self._names[id(value)]}
        if kind is int or kind is float:
            return {"kind": kind.__name__, "text": str(value)}
        if isinstance(value, np.ndarray):
            return {"kind": "array", **self._array(value)}
        if isinstance(value, np.generic):
            return {"kind": "scalar", **self._array(np.asarray(value))}
        if kind is list or kind is tuple:
            return {"kind": kind.__name__, "items": [self.slot(each, depth) for each in value]}
        if kind is dict and all(type(key) is str for key in value):
            return {"kind": "dict", **self._named(value, depth)}
        if kind is np.random.Generator:
            return {"kind": "generator", "state": self.slot(generator_state(value), depth)}
        if not is_storable(kind):
            raise ArchiveError(
                f"{kind.__module__}.{kind.__qualname__} is not of this library and cannot be stored; "
                "name it among the references, or replay the run instead"
            )
        attributes = value._asdict() if is_named_tuple(kind) else attributes_of(value)
        if kind is FittedOutputs:
            attributes = self._outputs(value, attributes, depth)
        return {"kind": "object", "class": class_name(kind), **self._named(attributes, depth)}

    def _named(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {"names": list(values), "items": [self.slot(each, depth) for each in values.values()]}

    def _array(self, array: np.ndarray) -> dict[str, Any]:
        name = f"a{len(self.arrays)}"
        self.arrays[name], layout = flatten(array)
        return {"name": name, **layout}

    def _outputs(self, fitted: FittedOutputs, attributes: dict[str, Any], depth: int) -> dict[str, Any]:
        """Put entries for what its functions close over in the place of the functions."""
        prior, misfit = parts_of(fitted, self._references)
        for name, parts in (("prior", prior and (*prior, fitted.whitening)), ("misfit", misfit)):
            if parts is not None:
                function = getattr(fitted, name)
                self.entries.append({"kind": name, "items": [self.slot(each, depth) for each in parts]})
                self._known[id(function)] = function, len(self.entries) - 1
        return attributes
