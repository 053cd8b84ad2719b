"""Kernels, surrogates, states and random generators as arrays and JSON, and back to the last bit; no pickle.

An archive is a table of *entries*, each an array, a number, a list or an object, and refers to entries only that come
before it. So there are no cycles and nothing nested, reading is one loop, and what was one object in two places is one
object again. Reading runs nothing that the file names: classes come from `leapwise.storage.archive`, everything
else is data. What is not ours (a user's metric, a target's likelihood) is kept by name and taken from the live objects,
the *references*.

Arrays and random generators as plain arrays and numbers, and back.

An array comes back with the layout that it had: BLAS sums rows and columns in different orders, and the last bit of a
draw must not depend on whether a run was resumed.

Whether a value is what a field's annotation promises, so that a file cannot put one thing in another's place.

Which objects an archive may hold, and what of them is kept.

Only dataclasses and named tuples of this library's own packages, and a few plain classes, can be stored and made again.
They are looked up by name among modules that are loaded already; nothing is imported, and no constructor is called.
What an object works out from its fields is dropped and worked out anew when it is asked for, with one exception: solved
weights and inverses are kept, so that a frozen surrogate stays what it was under another BLAS, too.

The cheap parts of an emulator of outputs: functions, which no file holds, made again from the target.

A `FittedOutputs` asks a prior and a likelihood that are not Gaussian through functions that close over the target's
own parts. An archive keeps what they close over. That the functions made again are the same is checked when they are
stored: both must give the same answers, to the last bit, at positions trained on.

Live objects that an archive keeps by name, and their parts.

Reading an archive: one loop over its entries, see `leapwise.storage.archive`.

Writing an archive: objects as a table of entries, see `leapwise.storage.archive`.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from leapwise.dynamics import DenseMetric
from leapwise.errors import ArchiveError
from leapwise.execution import Evaluator
from leapwise.kernels import SharedStream, Streams
from leapwise.surrogates.output_space import (
    Bounded,
    CheapDensity,
    OutputSpace,
    SmoothPotential,
    in_white,
    prior_potential,
)
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.whitening import Whitening
from leapwise.targets import GaussianLikelihood, NormalPrior, UniformPrior

_DTYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
_BIT_GENERATORS: dict[str, Callable[[Any], np.random.BitGenerator]] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
}


def flatten(array: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Return an array in C order, and how to lay it out again.

    Examples
    --------
    >>> stored, layout = flatten(np.asfortranarray(np.eye(2, 3)))
    >>> stored.shape, layout
    ((3, 2), {'axes': [1, 0], 'writeable': True})
    """
    if type(array) is not np.ndarray or array.dtype not in _DTYPES:
        raise ArchiveError(
            f"only arrays of float64, int64 and bool can be stored, got {type(array).__name__} of {array.dtype}; "
            "convert it"
        )
    axes = _axes(array)
    # `ascontiguousarray` would turn a single number into a row.
    stored = np.asarray(array.transpose(axes), order="C")
    return stored, {"axes": axes, "writeable": bool(array.flags.writeable)}


def restore(stored: object, layout: dict[str, Any]) -> np.ndarray:
    """Return a new array, laid out as it was."""
    axes, writeable = layout.get("axes"), layout.get("writeable")
    if type(stored) is not np.ndarray or stored.dtype not in _DTYPES or not isinstance(writeable, bool):
        raise ArchiveError(
            "an archive must hold arrays of float64, int64 and bool, got something else; "
            "it is damaged: replay the run"
        )
    if not isinstance(axes, list) or sorted(axes) != list(range(stored.ndim)):
        raise ArchiveError(
            f"the axes of a stored array of {stored.ndim} dimensions must be these in some order, got {axes!r:.80}; "
            "the archive is damaged: replay the run"
        )
    array = np.array(stored, order="C").transpose(np.argsort(axes))
    array.flags.writeable = writeable
    return array


def _axes(array: np.ndarray) -> list[int]:
    """Return the axes of an array in the order of memory, the slowest first."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    if array.flags.f_contiguous:
        return list(range(array.ndim))[::-1]
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return all that a generator's future depends on, as numbers, strings and lists."""
    bits = generator.bit_generator
    sequence = bits.seed_seq
    name = type(bits).__name__
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


