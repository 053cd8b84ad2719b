"""Kernels, surrogates, states and random generators as arrays and JSON, and back to the last bit, without pickle.

An archive is a table of *entries*. Each entry is an array, a number, a list, a dictionary, a random generator or an
object, and refers only to entries before it. Reading is therefore one loop without recursion, cycles cannot occur, and
an object that was in two places is one object again.

Nothing that a file names is executed or imported. A file names a class by a short *tag*, and `Archive` looks the tag up
in the table that it was made with. An object is made from its stored attributes, without its constructor. Objects that
are not in the table (a user's metric, a target's likelihood) are not written: an entry holds the path at which they are
found among live objects, the *references*, such as "method.metric".

Arrays keep their memory layout. BLAS sums rows and columns in different orders, and the last bit of a draw must not
depend on whether a run was resumed.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import ArchiveError

#: Raised whenever archives of an earlier version can no longer be read. Format 2: classes by tags.
ARCHIVE_FORMAT = 2
#: Objects of a run are nested about ten deep; this stops before Python's own limit of recursion does.
_MAX_DEPTH = 100
#: Every JSON reader keeps whole numbers up to here exactly; larger ones are written as text.
_MAX_JSON_INTEGER = 2**53
#: Enough for every array of this library; no dtype of a file can hold objects.
_DTYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
_BIT_GENERATORS: dict[str, Callable[[Any], np.random.BitGenerator]] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
}
_PLAIN = (bool, int, float, str, tuple, list, dict, types.NoneType)
_REPLAY = "replay the run instead"


@dataclass(frozen=True, eq=False)
class Stored:
    """Which attributes of a class are stored.

    Parameters
    ----------
    kind : type
        A dataclass, a named tuple or a plain class.
    attributes : tuple of str
        By default the fields.
    solved : tuple of str
        Cached properties that are stored too, once they are computed: solutions of linear systems, so that a frozen
        surrogate stays the same under another BLAS.
    """

    kind: Any
    attributes: tuple[str, ...] = ()
    solved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        hints = dict.fromkeys(self.attributes, Any)
        if not self.attributes:
            names = getattr(self.kind, "_fields", None) or [each.name for each in fields(self.kind)]
            annotations = get_type_hints(self.kind)
            hints = {name: annotations[name] for name in names}
        for name in self.solved:
            hints[name] = get_type_hints(getattr(self.kind, name).func)["return"]
        object.__setattr__(self, "_hints", hints)

    def attributes_of(self, value: Any) -> dict[str, Any]:
        """Return the attributes of an object that are to be stored."""
        known = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return {name: known[name] for name in self._hints if name not in self.solved or name in known}  # type: ignore[attr-defined]

    def make(self, attributes: Mapping[str, Any], is_reference: Callable[[object], bool]) -> Any:
        """Return an object with these attributes; raise `ArchiveError` if they are not those of its class."""
        hints: dict[str, Any] = self._hints  # type: ignore[attr-defined]
        odd = set(hints) - set(self.solved) - attributes.keys() | attributes.keys() - set(hints)
        if odd:
            raise ArchiveError(
                f"{self.kind.__name__} in an archive must have its own attributes, got missing or unknown ones "
                f"({', '.join(sorted(map(str, odd)))[:200]}); another version wrote it: {_REPLAY}"
            )
        for name, each in attributes.items():
            if not is_reference(each) and not fits(each, hints[name]):
                raise ArchiveError(
                    f"{name} of {self.kind.__name__} cannot be of type {type(each).__name__}; "
                    f"the archive is damaged: {_REPLAY}"
                )
        if issubclass(self.kind, tuple):
            return self.kind._make(attributes[name] for name in hints)
        value = object.__new__(self.kind)
        vars(value).update(attributes)
        return value


class Archive:
    """Writes and reads objects of the classes that it is made with.

    Parameters
    ----------
    classes : mapping of str to Stored
        Tags, and the classes that they stand for. A class may be renamed or moved as long as its tag stays.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> archive = Archive({"hmc": Stored(HMC), "unit-metric": Stored(UnitMetric)})
    >>> arrays, meta = archive.pack({"kernel": HMC(0.1, 10), "rng": np.random.default_rng(1)})
    >>> again = archive.unpack(arrays, meta)
    >>> again["kernel"].step_size, again["rng"].random() == np.random.default_rng(1).random()
    (0.1, True)
    """

    def __init__(self, classes: Mapping[str, Stored]) -> None:
        self.classes = dict(classes)
        self.tags = {stored.kind: tag for tag, stored in classes.items()}

    def pack(
        self, value: object, references: Mapping[str, object] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return arrays in C order, and the rest for JSON.

        Parameters
        ----------
        value : object
            A kernel, surrogate, metric, state, training set, record, streams or generator; or lists, tuples and
            dictionaries of them.
        references : mapping of str to object, optional
            Live objects that are stored by name, as are their items and the fields of dataclasses. `unpack` needs the
            same ones.

        Raises
        ------
        ArchiveError
            If an object is neither of a stored class nor among the references.
        """
        writer = _Writer(self, references or {})
        root = writer.slot(value, 0)
        return writer.arrays, {"format": ARCHIVE_FORMAT, "entries": writer.entries, "root": root}

    def unpack(
        self, arrays: Mapping[str, np.ndarray], meta: Any, references: Mapping[str, object] | None = None
    ) -> Any:
        """Return what `pack` was given.

        Raises
        ------
        ArchiveError
            If the archive is damaged, forged or of another version, or if a reference is missing.
        """
        try:
            return _Reader(self, arrays, references or {}).read(meta)
        except ArchiveError:
            raise
        except Exception as error:  # damage can make any part of an object fail in its own way
            raise ArchiveError(
                f"an archive cannot be read ({type(error).__name__}: {error!s:.200}); it is damaged, or another "
                f"version wrote it: {_REPLAY}"
            ) from error


