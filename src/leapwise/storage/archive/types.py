"""Whether a value is what a field's annotation promises, so that a file cannot put one thing in another's place."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike

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