def make_generator(stored: dict[str, Any]) -> np.random.Generator:
    """Return a generator that goes on where another was.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> again = make_generator(generator_state(rng))
    >>> rng.random() == again.random()
    True
    """
    name = stored["bits"]
    if name not in _BIT_GENERATORS:
        raise ArchiveError(
            f"no generator of kind {name!r:.80} is known; the archive is damaged: replay the run"
        )
    sequence = np.random.SeedSequence(
        stored["entropy"],
        spawn_key=tuple(stored["spawn_key"]),
        pool_size=min(stored["pool_size"], 1024),
        n_children_spawned=stored["n_children_spawned"],
    )
    bits = _BIT_GENERATORS[name](sequence)
    bits.state = stored["state"]
    return np.random.Generator(bits)


#: A union with older NumPy or Python, whose members other unions take in; a name of its own with newer ones.
_ARRAY_LIKE = set(get_args(ArrayLike)) or {ArrayLike}
#: What every Protocol class has of its own.
_OF_PROTOCOLS = frozenset({"__init__", "__subclasshook__", "__init_subclass__", "__class_getitem__"})


def fits(value: object, hint: Any) -> bool:
    """Whether a value fits an annotation; of what a Protocol asks for, methods are looked at and not their results.

    Shapes of arrays are not part of annotations and are not looked at.

    Examples
    --------
    >>> fits(1.0, float | None), fits("1.0", float | None)
    (True, False)
    >>> fits((1, 2), tuple[int, ...]), fits((1, "2"), tuple[int, ...])
    (True, False)
    """
    origin = get_origin(hint)
    if hint is ArrayLike:
        return fits(value, float | np.ndarray)
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is types.NoneType:
        return value is None
    if origin is Union or origin is types.UnionType:
        choices = set(get_args(hint))
        if (
            choices >= _ARRAY_LIKE
        ):  # which fields hold as a number or an array, once their class has read them
            choices = choices - _ARRAY_LIKE | {float, np.ndarray}
        return any(fits(value, each) for each in choices)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in get_args(hint))
    if origin is not None:
        return _fits_generic(value, origin, get_args(hint))
    if not isinstance(hint, type):
        return True  # an annotation of a kind that is not used here says nothing
    return _fits_class(value, hint)