#: A value that JSON holds exactly, or the number of an entry, in a list.
Slot = None | bool | int | float | str | list[int]


class _Writer:
    """Writes entries, each once, after all that it refers to."""

    def __init__(self, archive: Archive, references: Mapping[str, object]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.entries: list[dict[str, Any]] = []
        self._archive = archive
        self._paths = _paths(references)
        # Objects are kept alive with their numbers, so that no other object gets the same id.
        self._known: dict[int, tuple[object, int]] = {}
        self._open: set[int] = set()

    def slot(self, value: Any, depth: int) -> Slot:
        """Return a value itself if JSON holds it exactly, else where its entry is."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if (kind is int and abs(value) <= _MAX_JSON_INTEGER) or (kind is float and math.isfinite(value)):
            return value
        if id(value) in self._known:
            return [self._known[id(value)][1]]
        if id(value) in self._open or depth > _MAX_DEPTH:
            raise ArchiveError(
                f"{kind.__name__} holds itself, or is nested more than {_MAX_DEPTH} deep, and cannot be stored; "
                f"{_REPLAY}"
            )
        self._open.add(id(value))
        entry = self._entry(value, depth + 1)
        self._open.discard(id(value))
        self.entries.append(entry)
        self._known[id(value)] = value, len(self.entries) - 1
        return [len(self.entries) - 1]

    def _entry(self, value: Any, depth: int) -> dict[str, Any]:
        kind = type(value)
        if id(value) in self._paths:
            return {"kind": "reference", "path": self._paths[id(value)][1]}
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
            return {"kind": "generator", "state": self.slot(_generator_state(value), depth)}
        if kind not in self._archive.tags:
            raise ArchiveError(
                f"{kind.__module__}.{kind.__qualname__} is not a class that an archive holds; "
                f"give it among the references, or {_REPLAY}"
            )
        tag = self._archive.tags[kind]
        attributes = self._archive.classes[tag].attributes_of(value)
        return {"kind": "object", "tag": tag, **self._named(attributes, depth)}

    def _named(self, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {"names": list(values), "items": [self.slot(each, depth) for each in values.values()]}

    def _array(self, array: np.ndarray) -> dict[str, Any]:
        if type(array) is not np.ndarray or array.dtype not in _DTYPES:
            raise ArchiveError(
                f"only arrays of float64, int64 and bool can be stored, got {type(array).__name__} of {array.dtype}; "
                "convert it"
            )
        name, axes = f"a{len(self.arrays)}", _axes(array)
        # `ascontiguousarray` would turn a single number into a row.
        self.arrays[name] = np.asarray(array.transpose(axes), order="C")
        return {"name": name, "axes": axes, "writeable": bool(array.flags.writeable)}


class _Reader:
    """Reads entries one after the other."""

    def __init__(
        self, archive: Archive, arrays: Mapping[str, np.ndarray], references: Mapping[str, object]
    ) -> None:
        self._archive, self._arrays, self._references = archive, arrays, references
        self._made: list[Any] = []
        self._live: dict[int, object] = {}
        self._readers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "array": self._array,
            "scalar": lambda entry: self._array(entry)[()],
            "int": lambda entry: int(_text(entry["text"])),
            "float": lambda entry: float(_text(entry["text"])),
            "list": self._items,
            "tuple": lambda entry: tuple(self._items(entry)),
            "dict": self._named,
            "object": self._object,
            "generator": lambda entry: _make_generator(self._value(entry["state"])),
            "reference": self._reference,
        }

    def read(self, meta: Any) -> Any:
        """Make all entries, and return the root."""
        if not isinstance(meta, dict) or meta.get("format") != ARCHIVE_FORMAT:
            raise ArchiveError(f"an archive must be of format {ARCHIVE_FORMAT}, got another; {_REPLAY}")
        for entry in meta["entries"]:
            if entry["kind"] not in self._readers:
                raise ArchiveError(f"an entry of kind {entry['kind']!r:.80} is not known; {_REPLAY}")
            self._made.append(self._readers[entry["kind"]](entry))
        return self._value(meta["root"])

    def _value(self, slot: Any) -> Any:
        if slot is None or type(slot) in (bool, int, float, str):
            return slot
        if type(slot) is list and len(slot) == 1 and type(slot[0]) is int and 0 <= slot[0] < len(self._made):
            return self._made[slot[0]]
        raise ArchiveError(
            f"an entry of an archive must refer to one before it, got {slot!r:.80}; it is damaged: {_REPLAY}"
        )

    def _items(self, entry: dict[str, Any]) -> list[Any]:
        if type(entry["items"]) is not list:
            raise ArchiveError(f"the items of an entry must be a list; the archive is damaged: {_REPLAY}")
        return [self._value(slot) for slot in entry["items"]]

    def _named(self, entry: dict[str, Any]) -> dict[str, Any]:
        names = entry["names"]
        if type(names) is not list or len(set(map(_text, names))) != len(names):
            raise ArchiveError(f"an entry must have different names; the archive is damaged: {_REPLAY}")
        return dict(zip(names, self._items(entry), strict=True))

    def _object(self, entry: dict[str, Any]) -> Any:
        stored = self._archive.classes.get(_text(entry["tag"]))
        if stored is None:
            raise ArchiveError(
                f"no class has the tag {entry['tag']!r:.80}; another program or version wrote it: {_REPLAY}"
            )
        return stored.make(self._named(entry), lambda value: id(value) in self._live)

    def _reference(self, entry: dict[str, Any]) -> Any:
        root, *names = _text(entry["path"]).split(".")
        if root not in self._references:
            raise ArchiveError(f"{root!r:.80} is not among the references; give what was given to pack")
        value = self._references[root]
        for name in names:
            value = dict(_parts(value))[name]
        self._live[id(value)] = value
        return value

    def _array(self, entry: dict[str, Any]) -> np.ndarray:
        """Return a new array, with the layout that it had."""
        name, axes, writeable = _text(entry["name"]), entry["axes"], entry["writeable"]
        if name not in self._arrays:
            raise ArchiveError(f"the array {name!r:.80} is missing; the archive is damaged: {_REPLAY}")
        found: object = self._arrays[name]
        if type(found) is not np.ndarray or found.dtype not in _DTYPES or type(writeable) is not bool:
            raise ArchiveError(
                f"an array must be of float64, int64 or bool; the archive is damaged: {_REPLAY}"
            )
        if type(axes) is not list or sorted(axes) != list(range(found.ndim)):
            raise ArchiveError(
                f"the axes of an array of {found.ndim} dimensions must be these in some order, got {axes!r:.80}; "
                f"the archive is damaged: {_REPLAY}"
            )
        array = np.array(found, order="C").transpose(np.argsort(axes))
        array.flags.writeable = writeable
        return array


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ArchiveError(f"an archive must have text here, got {value!r:.80}; it is damaged: {_REPLAY}")
    return value


def _axes(array: np.ndarray) -> list[int]:
    """Return the axes of an array in the order of memory, the slowest first."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    if array.flags.f_contiguous:
        return list(range(array.ndim))[::-1]
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _paths(references: Mapping[str, object]) -> dict[int, tuple[object, str]]:
    """Return the paths of references and their parts by id; the first path of an object counts.

    Numbers, text and containers have no path: they are stored by value.
    """
    found: dict[int, tuple[object, str]] = {}
    waiting: list[tuple[str, object]] = list(references.items())
    for path, value in waiting:  # grows on the way
        if id(value) in found:
            continue
        if type(value) not in _PLAIN and not isinstance(value, np.generic):
            found[id(value)] = value, path
        waiting.extend((f"{path}.{name}", part) for name, part in _parts(value))
    return found


def _parts(value: Any) -> Iterable[tuple[str, object]]:
    """Return the items of a sequence and the fields of a dataclass, by name."""
    if type(value) in (tuple, list):
        return [(str(number), each) for number, each in enumerate(value)]
    if isinstance(value, type) or not is_dataclass(value):
        return ()
    return [(each.name, getattr(value, each.name)) for each in fields(value)]


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return all numbers that the future of a generator depends on."""
    bits = generator.bit_generator
    name, sequence = type(bits).__name__, bits.seed_seq
    if name not in _BIT_GENERATORS or type(sequence) is not np.random.SeedSequence:
        raise ArchiveError(
            f"only generators of kind {' or '.join(_BIT_GENERATORS)} can be stored, got {name}; "
            "use numpy.random.default_rng"
        )
    seed: dict[str, Any] = dict(sequence.state)
    entropy = seed["entropy"]
    return {
        "bits": name,
        "state": bits.state,
        "entropy": entropy if isinstance(entropy, int) else [int(each) for each in np.ravel(entropy)],
        "spawn_key": [int(each) for each in seed["spawn_key"]],
        "pool_size": int(seed["pool_size"]),
        "n_children_spawned": int(seed["n_children_spawned"]),
    }


def _make_generator(stored: dict[str, Any]) -> np.random.Generator:
    sequence = np.random.SeedSequence(
        stored["entropy"],
        spawn_key=tuple(stored["spawn_key"]),
        pool_size=min(stored["pool_size"], 1024),  # a forged one could take all memory
        n_children_spawned=stored["n_children_spawned"],
    )
    bits = _BIT_GENERATORS[stored["bits"]](sequence)
    bits.state = stored["state"]
    return np.random.Generator(bits)


#: A union whose members other unions take in, or a name of its own: this depends on the version of NumPy.
_ARRAY_LIKE = set(get_args(ArrayLike)) or {ArrayLike}


def fits(value: object, hint: Any) -> bool:
    """Return whether a value fits an annotation, as far as a file could put one thing in the place of another.

    Of a Protocol its methods are looked for. Shapes of arrays are not part of annotations and are not checked.

    Examples
    --------
    >>> fits(1.0, float | None), fits("1.0", float | None)
    (True, False)
    >>> fits((1, 2), tuple[int, ...]), fits((1, "2"), tuple[int, ...])
    (True, False)
    """
    origin, inside = get_origin(hint), get_args(hint)
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return True
    if hint is ArrayLike or origin in (Union, types.UnionType):
        choices = set(inside) or {ArrayLike}
        if choices >= _ARRAY_LIKE:  # fields hold what their class made of it: numbers or an array
            choices = choices - _ARRAY_LIKE | {float, np.ndarray}
        return any(fits(value, each) for each in choices)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inside)
    if origin is tuple and isinstance(value, tuple):
        inside = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return len(value) == len(inside) and all(map(fits, value, inside))
    if origin in (list, Sequence) and isinstance(value, list if origin is list else (list, tuple)):
        return all(fits(each, inside[0]) for each in value)
    if origin in (dict, Mapping) and isinstance(value, dict):
        return all(fits(each, inside[1]) for each in value.values())
    if origin is Callable:
        return callable(value)
    return _is_instance(value, types.NoneType if hint is None else origin or hint)


def _is_instance(value: object, kind: type) -> bool:
    if kind is float or kind is int:
        numbers = (int, float, np.integer, np.floating) if kind is float else (int, np.integer)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if getattr(kind, "_is_protocol", False):
        asked = {name for each in kind.__mro__ for name, member in vars(each).items() if callable(member)}
        return all(
            callable(getattr(type(value), name, None)) or callable(getattr(value, "__dict__", {}).get(name))
            for name in asked
            if not name.startswith("_")
        )
    return isinstance(value, kind)
