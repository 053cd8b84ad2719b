"""Is it the same target? What identifies one, as JSON that a ledger can hold, and in what two of them differ.

The identity of a target has its dimension, names, bounds, whether it has a gradient, a version that the user may give
and, of a `ForwardTarget`, the data, the noise and the parameters of the prior. A likelihood or prior of the user's own
counts by the name of its class, and by the fields of a frozen dataclass. Functions and other objects of the user do not
count: their code differs between versions of Python, and arrays that they hold may be working memory that changes with
every call. Changes there are found by evaluating a recorded position again, or by the version. Whether a target is
vectorised does not count either: it changes how the target is called, not its values.

Numbers are compared to nine digits, because data that a model made may differ in the last ones on another machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from leapwise.checks import require_version
from leapwise.targets.densities import NormalPrior, UniformPrior
from leapwise.targets.forward import ForwardTarget
from leapwise.targets.likelihoods import GaussianLikelihood
from leapwise.targets.target import AnyTarget

#: Nine digits, as a relative difference and as bits of a mantissa: well above what rounding changes in data that a
#: model made, and far below any change of them on purpose.
_PRECISION, _BITS = 1e-9, 2.0**30
#: How many entries of one array are named before the rest is counted, and the characters of one phrase. Guesses at what
#: is still read in an error message.
_MOST_ENTRIES, _MOST_CHARACTERS = 5, 300

#: The names that ledgers know our own priors by, and the arrays that identify them: one number for each parameter.
#: The names are stored: they must stay when a class is renamed.
_OWN_PRIORS: dict[type, tuple[str, tuple[str, ...]]] = {
    NormalPrior: ("NormalPrior", ("mean", "sd")),
    UniformPrior: ("UniformPrior", ("lower", "upper")),
}
#: What is not an argument in the identity of a variable's prior.
_OF_A_VARIABLE = ("name", "shape", "family")
#: Topics in the order in which differences are listed; unknown ones come last.
_TOPICS = ("kind", "dim", "names", "bounds", "prior", "likelihood", "data", "noise", "gradient", "version")


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
    if isinstance(target, ForwardTarget):
        if target.prior is None:
            found["joint"] = _of_density(target.joint)
        else:
            found |= _of_likelihood(target.likelihood) | {"prior": _of_density(target.prior)}
        if not target.sees_all:
            found["inputs"] = target.inputs.tolist()
        if target.qoi:
            found["qoi"] = {each.name: list(each.shape) or "a number" for each in target.qoi}
    elif target.prior is not None:
        found["prior"] = _of_density(target.prior)
    return {topic: json.dumps(_plain(value), allow_nan=False) for topic, value in found.items()}


def differences(
    recorded: Mapping[str, str], now: Mapping[str, str], *, ignore: Collection[str] = ()
) -> list[str]:
    """Return in what a target differs from the one recorded, a phrase for each thing; none if it is the same.

    Parameters
    ----------
    recorded, now : mapping of str to str
        As `identify` returned them, then and now. The recorded one may come from a file and hold anything.
    ignore : collection of str
        Topics that do not matter, such as "gradient" where only values are used.

    Examples
    --------
    >>> from leapwise import Target
    >>> then = Target(lambda x: -x @ x, dim=2, names=["a", "b"])
    >>> now = Target(lambda x: -x @ x, dim=2, names=["a", "b"], bounds=[(0, 1), None])
    >>> differences(identify(then), identify(now), ignore=["version"])
    ["bounds of 'a' changed from (None, None) to (0, 1)"]
    """
    old, new = ({topic: _read(value) for topic, value in each.items()} for each in (recorded, now))
    changed = [topic for topic in {*old, *new} - set(ignore) if not same(old.get(topic), new.get(topic))]
    if "kind" in changed:  # then there are no such parts to compare
        changed = [topic for topic in changed if topic not in ("prior", "likelihood", "data", "noise")]
    if "likelihood" in changed:
        changed = [topic for topic in changed if topic not in ("data", "noise")]
    changed.sort(key=lambda topic: (_TOPICS.index(topic) if topic in _TOPICS else len(_TOPICS), str(topic)))
    names = new.get("names")
    labels = names if isinstance(names, list) else [f"{names}[{i}]" for i in range(new.get("dim", 0))]
    found = [
        phrase
        for topic in changed
        for phrase in _changes(str(topic), old.get(topic), new.get(topic), [] if topic == "names" else labels)
    ]
    return [each if len(each) <= _MOST_CHARACTERS else each[: _MOST_CHARACTERS - 3] + "..." for each in found]


def same(one: Any, other: Any) -> bool:
    """Return whether two things are the same, numbers to nine digits and arrays by one of their hashes.

    Examples
    --------
    >>> same([1.0, "a"], [1.0 + 1e-12, "a"]), same(1.0, 1.001), same(1, True)
    (True, False, False)
    """
    if _is_number(one) and _is_number(other):
        small = (
            -1e308 < one < 1e308 and -1e308 < other < 1e308
        )  # JSON may hold integers beyond floating point
        return one == other or (small and math.isclose(one, other, rel_tol=_PRECISION))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if _is_array(one) and _is_array(other):
            pairs = zip(one["hashes"], other["hashes"], strict=False)
            return same(one.get("shape"), other.get("shape")) and any(a == b for a, b in pairs)
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _changes(what: str, old: Any, new: Any, labels: Sequence[str]) -> list[str]:
    """Return a phrase for each part of one topic that has changed; lists with an entry per parameter entry by entry."""
    if same(old, new):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        if _is_array(old) and _is_array(new) and same(old.get("shape"), new.get("shape")):
            return [f"{what} changed"]
        if not _is_array(old) and not _is_array(new) and same(old.get("class"), new.get("class")):
            parts = sorted(old.keys() | new.keys(), key=str)
            return [
                phrase
                for part in parts
                for phrase in _changes(f"{what} {part}", old.get(part), new.get(part), labels)
            ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) == len(labels):
        apart = [i for i in range(len(new)) if not same(old[i], new[i])]
        found = [
            f"{what} of {labels[i]!r} changed from {_show(old[i])} to {_show(new[i])}"
            for i in apart[:_MOST_ENTRIES]
        ]
        more = len(apart) - len(found)
        return found + ([f"and {what} of {more} more parameters"] if more else [])
    return [f"{what} changed from {_show(old)} to {_show(new)}"]


def _show(value: Any) -> str:
    """Return a value for people, never long."""
    if isinstance(value, dict) and isinstance(value.get("family"), str):
        arguments = [f"{name}={_show(each)}" for name, each in value.items() if name not in _OF_A_VARIABLE]
        return f"{value['family']}({', '.join(arguments)})"[:100]
    if isinstance(value, dict) and isinstance(value.get("shape"), list):
        return f"{' x '.join(map(str, value['shape'][:4])) or 'one'} values"
    if isinstance(value, dict) and isinstance(value.get("class"), str):
        return str(value["class"])[:100]
    if isinstance(value, float):
        return f"{value:.12g}"
    if (
        isinstance(value, list)
        and len(value) == 2
        and not any(isinstance(end, (str, list, dict)) for end in value)
    ):
        return f"({_show(value[0])}, {_show(value[1])})"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_array(value: dict[str, Any]) -> bool:
    """Return whether this stands for an array, by its shape and hashes."""
    return isinstance(value.get("hashes"), list)


def _read(value: object) -> Any:
    """Return what a topic holds; text that is not JSON stays as it is, and differs from all that is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _of_likelihood(likelihood: Any) -> dict[str, Any]:
    """Return class, data and noise of a likelihood."""
    if type(likelihood) is not GaussianLikelihood or not likelihood.is_plain:
        return {"likelihood": _of_density(likelihood)}
    noise = {"sd": _summary(likelihood.sd)}
    if likelihood._factor is not None:
        noise["correlations"] = _digest(_correlations(likelihood))
    return {"likelihood": {"class": "GaussianLikelihood"}, "data": _digest(likelihood.data), "noise": noise}


def _correlations(likelihood: GaussianLikelihood) -> np.ndarray:
    """Return the correlations of the noise times a fixed vector, ``(m,)``.

    They come from a Cholesky factor, whose last digits differ between machines, so they are rounded.
    """
    assert likelihood._factor is not None
    fixed = np.arange(1, likelihood.data.size + 1) * 0.6180339887498949 % 1.0
    product = likelihood._factor @ (likelihood._factor.T @ (fixed / likelihood.sd)) / likelihood.sd
    return np.asarray(product.round(8))


def _of_density(density: Any) -> dict[str, Any]:
    """Return the class of a likelihood or prior, and its contents if they cannot change."""
    kind = type(density)
    if callable(own := getattr(density, "identity", None)):
        return dict(own())
    if kind in _OWN_PRIORS:
        stored, arrays = _OWN_PRIORS[kind]
        return {"class": stored} | {name: getattr(density, name) for name in arrays}
    found: dict[str, Any] = {"class": kind.__name__}
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
    """Return a value as JSON can hold it; infinities, which stand for no bound, become None."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