def _fits_generic(value: object, origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is Callable:
        return callable(value)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(fits(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is list or origin is Sequence:
        kinds = list if origin is list else (list, tuple)
        return isinstance(value, kinds) and all(fits(each, arguments[0]) for each in value)
    if origin is dict or origin is Mapping:
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(each, arguments[1]) for key, each in value.items()
        )
    return not isinstance(origin, type) or _fits_class(value, origin)


def _fits_class(value: object, hint: type) -> bool:
    if hint is float:
        return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if hint is bool:
        return isinstance(value, (bool, np.bool_))
    if getattr(hint, "_is_protocol", False):
        return _is_foreign(value) or all(_has_method(value, name) for name in _methods(hint))
    return isinstance(value, hint)


def _methods(protocol: type) -> set[str]:
    """Return the methods that a Protocol asks for."""
    parts = [
        each
        for each in protocol.__mro__
        if getattr(each, "_is_protocol", False) and each.__module__ != "typing"
    ]
    found = {name for each in parts for name, member in vars(each).items() if callable(member)}
    return found - _OF_PROTOCOLS


def _is_foreign(value: object) -> bool:
    """Whether a value is a user's own object: no file can hold one, so it was handed in, and accepted before."""
    return type(value).__module__.partition(".")[0] not in ("leapwise", "builtins", "numpy")


def _has_method(value: object, name: str) -> bool:
    """Whether a value has a method, or a function as an attribute; properties are not asked."""
    return callable(getattr(type(value), name, None)) or callable(getattr(value, "__dict__", {}).get(name))


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


#: So many positions are looked at.
_PROBES = 20


def parts_of(
    fitted: FittedOutputs, references: dict[str, Any]
) -> tuple[tuple[Any, Any] | None, tuple[Any, OutputSpace] | None]:
    """Return what a surrogate's functions close over, None where it has something else than a function.

    The first is the prior and the transform of its parameters, the second the likelihood and the space of outputs.
    """
    white = fitted.whitening.to_white(fitted.training.position[:_PROBES])
    prior = misfit = None
    if type(fitted.prior) is SmoothPotential:
        for target in references.values():
            if not (hasattr(target, "prior") and hasattr(target, "transform")):
                continue
            if _same(fitted.prior, white_prior(target.prior, target.transform, fitted.whitening), white):
                prior = target.prior, target.transform
        if prior is None:
            raise ArchiveError(
                "an emulator of outputs with a prior that is not the target's cannot be stored; make it with "
                "OutputSurrogate.of(target), or replay the run"
            )
    if type(fitted.misfit) is SmoothPotential:
        assert fitted.training.outputs is not None
        components = fitted.space.encode(fitted.training.outputs[:_PROBES])
        if not _same(fitted.misfit, component_misfit(fitted.likelihood, fitted.space), components):
            raise ArchiveError(
                "an emulator of outputs whose misfit is not that of its likelihood cannot be stored; replay the run"
            )
        misfit = fitted.likelihood, fitted.space
    return prior, misfit


def white_prior(prior: Any, transform: Any, whitening: Whitening) -> SmoothPotential:
    """Return the potential of a prior at whitened positions."""
    return in_white(prior_potential(prior, transform), whitening)


def component_misfit(likelihood: Any, space: OutputSpace) -> SmoothPotential:
    """Return the potential of a likelihood, of any kind, in components of the outputs."""

    def value_and_gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = space.decode(points)
        return -likelihood.log_density(outputs), -likelihood.gradient(outputs) @ space.decoder.T

    return SmoothPotential(value_and_gradient)


def _same(one: SmoothPotential, other: SmoothPotential, points: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        pairs = zip(one.value_and_gradient(points), other.value_and_gradient(points), strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


_DEEPEST_REFERENCE = 8
#: Of a target, which is no dataclass.
_CHEAP_PARTS = ("likelihood", "prior", "transform")


def live(references: Mapping[str, object]) -> dict[str, Any]:
    """Return the references, and their parts by paths such as "target.likelihood" or "kernel.kernels.0.surrogate".

    Numbers, words and containers have no path: they are told apart by their value, not by where they are.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> list(live({"method": HMC(metric=UnitMetric())}))
    ['method', 'method.metric']
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str, object, tuple[int, ...]]] = [
        (name, each, ()) for name, each in references.items()
    ]
    for path, value, above in waiting:  # which grows on the way
        if not _is_plain(value):
            found[path] = value
        if id(value) not in above and len(above) < _DEEPEST_REFERENCE:
            waiting.extend((f"{path}.{name}", part, (*above, id(value))) for name, part in _parts(value))
    return found


def _is_plain(value: object) -> bool:
    kinds = (bool, int, float, str, tuple, list, dict)
    return value is None or type(value) in kinds or isinstance(value, np.generic)


def _parts(value: Any) -> Iterable[tuple[object, object]]:
    if type(value) in (tuple, list):
        return enumerate(value)
    if _is_plain(value) or isinstance(value, (type, np.ndarray)):
        return ()
    names = [each.name for each in fields(value)] if is_dataclass(value) else _CHEAP_PARTS
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


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


def pack(
    value: object, references: Mapping[str, object] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Turn objects of a run into arrays and what JSON can hold.

    Parameters
    ----------
    value : object
        A kernel, surrogate, metric, state, training set, record, streams or generator; or lists, tuples and
        dictionaries of such things.
    references : mapping of str to object, optional
        Live objects that are kept by name instead, with all parts that are dataclasses or arrays, and the likelihood,
        prior and transform of a target. Give the same ones, made again, to `unpack`.

    Returns
    -------
    arrays : dict of str to ndarray
        In C order, of float64, int64 or bool; they may share memory with the value.
    meta : dict
        The rest, for JSON.

    Raises
    ------
    ArchiveError
        If there is something that is not this library's own and not among the references.

    Examples
    --------
    >>> from leapwise import HMC, DenseMetric
    >>> kernel = HMC(0.1, 10, metric=DenseMetric([[2.0, 1.0], [1.0, 3.0]]))
    >>> arrays, meta = pack({"kernel": kernel, "rng": np.random.default_rng(1)})
    >>> again = unpack(arrays, meta)
    >>> again["kernel"].step_size, again["rng"].random() == np.random.default_rng(1).random()
    (0.1, True)
    """
    packer = Writer(dict(references or {}))
    root = packer.slot(value, 0)
    return packer.arrays, {"format": FORMAT, "entries": packer.entries, "root": root}


def unpack(
    arrays: Mapping[str, np.ndarray], meta: object, references: Mapping[str, object] | None = None
) -> Any:
    """Return what `pack` was given.

    Parameters
    ----------
    arrays, meta
        As `pack` returned them.
    references : mapping of str to object, optional
        The live objects that were kept by name.

    Raises
    ------
    ArchiveError
        If the archive is damaged, forged, of another version, or needs a reference that is not given.
    """
    try:
        return Reader(arrays, dict(references or {})).read(meta)
    except ArchiveError:
        raise
    except Exception as error:  # what damage does to the parts of an object cannot be foreseen
        raise ArchiveError(
            f"an archive cannot be read ({type(error).__name__}: {error!s:.200}); it is damaged, or was written by "
            "another version: replay the run instead"
        ) from error
