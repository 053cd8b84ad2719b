"""What identifies a target, as words that can be stored, and in what two of them differ.

Known are its dimension, names, bounds, whether it has a gradient, a version that the user may give and, of a
`ForwardTarget`, the data, the noise and the parameters of the prior. Of a user's own likelihood or prior it is the name
of the class, and the fields of a frozen dataclass. Not looked at are a user's functions and other objects: their code
differs between versions of Python, and arrays that they hold may be room to work in, which changes with every call.
What changes there is found by evaluating a recorded position again, or told by the version.

Whether a target takes many points at once is not part of it: that changes how it is asked, not what it answers.

Numbers are compared to nine digits, since data that a model made may differ in the last ones on another machine.

In what two targets differ, in plain words; what identifies them is in `leapwise.targets.identity`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from leapwise.checks import require_version
from leapwise.targets.densities import GaussianLikelihood, NormalPrior, UniformPrior
from leapwise.targets.target import AnyTarget

_PRECISION = 1e-9
_MOST = 6  # phrases on one topic
_LONGEST = 300  # characters of a phrase

_KINDS = {"log-density": "its log-density", "forward": "a forward model"}
_OWN_PHRASES = (
    "kind",
    "dim",
    "names",
    "bounds",
    "prior",
    "likelihood",
    "data",
    "noise",
    "gradient",
    "version",
)


def differing(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one phrase for each thing that is not as it was; `then` may come from a file, and hold anything."""
    found: list[str] = []
    if not same(then.get("kind"), now.get("kind")):
        found.append(f"the target was given by {_kind(then)}, is given by {_kind(now)}")
    if not same(then.get("dim"), now.get("dim")):
        found.append(f"dim was {_show(then.get('dim'))}, is {_show(now.get('dim'))}")
    found += _limited(_names(then, now))
    found += _limited(_bounds(then, now))
    if same(then.get("kind"), now.get("kind")):  # else there is nothing to compare
        found += _limited(_prior(then, now))
        found += _likelihood(then, now)
    found += _gradient(then, now) + _version(then, now)
    others = sorted((then.keys() | now.keys()) - set(_OWN_PHRASES), key=str)
    found += [
        f"{_show(topic)} was {_show(then.get(topic))}, is {_show(now.get(topic))}"
        for topic in others
        if not same(then.get(topic), now.get(topic))
    ]
    return [phrase if len(phrase) <= _LONGEST else phrase[: _LONGEST - 3] + "..." for phrase in found]


