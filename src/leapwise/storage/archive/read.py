"""Reading an archive: one loop over its entries, see `leapwise.storage.archive`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from leapwise.errors import ArchiveError
from leapwise.storage.archive.arrays import make_generator, restore
from leapwise.storage.archive.classes import find_class, make
from leapwise.storage.archive.outputs import component_misfit, white_prior
from leapwise.storage.archive.references import live
from leapwise.storage.archive.types import fits
from leapwise.surrogates import Whitening
from leapwise.surrogates.output_prior import Bounded
from leapwise.surrogates.output_space import CheapDensity, OutputSpace

FORMAT = 1


class Reader:
    """Reads entries one after the other."""

    def __init__(self, arrays: Mapping[str, np.ndarray], references: dict[str, Any]) -> None:
        self._arrays, self._live = arrays, live(references)
        self._made: list[Any] = []
        self._readers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "array": self._array,
            "scalar": lambda entry: self._array(entry)[()],
            "int": lambda entry: int(_text(entry["text"])),
            "float": lambda entry: float(_text(entry["text"])),
            "list": self._items,
            "tuple": lambda entry: tuple(self._items(entry)),
            "dict": self._named,
            "object": lambda entry: make(find_class(entry["class"]), self._named(entry)),
            "generator": lambda entry: make_generator(self._value(entry["state"])),
            "reference": self._reference,
            "prior": self._prior,
            "misfit": self._misfit,
        }

    def read(self, meta: Any) -> Any:
        """Make all entries, and return the root."""
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ArchiveError(
                f"an archive must be of format {FORMAT}; this is another, or none: replay the run instead"
            )
        for entry in meta["entries"]:
            reader = self._readers.get(entry["kind"])
            if reader is None:
                raise ArchiveError(f"no entry of kind {entry['kind']!r:.80} is known; replay the run instead")
            self._made.append(reader(entry))
        return self._value(meta["root"])

    def _value(self, slot: Any) -> Any:
        if slot is None or type(slot) in (bool, int, float, str):
            return slot
        if type(slot) is list and len(slot) == 1 and type(slot[0]) is int and 0 <= slot[0] < len(self._made):
            return self._made[slot[0]]
        raise ArchiveError(
            f"an entry of an archive must refer to one before it, got {slot!r:.80}; it is damaged: replay the run"
        )

    def _items(self, entry: dict[str, Any]) -> list[Any]:
        if type(entry["items"]) is not list:
            raise ArchiveError(
                "the items of an entry must be a list; the archive is damaged: replay the run instead"
            )
        return [self._value(slot) for slot in entry["items"]]

    def _named(self, entry: dict[str, Any]) -> dict[str, Any]:
        names = entry["names"]
        if type(names) is not list or len(set(map(_text, names))) != len(names):
            raise ArchiveError(
                "the names of an entry must be different words; the archive is damaged: replay the run"
            )
        return dict(zip(names, self._items(entry), strict=True))

    def _array(self, entry: dict[str, Any]) -> np.ndarray:
        if _text(entry["name"]) not in self._arrays:
            raise ArchiveError(
                f"the array {entry['name']!r:.80} is missing; the archive is damaged: replay the run"
            )
        return restore(self._arrays[entry["name"]], entry)

    def _reference(self, entry: dict[str, Any]) -> Any:
        name = _text(entry["name"])
        if name not in self._live:
            raise ArchiveError(
                f"{name!r:.80} is needed and not among the references; give what was given to pack"
            )
        return self._live[name]

    def _prior(self, entry: dict[str, Any]) -> Any:
        return white_prior(*self._checked(entry, CheapDensity, Bounded, Whitening))

    def _misfit(self, entry: dict[str, Any]) -> Any:
        return component_misfit(*self._checked(entry, CheapDensity, OutputSpace))

    def _checked(self, entry: dict[str, Any], *kinds: type) -> list[Any]:
        items = self._items(entry)
        if len(items) != len(kinds) or not all(map(fits, items, kinds)):
            raise ArchiveError(
                "a function is made from something else; the archive is damaged: replay the run instead"
            )
        return items


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ArchiveError(
            f"an archive must have a word here, got {value!r:.80}; it is damaged: replay the run instead"
        )
    return value