def same(one: Any, other: Any) -> bool:
    """Whether two things are the same, numbers to nine digits and arrays by one of their hashes.

    Examples
    --------
    >>> same([1.0, "a"], [1.0 + 1e-12, "a"]), same(1.0, 1.001), same(1, True)
    (True, False, False)
    """
    if _is_number(one) and _is_number(other):
        return one == other or (
            _is_real(one) and _is_real(other) and math.isclose(one, other, rel_tol=_PRECISION)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if "hashes" in one and "hashes" in other:
            return same(one.get("shape"), other.get("shape")) and _share(one["hashes"], other["hashes"])
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _share(one: Any, other: Any) -> bool:
    """Whether a hash is the same, of two that were made in the same way."""
    return (
        isinstance(one, list)
        and isinstance(other, list)
        and any(a == b for a, b in zip(one, other, strict=False))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_real(value: float) -> bool:
    """Whether a number is of a size that floating point has."""
    return -1e308 < value < 1e308


def _labels(side: dict[str, Any]) -> list[str] | None:
    """Return a label for each parameter, None if they cannot be read."""
    names, dim = side.get("names"), side.get("dim")
    if isinstance(names, str) and isinstance(dim, int) and 0 <= dim <= 10**6:
        return [f"{names}[{i}]" for i in range(dim)]
    return names if isinstance(names, list) and all(isinstance(each, str) for each in names) else None


def _names(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    old, new = then.get("names"), now.get("names")
    if same(old, new):
        return
    if not (isinstance(old, list) and isinstance(new, list)) or _labels(then) is None or _labels(now) is None:
        yield f"the parameters were called {_show(old)}, are called {_show(new)}"
    elif sorted(old) == sorted(new):
        moved = [a for a, b in zip(old, new, strict=True) if a != b]
        if len(moved) == 2:
            yield f"parameters {moved[0]!r} and {moved[1]!r} have changed places"
        else:
            yield f"the order of parameters was {_show(old)}, is {_show(new)}"
    elif len(old) == len(new):
        yield from (f"parameter {a!r} is now called {b!r}" for a, b in zip(old, new, strict=True) if a != b)
    else:
        yield from (f"parameter {name!r} is gone" for name in old if name not in new)
        yield from (f"parameter {name!r} is new" for name in new if name not in old)


def _by_label(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return parameters that both have, with their numbers in either: by name if these were moved, else by place."""
    old, new = _labels(then), _labels(now)
    if old is None or new is None:
        return []
    if len(old) == len(new) and sorted(old) != sorted(new):
        return [(label, i, i) for i, label in enumerate(new)]
    places = {label: i for i, label in enumerate(old)}
    return [(label, places[label], i) for i, label in enumerate(new) if label in places]


def _entry(rows: Any, i: int) -> Any:
    return rows[i] if isinstance(rows, list) and i < len(rows) else None


def _bounds(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for label, i, j in _by_label(then, now):
        old, new = _entry(then.get("bounds"), i), _entry(now.get("bounds"), j)
        if not same(old, new):
            yield f"bounds of {label!r} were {_limits(old)}, are {_limits(new)}"


def _limits(pair: Any) -> str:
    if pair == [None, None]:
        return "none"
    if not isinstance(pair, list) or len(pair) != 2:
        return _show(pair)
    return "(" + ", ".join("None" if end is None else _show(end) for end in pair) + ")"


def _prior(then: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    old, new = then.get("prior"), now.get("prior")
    if not isinstance(old, dict) or not isinstance(new, dict):
        if not same(old, new):
            yield f"the prior was {_show(old)}, is {_show(new)}"
    elif not same(old.get("class"), new.get("class")):
        yield f"the prior was {_word(old)}, is {_word(new)}"
    else:
        for name in sorted(old.keys() | new.keys(), key=str):
            yield from _prior_part(then, now, name)


def _prior_part(then: dict[str, Any], now: dict[str, Any], name: str) -> Iterator[str]:
    old, new = then["prior"].get(name), now["prior"].get(name)
    if isinstance(old, list) and isinstance(new, list):  # one for each parameter
        for label, i, j in _by_label(then, now):
            one, other = _entry(old, i), _entry(new, j)
            if not same(one, other):
                yield f"prior {name} of {label!r} was {_show(one)}, is {_show(other)}"
    elif not same(old, new):
        yield f"{name} of the prior {_change(old, new)}"


def _likelihood(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = then.get("likelihood"), now.get("likelihood")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [] if same(old, new) else [f"the likelihood was {_show(old)}, is {_show(new)}"]
    if not same(old.get("class"), new.get("class")):
        return [f"the likelihood was {_word(old)}, is {_word(new)}"]
    found = [
        f"{name} of the likelihood {_change(old.get(name), new.get(name))}"
        for name in sorted(old.keys() | new.keys(), key=str)
        if not same(old.get(name), new.get(name))
    ]
    if not same(then.get("data"), now.get("data")):
        found.append(f"the data {_change(then.get('data'), now.get('data'), 'were', 'are', 'have changed')}")
    return found + _noise(then.get("noise"), now.get("noise"))


def _noise(old: Any, new: Any) -> list[str]:
    if same(old, new):
        return []
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [f"the noise was {_show(old)}, is {_show(new)}"]
    found = []
    if not same(old.get("sd"), new.get("sd")):
        found.append(f"the noise level (sd) {_change(old.get('sd'), new.get('sd'))}")
    if not same(old.get("correlations"), new.get("correlations")):
        found.append("the correlations of the noise have changed")
    return found or ["the noise has changed"]


def _gradient(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = then.get("gradient"), now.get("gradient")
    if same(old, new):
        return []
    return [
        "the target had a gradient, has none now"
        if old is True
        else "the target had no gradient, has one now"
    ]


def _version(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = then.get("version"), now.get("version")
    if same(old, new):
        return []
    shown = ["not given" if each is None else _show(each) for each in (old, new)]
    return [f"the version was {shown[0]}, is {shown[1]}"]


def _change(old: Any, new: Any, was: str = "was", is_: str = "is", changed: str = "has changed") -> str:
    """Say from what to what, or only that it did, of arrays of one shape that are known by their hashes."""
    arrays = [each["shape"] for each in (old, new) if isinstance(each, dict) and "shape" in each]
    if len(arrays) == 2 and same(*arrays):
        return changed
    return f"{was} {_show(old)}, {is_} {_show(new)}"


def _limited(phrases: Iterator[str]) -> list[str]:
    found = list(phrases)
    return (
        found
        if len(found) <= _MOST
        else [*found[: _MOST - 1], f"and {len(found) - _MOST + 1} more of the kind"]
    )


def _kind(side: dict[str, Any]) -> str:
    kind = side.get("kind")
    return _KINDS.get(kind, _show(kind)) if isinstance(kind, str) else _show(kind)


def _word(density: dict[str, Any]) -> str:
    kind = density.get("class")
    return kind[:100] if isinstance(kind, str) else _show(kind)


def _show(value: Any) -> str:
    """Return a value for people, never long."""
    if isinstance(value, dict) and isinstance(value.get("shape"), list):
        return f"{' x '.join(map(str, value['shape'][:4])) or 'one'} values"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = ", ".join(value)
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


_BITS = 2.0**30  # nine digits
#: Of which arrays all numbers are kept, of our own priors: one a parameter.
_OWN_PRIORS: dict[type, tuple[str, ...]] = {NormalPrior: ("mean", "sd"), UniformPrior: ("lower", "upper")}


def identify(target: AnyTarget, version: str | None = None) -> dict[str, str]:
    """Return what identifies a target, by topic; each is JSON.

    Parameters
    ----------
    target : Target or ForwardTarget
    version : str, optional
        Of the user's model: to be changed with it.

    Examples
    --------
    >>> from leapwise import Target
    >>> identity = identify(Target(lambda x: -x @ x, dim=2, names=["a", "b"], bounds=[(0, None), None]), "v1")
    >>> identity["names"], identity["bounds"], identity["version"]
    ('["a", "b"]', '[[0.0, null], [null, null]]', '"v1"')
    """
    require_version(version)
    found: dict[str, Any] = {
        "kind": "forward" if target.emulates_outputs else "log-density",
        "dim": int(target.dim),
        "names": target.names if isinstance(target.names, str) else list(target.names),
        "bounds": np.stack([target.transform.lower, target.transform.upper], axis=1),
        "gradient": bool(target.has_gradient),
        "version": version,
    }
    if target.emulates_outputs:
        found |= _of_likelihood(target.likelihood) | {"prior": _of_density(target.prior)}  # type: ignore[attr-defined]
    return {topic: json.dumps(_plain(value), allow_nan=False) for topic, value in found.items()}


def differences(
    recorded: Mapping[str, str], now: Mapping[str, str], *, ignore: Collection[str] = ()
) -> list[str]:
    """Return in what a target differs from the one recorded, one phrase for each thing; none if it is the same.

    Parameters
    ----------
    recorded, now : mapping of str to str
        As `identify` returned them, then and now.
    ignore : collection of str
        Topics that do not matter, such as "gradient" for those who want to learn from the values.

    Examples
    --------
    >>> from leapwise import Target
    >>> then = Target(lambda x: -x @ x, dim=2, names=["a", "b"])
    >>> now = Target(lambda x: -x @ x, dim=2, names=["b", "a"], bounds=[(0, 1), None])
    >>> differences(identify(then), identify(now))
    ["parameters 'a' and 'b' have changed places", "bounds of 'b' were none, are (0, 1)"]
    """
    then, here = (
        {topic: _read(value) for topic, value in each.items() if topic not in ignore}
        for each in (recorded, now)
    )
    return differing(then, here)


def _read(value: object) -> Any:
    """Return what a topic holds; what is no JSON is itself, and differs from all that is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _of_likelihood(likelihood: Any) -> dict[str, Any]:
    """Return class, data and noise."""
    if type(likelihood) is not GaussianLikelihood:
        return {"likelihood": _of_density(likelihood)}
    noise = {"sd": _summary(likelihood.sd)}
    if likelihood._factor is not None:
        noise["correlations"] = _digest(_correlations(likelihood))
    return {"likelihood": {"class": "GaussianLikelihood"}, "data": _digest(likelihood.data), "noise": noise}


def _correlations(likelihood: GaussianLikelihood) -> np.ndarray:
    """Return the correlations of the noise times a fixed vector, ``(m,)``.

    They are known through a factor, whose last digits differ between machines, so they are rounded.
    """
    assert likelihood._factor is not None
    fixed = np.arange(1, likelihood.data.size + 1) * 0.6180339887498949 % 1.0
    product = likelihood._factor @ (likelihood._factor.T @ (fixed / likelihood.sd)) / likelihood.sd
    return np.asarray(product.round(8))


def _of_density(density: Any) -> dict[str, Any]:
    """Return the class of a likelihood or prior, and what it holds if that cannot change."""
    kind = type(density)
    found: dict[str, Any] = {"class": kind.__name__}
    if kind in _OWN_PRIORS:
        return found | {name: getattr(density, name) for name in _OWN_PRIORS[kind]}
    if is_dataclass(density) and kind.__dataclass_params__.frozen:
        parts = {each.name: getattr(density, each.name) for each in fields(density)}
        found |= {name: _summary(value) for name, value in parts.items() if _is_data(value)}
    return found


def _is_data(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return value is None or isinstance(value, (bool, int, float, str, np.bool_, np.integer, np.floating))


def _summary(value: Any) -> Any:
    """Return an array as one number if all are the same, else as a digest; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    same = value.size and (value == value.flat[0]).all()
    return value.flat[0] if same else _digest(value)


def _digest(array: np.ndarray) -> dict[str, Any]:
    """Return the shape of an array and hashes of its numbers, rounded to nine digits in two ways.

    Numbers that differ in the last digit only may be rounded apart in one way, but hardly ever in both.
    """
    mantissa, exponent = np.frexp(np.asarray(array, dtype="<f8"))
    ways = (np.ldexp(np.floor(mantissa * _BITS + shift) / _BITS, exponent) + 0.0 for shift in (0.5, 0.0))
    hashes = [hashlib.blake2b(way.astype("<f8").tobytes(), digest_size=8).hexdigest() for way in ways]
    return {"shape": list(np.shape(array)), "hashes": hashes}


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: what is not finite is None, which bounds have where there is none."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
